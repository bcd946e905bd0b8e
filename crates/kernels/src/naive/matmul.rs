//! The oracle's matmul: the canonical order of arithmetic, one output element at a time, from the
//! file's blocks.

use crate::naive::dequantise::{self, Parts};
use crate::packed::PackedKind;
use crate::quantise::ActBlock;
use crate::raw::{block_bytes, row_bytes};

/// Output element `y[token][row]` for one row of the file's bytes against the quantised
/// activations of one token (one block for each 32 columns). Quantised kinds only.
pub fn element(kind: PackedKind, raw_row: &[u8], activations: &[ActBlock]) -> f32 {
    let mut acc = 0.0f32;
    let mut blocks = activations.iter();
    for raw_block in raw_row.chunks_exact(block_bytes(kind)) {
        let parts = dequantise::parts(kind, raw_block);
        for sub in 0..parts.q.len() / 32 {
            let x = blocks.next().expect("a block each 32 columns");
            acc = block_sum(kind, &parts, sub, x).mul_add(x.d, acc);
        }
    }
    acc
}

/// The sum of one block of 32 columns, in units of the activations' scale.
fn block_sum(kind: PackedKind, parts: &Parts, sub: usize, x: &ActBlock) -> f32 {
    let half_dot = |half: usize| -> i32 {
        (16 * half..16 * half + 16).map(|k| parts.q[32 * sub + k] * i32::from(x.q[k])).sum()
    };
    let half_sum =
        |half: usize| -> i32 { x.q[16 * half..16 * half + 16].iter().map(|&q| i32::from(q)).sum() };
    assert_eq!(x.s.map(i32::from), [half_sum(0), half_sum(1)]);
    let dot = (half_dot(0) + half_dot(1)) as f32;
    let sum = (half_sum(0) + half_sum(1)) as f32;
    let scale = |half: usize| parts.d * parts.scale[2 * sub + half] as f32;
    let minimum = |half: usize| {
        -(parts.dmin.expect("a kind with minima") * parts.minimum[2 * sub + half] as f32)
    };
    let of_halves = || scale(1).mul_add(half_dot(1) as f32, scale(0) * half_dot(0) as f32);
    match kind {
        PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => panic!("no blocks"),
        PackedKind::Q8_0 | PackedKind::Q4_0 | PackedKind::Q5_0 => parts.d * dot,
        PackedKind::Q4_1 | PackedKind::Q5_1 => {
            parts.m.expect("a kind with a minimum").mul_add(sum, parts.d * dot)
        }
        PackedKind::Q4K | PackedKind::Q5K => minimum(0).mul_add(sum, scale(0) * dot),
        PackedKind::Q3K | PackedKind::Q6K => of_halves(),
        PackedKind::Q2K => {
            let sum = minimum(0).mul_add(half_sum(0) as f32, of_halves());
            minimum(1).mul_add(half_sum(1) as f32, sum)
        }
    }
}

/// Output element for one row of the file's bytes against f32 activations. All kinds.
pub fn element_float(kind: PackedKind, raw_row: &[u8], x: &[f32]) -> f32 {
    let weights = dequantise::row(kind, raw_row);
    assert_eq!(weights.len(), x.len());
    weights.iter().zip(x).fold(0.0, |acc, (w, x)| w.mul_add(*x, acc))
}

/// All outputs `[row][token]`, from activations `[cols/32][tokens]`.
pub fn matmul(
    kind: PackedKind,
    raw: &[u8],
    cols: usize,
    activations: &[ActBlock],
    tokens: usize,
) -> Vec<f32> {
    let row_bytes = row_bytes(kind, cols).expect("whole blocks");
    let mut out = Vec::new();
    for raw_row in raw.chunks_exact(row_bytes) {
        for token in 0..tokens {
            let mine: Vec<_> = activations.chunks_exact(tokens).map(|b| b[token]).collect();
            out.push(element(kind, raw_row, &mine));
        }
    }
    out
}
