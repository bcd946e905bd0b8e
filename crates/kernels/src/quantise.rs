//! Activations to 8 bits: one scale for 32 features of one token.
//!
//! For a block x: `amax = max |x|`, `d = amax / 127`, `q = round(x · (127 / amax))`, ties to even,
//! kept within ±127. If `amax` is zero or so small that `127 / amax` overflows, the block is
//! all zeros with `d = 0`. NaN elements do not raise `amax` and become 127: garbage in, but the
//! same garbage on every instruction set.
//!
//! Kernels that produce activations (norm, SiLU·up) call [`quantise_block`] themselves and save a
//! pass.

use crate::isa::Isa;
use crate::limits::{BLOCK_COLS, TILE_ROWS};
use crate::simd::{Kernel, Simd, Tile, dispatch, tiles};

/// 32 quantised activations of one token: `x ≈ d · q`.
///
/// An array of blocks is block-major, `[features/32][tokens]`: a block of weights meets the same
/// features of all tokens side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct ActBlock {
    /// Scale.
    pub d: f32,
    /// Sums of the two halves of `q`, which zero points and minima need.
    pub s: [i16; 2],
    /// Integers within ±127.
    pub q: [i8; BLOCK_COLS],
}

const _: () = assert!(size_of::<ActBlock>() == 40 && align_of::<ActBlock>() == 4);

impl ActBlock {
    /// The block of zeros.
    pub const ZERO: Self = Self { d: 0.0, s: [0; 2], q: [0; BLOCK_COLS] };
}

/// The smallest `amax` that is not taken for zero: below it `127 / amax` may overflow.
const AMAX_MIN: f32 = 1e-36;

/// Quantises features `0..16` and `16..32` of one token, where the block stands: one that is built
/// elsewhere and then copied waits for its own stores.
#[inline(always)]
pub fn quantise_block<S: Simd>(s: S, low: S::F, high: S::F, block: &mut ActBlock) {
    // `max` keeps its second operand when the first is a NaN.
    let amax = s.reduce_max(s.max(s.abs(high), s.max(s.abs(low), s.splat(0.0))));
    if amax < AMAX_MIN {
        *block = ActBlock::ZERO;
        return;
    }
    let inverse = s.splat(127.0 / amax);
    block.d = amax / 127.0;
    let halves = block.q.as_chunks_mut::<TILE_ROWS>().0.iter_mut().zip(&mut block.s);
    for (x, (q, sum)) in [low, high].into_iter().zip(halves) {
        let below = s.min(s.mul(x, inverse), s.splat(127.0));
        let integers = s.to_int(s.max(below, s.splat(-127.0)));
        *sum = s.store_i8(integers, q) as i16;
    }
}

/// Quantises a run of whole blocks of `tokens` tokens.
///
/// `x` is tile-major, `[2·blocks][tokens][16]`; `out` is `[blocks][tokens]`. Both are contiguous
/// parts of larger tensors if a shard of blocks is. Panics unless the lengths agree.
pub fn quantise(isa: Isa, x: &[f32], tokens: usize, out: &mut [ActBlock]) {
    assert!(tokens > 0 && out.len().is_multiple_of(tokens), "whole blocks");
    assert_eq!(x.len(), out.len() * BLOCK_COLS, "32 features a block");
    dispatch(isa, Quantise { x: tiles(x), tokens, out });
}

struct Quantise<'a> {
    x: &'a [Tile],
    tokens: usize,
    out: &'a mut [ActBlock],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.x.chunks_exact(2 * self.tokens);
        for (x, out) in pairs.zip(self.out.chunks_exact_mut(self.tokens)) {
            let (low, high) = x.split_at(self.tokens);
            for ((low, high), out) in low.iter().zip(high).zip(out) {
                quantise_block(s, s.load(low), s.load(high), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    /// The definition, with the library's own rounding.
    fn naive(x: &[f32]) -> ActBlock {
        let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let inverse = if amax < 1e-36 { 0.0 } else { 127.0 / amax };
        let d = if amax < 1e-36 { 0.0 } else { amax / 127.0 };
        let q: Vec<i8> =
            x.iter().map(|v| (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).collect();
        let sum = |q: &[i8]| q.iter().map(|&v| i16::from(v)).sum();
        ActBlock { d, s: [sum(&q[..16]), sum(&q[16..])], q: q.try_into().unwrap() }
    }

    #[test]
    fn agrees_with_the_definition_on_every_isa() {
        let mut random = SplitMix64::new(1);
        for tokens in [1usize, 2, 3, 7, 16, 33] {
            for scale in [1.0f32, 1e-38, 1e-36, 3e38, 1e-3] {
                let blocks = 3;
                let mut x = vec![0.0f32; blocks * tokens * BLOCK_COLS];
                x.iter_mut().for_each(|v| *v = random.symmetric() * scale);
                x[0] = 0.0;
                x[tokens * BLOCK_COLS..][..tokens * TILE_ROWS].fill(0.0);
                x[tokens * BLOCK_COLS + tokens * TILE_ROWS..][..tokens * TILE_ROWS].fill(-0.0);
                for isa in Isa::available() {
                    let mut out = vec![ActBlock::ZERO; blocks * tokens];
                    quantise(isa, &x, tokens, &mut out);
                    for block in 0..blocks {
                        for token in 0..tokens {
                            let at =
                                |k: usize| x[((2 * block + k / 16) * tokens + token) * 16 + k % 16];
                            let row: Vec<f32> = (0..32).map(at).collect();
                            let got = out[block * tokens + token];
                            assert_eq!(got, naive(&row), "{isa:?} {tokens} {scale}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn hostile_values_give_the_same_bits_everywhere() {
        let mut x = [1.0f32; 64];
        x[3] = f32::NAN;
        x[9] = -f32::NAN;
        x[40] = f32::INFINITY;
        x[41] = f32::NEG_INFINITY;
        let mut want = [ActBlock::ZERO; 2];
        quantise(Isa::Scalar, &x, 1, &mut want);
        assert_eq!((want[0].q[3], want[0].q[9], want[0].d), (127, 127, 1.0 / 127.0));
        assert_eq!((want[1].q[0], want[1].q[8]), (0, 127));
        for isa in Isa::available() {
            let mut got = [ActBlock::ZERO; 2];
            quantise(isa, &x, 1, &mut got);
            assert_eq!(got, want, "{isa:?}");
        }
    }

    #[test]
    fn ties_go_to_even() {
        let mut x = [0.0f32; 32];
        x[..7].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5]);
        let mut out = [ActBlock::ZERO];
        quantise(Isa::detect_best(), &x, 1, &mut out);
        assert_eq!(out[0].q[..7], [127, 0, 2, 2, 0, -2, -126]);
    }
}
