//! The portable statement of [`Simd`]: what every other instruction set must equal bit for bit.

use super::{LANES, RegisterFile, Simd};
use crate::half::{f16_to_f32, f32_to_f16};
use core::array::from_fn;

/// Plain Rust; needs no proof.
#[derive(Clone, Copy)]
pub struct Scalar;

#[inline(always)]
fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree(mut a: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
    }
    a[0]
}

/// 2ⁿ for a normal result.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type M = [bool; LANES];
    const REGISTERS: RegisterFile = RegisterFile::None;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        let elements = from.as_chunks::<4>().0;
        from_fn(|i| f32::from_le_bytes(elements[i]))
    }
    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 2 * LANES]) -> Self::F {
        let elements = from.as_chunks::<2>().0;
        from_fn(|i| f16_to_f32(u16::from_le_bytes(elements[i])))
    }
    #[inline(always)]
    fn store_f16_bytes(self, value: Self::F, to: &mut [u8; 2 * LANES]) {
        for (to, value) in to.as_chunks_mut::<2>().0.iter_mut().zip(value) {
            *to = f32_to_f16(value).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_i8_bytes(self, from: &[u8; LANES]) -> Self::F {
        from_fn(|i| f32::from(from[i] as i8))
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        [f16_to_f32(bits); LANES]
    }

    #[inline(always)]
    fn prefetch(self, _bytes: &[u8]) {}

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(always)]
    fn copy_sign(self, magnitude: Self::F, sign: Self::F) -> Self::F {
        zip(magnitude, sign, f32::copysign)
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::F, n: Self::F) -> Self::F {
        // Two factors, because 2ⁿ itself may not be a normal number. The first product is exact.
        zip(a, n, |a, n| {
            let n = n as i32;
            let half = n >> 1;
            a * power_of_two(half) * power_of_two(n - half)
        })
    }

    #[inline(always)]
    fn less(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn mask_from_bits(self, bits: u16) -> Self::M {
        from_fn(|i| bits >> i & 1 == 1)
    }
    #[inline(always)]
    fn mask_bits(self, mask: Self::M) -> u16 {
        mask.iter().enumerate().fold(0, |bits, (i, &lane)| bits | u16::from(lane) << i)
    }
    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if mask[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        from_fn(|i| {
            let rounded = a[i].round_ties_even();
            let fits = (-2_147_483_648.0..2_147_483_648.0).contains(&rounded);
            if fits { rounded as i32 } else { i32::MIN }
        })
    }
    #[inline(always)]
    fn store_i8(self, value: Self::I, to: &mut [i8; LANES]) -> i32 {
        *to = from_fn(|i| value[i] as i8);
        to.iter().map(|&x| i32::from(x)).sum()
    }

    #[inline(always)]
    fn swap_adjacent(self, a: Self::F) -> Self::F {
        from_fn(|i| a[i ^ 1])
    }
    #[inline(always)]
    fn duplicate(self, a: Self::F) -> (Self::F, Self::F) {
        (from_fn(|i| a[i / 2]), from_fn(|i| a[8 + i / 2]))
    }

    #[inline(always)]
    fn reduce_add(self, a: Self::F) -> f32 {
        tree(a, |a, b| a + b)
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        tree(a, |a, b| if a > b { a } else { b })
    }
}
