//! The matmul with f32 activations: float weights, or quantised ones dequantised value by value.
//!
//! `acc = fma(w, x, acc)`, one column at a time, rows across lanes. Float weights run over the
//! packed `[k][16]` directly; quantised ones pass block by block through a buffer of 32 columns
//! on the stack (2 KiB), which is exact. The shells dequantise a block once for up to 192 tokens,
//! whose accumulators wait on the stack (12 KiB).

use crate::isa::Isa;
use crate::limits::{TILE_ROWS, TOKEN_GROUP};
use crate::matmul::Epilogue;
use crate::packed::PackedTiles;
use crate::unpack::{self, Rows};

/// Weights of any kind times f32 activations, for the given tiles and all tokens.
///
/// - `weights`: the shard's tiles;
/// - `x`: tile-major, `[⌈cols/16⌉][tokens][16]`;
/// - `y`: the shard's slice of a tile-major output, `[tiles][tokens][16]`.
///
/// Panics if `tokens` is zero or a length differs.
pub fn matmul_float(
    isa: Isa,
    weights: PackedTiles<'_>,
    x: &[f32],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    assert!(tokens > 0, "at least one token");
    let x_tiles = weights.cols().div_ceil(TILE_ROWS);
    assert_eq!(Some(x.len()), (x_tiles * TILE_ROWS).checked_mul(tokens));
    assert_eq!(Some(y.len()), (weights.tile_count() * TILE_ROWS).checked_mul(tokens));
    match isa {
        Isa::Scalar => scalar(weights, x, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => super::float_avx2::matmul(token, weights, x, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => super::float_avx512::matmul(token, weights, x, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx(token) => {
            super::float_avx512::matmul(token.avx512(), weights, x, tokens, epilogue, y);
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) | Isa::Avx512(_) | Isa::Amx(_) => {
            unreachable!("a token exists on x86-64 only")
        }
    }
}

fn scalar(weights: PackedTiles<'_>, x: &[f32], tokens: usize, epilogue: Epilogue, y: &mut [f32]) {
    for (index, y) in y.chunks_exact_mut(tokens * TILE_ROWS).enumerate() {
        let tile = weights.tile(index);
        for (group, y) in y.chunks_mut(TOKEN_GROUP * TILE_ROWS).enumerate() {
            let first = group * TOKEN_GROUP;
            let mut acc = [[0.0f32; TILE_ROWS]; TOKEN_GROUP];
            let acc = &mut acc[..y.len() / TILE_ROWS];
            for_each_panel(weights, tile, |k, panel| {
                for (offset, w) in panel.iter().enumerate() {
                    for (token, acc) in acc.iter_mut().enumerate() {
                        let x = x[x_index(k + offset, first + token, tokens)];
                        for row in 0..TILE_ROWS {
                            acc[row] = w[row].mul_add(x, acc[row]);
                        }
                    }
                }
            });
            super::scalar::finish(epilogue, acc, y);
        }
    }
}

/// Where feature `k` of a token stands in a tile-major tensor.
#[inline(always)]
pub(super) fn x_index(k: usize, token: usize, tokens: usize) -> usize {
    (k / TILE_ROWS * tokens + token) * TILE_ROWS + k % TILE_ROWS
}

/// Hands the tile's values over in increasing k, as panels `[k][row]` with their first k: 32
/// columns at a time for quantised kinds, one for float kinds.
pub(super) fn for_each_panel(
    weights: PackedTiles<'_>,
    tile: &[u8],
    mut visit: impl FnMut(usize, &[Rows<f32>]),
) {
    match weights.kind().quant_layout() {
        Some(layout) => {
            for block in 0..weights.cols() / crate::limits::BLOCK_COLS {
                let values = unpack::block_values(&layout, tile, block);
                visit(block * crate::limits::BLOCK_COLS, &values);
            }
        }
        None => {
            for k in 0..weights.cols() {
                let values =
                    std::array::from_fn(|row| unpack::float_value(weights.kind(), tile, k, row));
                visit(k, &[values]);
            }
        }
    }
}
