//! One block of 32 columns of one tile with 256-bit vectors: unpacking, scales, and taking the
//! accumulators of a token over it.
//!
//! Everything is `inline(always)` and enables nothing itself: each function is called, at last,
//! from a shell in the parent module that does.

use core::arch::x86_64::*;
use core::ops::Range;

use crate::limits::{ACTIVATION_MAX, BLOCK_GROUPS, TILE_ROWS, VECTOR_BYTES};
use crate::matmul::kinds::Kind;
use crate::packed::{QuantLayout, ScaleScheme};
use crate::quantise::ActBlock;

use super::HALF_ROWS;

/// Something for rows 0..8 and rows 8..16.
pub(super) type Halves<T> = [T; 2];

/// The integers of a block, k-group by k-group.
type Integers = [Halves<__m256i>; BLOCK_GROUPS];

/// How products of weights and activations are summed.
pub(super) trait Multiply {
    /// Whether 8-bit weights are wanted unsigned, 128 up, or as they are stored.
    const WANTS_UNSIGNED_BYTES: bool;

    /// Dot products of some k-groups; the zero point is not yet subtracted.
    ///
    /// # Safety
    /// AVX2 and the implementation's feature are there; `x` points to a block.
    unsafe fn dot<K: Kind>(
        integers: &Integers,
        x: *const ActBlock,
        groups: Range<usize>,
    ) -> Halves<__m256i>;
}

/// `vpmaddubsw`: pairs of products in i16. As many of those as provably fit are added before
/// `vpmaddwd` widens them (8 k-groups of 4-bit weights: 8·2·15·127 < 2¹⁵). Signed 8-bit weights
/// go through |w| and x·sign(w).
pub(super) struct Pairs;

impl Multiply for Pairs {
    const WANTS_UNSIGNED_BYTES: bool = false;

    #[inline(always)]
    unsafe fn dot<K: Kind>(
        integers: &Integers,
        x: *const ActBlock,
        groups: Range<usize>,
    ) -> Halves<__m256i> {
        let run = groups_per_flush(&K::LAYOUT).min(groups.len().max(1));
        // SAFETY: as this function's; every group is one of the block's 8.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [_mm256_setzero_si256(); 2];
            for first in groups.step_by(run) {
                let mut narrow = [_mm256_setzero_si256(); 2];
                for (group, integers) in integers.iter().enumerate().skip(first).take(run) {
                    let x = four_columns(x, group);
                    for (narrow, w) in narrow.iter_mut().zip(integers) {
                        let products = match K::LAYOUT.low_bits {
                            8 => _mm256_maddubs_epi16(_mm256_abs_epi8(*w), _mm256_sign_epi8(x, *w)),
                            _ => _mm256_maddubs_epi16(*w, x),
                        };
                        *narrow = _mm256_add_epi16(*narrow, products);
                    }
                }
                for (sum, narrow) in sums.iter_mut().zip(narrow) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, ones));
                }
            }
            sums
        }
    }
}

/// AVX-VNNI's `vpdpbusd`: four products added to an i32.
pub(super) struct Vnni;

/// The same instruction as AVX-512 encodes it: where AVX-VNNI is absent, tests of the code around
/// [`Vnni`] run with this.
#[cfg(test)]
pub(super) struct EvexVnni;

/// Implements [`Multiply`] for an encoding of `vpdpbusd`.
macro_rules! multiply_by_vnni {
    ($name:ident, $intrinsic:ident) => {
        impl Multiply for $name {
            const WANTS_UNSIGNED_BYTES: bool = true;

            #[inline(always)]
            unsafe fn dot<K: Kind>(
                integers: &Integers,
                x: *const ActBlock,
                groups: Range<usize>,
            ) -> Halves<__m256i> {
                let (first, count) = (groups.start, groups.len());
                // SAFETY: as this function's; every group is one of the block's 8.
                unsafe {
                    let mut sums = [_mm256_setzero_si256(); 2];
                    for (group, integers) in integers.iter().enumerate().skip(first).take(count) {
                        let x = four_columns(x, group);
                        for (sum, w) in sums.iter_mut().zip(integers) {
                            *sum = $intrinsic(*sum, *w, x);
                        }
                    }
                    sums
                }
            }
        }
    };
}

multiply_by_vnni!(Vnni, _mm256_dpbusd_avx_epi32);
#[cfg(test)]
multiply_by_vnni!(EvexVnni, _mm256_dpbusd_epi32);

/// The activations of one k-group in every row.
///
/// # Safety
/// AVX2 is there; `x` points to a block; `group` < 8.
#[inline(always)]
unsafe fn four_columns(x: *const ActBlock, group: usize) -> __m256i {
    // SAFETY: q is 32 bytes, read as 8 words.
    unsafe { _mm256_set1_epi32((&raw const (*x).q).cast::<i32>().add(group).read_unaligned()) }
}

