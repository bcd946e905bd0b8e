//! exp, tanh, sigmoid, SiLU and GELU on sixteen lanes, from our own polynomials.
//!
//! The C library picks its exp by processor; this one is a fixed sequence of [`Simd`] operations,
//! so that it has the same bits everywhere.
//!
//! **exp.** x = n·ln 2 + r with integral n and |r| ≤ ½ ln 2 (two-part Cody–Waite reduction), a
//! minimax polynomial of degree 6 for eʳ, then a scaling by 2ⁿ that rounds once, also into the
//! denormals. Error below 1 ulp; exp(−∞) = 0, overflow gives ∞, NaN stays NaN.
//!
//! **The rest.** sigmoid and SiLU are x ↦ 1/(1+e⁻ˣ) and x/(1+e⁻ˣ). GELU in its tanh form is
//! x·sigmoid(2u) with u = √(2/π)(x + 0.044715 x³): the same function as ½x(1 + tanh u), without
//! the cancellation. tanh itself is an odd polynomial below 0.625 and 1 − 2/(e²ˣ+1) above.

use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd, dispatch};

/// Above it eˣ is infinite as f32; the clamp keeps the scaling exponent in range.
const EXP_ARGUMENT_MAX: f32 = 89.0;
/// Below it eˣ rounds to zero as f32.
const EXP_ARGUMENT_MIN: f32 = -104.0;
/// Below it eˣ is taken for a weight of nothing; at it, it is a normal number by a factor of 1.4.
const WEIGHT_ARGUMENT_MIN: f32 = -87.0;

/// ln 2 = HIGH + LOW, where n · HIGH is exact for the n that occur.
const LN_2_HIGH: f32 = f32::from_bits(0x3F31_7200);
const LN_2_LOW: f32 = f32::from_bits(0x35BF_BE8E);

/// Minimax coefficients of eʳ on |r| ≤ ½ ln 2, highest power first, down to r².
const EXP_COEFFICIENTS: [f32; 5] = [
    f32::from_bits(0x3AB4_A000),
    f32::from_bits(0x3C09_2F6E),
    f32::from_bits(0x3D2A_ADAD),
    f32::from_bits(0x3E2A_AA28),
    f32::from_bits(0x3EFF_FFFB),
];

/// eˣ.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The constant stands first, so that a NaN passes through.
    exp_nonpositive(s, s.min(s.splat(EXP_ARGUMENT_MAX), x))
}

/// eˣ for x that are not positive: the bits of [`exp`], with one bound less to keep.
#[inline(always)]
fn exp_nonpositive<S: Simd>(s: S, x: S::F) -> S::F {
    exp_bounded(s, s.max(s.splat(EXP_ARGUMENT_MIN), x))
}

/// What a score weighs that is x ≤ 0 away from the largest: the bits of [`exp`] down to
/// x = −87, and 0 below.
///
/// The largest weighs 1, so what is left out is less than any sum of weights can show. Left in, it
/// would be denormal, and each product with a denormal takes some processors as long as a hundred
/// others.
#[inline(always)]
pub fn softmax_weight<S: Simd>(s: S, x: S::F) -> S::F {
    let least = s.splat(WEIGHT_ARGUMENT_MIN);
    let weight = exp_bounded(s, s.max(least, x));
    s.select(s.less(x, least), s.splat(0.0), weight)
}

