//! Weights times activations: y = W·x for a run of row tiles and all tokens.
//!
//! **The canonical order.** Each output element has one f32 accumulator that starts at 0 and
//! takes the blocks of 32 columns in increasing order. With `I` the exact integer dot product
//! (zero point subtracted), `S` the sum of the activation integers, `dx` the activation scale and
//! every product of two scales rounded once:
//!
//! ```text
//! Q4_0 Q5_0 Q8_0   acc = fma(f32(I), d·dx, acc)
//! Q4_1 Q5_1        … then acc = fma(f32(S), m·dx, acc)
//! Q4_K Q5_K        acc = fma(f32(sc·I), d·dx, acc), then acc = fma(f32(mn·S), −(dmin·dx), acc)
//! Q6_K Q3_K        acc = fma(f32(sc0·I0 + sc1·I1), d·dx, acc)          (halves of 16 columns)
//! Q2_K             … then acc = fma(f32(mn0·S0 + mn1·S1), −(dmin·dx), acc)
//! float weights, or f32 activations: acc = fma(w, x, acc), one column at a time
//! ```
//!
//! All integers here are below 2²⁴ (see [`crate::limits`]), so their conversion is exact and a
//! shell may form them in integers or in floats. Nothing else is free: rows lie across vector
//! lanes, tokens and tiles across registers, and neither changes an element's order. So the bits
//! do not depend on the instruction set, the number of tokens, or how rows are shared out.
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
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) | Isa::Avx512(_) => unreachable!("a token exists on x86-64 only"),
    }
}
