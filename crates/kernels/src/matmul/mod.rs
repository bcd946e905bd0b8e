//! Weights times activations: y = W·x for a run of row tiles and all tokens.
//!
//! **The canonical order.** Each output element has one f32 accumulator that starts at 0 and
//! takes the blocks of 32 columns in increasing order, each by `acc = fma(t, dx, acc)`, where `dx`
//! is the scale of the activations and `t` the block's sum in units of it. With `I` the exact
//! integer dot product (zero point subtracted) and `S` the sum of the activation integers, of the
//! block or of its halves of 16 columns, and w = d·scale, n = dmin·minimum each rounded once:
//!
//! ```text
//! Q4_0 Q5_0 Q8_0   t = d·f32(I)
//! Q4_1 Q5_1        t = fma(m, f32(S), d·f32(I))
//! Q4_K Q5_K        t = fma(−n, f32(S), w·f32(I))
//! Q6_K Q3_K        t = fma(w1, f32(I1), w0·f32(I0))
//! Q2_K             t = fma(−n1, f32(S1), fma(−n0, f32(S0), fma(w1, f32(I1), w0·f32(I0))))
//! float weights, or f32 activations: acc = fma(w, x, acc), one column at a time
//! ```
//!
//! What belongs to the weights alone, w and n, is made once for many tokens; so each kind costs a
//! token as few products as its scales allow: two, and one more for each further scale or minimum.
//! The integers are below 2²⁴ (see [`crate::limits`]), so their conversion is exact. Nothing else
//! is free: rows lie across vector lanes, tokens and tiles across registers, and neither changes
//! an element's order. So the bits do not depend on the instruction set, the number of tokens, or
//! how rows are shared out.
//!
//! This file chooses the shell; it knows no instruction set itself.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
mod float;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod float_avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod float_avx512;
mod kinds;
mod scalar;

use crate::isa::Isa;
use crate::limits::{BLOCK_COLS, TILE_ROWS};
use crate::packed::PackedTiles;
use crate::quantise::ActBlock;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::tiles::operations as tile_operations;
pub use float::matmul_float;

/// What happens to the output with a finished accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `y = acc`.
    Store,
    /// `y = y + acc`, one rounded addition: a residual connection.
    AddTo,
}

/// Quantised weights times quantised activations, for the given tiles and all tokens.
///
/// - `weights`: the shard's tiles, of a quantised kind;
/// - `activations`: `[cols/32][tokens]`;
/// - `y`: the shard's slice of a tile-major output, `[tiles][tokens][16]`.
///
/// Panics if the kind is a float kind, `tokens` is zero, or a length differs.
pub fn matmul(
    isa: Isa,
    weights: PackedTiles<'_>,
    activations: &[ActBlock],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    assert!(weights.kind().quant_layout().is_some(), "{:?} has no integers", weights.kind());
    assert!(tokens > 0, "at least one token");
    assert_eq!(Some(activations.len()), (weights.cols() / BLOCK_COLS).checked_mul(tokens));
    assert_eq!(Some(y.len()), (weights.tile_count() * TILE_ROWS).checked_mul(tokens));
    match isa {
        Isa::Scalar => scalar::matmul(weights, activations, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => avx2::matmul(token, weights, activations, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => avx512::matmul(token, weights, activations, tokens, epilogue, y),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx(token) => avx512::tiles::matmul(token, weights, activations, tokens, epilogue, y),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) | Isa::Avx512(_) | Isa::Amx(_) => {
            unreachable!("a token exists on x86-64 only")
        }
    }
}
