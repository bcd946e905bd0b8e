//! One block of 32 columns of one tile with 512-bit vectors: unpacking, scales, and taking the
//! accumulators of a token over it.
//!
//! What a block of a token gives to all rows alike, its sums with the zero point in them, comes
//! as [`Sums`], so that it is made once for many tiles: a processor has two pipes for products,
//! integer and float, and this kernel is bound by them. Of a block of Q4_0 eight slots are
//! integer products, one the product with the scale, one the fused multiply-add; each further
//! scale or minimum takes one more. The conversions and the broadcasts go elsewhere.

use core::arch::x86_64::*;

use crate::limits::{BLOCK_GROUPS, TILE_ROWS, VECTOR_BYTES};
use crate::matmul::kinds::Kind;
use crate::packed::ScaleScheme;
use crate::quantise::ActBlock;

/// What one block of one token gives to all rows alike, as words to broadcast.
///
/// - one scale: −z·S;
/// - one scale and a minimum (the zero point is 0): the bits of f32(S);
/// - sub-blocks of 16: −z·S₀ and −z·S₁ of the two halves;
/// - sub-blocks of 16 with minima (the zero point is 0): the bits of f32(S₀) and f32(S₁).
pub(super) type Sums = [i32; 2];

/// The sums of a block.
#[inline]
pub(super) fn sums<K: Kind>(s: [i16; 2]) -> Sums {
    let zero = K::LAYOUT.zero;
    const { assert!(!K::LAYOUT.scales.has_minimum() || K::LAYOUT.zero == 0) };
    let [s0, s1] = s.map(i32::from);
    let float = |sum: i32| (sum as f32).to_bits().cast_signed();
    match K::LAYOUT.scales {
        ScaleScheme::Block => [-zero * (s0 + s1), 0],
        ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => [float(s0 + s1), 0],
        ScaleScheme::Super16 => [-zero * s0, -zero * s1],
        ScaleScheme::Super16Minimum => [float(s0), float(s1)],
    }
}

/// Asks for `length` bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn prefetch(at: *const u8, length: usize) {
    for line in 0..length.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast());
    }
}

/// Most tokens with which a block's vectors are loaded in the order of their addresses.
pub(super) const IN_ORDER_TOKENS_MAX: usize = 3;

