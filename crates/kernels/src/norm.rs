//! Root-mean-square norm and layer norm, alone and fused with what usually follows.
//!
//! **Order of arithmetic**, for each token: the squares go to sixteen accumulators, accumulator
//! i mod 16, by fused multiply-add in increasing feature; one tree adds them
//! ([`Simd::reduce_add`]); `scale = 1/√(sum/C + ε)` by IEEE division and root;
//! `y = (x · scale) · w`. Layer norm takes the mean by the same accumulators, then the squares of
//! `x − mean`, and ends with one fused multiply-add of weight and bias.
//!
//! The input is always whole, since each output feature needs all of it; the output is the slice
//! of a range of tiles. Tokens are taken eight at a time, so that a tile row is read in full
//! cache lines and the accumulators stay in registers.

use crate::isa::Isa;
use crate::quantise::{ActBlock, quantise_block};
use crate::simd::{Kernel, LANES, Operand, Simd, Tile, dispatch, pick, tiles, tiles_mut};
use core::ops::Range;

/// Tokens whose sums are kept in registers together.
const TOKEN_BLOCK: usize = 8;

/// The input of a norm over all features, and the part of the output that is wanted.
#[derive(Clone, Debug)]
pub struct NormInput<'a> {
    /// Whole input, tile-major `[features/16][tokens][16]`.
    pub x: &'a [f32],
    /// One factor a feature, whole: its length is the number of features, a multiple of 16.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
    /// Tokens.
    pub tokens: usize,
    /// Tiles (16 features) of the output.
    pub tiles: Range<usize>,
}

impl<'a> NormInput<'a> {
    fn checked(&self) -> Checked<'a> {
        let (x, weight) = (tiles(self.x), tiles(self.weight));
        assert!(self.tokens > 0, "a norm needs a token");
        assert_eq!(x.len(), weight.len() * self.tokens, "tiles of the norm's input");
        assert!(self.tiles.end <= weight.len(), "tiles {:?} of {}", self.tiles, weight.len());
        Checked {
            x,
            weight: &weight[self.tiles.clone()],
            epsilon: self.epsilon,
            tokens: self.tokens,
            first_tile: self.tiles.start,
        }
    }
}

/// [`NormInput`] with its lengths proved; `weight` is the wanted part.
#[derive(Clone, Copy)]
struct Checked<'a> {
    x: &'a [Tile],
    weight: &'a [Tile],
    epsilon: f32,
    tokens: usize,
    first_tile: usize,
}

/// `out = norm(x)`; `out` is the tile-major slice of `input.tiles`.
///
/// Panics unless `out` has `input.tiles.len() · tokens · 16` elements.
pub fn rms_norm(isa: Isa, input: NormInput<'_>, out: &mut [f32]) {
    let (input, out) = (input.checked(), tiles_mut(out));
    assert_eq!(out.len(), input.weight.len() * input.tokens, "tiles of the norm's output");
    dispatch(isa, RmsNorm { input, sink: Store(out) });
}

/// `out = residual + norm(x)`, both slices of `input.tiles`: a norm after a block (Gemma).
///
/// Panics unless `out` has `input.tiles.len() · tokens · 16` elements.
pub fn rms_norm_add(isa: Isa, input: NormInput<'_>, residual: Operand<'_>, out: &mut [f32]) {
    let (input, out) = (input.checked(), tiles_mut(out));
    assert_eq!(out.len(), input.weight.len() * input.tokens, "tiles of the norm's output");
    let residual = residual.tiles(out.len());
    dispatch(isa, RmsNorm { input, sink: AddTo { residual, out } });
}

/// `out = quantise(norm(x))`, block-major `[input.tiles/2][tokens]`.
///
/// Panics unless the range is one of whole blocks (an even first tile, an even number) and `out`
/// has one block for each and each token.
pub fn rms_norm_quantise(isa: Isa, input: NormInput<'_>, out: &mut [ActBlock]) {
    let input = input.checked();
    let whole = input.first_tile.is_multiple_of(2) && input.weight.len().is_multiple_of(2);
    assert!(whole, "a quantised block is two tiles");
    assert_eq!(out.len() * 2, input.weight.len() * input.tokens, "blocks of the norm's output");
    dispatch(isa, RmsNormQuantise { input, out });
}