/// eˣ for x in both bounds.
#[inline(always)]
fn exp_bounded<S: Simd>(s: S, x: S::F) -> S::F {
    let n = s.round(s.mul(x, s.splat(core::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN_2_HIGH), x);
    let r = s.fma(n, s.splat(-LN_2_LOW), r);
    let mut p = s.splat(EXP_COEFFICIENTS[0]);
    for coefficient in &EXP_COEFFICIENTS[1..] {
        p = s.fma(p, r, s.splat(*coefficient));
    }
    let p = s.fma(p, r, s.splat(1.0));
    let p = s.fma(p, r, s.splat(1.0));
    s.scale_by_power_of_two(p, n)
}

/// Coefficients of tanh(x)/x − 1 in x², highest power first (Cephes, tanhf).
const TANH_COEFFICIENTS: [f32; 5] =
    [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];

/// tanh x.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let magnitude = s.abs(x);
    let e = exp(s, s.add(magnitude, magnitude));
    let large = s.copy_sign(s.sub(one, s.div(s.splat(2.0), s.add(e, one))), x);
    let z = s.mul(x, x);
    let mut p = s.splat(TANH_COEFFICIENTS[0]);
    for coefficient in &TANH_COEFFICIENTS[1..] {
        p = s.fma(p, z, s.splat(*coefficient));
    }
    let small = s.copy_sign(s.fma(s.mul(p, z), x, x), x);
    s.select(s.less(magnitude, s.splat(0.625)), small, large)
}

/// x / (1 + e⁻ᵘ).
#[inline(always)]
fn times_sigmoid<S: Simd>(s: S, x: S::F, u: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), u));
    s.div(x, s.add(s.splat(1.0), e))
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    times_sigmoid(s, s.splat(1.0), x)
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    times_sigmoid(s, x, x)
}

/// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
#[inline(always)]
pub fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // 2√(2/π), folded into the factor of x and that of x³.
    const LINEAR: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.071_354_814;
    let factor = s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(LINEAR));
    times_sigmoid(s, x, s.mul(x, factor))
}

/// x · sigmoid(1.702 x).
#[inline(always)]
pub fn gelu_quick<S: Simd>(s: S, x: S::F) -> S::F {
    times_sigmoid(s, x, s.mul(x, s.splat(1.702)))
}

/// Where erf changes from its polynomial to 1 − eᵖ.
const ERF_SMALL: f32 = 0.927_734_4;
/// Coefficients of erf(x)/x − 1 in x², highest power first.
const ERF_SMALL_COEFFICIENTS: [f32; 6] = [
    -5.967_617e-4,
    4.991_194_2e-3,
    -2.676_813_5e-2,
    1.128_199_25e-1,
    -3.761_253_4e-1,
    1.283_791_7e-1,
];
/// Coefficients of ln(1 − erf x)/x + 1 in x, highest power first.
const ERF_LARGE_COEFFICIENTS: [f32; 7] = [
    -1.728_534_7e-5,
    3.831_972e-4,
    -3.883_964_5e-3,
    2.425_462_2e-2,
    -1.067_778_8e-1,
    -6.348_467e-1,
    -1.287_175_1e-1,
];

/// The error function: a polynomial of x² for small x, 1 − eᵖ⁽ˣ⁾ for others. Error about 1 ulp.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let t = s.abs(x);
    let polynomial = |coefficients: &[f32], at: S::F| {
        let mut p = s.splat(coefficients[0]);
        for coefficient in &coefficients[1..] {
            p = s.fma(p, at, s.splat(*coefficient));
        }
        p
    };
    let small = s.fma(polynomial(&ERF_SMALL_COEFFICIENTS, s.mul(x, x)), x, x);
    // At 4 the difference from 1 is below half an ulp; the constant stands first for a NaN.
    let bounded = s.min(s.splat(4.0), t);
    let exponent = polynomial(&ERF_LARGE_COEFFICIENTS, bounded);
    let exponent = s.fma(exponent, bounded, s.sub(s.splat(0.0), bounded));
    let large = s.copy_sign(s.sub(s.splat(1.0), exp(s, exponent)), x);
    s.select(s.less(s.splat(ERF_SMALL), t), large, small)
}

/// ½ x (1 + erf(x/√2)).
#[inline(always)]
pub fn gelu_erf<S: Simd>(s: S, x: S::F) -> S::F {
    let e = erf(s, s.mul(x, s.splat(core::f32::consts::FRAC_1_SQRT_2)));
    let half = s.mul(x, s.splat(0.5));
    s.fma(half, e, half)
}

