//! Operations of one element at a time: gates, sums, biases, factors.
//!
//! Slices are tile-major and of one shard; nothing here looks at more than the element it writes,
//! so that any split is as good as another. [`Operand`] says whether an operation overwrites its
//! first operand.

use crate::exp::{gelu_erf, gelu_quick, gelu_tanh, silu};
use crate::isa::Isa;
use crate::quantise::{ActBlock, quantise_block};
use crate::simd::{Kernel, Operand, Simd, Tile, dispatch, pick, tiles, tiles_mut};

/// The function applied to the gate of a gated unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x / (1 + e⁻ˣ).
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU.
    GeluErf,
    /// x / (1 + e^(−1.702 x)).
    GeluQuick,
}

/// `out = function(gate) · up`.
///
/// Panics unless the lengths agree and are a multiple of 16.
pub fn gated_mul(isa: Isa, function: Gate, gate: Operand<'_>, up: &[f32], out: &mut [f32]) {
    match function {
        Gate::Silu => binary(isa, SiluMul, gate, up, out),
        Gate::GeluTanh => binary(isa, GeluTanhMul, gate, up, out),
        Gate::GeluErf => binary(isa, GeluErfMul, gate, up, out),
        Gate::GeluQuick => binary(isa, GeluQuickMul, gate, up, out),
    }
}

/// `out = quantise(function(gate) · up)`, block-major.
///
/// `gate` and `up` are tile-major slices of whole blocks, `out` is `[blocks][tokens]`. Panics
/// unless the lengths agree.
pub fn gated_mul_quantise(
    isa: Isa,
    function: Gate,
    gate: &[f32],
    up: &[f32],
    tokens: usize,
    out: &mut [ActBlock],
) {
    let (gate, up) = (tiles(gate), tiles(up));
    assert!(tokens > 0 && out.len().is_multiple_of(tokens), "whole blocks");
    assert_eq!(gate.len(), out.len() * 2, "tiles of the gate");
    assert_eq!(up.len(), gate.len(), "tiles of gate and up");
    match function {
        Gate::Silu => dispatch(isa, Quantised { op: SiluMul, gate, up, tokens, out }),
        Gate::GeluTanh => dispatch(isa, Quantised { op: GeluTanhMul, gate, up, tokens, out }),
        Gate::GeluErf => dispatch(isa, Quantised { op: GeluErfMul, gate, up, tokens, out }),
        Gate::GeluQuick => dispatch(isa, Quantised { op: GeluQuickMul, gate, up, tokens, out }),
    }
}

/// `out = a + b`.
///
/// Panics unless the lengths agree and are a multiple of 16.
pub fn add(isa: Isa, a: Operand<'_>, b: &[f32], out: &mut [f32]) {
    binary(isa, Add, a, b, out);
}

/// `out = function(x)`.
///
/// Panics unless the lengths agree and are a multiple of 16.
pub fn activate(isa: Isa, function: Gate, x: Operand<'_>, out: &mut [f32]) {
    let out = tiles_mut(out);
    let x = x.tiles(out.len());
    match function {
        Gate::Silu => dispatch(isa, Unary { op: SiluMul, x, out }),
        Gate::GeluTanh => dispatch(isa, Unary { op: GeluTanhMul, x, out }),
        Gate::GeluErf => dispatch(isa, Unary { op: GeluErfMul, x, out }),
        Gate::GeluQuick => dispatch(isa, Unary { op: GeluQuickMul, x, out }),
    }
}

/// `out = x · factors`, one factor a feature; `factors` is the shard's part.
///
/// Panics unless `out` has `factors.len() · tokens` elements.
pub fn feature_scale(isa: Isa, x: Operand<'_>, factors: &[f32], tokens: usize, out: &mut [f32]) {
    let (factors, out) = (tiles(factors), tiles_mut(out));
    assert!(tokens > 0, "factors need a token");
    assert_eq!(out.len(), factors.len() * tokens, "tiles of the scaled output");
    let x = x.tiles(out.len());
    dispatch(isa, FeatureScale { x, factors, tokens, out });
}

/// `x *= factor`.
///
/// Panics unless the length is a multiple of 16.
pub fn scale(isa: Isa, factor: f32, x: &mut [f32]) {
    dispatch(isa, Scale { factor, x: tiles_mut(x) });
}

