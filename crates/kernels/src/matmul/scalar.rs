//! The portable matmul: integers and `f32::mul_add`, no intrinsics. Slow, and the same bits.

use crate::limits::{BLOCK_GROUPS, GROUP_COLS, TILE_ROWS, TOKEN_GROUP};
use crate::matmul::Epilogue;
use crate::packed::{PackedTiles, QuantLayout, ScaleScheme};
use crate::quantise::ActBlock;
use crate::unpack::{self, Block, Rows};

/// See [`crate::matmul::matmul`], which has checked the arguments.
pub(super) fn matmul(
    weights: PackedTiles<'_>,
    activations: &[ActBlock],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    let layout = weights.kind().quant_layout().expect("a quantised kind");
    for (index, y) in y.chunks_exact_mut(tokens * TILE_ROWS).enumerate() {
        let tile = weights.tile(index);
        for (group, y) in y.chunks_mut(TOKEN_GROUP * TILE_ROWS).enumerate() {
            let first = group * TOKEN_GROUP;
            let count = y.len() / TILE_ROWS;
            let mut acc = [[0.0f32; TILE_ROWS]; TOKEN_GROUP];
            for (index, x) in activations.chunks_exact(tokens).enumerate() {
                let block = unpack::block(&layout, tile, index);
                for (acc, x) in acc.iter_mut().zip(&x[first..first + count]) {
                    advance(&layout, &block, x, acc);
                }
            }
            finish(epilogue, &acc, y);
        }
    }
}

/// Takes the accumulators of one token over one block.
fn advance(layout: &QuantLayout, block: &Block, x: &ActBlock, acc: &mut Rows<f32>) {
    let dots = half_dots(layout, block, x);
    let [s0, s1] = x.s.map(i32::from);
    for row in 0..TILE_ROWS {
        let scale = |half: usize| block.d[row] * block.scales[half][row] as f32;
        let minimum = |half: usize| -(block.minimum[row] * block.minima[half][row] as f32);
        let (dot0, dot1) = (dots[0][row], dots[1][row]);
        let whole = || scale(0) * (dot0 + dot1) as f32;
        let halves = || scale(1).mul_add(dot1 as f32, scale(0) * dot0 as f32);
        let sum = match layout.scales {
            ScaleScheme::Block => whole(),
            ScaleScheme::BlockMinimum => block.minimum[row].mul_add((s0 + s1) as f32, whole()),
            ScaleScheme::Super32Minimum => minimum(0).mul_add((s0 + s1) as f32, whole()),
            ScaleScheme::Super16 => halves(),
            ScaleScheme::Super16Minimum => {
                minimum(1).mul_add(s1 as f32, minimum(0).mul_add(s0 as f32, halves()))
            }
        };
        acc[row] = sum.mul_add(x.d, acc[row]);
    }
}

/// Integer dot products of the two 16-halves, zero point subtracted.
fn half_dots(layout: &QuantLayout, block: &Block, x: &ActBlock) -> [Rows<i32>; 2] {
    let mut dots = x.s.map(|s| [-layout.zero * i32::from(s); TILE_ROWS]);
    for group in 0..BLOCK_GROUPS {
        let dot = &mut dots[group / (BLOCK_GROUPS / 2)];
        let x = &x.q[group * GROUP_COLS..][..GROUP_COLS];
        for (dot, weights) in dot.iter_mut().zip(block.integers[group].chunks_exact(GROUP_COLS)) {
            for (w, x) in weights.iter().zip(x) {
                *dot += i32::from(*w) * i32::from(*x);
            }
        }
    }
    dots
}

/// Applies the epilogue to one tile of some tokens.
pub(super) fn finish(epilogue: Epilogue, acc: &[Rows<f32>], y: &mut [f32]) {
    for (y, acc) in y.iter_mut().zip(acc.as_flattened()) {
        match epilogue {
            Epilogue::Store => *y = *acc,
            Epilogue::AddTo => *y += *acc,
        }
    }
}