/// `out = norm(x)` within each head: `out` holds whole heads, tile-major, and `weight` one factor
/// for each of a head's features.
///
/// Panics unless `out` is a whole number of heads of `weight.len()` features, a multiple of 16.
pub fn head_norm(
    isa: Isa,
    x: Operand<'_>,
    weight: &[f32],
    epsilon: f32,
    tokens: usize,
    out: &mut [f32],
) {
    let (weight, out) = (tiles(weight), tiles_mut(out));
    let head = weight.len() * tokens;
    assert!(head > 0 && out.len().is_multiple_of(head), "whole heads of {head} tiles");
    let x = x.tiles(out.len());
    dispatch(isa, HeadNorm { x, weight, epsilon, tokens, out });
}

/// `out = (x − mean) · scale · weight + bias`; `bias` is whole like the weight.
///
/// Panics as [`rms_norm`] does, and unless weight and bias are of one length.
pub fn layer_norm(isa: Isa, input: NormInput<'_>, bias: &[f32], out: &mut [f32]) {
    assert_eq!(bias.len(), input.weight.len(), "features of the bias");
    let bias = &tiles(bias)[input.tiles.clone()];
    let (input, out) = (input.checked(), tiles_mut(out));
    assert_eq!(out.len(), input.weight.len() * input.tokens, "tiles of the norm's output");
    dispatch(isa, LayerNorm { input, bias, out });
}

/// What becomes of a normalised tile.
trait Sink {
    fn put<S: Simd>(&mut self, s: S, index: usize, y: S::F);
}

struct Store<'a>(&'a mut [Tile]);

impl Sink for Store<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, index: usize, y: S::F) {
        s.store(y, &mut self.0[index]);
    }
}

struct AddTo<'a> {
    residual: Option<&'a [Tile]>,
    out: &'a mut [Tile],
}

impl Sink for AddTo<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, index: usize, y: S::F) {
        let sum = s.add(s.load(pick(self.residual, self.out, index)), y);
        s.store(sum, &mut self.out[index]);
    }
}

struct RmsNorm<'a, K: Sink> {
    input: Checked<'a>,
    sink: K,
}

impl<K: Sink> Kernel for RmsNorm<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Checked { x, weight, tokens, first_tile, .. } = self.input;
        for first in (0..tokens).step_by(TOKEN_BLOCK) {
            let count = TOKEN_BLOCK.min(tokens - first);
            let scales = rms_scales(s, x, tokens, self.input.epsilon, first, count);
            for (tile, weight) in weight.iter().enumerate() {
                let weight = s.load(weight);
                let row = &x[(first_tile + tile) * tokens + first..][..count];
                for (i, (x, &scale)) in row.iter().zip(&scales).enumerate() {
                    let y = s.mul(s.mul(s.load(x), s.splat(scale)), weight);
                    self.sink.put(s, tile * tokens + first + i, y);
                }
            }
        }
    }
}

struct RmsNormQuantise<'a> {
    input: Checked<'a>,
    out: &'a mut [ActBlock],
}

impl Kernel for RmsNormQuantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Checked { x, weight, tokens, first_tile, .. } = self.input;
        for first in (0..tokens).step_by(TOKEN_BLOCK) {
            let count = TOKEN_BLOCK.min(tokens - first);
            let scales = rms_scales(s, x, tokens, self.input.epsilon, first, count);
            for (block, weight) in weight.as_chunks::<2>().0.iter().enumerate() {
                let tile = first_tile + 2 * block;
                let low = &x[tile * tokens + first..][..count];
                let high = &x[(tile + 1) * tokens + first..][..count];
                let out = &mut self.out[block * tokens + first..][..count];
                for (((low, high), &scale), out) in low.iter().zip(high).zip(&scales).zip(out) {
                    let norm = |x: &Tile, weight: &Tile| {
                        s.mul(s.mul(s.load(x), s.splat(scale)), s.load(weight))
                    };
                    quantise_block(s, norm(low, &weight[0]), norm(high, &weight[1]), out);
                }
            }
        }
    }
}

struct HeadNorm<'a> {
    x: Option<&'a [Tile]>,
    weight: &'a [Tile],
    epsilon: f32,
    tokens: usize,
    out: &'a mut [Tile],
}