/// `out = x + bias`, one bias a feature; `bias` is the shard's part.
///
/// Panics unless `out` has `bias.len() · tokens` elements.
pub fn bias_add(isa: Isa, x: Operand<'_>, bias: &[f32], tokens: usize, out: &mut [f32]) {
    let (bias, out) = (tiles(bias), tiles_mut(out));
    assert!(tokens > 0, "a bias needs a token");
    assert_eq!(out.len(), bias.len() * tokens, "tiles of the biased output");
    let x = x.tiles(out.len());
    dispatch(isa, BiasAdd { x, bias, tokens, out });
}

/// A function of one element.
trait UnaryOp {
    fn function<S: Simd>(s: S, x: S::F) -> S::F;
}

/// A function of two elements.
trait BinaryOp {
    fn apply<S: Simd>(s: S, a: S::F, b: S::F) -> S::F;
}

struct Add;
struct SiluMul;
struct GeluTanhMul;
struct GeluErfMul;
struct GeluQuickMul;

impl BinaryOp for Add {
    #[inline(always)]
    fn apply<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
}

/// The gates: `f(a)`, and `f(a) · b`.
macro_rules! gates {
    ($($gate:ident = $function:ident)*) => {$(
        impl UnaryOp for $gate {
            #[inline(always)]
            fn function<S: Simd>(s: S, x: S::F) -> S::F {
                $function(s, x)
            }
        }

        impl BinaryOp for $gate {
            #[inline(always)]
            fn apply<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
                s.mul($function(s, a), b)
            }
        }
    )*};
}

gates! {
    SiluMul = silu
    GeluTanhMul = gelu_tanh
    GeluErfMul = gelu_erf
    GeluQuickMul = gelu_quick
}

fn binary<O: BinaryOp>(isa: Isa, op: O, a: Operand<'_>, b: &[f32], out: &mut [f32]) {
    let (b, out) = (tiles(b), tiles_mut(out));
    assert_eq!(b.len(), out.len(), "tiles of the second operand and of the output");
    let a = a.tiles(out.len());
    dispatch(isa, Binary { op, a, b, out });
}

struct Binary<'a, O> {
    #[expect(dead_code, reason = "carries the type")]
    op: O,
    a: Option<&'a [Tile]>,
    b: &'a [Tile],
    out: &'a mut [Tile],
}

impl<O: BinaryOp> Kernel for Binary<'_, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, b) in self.b.iter().enumerate() {
            let a = s.load(pick(self.a, self.out, i));
            s.store(O::apply(s, a, s.load(b)), &mut self.out[i]);
        }
    }
}

struct Unary<'a, O> {
    #[expect(dead_code, reason = "carries the type")]
    op: O,
    x: Option<&'a [Tile]>,
    out: &'a mut [Tile],
}

impl<O: UnaryOp> Kernel for Unary<'_, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..self.out.len() {
            let x = s.load(pick(self.x, self.out, i));
            s.store(O::function(s, x), &mut self.out[i]);
        }
    }
}

struct Quantised<'a, O> {
    #[expect(dead_code, reason = "carries the type")]
    op: O,
    gate: &'a [Tile],
    up: &'a [Tile],
    tokens: usize,
    out: &'a mut [ActBlock],
}

impl<O: BinaryOp> Kernel for Quantised<'_, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pair = 2 * self.tokens;
        let rows = self.gate.chunks_exact(pair).zip(self.up.chunks_exact(pair));
        for ((gate, up), out) in rows.zip(self.out.chunks_exact_mut(self.tokens)) {
            let (gate_low, gate_high) = gate.split_at(self.tokens);
            let (up_low, up_high) = up.split_at(self.tokens);
            for (t, out) in out.iter_mut().enumerate() {
                let low = O::apply(s, s.load(&gate_low[t]), s.load(&up_low[t]));
                let high = O::apply(s, s.load(&gate_high[t]), s.load(&up_high[t]));
                quantise_block(s, low, high, out);
            }
        }
    }
}

struct Scale<'a> {
    factor: f32,
    x: &'a mut [Tile],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x {
            s.store(s.mul(s.load(x), s.splat(self.factor)), x);
        }
    }
}

struct FeatureScale<'a> {
    x: Option<&'a [Tile]>,
    factors: &'a [Tile],
    tokens: usize,
    out: &'a mut [Tile],
}

impl Kernel for FeatureScale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (tile, factors) in self.factors.iter().enumerate() {
            let factors = s.load(factors);
            for i in tile * self.tokens..(tile + 1) * self.tokens {
                let product = s.mul(s.load(pick(self.x, self.out, i)), factors);
                s.store(product, &mut self.out[i]);
            }
        }
    }
}