/// The integers of one block of one tile: unsigned, but 8-bit ones as `M` wants them.
///
/// # Safety
/// AVX2 is there; `at` points to the planes of a block.
#[inline(always)]
pub(super) unsafe fn unpack<K: Kind, M: Multiply>(at: *const u8) -> Integers {
    let layout = K::LAYOUT;
    let first_high = layout.low_bytes() / VECTOR_BYTES;
    // SAFETY: every vector below is < (low_bytes + high_bytes) / 64, every half < 2.
    unsafe {
        let mut integers = [[_mm256_setzero_si256(); 2]; BLOCK_GROUPS];
        for (group, integers) in integers.iter_mut().enumerate() {
            for (half, integers) in integers.iter_mut().enumerate() {
                let low = low_bits::<M>(at, layout.low_bits, group, half);
                *integers = if layout.high_bits == 0 {
                    low
                } else {
                    let per_vector = layout.groups_per_high_vector();
                    let word = load(at, first_high + group / per_vector, half);
                    let position = layout.high_bits * (group % per_vector);
                    let high = if position >= layout.low_bits {
                        shift_right(word, position - layout.low_bits)
                    } else {
                        shift_left(word, layout.low_bits - position)
                    };
                    let mask = ((1 << layout.high_bits) - 1) << (layout.low_bits & 7);
                    _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask as i8)))
                };
            }
        }
        integers
    }
}

/// The low bits of one k-group and half.
///
/// # Safety
/// As [`unpack`]'s.
#[inline(always)]
unsafe fn low_bits<M: Multiply>(at: *const u8, bits: usize, group: usize, half: usize) -> __m256i {
    // SAFETY: as this function's.
    unsafe {
        match bits {
            8 => match M::WANTS_UNSIGNED_BYTES {
                true => _mm256_xor_si256(load(at, group, half), _mm256_set1_epi8(-128)),
                false => load(at, group, half),
            },
            4 => {
                let pair = shift_right(load(at, group % 4, half), 4 * (group / 4));
                _mm256_and_si256(pair, _mm256_set1_epi8(0x0F))
            }
            _ => {
                let four = shift_right(load(at, group / 4, half), 2 * (group % 4));
                _mm256_and_si256(four, _mm256_set1_epi8(0x03))
            }
        }
    }
}

/// Half of a vector of the planes.
///
/// # Safety
/// AVX2 is there; the vector is inside the planes.
#[inline(always)]
unsafe fn load(planes: *const u8, vector: usize, half: usize) -> __m256i {
    let at = vector * VECTOR_BYTES + half * VECTOR_BYTES / 2;
    // SAFETY: as this function's.
    unsafe { _mm256_loadu_si256(planes.add(at).cast()) }
}

/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn shift_right(x: __m256i, bits: usize) -> __m256i {
    // SAFETY: as this function's.
    unsafe { _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits as i32)) }
}

/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn shift_left(x: __m256i, bits: usize) -> __m256i {
    // SAFETY: as this function's.
    unsafe { _mm256_sll_epi16(x, _mm_cvtsi32_si128(bits as i32)) }
}

/// The scales of 8 rows of one block, in the form that [`advance`] wants.
pub(super) struct Scales {
    /// Scales of the two 16-column halves (one, where a scale covers 32 columns).
    scales: [__m256; 2],
    /// Minima of the two 16-column halves, likewise; with their sign for super-blocks.
    minima: [__m256; 2],
}

impl Scales {
    /// # Safety
    /// AVX2 and F16C are there; `header` points to the super-block's header (ignored for block
    /// kinds) and `block` to the block; `half` < 2.
    #[inline(always)]
    pub(super) unsafe fn load<K: Kind>(header: *const u8, block: *const u8, half: usize) -> Self {
        let layout = K::LAYOUT;
        // SAFETY: block_bytes = planes + scale_bytes; each load stays below scale_bytes or
        // header_bytes of that scheme.
        unsafe {
            let bytes = block.wrapping_add(layout.low_bytes() + layout.high_bytes());
            let none = _mm256_setzero_ps();
            let scale = |at: usize| _mm256_mul_ps(f16(header, 0, half), unsigned(bytes, at, half));
            let signed = |at: usize| _mm256_mul_ps(f16(header, 0, half), signed(bytes, at, half));
            let minimum = |at: usize| {
                let dmin = _mm256_sub_ps(none, f16(header, 1, half));
                _mm256_mul_ps(dmin, unsigned(bytes, at, half))
            };
            let (scales, minima) = match layout.scales {
                ScaleScheme::Block => ([f16(bytes, 0, half), none], [none; 2]),
                ScaleScheme::BlockMinimum => {
                    ([f16(bytes, 0, half), none], [f16(bytes, 1, half), none])
                }
                ScaleScheme::Super32Minimum => ([scale(0), none], [minimum(1), none]),
                ScaleScheme::Super16 => ([signed(0), signed(1)], [none; 2]),
                ScaleScheme::Super16Minimum => ([scale(0), scale(1)], [minimum(2), minimum(3)]),
            };
            Self { scales, minima }
        }
    }
}

