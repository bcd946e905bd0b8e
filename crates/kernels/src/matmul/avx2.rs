//! The AVX2 shell.
//!
//! Two 32-byte halves of a vector hold 8 rows each. `vpmaddubsw` multiplies unsigned weights with
//! signed activations into pairs of i16; as many of those sums as provably fit are added before
//! `vpmaddwd` widens them (8 k-groups of 4-bit weights: 8·2·15·127 < 2¹⁵). Signed 8-bit weights
//! go through |w| and x·sign(w). A block is unpacked once into a small array on the stack and
//! used for up to eight tokens.
//!
//! **Inlining.** The helpers take `TOKENS`, which most have no use for, so that each instance has
//! one caller and is inlined whatever its size; `inline(always)` is not allowed here.
//!
//! Pointers stay inside the slices whose lengths [`crate::matmul::matmul`] checked, by the same
//! offsets as in the AVX-512 shell.

use core::arch::x86_64::*;

use crate::isa::Avx2Token;
use crate::limits::{
    ACTIVATION_MAX, BLOCK_COLS, BLOCK_GROUPS, SUPER_BLOCKS, TILE_ROWS, VECTOR_BYTES,
};
use crate::matmul::Epilogue;
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedTiles, QuantLayout, ScaleScheme};
use crate::quantise::ActBlock;

/// Bytes of activations that a pass over the weights should leave in the second-level cache.
const TOKEN_CHUNK_BYTES: usize = 512 * 1024;

/// Rows of half a tile: lanes of a 256-bit vector.
const HALF_ROWS: usize = TILE_ROWS / 2;

/// See [`crate::matmul::matmul`], which has checked the arguments.
pub(super) fn matmul(
    _proof: Avx2Token,
    weights: PackedTiles<'_>,
    activations: &[ActBlock],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    let call =
        Call { weights, activations: activations.as_ptr(), tokens, epilogue, y: y.as_mut_ptr() };
    // SAFETY: the token proves the features; the caller has checked the lengths of the slices
    // behind the pointers, and `y` is borrowed exclusively for the whole call.
    unsafe { for_kind!(weights.kind(), run(&call)) }
}

/// The arguments of a call.
struct Call<'a> {
    weights: PackedTiles<'a>,
    activations: *const ActBlock,
    tokens: usize,
    epilogue: Epilogue,
    y: *mut f32,
}

/// All tiles and tokens.
///
/// # Safety
/// The features are there; `call`'s pointers are valid for the lengths that its sizes imply.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<K: Kind>(call: &Call<'_>) {
    let column_bytes = call.weights.cols() / BLOCK_COLS * size_of::<ActBlock>();
    let chunk = (TOKEN_CHUNK_BYTES / column_bytes).next_multiple_of(8).max(8);
    let mut first = 0;
    while first < call.tokens {
        let end = call.tokens.min(first + chunk);
        for tile in 0..call.weights.tile_count() {
            let mut token = first;
            // SAFETY: as this function's; the tile and the tokens exist.
            unsafe {
                while end - token >= 8 {
                    group::<K, 8>(call, tile, token);
                    token += 8;
                }
                if end - token >= 4 {
                    group::<K, 4>(call, tile, token);
                    token += 4;
                }
                while end - token >= 1 {
                    group::<K, 1>(call, tile, token);
                    token += 1;
                }
            }
        }
        first = end;
    }
}

/// Accumulators of one token: rows 0..8 and 8..16.
type Halves<T> = [T; 2];

/// One tile, `TOKENS` tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens exist.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group<K: Kind, const TOKENS: usize>(call: &Call<'_>, tile: usize, token: usize) {
    let layout = K::LAYOUT;
    let blocks = call.weights.cols() / BLOCK_COLS;
    let mut acc = [[_mm256_setzero_ps(); 2]; TOKENS];
    // SAFETY: the offsets are those of the AVX-512 shell's header, for a tile, blocks and tokens
    // that exist.
    unsafe {
        let mut weights = call.weights.bytes().as_ptr().add(tile * call.weights.tile_bytes());
        let mut x = call.activations.add(token);
        let mut header = weights;
        for block in 0..blocks {
            if layout.header_bytes() > 0 && block % SUPER_BLOCKS == 0 {
                header = weights;
                weights = weights.add(layout.header_bytes());
            }
            let integers = unpack::<K, TOKENS>(weights);
            let scales = [
                Scales::load::<K, TOKENS>(header, weights, 0),
                Scales::load::<K, TOKENS>(header, weights, 1),
            ];
            for (token, acc) in acc.iter_mut().enumerate() {
                *acc = advance::<K, TOKENS>(&integers, &scales, x.add(token), *acc);
            }
            weights = weights.add(layout.block_bytes());
            x = x.wrapping_add(call.tokens);
        }
        for (j, acc) in acc.iter().enumerate() {
            for (half, acc) in acc.iter().enumerate() {
                let at = (tile * call.tokens + token + j) * TILE_ROWS + half * HALF_ROWS;
                let y = call.y.add(at);
                match call.epilogue {
                    Epilogue::Store => _mm256_storeu_ps(y, *acc),
                    Epilogue::AddTo => {
                        _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), *acc));
                    }
                }
            }
        }
    }
}

