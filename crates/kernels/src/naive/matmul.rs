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
            acc = advance(&parts, sub, blocks.next().expect("a block each 32 columns"), acc);
        }
    }
    acc
}

/// One block of 32 columns.
fn advance(parts: &Parts, sub: usize, x: &ActBlock, acc: f32) -> f32 {
    let half_dot = |half: usize| -> i32 {
        (16 * half..16 * half + 16).map(|k| parts.q[32 * sub + k] * i32::from(x.q[k])).sum()
    };
    let half_sum =
        |half: usize| -> i32 { x.q[16 * half..16 * half + 16].iter().map(|&q| i32::from(q)).sum() };
    assert_eq!(x.s.map(i32::from), [half_sum(0), half_sum(1)]);
    if parts.scale.is_empty() {
        let dot = half_dot(0) + half_dot(1);
        let acc = (dot as f32).mul_add(parts.d * x.d, acc);
        return match parts.m {
            None => acc,
            Some(m) => ((half_sum(0) + half_sum(1)) as f32).mul_add(m * x.d, acc),
        };
    }
    let dot = parts.scale[2 * sub] * half_dot(0) + parts.scale[2 * sub + 1] * half_dot(1);
    let acc = (dot as f32).mul_add(parts.d * x.d, acc);
    match parts.dmin {
        None => acc,
        Some(dmin) => {
            let sum =
                parts.minimum[2 * sub] * half_sum(0) + parts.minimum[2 * sub + 1] * half_sum(1);
            (sum as f32).mul_add(-(dmin * x.d), acc)
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