/// The f16 of 8 rows, from the `index`-th run of 16.
///
/// # Safety
/// AVX2 and F16C are there; the run exists; `half` < 2.
#[inline(always)]
unsafe fn f16(at: *const u8, index: usize, half: usize) -> __m256 {
    // SAFETY: as this function's.
    unsafe {
        let at = at.add(2 * (index * TILE_ROWS + half * HALF_ROWS));
        _mm256_cvtph_ps(_mm_loadu_si128(at.cast()))
    }
}

/// The u8 of 8 rows, from the `index`-th run of 16.
///
/// # Safety
/// As [`f16`]'s.
#[inline(always)]
unsafe fn unsigned(at: *const u8, index: usize, half: usize) -> __m256 {
    // SAFETY: as this function's.
    unsafe {
        let at = at.add(index * TILE_ROWS + half * HALF_ROWS);
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())))
    }
}

/// The i8 of 8 rows, from the `index`-th run of 16.
///
/// # Safety
/// As [`f16`]'s.
#[inline(always)]
unsafe fn signed(at: *const u8, index: usize, half: usize) -> __m256 {
    // SAFETY: as this function's.
    unsafe {
        let at = at.add(index * TILE_ROWS + half * HALF_ROWS);
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())))
    }
}

/// How many k-groups' pairs of products may be added in an i16.
const fn groups_per_flush(layout: &QuantLayout) -> usize {
    let weight_max =
        if layout.low_bits == 8 { 128 } else { (1 << (layout.low_bits + layout.high_bits)) - 1 };
    let groups = i16::MAX as usize / (2 * weight_max * ACTIVATION_MAX as usize);
    // A power of two, so that runs tile a half of 4 k-groups or a block of 8.
    match groups {
        0 => panic!("one pair of products fits an i16"),
        1 => 1,
        2 | 3 => 2,
        4..8 => 4,
        _ => 8,
    }
}

/// Takes the accumulators of 16 rows and one token over one block.
///
/// # Safety
/// AVX2, FMA and the feature of `M` are there; `x` points to a block.
#[inline(always)]
pub(super) unsafe fn advance<K: Kind, M: Multiply>(
    integers: &Integers,
    scales: &Halves<Scales>,
    x: *const ActBlock,
    acc: Halves<__m256>,
) -> Halves<__m256> {
    let layout = K::LAYOUT;
    let is_signed = layout.low_bits == 8 && !M::WANTS_UNSIGNED_BYTES;
    let zero = if is_signed { 0 } else { layout.zero };
    let middle = match layout.scales {
        ScaleScheme::Block | ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => {
            BLOCK_GROUPS
        }
        ScaleScheme::Super16 | ScaleScheme::Super16Minimum => BLOCK_GROUPS / 2,
    };
    let mut advanced = acc;
    // SAFETY: as this function's; s is one word.
    unsafe {
        let sums = _mm256_set1_epi32((&raw const (*x).s).cast::<i32>().read_unaligned());
        let dx = _mm256_set1_ps((*x).d);
        let low = M::dot::<K>(integers, x, 0..middle);
        let high = M::dot::<K>(integers, x, middle..BLOCK_GROUPS);
        let float = |sum: __m256i| _mm256_cvtepi32_ps(sum);
        let sum_of = |low: i32, high: i32| float(_mm256_madd_epi16(pair(low, high), sums));
        for (half, acc) in advanced.iter_mut().enumerate() {
            let Scales { scales, minima } = &scales[half];
            let sum = match layout.scales {
                ScaleScheme::Block | ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => {
                    _mm256_mul_ps(scales[0], float(fold(low[half], sums, (zero, zero))))
                }
                ScaleScheme::Super16 | ScaleScheme::Super16Minimum => {
                    let low = float(fold(low[half], sums, (zero, 0)));
                    let high = float(fold(high[half], sums, (0, zero)));
                    _mm256_fmadd_ps(scales[1], high, _mm256_mul_ps(scales[0], low))
                }
            };
            let sum = match layout.scales {
                ScaleScheme::Block | ScaleScheme::Super16 => sum,
                ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => {
                    _mm256_fmadd_ps(minima[0], sum_of(1, 1), sum)
                }
                ScaleScheme::Super16Minimum => {
                    let sum = _mm256_fmadd_ps(minima[0], sum_of(1, 0), sum);
                    _mm256_fmadd_ps(minima[1], sum_of(0, 1), sum)
                }
            };
            *acc = _mm256_fmadd_ps(sum, dx, *acc);
        }
    }
    advanced
}

/// Subtracts the zero points of the (first, second) half of the columns, given the pairs of sums.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn fold(dot: __m256i, sums: __m256i, zero: (i32, i32)) -> __m256i {
    match zero {
        (0, 0) => dot,
        (low, high) => {
            // SAFETY: as this function's.
            unsafe { _mm256_sub_epi32(dot, _mm256_madd_epi16(pair(low, high), sums)) }
        }
    }
}

/// A pair of i16 in every lane.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn pair(low: i32, high: i32) -> __m256i {
    // SAFETY: as this function's.
    unsafe { _mm256_set1_epi32(low & 0xFFFF | high << 16) }
}