struct BiasAdd<'a> {
    x: Option<&'a [Tile]>,
    bias: &'a [Tile],
    tokens: usize,
    out: &'a mut [Tile],
}

impl Kernel for BiasAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (tile, bias) in self.bias.iter().enumerate() {
            let bias = s.load(bias);
            for i in tile * self.tokens..(tile + 1) * self.tokens {
                let sum = s.add(s.load(pick(self.x, self.out, i)), bias);
                s.store(sum, &mut self.out[i]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{float as naive, layout::to_tile_major};
    use crate::testing::{Random, assert_close, assert_same_bits};

    #[test]
    fn every_operation_against_the_oracle_in_place_and_in_shards() {
        let mut random = Random(21);
        for (features, tokens) in [(32, 1), (64, 3), (96, 17)] {
            let a = random.normals(features * tokens);
            let b = random.normals(features * tokens);
            let bias = random.normals(features);
            for op in 0..8 {
                let run = |isa, x: Operand<'_>, range: core::ops::Range<usize>, out: &mut [f32]| {
                    let part = &b[range.start * tokens..range.end * tokens];
                    match op {
                        0 => gated_mul(isa, Gate::Silu, x, part, out),
                        1 => gated_mul(isa, Gate::GeluTanh, x, part, out),
                        2 => add(isa, x, part, out),
                        3 => gated_mul(isa, Gate::GeluErf, x, part, out),
                        4 => activate(isa, Gate::GeluTanh, x, out),
                        5 => activate(isa, Gate::GeluQuick, x, out),
                        6 => feature_scale(isa, x, &bias[range], tokens, out),
                        _ => bias_add(isa, x, &bias[range], tokens, out),
                    }
                };
                let mut want = vec![f32::NAN; a.len()];
                run(Isa::Scalar, Operand::At(&a), 0..features, &mut want);
                let exact: Vec<f64> = (0..a.len())
                    .map(|i| {
                        let (x, y) = (f64::from(a[i]), f64::from(b[i]));
                        match op {
                            0 => naive::silu(x) * y,
                            1 => naive::gelu_tanh(x) * y,
                            2 => x + y,
                            3 => naive::gelu_erf(x) * y,
                            4 => naive::gelu_tanh(x),
                            5 => x / (1.0 + (-1.702 * x).exp()),
                            6 => x * f64::from(bias[i / (16 * tokens) * 16 + i % 16]),
                            _ => x + f64::from(bias[i / (16 * tokens) * 16 + i % 16]),
                        }
                    })
                    .collect();
                assert_close(&want, &exact, 1e-6, 1e-7, "exact");
                for isa in Isa::available() {
                    let mut got = a.clone();
                    run(isa, Operand::InPlace, 0..features, &mut got);
                    assert_same_bits(&got, &want, "in place");
                    got.fill(f32::NAN);
                    let cut = 16 * tokens;
                    let (low, high) = got.split_at_mut(cut);
                    run(isa, Operand::At(&a[cut..]), 16..features, high);
                    run(isa, Operand::At(&a[..cut]), 0..16, low);
                    assert_same_bits(&got, &want, "shards");
                }
            }
        }
    }

    #[test]
    fn fused_quantising_equals_the_two_steps() {
        let mut random = Random(22);
        for (features, tokens) in [(32, 1), (64, 3), (160, 9)] {
            let gate = to_tile_major(&random.normals(features * tokens), tokens);
            let up = random.normals(features * tokens);
            for function in [Gate::Silu, Gate::GeluTanh] {
                let mut product = vec![0.0; gate.len()];
                gated_mul(Isa::Scalar, function, Operand::At(&gate), &up, &mut product);
                let mut want = vec![ActBlock::ZERO; gate.len() / 32];
                crate::quantise::quantise(Isa::Scalar, &product, tokens, &mut want);
                for isa in Isa::available() {
                    let mut got = vec![ActBlock::ZERO; want.len()];
                    gated_mul_quantise(isa, function, &gate, &up, tokens, &mut got);
                    assert_eq!(got, want, "{}", isa.name());
                }
            }
        }
    }

    #[test]
    fn scaling() {
        for isa in Isa::available() {
            let mut x: Vec<f32> = (0..48).map(|i| i as f32).collect();
            scale(isa, 0.5, &mut x);
            assert!(x.iter().enumerate().all(|(i, &x)| x == i as f32 * 0.5));
        }
    }
}