/// Loads a vector; not before one that the program loads earlier. Left alone, the compiler may
/// load a block from its end, and the processor, which would follow a stream that only goes
/// forward, then reads memory at half its speed.
///
/// # Safety
/// AVX-512 is there; `at` points to 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_in_order(at: *const u8) -> __m512i {
    let vector: __m512i;
    // SAFETY: the instruction reads 64 bytes at `at` and does nothing else. It is not `pure`, so
    // such loads stay in their order.
    unsafe {
        core::arch::asm!(
            "vmovdqu64 {vector}, [{at}]",
            vector = lateout(zmm_reg) vector,
            at = in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
    vector
}

/// As [`load_in_order`], 32 bytes.
///
/// # Safety
/// AVX2 is there; `at` points to 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_half_in_order(at: *const u8) -> __m256i {
    let vector: __m256i;
    // SAFETY: as in `load_in_order`, 32 bytes.
    unsafe {
        core::arch::asm!(
            "vmovdqu {vector}, [{at}]",
            vector = lateout(ymm_reg) vector,
            at = in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
    vector
}

/// The unsigned integers of one block of one tile, k-group by k-group.
///
/// # Safety
/// The features are there; `at` points to the planes of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn unpack<K: Kind, const TOKENS: usize>(
    at: *const u8,
) -> [__m512i; BLOCK_GROUPS] {
    let layout = K::LAYOUT;
    let mut vectors = [_mm512_setzero_si512(); BLOCK_GROUPS];
    let count = (layout.low_bytes() + layout.high_bytes()) / VECTOR_BYTES;
    for (vector, loaded) in vectors.iter_mut().enumerate().take(count) {
        // SAFETY: the vector is inside the planes.
        *loaded = unsafe {
            let at = at.add(vector * VECTOR_BYTES);
            match TOKENS <= IN_ORDER_TOKENS_MAX {
                true => load_in_order(at),
                false => _mm512_loadu_si512(at.cast()),
            }
        };
    }
    let load = |vector: usize| vectors[vector];
    let mut integers = [_mm512_setzero_si512(); BLOCK_GROUPS];
    match layout.low_bits {
        8 => {
            let sign = _mm512_set1_epi8(-128);
            for (group, integers) in integers.iter_mut().enumerate() {
                *integers = _mm512_xor_si512(load(group), sign);
            }
        }
        4 => {
            let mask = _mm512_set1_epi8(0x0F);
            for vector in 0..4 {
                let pair = load(vector);
                integers[vector] = _mm512_and_si512(pair, mask);
                integers[vector + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(pair), mask);
            }
        }
        _ => {
            let mask = _mm512_set1_epi8(0x03);
            for (group, integers) in integers.iter_mut().enumerate() {
                let four = shift_right(load(group / 4), 2 * (group % 4));
                *integers = _mm512_and_si512(four, mask);
            }
        }
    }
    let first_high = layout.low_bytes() / VECTOR_BYTES;
    if layout.high_bits > 0 {
        let mask = _mm512_set1_epi8((((1 << layout.high_bits) - 1) << layout.low_bits) as i8);
        for (group, integers) in integers.iter_mut().enumerate() {
            let per_vector = layout.groups_per_high_vector();
            let word = load(first_high + group / per_vector);
            let position = layout.high_bits * (group % per_vector);
            let high = if position >= layout.low_bits {
                shift_right(word, position - layout.low_bits)
            } else {
                shift_left(word, layout.low_bits - position)
            };
            // integers | high & mask
            *integers = _mm512_ternarylogic_epi32::<0xF8>(*integers, high, mask);
        }
    }
    integers
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn shift_right(x: __m512i, bits: usize) -> __m512i {
    _mm512_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn shift_left(x: __m512i, bits: usize) -> __m512i {
    _mm512_sll_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

/// The scales of one block of one tile, in the form that [`advance`] wants.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    /// Scales of the two halves (one, where a scale covers 32 columns).
    pub scales: [__m512; 2],
    /// Minima of the two halves, likewise; with their sign for super-blocks.
    pub minima: [__m512; 2],
}

impl Scales {
    /// All zeros.
    pub const NONE: Self = {
        // SAFETY: every bit pattern is a vector of floats.
        let zero = unsafe { core::mem::transmute::<[f32; 16], __m512>([0.0; 16]) };
        Self { scales: [zero; 2], minima: [zero; 2] }
    };

    /// # Safety
    /// The features are there; `header` points to the super-block's header (ignored for block
    /// kinds) and `block` to the block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn load<K: Kind, const TOKENS: usize>(header: *const u8, block: *const u8) -> Self {
        let layout = K::LAYOUT;
        // SAFETY: block_bytes = planes + scale_bytes; each load stays below scale_bytes or
        // header_bytes of that scheme.
        unsafe {
            let scales = block.add(layout.low_bytes() + layout.high_bytes());
            let f16 = |at: *const u8| {
                _mm512_cvtph_ps(match TOKENS <= IN_ORDER_TOKENS_MAX {
                    true => load_half_in_order(at),
                    false => _mm256_loadu_si256(at.cast()),
                })
            };
            let bytes = |at: usize| _mm_loadu_si128(scales.add(at * TILE_ROWS).cast());
            let unsigned = |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(at)));
            let signed = |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(at)));
            let none = _mm512_setzero_ps();
            let d = || f16(header);
            let minus_dmin = || _mm512_sub_ps(none, f16(header.add(2 * TILE_ROWS)));
            match layout.scales {
                ScaleScheme::Block => Self { scales: [f16(scales), none], minima: [none; 2] },
                ScaleScheme::BlockMinimum => Self {
                    scales: [f16(scales), none],
                    minima: [f16(scales.add(2 * TILE_ROWS)), none],
                },
                ScaleScheme::Super32Minimum => Self {
                    scales: [_mm512_mul_ps(d(), unsigned(0)), none],
                    minima: [_mm512_mul_ps(minus_dmin(), unsigned(1)), none],
                },
                ScaleScheme::Super16 => {
                    let d = d();
                    Self {
                        scales: [_mm512_mul_ps(d, signed(0)), _mm512_mul_ps(d, signed(1))],
                        minima: [none; 2],
                    }
                }
                ScaleScheme::Super16Minimum => {
                    let (d, dmin) = (d(), minus_dmin());
                    Self {
                        scales: [_mm512_mul_ps(d, unsigned(0)), _mm512_mul_ps(d, unsigned(1))],
                        minima: [
                            _mm512_mul_ps(dmin, unsigned(2)),
                            _mm512_mul_ps(dmin, unsigned(3)),
                        ],
                    }
                }
            }
        }
    }
}

/// Takes the accumulators of 16 rows and one token over one block.
///
/// # Safety
/// The features are there; `x` points to a block, `given` to its [`sums`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn advance<K: Kind, const TOKENS: usize>(
    integers: &[__m512i; BLOCK_GROUPS],
    scales: &Scales,
    x: *const ActBlock,
    given: *const Sums,
    acc: __m512,
) -> __m512 {
    // SAFETY: both pointers are valid; q is 32 bytes, read as 8 words.
    let (words, dx, given) = unsafe {
        let words = (&raw const (*x).q).cast::<i32>();
        (words, _mm512_set1_ps((*x).d), given.cast::<i32>())
    };
    // SAFETY: half < 2, and there are two words of sums.
    let given = |half: usize| unsafe { _mm512_set1_epi32(given.add(half).read()) };
    let given_float = |half: usize| _mm512_castsi512_ps(given(half));
    let start = |half: usize| match K::LAYOUT.zero {
        0 => _mm512_setzero_si512(),
        _ => given(half),
    };
    let dot = |half: usize, groups: core::ops::Range<usize>| {
        let sum = groups.fold(start(half), |sum, group| {
            // SAFETY: group < 8.
            let word = unsafe { words.add(group).read_unaligned() };
            _mm512_dpbusd_epi32(sum, integers[group], _mm512_set1_epi32(word))
        });
        _mm512_cvtepi32_ps(sum)
    };
    let Scales { scales, minima } = scales;
    let whole = || _mm512_mul_ps(scales[0], dot(0, 0..8));
    let halves =
        || _mm512_fmadd_ps(scales[1], dot(1, 4..8), _mm512_mul_ps(scales[0], dot(0, 0..4)));
    let sum = match K::LAYOUT.scales {
        ScaleScheme::Block => whole(),
        ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => {
            _mm512_fmadd_ps(minima[0], given_float(0), whole())
        }
        ScaleScheme::Super16 => halves(),
        ScaleScheme::Super16Minimum => {
            let sum = _mm512_fmadd_ps(minima[0], given_float(0), halves());
            _mm512_fmadd_ps(minima[1], given_float(1), sum)
        }
    };
    _mm512_fmadd_ps(sum, dx, acc)
}