/// The functions of this file, for callers outside a vector kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// eˣ.
    Exp,
    /// eˣ, or 0 below −87; x is not positive.
    SoftmaxWeight,
    /// tanh x.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// x / (1 + e⁻ˣ).
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// The error function.
    Erf,
    /// GELU.
    GeluErf,
    /// x · sigmoid(1.702 x).
    GeluQuick,
}

/// `values[i] = function(values[i])`, any length.
pub fn map_in_place(isa: Isa, function: Function, values: &mut [f32]) {
    dispatch(isa, MapInPlace { function, values });
}

struct MapInPlace<'a> {
    function: Function,
    values: &'a mut [f32],
}

impl Kernel for MapInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tiles, rest) = self.values.as_chunks_mut::<LANES>();
        for tile in tiles {
            s.store(apply(s, self.function, s.load(tile)), tile);
        }
        let mut tile = [0.0; LANES];
        tile[..rest.len()].copy_from_slice(rest);
        s.store(apply(s, self.function, s.load(&tile)), &mut tile);
        rest.copy_from_slice(&tile[..rest.len()]);
    }
}

#[inline(always)]
fn apply<S: Simd>(s: S, function: Function, x: S::F) -> S::F {
    match function {
        Function::Exp => exp(s, x),
        Function::SoftmaxWeight => softmax_weight(s, x),
        Function::Tanh => tanh(s, x),
        Function::Sigmoid => sigmoid(s, x),
        Function::Silu => silu(s, x),
        Function::GeluTanh => gelu_tanh(s, x),
        Function::Erf => erf(s, x),
        Function::GeluErf => gelu_erf(s, x),
        Function::GeluQuick => gelu_quick(s, x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_same_bits};

    const ALL: [Function; 9] = [
        Function::Exp,
        Function::SoftmaxWeight,
        Function::Tanh,
        Function::Sigmoid,
        Function::Silu,
        Function::GeluTanh,
        Function::Erf,
        Function::GeluErf,
        Function::GeluQuick,
    ];

    fn exact(function: Function, x: f64) -> f64 {
        match function {
            Function::Exp => x.exp(),
            Function::SoftmaxWeight if x < f64::from(WEIGHT_ARGUMENT_MIN) => 0.0,
            Function::SoftmaxWeight => x.exp(),
            Function::Tanh => x.tanh(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Silu => x / (1.0 + (-x).exp()),
            Function::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                x / (1.0 + (-2.0 * u).exp())
            }
            Function::Erf => libm::erf(x),
            Function::GeluErf => crate::naive::float::gelu_erf(x),
            Function::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        }
    }

    /// An argument that the function is made for.
    fn argument(function: Function, x: f32) -> f32 {
        match function {
            Function::SoftmaxWeight if x > 0.0 => -x,
            Function::SoftmaxWeight
            | Function::Exp
            | Function::Tanh
            | Function::Sigmoid
            | Function::Silu
            | Function::GeluTanh
            | Function::Erf
            | Function::GeluErf
            | Function::GeluQuick => x,
        }
    }

    /// Distance in units of the last place of the exact value's f32.
    fn error_ulp(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if got == rounded || (got.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        let magnitude = rounded.abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
        (f64::from(got) - exact).abs() / ulp
    }

    #[test]
    fn errors_stay_below_the_stated_ulps() {
        let mut random = Random(3);
        let isa = Isa::detect_best();
        // GELU's argument of exp is itself rounded: the error grows with it.
        // Where GELU is nearly 0, it is 1 + erf that is rounded: absolutely small, not relatively.
        let bounds = [
            (1.0, 110.0),
            (1.0, 110.0),
            (2.0, 20.0),
            (2.5, 87.0),
            (2.5, 80.0),
            (24.0, 4.0),
            (1.5, 6.0),
            (3.0, 1.0),
            (16.0, 8.0),
        ];
        for (function, (bound, range)) in ALL.into_iter().zip(bounds) {
            let xs: Vec<f32> = (0..400_000)
                .map(|_| ((random.next() >> 40) as f32 / 8_388_608.0 - 1.0) * range)
                .map(|x| argument(function, x))
                .collect();
            let mut ys = xs.clone();
            map_in_place(isa, function, &mut ys);
            let mut worst = (0.0, 0.0);
            for (&x, &y) in xs.iter().zip(&ys) {
                let error = error_ulp(y, exact(function, f64::from(x)));
                if error > worst.0 {
                    worst = (error, x);
                }
            }
            assert!(worst.0 <= bound, "{function:?}({}) is off by {} ulp", worst.1, worst.0);
        }
    }

    #[test]
    fn edges() {
        let cases = [
            (Function::Exp, f32::NEG_INFINITY, 0.0),
            (Function::Exp, -104.5, 0.0),
            (Function::Exp, 0.0, 1.0),
            (Function::Exp, -0.0, 1.0),
            (Function::Exp, 88.722_83, f32::from_bits(0x7F7F_FF84)),
            (Function::Exp, 88.73, f32::INFINITY),
            (Function::Exp, f32::INFINITY, f32::INFINITY),
            (Function::Exp, f32::NAN, f32::NAN),
            (Function::Exp, -103.28, f32::from_bits(1)),
            (Function::SoftmaxWeight, 0.0, 1.0),
            (Function::SoftmaxWeight, -0.0, 1.0),
            (Function::SoftmaxWeight, WEIGHT_ARGUMENT_MIN.next_down(), 0.0),
            (Function::SoftmaxWeight, -104.5, 0.0),
            (Function::SoftmaxWeight, f32::NEG_INFINITY, 0.0),
            (Function::SoftmaxWeight, f32::NAN, f32::NAN),
            (Function::Tanh, f32::INFINITY, 1.0),
            (Function::Tanh, f32::NEG_INFINITY, -1.0),
            (Function::Tanh, -0.0, -0.0),
            (Function::Tanh, 1e-30, 1e-30),
            (Function::Tanh, f32::NAN, f32::NAN),
            (Function::Sigmoid, f32::INFINITY, 1.0),
            (Function::Sigmoid, f32::NEG_INFINITY, 0.0),
            (Function::Silu, -200.0, -0.0),
            (Function::Silu, f32::INFINITY, f32::INFINITY),
            (Function::GeluTanh, -50.0, -0.0),
            (Function::GeluTanh, 1e30, 1e30),
            (Function::GeluTanh, f32::NAN, f32::NAN),
            (Function::Erf, f32::INFINITY, 1.0),
            (Function::Erf, -9.0, -1.0),
            (Function::Erf, -0.0, -0.0),
            (Function::Erf, f32::NAN, f32::NAN),
            (Function::GeluErf, 30.0, 30.0),
            (Function::GeluErf, -30.0, 0.0),
            (Function::GeluErf, f32::NAN, f32::NAN),
            (Function::GeluQuick, 1e30, 1e30),
        ];
        for isa in Isa::available() {
            for (function, x, want) in cases {
                let mut y = [x];
                map_in_place(isa, function, &mut y);
                assert_same_bits(&y, &[want], &format!("{function:?}({x}) on {}", isa.name()));
            }
        }
    }

    #[test]
    fn the_same_bits_on_every_instruction_set() {
        let mut random = Random(5);
        for len in [1, 15, 16, 17, 4099] {
            let drawn: Vec<f32> = (0..len).map(|_| random.any_f32() * 4.0).collect();
            for function in ALL {
                let xs: Vec<f32> = drawn.iter().map(|x| argument(function, *x)).collect();
                let mut want = xs.clone();
                map_in_place(Isa::Scalar, function, &mut want);
                for isa in Isa::available() {
                    let mut got = xs.clone();
                    map_in_place(isa, function, &mut got);
                    assert_same_bits(&got, &want, isa.name());
                }
            }
        }
    }
}
