//! AVX2 with FMA and F16C: a vector is a pair of registers, lanes 0–7 and 8–15.

#![allow(unsafe_code)]

use super::{Kernel, LANES, RegisterFile, Simd};
use crate::isa::Avx2Token;
use core::arch::x86_64::*;

/// AVX2 with its proof.
#[derive(Clone, Copy)]
pub struct Avx2(#[allow(dead_code)] Avx2Token);

/// Runs `kernel` in a function that enables the target features of the token.
#[inline]
pub fn run<K: Kernel>(token: Avx2Token, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn shell<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
        kernel.run(simd)
    }
    // SAFETY: the token proves that the processor has the features that `shell` enables.
    unsafe { shell(Avx2(token), kernel) }
}

/// Applies a two-operand intrinsic to both halves.
macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        // SAFETY: `self` of the calling method proves the features; no memory operand.
        unsafe { ($op(a.0, b.0), $op(a.1, b.1)) }
    }};
}

/// 2ⁿ for a normal result.
#[inline(always)]
fn power_of_two(_proof: Avx2, n: __m256i) -> __m256 {
    // SAFETY: `_proof` proves the features.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

#[inline(always)]
fn scale_half(proof: Avx2, a: __m256, n: __m256) -> __m256 {
    // SAFETY: `proof` proves the features.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, half);
        let first = _mm256_mul_ps(a, power_of_two(proof, half));
        _mm256_mul_ps(first, power_of_two(proof, rest))
    }
}

#[inline(always)]
fn duplicate_half(_proof: Avx2, a: __m256) -> (__m256, __m256) {
    // SAFETY: `_proof` proves the features.
    unsafe {
        let low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        let high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
        (_mm256_permutevar8x32_ps(a, low), _mm256_permutevar8x32_ps(a, high))
    }
}

/// Sixteen i32 that are within i8, as bytes.
#[inline(always)]
fn narrow(_proof: Avx2, value: (__m256i, __m256i)) -> __m128i {
    // SAFETY: `_proof` proves the features.
    unsafe {
        // Packing works within halves of a register: lanes 0–3 8–11 4–7 12–15.
        let words = _mm256_packs_epi32(value.0, value.1);
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
    }
}

/// The sum of sixteen i8: each plus 128 is a u8, which one instruction adds up by eights.
#[inline(always)]
fn byte_sum(_proof: Avx2, bytes: __m128i) -> i32 {
    // SAFETY: `_proof` proves the features.
    unsafe {
        let biased = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
        let halves = _mm_sad_epu8(biased, _mm_setzero_si128());
        let sum = _mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves));
        _mm_cvtsi128_si32(sum) - 128 * LANES as i32
    }
}

// In all of this implementation: an intrinsic without memory operands needs only its target
// features, which `self` proves; one with a memory operand stays inside the array of sixteen
// elements behind the reference, unaligned forms throughout.
impl Simd for Avx2 {
    type F = (__m256, __m256);
    type I = (__m256i, __m256i);
    type M = (__m256, __m256);
    const REGISTERS: RegisterFile = RegisterFile::Eight;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves the features.
        let a = unsafe { _mm256_set1_ps(value) };
        (a, a)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: `self` proves the features; 64 bytes behind `from` are readable.
        unsafe { (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))) }
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        let at = to.as_mut_ptr();
        // SAFETY: `self` proves the features; 64 bytes behind `to` are writable.
        unsafe {
            _mm256_storeu_ps(at, value.0);
            _mm256_storeu_ps(at.add(8), value.1);
        }
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        let at = from.as_ptr().cast::<f32>();
        // SAFETY: `self` proves the features; 64 bytes behind `from` are readable.
        unsafe { (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))) }
    }
    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 2 * LANES]) -> Self::F {
        let at = from.as_ptr().cast::<__m128i>();
        // SAFETY: `self` proves the features; 32 bytes behind `from` are readable.
        unsafe {
            (_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1))))
        }
    }
    #[inline(always)]
    fn store_f16_bytes(self, value: Self::F, to: &mut [u8; 2 * LANES]) {
        let at = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: `self` proves the features; 32 bytes behind `to` are writable.
        unsafe {
            _mm_storeu_si128(at, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value.0));
            _mm_storeu_si128(at.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value.1));
        }
    }
    #[inline(always)]
    fn load_i8_bytes(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the features; 16 bytes behind `from` are readable.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        // SAFETY: `self` proves the features.
        let a = unsafe { _mm256_cvtph_ps(_mm_set1_epi16(bits.cast_signed())) };
        (a, a)
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { (_mm256_sqrt_ps(a.0), _mm256_sqrt_ps(a.1)) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        both!(_mm256_andnot_ps, self.splat(-0.0), a)
    }
    #[inline(always)]
    fn copy_sign(self, magnitude: Self::F, sign: Self::F) -> Self::F {
        let sign = both!(_mm256_and_ps, self.splat(-0.0), sign);
        both!(_mm256_or_ps, sign, self.abs(magnitude))
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe {
            (
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.0),
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.1),
            )
        }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::F, n: Self::F) -> Self::F {
        // Two factors, because 2ⁿ itself may not be a normal number. The first product is exact.
        (scale_half(self, a.0, n.0), scale_half(self, a.1, n.1))
    }

    #[inline(always)]
    fn less(self, a: Self::F, b: Self::F) -> Self::M {
        // SAFETY: `self` proves the features.
        unsafe { (_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)) }
    }
    #[inline(always)]
    fn mask_from_bits(self, bits: u16) -> Self::M {
        // SAFETY: `self` proves the features.
        unsafe {
            let all = _mm256_set1_epi32(i32::from(bits));
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            let low_set = _mm256_cmpeq_epi32(_mm256_and_si256(all, low), low);
            let high_set = _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high);
            (_mm256_castsi256_ps(low_set), _mm256_castsi256_ps(high_set))
        }
    }
    #[inline(always)]
    fn mask_bits(self, mask: Self::M) -> u16 {
        // SAFETY: `self` proves the features.
        let (low, high) = unsafe { (_mm256_movemask_ps(mask.0), _mm256_movemask_ps(mask.1)) };
        (low | high << 8) as u16
    }
    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { (_mm256_blendv_ps(b.0, a.0, mask.0), _mm256_blendv_ps(b.1, a.1, mask.1)) }
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        // SAFETY: `self` proves the features.
        unsafe { (_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1)) }
    }
    #[inline(always)]
    fn store_i8(self, value: Self::I, to: &mut [i8; LANES]) -> i32 {
        let bytes = narrow(self, value);
        // SAFETY: `self` proves the features; 16 bytes behind `to` are writable.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bytes) };
        byte_sum(self, bytes)
    }

    #[inline(always)]
    fn swap_adjacent(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe {
            (_mm256_permute_ps::<0b10_11_00_01>(a.0), _mm256_permute_ps::<0b10_11_00_01>(a.1))
        }
    }
    #[inline(always)]
    fn duplicate(self, a: Self::F) -> (Self::F, Self::F) {
        (duplicate_half(self, a.0), duplicate_half(self, a.1))
    }

    #[inline(always)]
    fn reduce_add(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let b = _mm256_add_ps(a.0, a.1);
            let c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
            let d = _mm_add_ps(c, _mm_movehl_ps(c, c));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let b = _mm256_max_ps(a.0, a.1);
            let c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
            let d = _mm_max_ps(c, _mm_movehl_ps(c, c));
            _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)))
        }
    }
}
