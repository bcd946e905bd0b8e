//! AVX-512: one register a vector.

#![allow(unsafe_code)]

use super::{Kernel, LANES, RegisterFile, Simd};
use crate::isa::Avx512Token;
use core::arch::x86_64::*;

/// AVX-512 with its proof.
#[derive(Clone, Copy)]
pub struct Avx512(#[allow(dead_code)] Avx512Token);

/// Runs `kernel` in a function that enables the target features of the token.
#[inline]
pub fn run<K: Kernel>(token: Avx512Token, kernel: K) -> K::Output {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn shell<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
        kernel.run(simd)
    }
    // SAFETY: the token proves that the processor has the features that `shell` enables.
    unsafe { shell(Avx512(token), kernel) }
}

/// The sum of sixteen i8: each plus 128 is a u8, which one instruction adds up by eights.
#[inline(always)]
fn byte_sum(_proof: Avx512, bytes: __m128i) -> i32 {
    // SAFETY: `_proof` proves the features.
    unsafe {
        let biased = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
        let halves = _mm_sad_epu8(biased, _mm_setzero_si128());
        let sum = _mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves));
        _mm_cvtsi128_si32(sum) - 128 * LANES as i32
    }
}

// In all of this implementation: an intrinsic without memory operands needs only its target
// features, which `self` proves; one with a memory operand reads or writes exactly the sixteen
// elements of the array behind the reference, unaligned forms throughout.
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    const REGISTERS: RegisterFile = RegisterFile::ThirtyTwo;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves the features; 64 bytes behind `from` are readable.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves the features; 64 bytes behind `to` are writable.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        // SAFETY: `self` proves the features; 64 bytes behind `from` are readable.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the features; 32 bytes behind `from` are readable.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn store_f16_bytes(self, value: Self::F, to: &mut [u8; 2 * LANES]) {
        // SAFETY: `self` proves the features; 32 bytes behind `to` are writable.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), half);
        }
    }
    #[inline(always)]
    fn load_i8_bytes(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the features; 16 bytes behind `from` are readable.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
    }
    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits.cast_signed())) }
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
        // SAFETY: `self` proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copy_sign(self, magnitude: Self::F, sign: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe {
            let sign_bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_and_ps(sign_bit, sign), _mm512_andnot_ps(sign_bit, magnitude))
        }
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_scalef_ps(a, n) }
    }

    #[inline(always)]
    fn less(self, a: Self::F, b: Self::F) -> Self::M {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn mask_from_bits(self, bits: u16) -> Self::M {
        bits
    }
    #[inline(always)]
    fn mask_bits(self, mask: Self::M) -> u16 {
        mask
    }
    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_mask_blend_ps(mask, b, a) }
    }

    #[inline(always)]
    fn to_int(self, a: Self::F) -> Self::I {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    fn store_i8(self, value: Self::I, to: &mut [i8; LANES]) -> i32 {
        // SAFETY: `self` proves the features; 16 bytes behind `to` are writable.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(value);
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
            byte_sum(self, bytes)
        }
    }

    #[inline(always)]
    fn swap_adjacent(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }
    #[inline(always)]
    fn duplicate(self, a: Self::F) -> (Self::F, Self::F) {
        // SAFETY: `self` proves the features.
        unsafe {
            let low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (_mm512_permutexvar_ps(low, a), _mm512_permutexvar_ps(high, a))
        }
    }

    #[inline(always)]
    fn reduce_add(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
            let d = _mm_add_ps(c, _mm_movehl_ps(c, c));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
            let d = _mm_max_ps(c, _mm_movehl_ps(c, c));
            _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)))
        }
    }
}