/// The integers of one block of one tile: unsigned, but signed as stored for 8 bits.
///
/// # Safety
/// The features are there; `at` points to the planes of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<K: Kind, const TOKENS: usize>(at: *const u8) -> [Halves<__m256i>; BLOCK_GROUPS] {
    let layout = K::LAYOUT;
    // SAFETY: vector < (low_bytes + high_bytes) / 64 and half < 2 for every call below.
    let load = |vector: usize, half: usize| unsafe {
        _mm256_loadu_si256(at.add(vector * VECTOR_BYTES + half * VECTOR_BYTES / 2).cast())
    };
    let mut integers = [[_mm256_setzero_si256(); 2]; BLOCK_GROUPS];
    let first_high = layout.low_bytes() / VECTOR_BYTES;
    let high_mask =
        _mm256_set1_epi8((((1 << layout.high_bits) - 1) << (layout.low_bits & 7)) as i8);
    for (group, integers) in integers.iter_mut().enumerate() {
        for (half, integers) in integers.iter_mut().enumerate() {
            let low = match layout.low_bits {
                8 => load(group, half),
                4 => {
                    let pair = shift_right(load(group % 4, half), 4 * (group / 4));
                    _mm256_and_si256(pair, _mm256_set1_epi8(0x0F))
                }
                _ => {
                    let four = shift_right(load(group / 4, half), 2 * (group % 4));
                    _mm256_and_si256(four, _mm256_set1_epi8(0x03))
                }
            };
            *integers = if layout.high_bits == 0 {
                low
            } else {
                let per_vector = layout.groups_per_high_vector();
                let word = load(first_high + group / per_vector, half);
                let position = layout.high_bits * (group % per_vector);
                let high = if position >= layout.low_bits {
                    shift_right(word, position - layout.low_bits)
                } else {
                    shift_left(word, layout.low_bits - position)
                };
                _mm256_or_si256(low, _mm256_and_si256(high, high_mask))
            };
        }
    }
    integers
}