impl Kernel for HeadNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, weight, epsilon, tokens, out } = self;
        let len = weight.len() * tokens;
        for (head, out) in out.chunks_exact_mut(len).enumerate() {
            let x = x.map(|x| &x[head * len..][..len]);
            for first in (0..tokens).step_by(TOKEN_BLOCK) {
                let count = TOKEN_BLOCK.min(tokens - first);
                let source = x.unwrap_or(&*out);
                let scales = rms_scales(s, source, tokens, epsilon, first, count);
                for (tile, weight) in weight.iter().enumerate() {
                    let weight = s.load(weight);
                    for (i, &scale) in scales[..count].iter().enumerate() {
                        let index = tile * tokens + first + i;
                        let x = s.load(pick(x, out, index));
                        let y = s.mul(s.mul(x, s.splat(scale)), weight);
                        s.store(y, &mut out[index]);
                    }
                }
            }
        }
    }
}

struct LayerNorm<'a> {
    input: Checked<'a>,
    bias: &'a [Tile],
    out: &'a mut [Tile],
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Checked { x, weight, tokens, first_tile, epsilon } = self.input;
        let features = (x.len() / tokens * LANES) as f32;
        for first in (0..tokens).step_by(TOKEN_BLOCK) {
            let count = TOKEN_BLOCK.min(tokens - first);
            let rows = || x.chunks_exact(tokens).map(|row| &row[first..first + count]);
            let mut sums = [s.splat(0.0); TOKEN_BLOCK];
            for row in rows() {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum = s.add(*sum, s.load(x));
                }
            }
            let means = sums.map(|sum| s.splat(s.reduce_add(sum) / features));
            let mut squares = [s.splat(0.0); TOKEN_BLOCK];
            for row in rows() {
                for ((sum, x), mean) in squares.iter_mut().zip(row).zip(means) {
                    let centred = s.sub(s.load(x), mean);
                    *sum = s.fma(centred, centred, *sum);
                }
            }
            let scales =
                squares.map(|sum| s.splat(inverse_root(s.reduce_add(sum), features, epsilon)));
            for (tile, (weight, bias)) in weight.iter().zip(self.bias).enumerate() {
                let (weight, bias) = (s.load(weight), s.load(bias));
                let row = &x[(first_tile + tile) * tokens + first..][..count];
                let out = &mut self.out[tile * tokens + first..][..count];
                for (((x, out), mean), scale) in row.iter().zip(out).zip(means).zip(scales) {
                    let scaled = s.mul(s.sub(s.load(x), mean), scale);
                    s.store(s.fma(scaled, weight, bias), out);
                }
            }
        }
    }
}

/// `1/√(sum/features + ε)`.
#[inline(always)]
fn inverse_root(sum: f32, features: f32, epsilon: f32) -> f32 {
    1.0 / (sum / features + epsilon).sqrt()
}

/// The scales of tokens `first..first + count`, `count` ≤ [`TOKEN_BLOCK`].
#[inline(always)]
fn rms_scales<S: Simd>(
    s: S,
    x: &[Tile],
    tokens: usize,
    epsilon: f32,
    first: usize,
    count: usize,
) -> [f32; TOKEN_BLOCK] {
    let features = (x.len() / tokens * LANES) as f32;
    let mut scales = [0.0; TOKEN_BLOCK];
    let mut sums = [s.splat(0.0); TOKEN_BLOCK];
    if count == TOKEN_BLOCK {
        for row in x.chunks_exact(tokens) {
            let row: &[Tile; TOKEN_BLOCK] = row[first..].first_chunk().expect("a whole block");
            for (sum, x) in sums.iter_mut().zip(row) {
                let x = s.load(x);
                *sum = s.fma(x, x, *sum);
            }
        }
    } else {
        for (i, sum) in sums[..count].iter_mut().enumerate() {
            for row in x.chunks_exact(tokens) {
                let x = s.load(&row[first + i]);
                *sum = s.fma(x, x, *sum);
            }
        }
    }
    for (scale, sum) in scales.iter_mut().zip(sums) {
        *scale = inverse_root(s.reduce_add(sum), features, epsilon);
    }
    scales
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