#[inline]
#[target_feature(enable = "avx2")]
fn shift_right(x: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

#[inline]
#[target_feature(enable = "avx2")]
fn shift_left(x: __m256i, bits: usize) -> __m256i {
    _mm256_sll_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

/// The scales of 8 rows of one block, in the form that [`advance`] wants.
struct Scales {
    /// `d`.
    d: __m256,
    /// `m` or `dmin`.
    minimum: __m256,
    /// Sub-block scales of the two 16-column halves (one, for sub-blocks of 32).
    scales: [__m256i; 2],
    /// Sub-block minima of the two 16-column halves as pairs of i16.
    minima: __m256i,
}

impl Scales {
    /// # Safety
    /// The features are there; `header` points to the super-block's header (ignored for block
    /// kinds) and `block` to the block; `half` < 2.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load<K: Kind, const TOKENS: usize>(
        header: *const u8,
        block: *const u8,
        half: usize,
    ) -> Self {
        let layout = K::LAYOUT;
        // SAFETY: block_bytes = planes + scale_bytes; each load stays below scale_bytes or
        // header_bytes of that scheme.
        unsafe {
            let first = half * HALF_ROWS;
            let scales = block.add(layout.low_bytes() + layout.high_bytes());
            let f16 = |at: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(at.add(2 * first).cast()));
            let bytes = |at: usize| _mm_loadl_epi64(scales.add(at * TILE_ROWS + first).cast());
            let unsigned = |at: usize| _mm256_cvtepu8_epi32(bytes(at));
            let signed = |at: usize| _mm256_cvtepi8_epi32(bytes(at));
            let pair = |low, high| _mm256_or_si256(low, _mm256_slli_epi32::<16>(high));
            let zero = _mm256_setzero_si256();
            let none = _mm256_setzero_ps();
            let second = |at: *const u8| f16(at.add(2 * TILE_ROWS));
            match layout.scales {
                ScaleScheme::Block => {
                    Self { d: f16(scales), minimum: none, scales: [zero; 2], minima: zero }
                }
                ScaleScheme::BlockMinimum => Self {
                    d: f16(scales),
                    minimum: second(scales),
                    scales: [zero; 2],
                    minima: zero,
                },
                ScaleScheme::Super32Minimum => Self {
                    d: f16(header),
                    minimum: second(header),
                    scales: [unsigned(0), zero],
                    minima: pair(unsigned(1), unsigned(1)),
                },
                ScaleScheme::Super16 => Self {
                    d: f16(header),
                    minimum: none,
                    scales: [signed(0), signed(1)],
                    minima: zero,
                },
                ScaleScheme::Super16Minimum => Self {
                    d: f16(header),
                    minimum: second(header),
                    scales: [unsigned(0), unsigned(1)],
                    minima: pair(unsigned(2), unsigned(3)),
                },
            }
        }
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
/// The features are there; `x` points to a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn advance<K: Kind, const TOKENS: usize>(
    integers: &[Halves<__m256i>; BLOCK_GROUPS],
    scales: &Halves<Scales>,
    x: *const ActBlock,
    acc: Halves<__m256>,
) -> Halves<__m256> {
    let layout = K::LAYOUT;
    let zero = if layout.low_bits == 8 { 0 } else { layout.zero };
    // SAFETY: `x` is valid; s is one word.
    let (sums, dx) = unsafe {
        let sums = (&raw const (*x).s).cast::<i32>().read_unaligned();
        (_mm256_set1_epi32(sums), _mm256_set1_ps((*x).d))
    };
    // The zero points of (first half, second half) of the columns as a pair of i16.
    let fold = |dot: __m256i, low: i32, high: i32| match zero {
        0 => dot,
        _ => _mm256_sub_epi32(dot, _mm256_madd_epi16(pair(low, high), sums)),
    };
    let is_halved = match layout.scales {
        ScaleScheme::Block | ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => false,
        ScaleScheme::Super16 | ScaleScheme::Super16Minimum => true,
    };
    let middle = if is_halved { BLOCK_GROUPS / 2 } else { BLOCK_GROUPS };
    // SAFETY: `x` is valid.
    let (low, high) = unsafe {
        let low = dot::<K, TOKENS, 0>(integers, x, 0..middle);
        (low, dot::<K, TOKENS, 1>(integers, x, middle..BLOCK_GROUPS))
    };
    let mut advanced = acc;
    for (half, acc) in advanced.iter_mut().enumerate() {
        let scales = &scales[half];
        let dot = match layout.scales {
            ScaleScheme::Block | ScaleScheme::BlockMinimum => fold(low[half], zero, zero),
            ScaleScheme::Super32Minimum => _mm256_mullo_epi32(low[half], scales.scales[0]),
            ScaleScheme::Super16 | ScaleScheme::Super16Minimum => _mm256_add_epi32(
                _mm256_mullo_epi32(fold(low[half], zero, 0), scales.scales[0]),
                _mm256_mullo_epi32(fold(high[half], 0, zero), scales.scales[1]),
            ),
        };
        *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scales.d, dx), *acc);
        let minimum = _mm256_mul_ps(scales.minimum, dx);
        match layout.scales {
            ScaleScheme::Block | ScaleScheme::Super16 => {}
            ScaleScheme::BlockMinimum => {
                let sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pair(1, 1), sums));
                *acc = _mm256_fmadd_ps(sum, minimum, *acc);
            }
            ScaleScheme::Super32Minimum | ScaleScheme::Super16Minimum => {
                let sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(scales.minima, sums));
                *acc = _mm256_fnmadd_ps(sum, minimum, *acc);
            }
        }
    }
    advanced
}

/// A pair of i16 in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn pair(low: i32, high: i32) -> __m256i {
    _mm256_set1_epi32(low & 0xFFFF | high << 16)
}

/// Integer dot products of some k-groups, zero point not yet subtracted.
///
/// # Safety
/// The features are there; `x` points to a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<K: Kind, const TOKENS: usize, const HALF: usize>(
    integers: &[Halves<__m256i>; BLOCK_GROUPS],
    x: *const ActBlock,
    groups: core::ops::Range<usize>,
) -> Halves<__m256i> {
    let run = groups_per_flush(&K::LAYOUT).min(groups.len().max(1));
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); 2];
    for first in groups.step_by(run) {
        let mut narrow = [_mm256_setzero_si256(); 2];
        for (group, integers) in integers.iter().enumerate().skip(first).take(run) {
            // SAFETY: `x` is valid; q is 32 bytes, read as 8 words, group < 8.
            let word = unsafe { (&raw const (*x).q).cast::<i32>().add(group).read_unaligned() };
            let x = _mm256_set1_epi32(word);
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
