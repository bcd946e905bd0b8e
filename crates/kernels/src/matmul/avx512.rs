//! The AVX-512 VNNI shell.
//!
//! A vector `[row][4 k]` of packed weights meets one broadcast k-group of a token in one
//! `vpdpbusd` (unsigned weights times signed activations). Zero points are folded by starting
//! the integer accumulator at −z·S, one `vpdpwssd` on the two half sums that an [`ActBlock`]
//! carries. Weights are unpacked once a block and used for up to 16 tokens, whose accumulators
//! stay in registers. Tiles follow each other in memory, so a shard is one sequential stream even
//! with one token; reading several tiles side by side was measured and is a third slower here.
//!
//! **Inlining.** All of a block must end up in [`group`], where its vectors are registers. The
//! helpers take `TOKENS`, which most have no use for, so that each instance has one caller:
//! the compiler then inlines it whatever its size, where `inline(always)` is not allowed.
//!
//! Every pointer below stays inside the slices whose lengths [`crate::matmul::matmul`] checked:
//! tile `i` starts at `i · tile_bytes`, block `b` inside it at `block_offset_bytes(b)`, the
//! activations of block `b` and token `t` at index `b · tokens + t`, the output of tile `i` and
//! token `t` at `(i · tokens + t) · 16`.

use core::arch::x86_64::*;

use crate::isa::Avx512Token;
use crate::limits::{BLOCK_COLS, BLOCK_GROUPS, SUPER_BLOCKS, TILE_ROWS, TOKEN_GROUP, VECTOR_BYTES};
use crate::matmul::Epilogue;
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedTiles, ScaleScheme};
use crate::quantise::ActBlock;

/// Bytes of activations that one pass over the weights meets: small enough to stay in the caches,
/// large enough that reading the weights again for the next tokens costs little.
const TOKEN_CHUNK_BYTES: usize = 2048 * 1024;

/// How many blocks ahead the activations of a token group are asked for. Blocks are `tokens · 40`
/// bytes apart, often a multiple of the page, where the processor's own prefetching is blind.
const PREFETCH_BLOCKS: usize = 3;

/// How far ahead the weights of 8-bit kinds are asked for when one token reads them: they come
/// so fast that the processor's own prefetching lags. It does better alone with fewer bits.
const PREFETCH_BYTES: usize = 2048;

/// See [`crate::matmul::matmul`], which has checked the arguments.
pub(super) fn matmul(
    _proof: Avx512Token,
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn run<K: Kind>(call: &Call<'_>) {
    let column_bytes = call.weights.cols() / BLOCK_COLS * size_of::<ActBlock>();
    let chunk = (TOKEN_CHUNK_BYTES / column_bytes).next_multiple_of(TOKEN_GROUP).max(TOKEN_GROUP);
    let mut first = 0;
    while first < call.tokens {
        let end = call.tokens.min(first + chunk);
        for tile in 0..call.weights.tile_count() {
            // SAFETY: as this function's; the tile and the tokens exist.
            unsafe { tile_tokens::<K>(call, tile, first, end) };
        }
        first = end;
    }
}

/// One tile, tokens `first..end`, in groups of 16, 8, 4, 2 and 1.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile_tokens<K: Kind>(call: &Call<'_>, tile: usize, first: usize, end: usize) {
    let mut token = first;
    // SAFETY: every group below lies in tokens first..end.
    unsafe {
        while end - token >= TOKEN_GROUP {
            group::<K, TOKEN_GROUP>(call, tile, token);
            token += TOKEN_GROUP;
        }
        if end - token >= 8 {
            group::<K, 8>(call, tile, token);
            token += 8;
        }
        if end - token >= 4 {
            group::<K, 4>(call, tile, token);
            token += 4;
        }
        if end - token >= 2 {
            group::<K, 2>(call, tile, token);
            token += 2;
        }
        if end - token == 1 {
            group::<K, 1>(call, tile, token);
        }
    }
}

/// One tile, `TOKENS` tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn group<K: Kind, const TOKENS: usize>(call: &Call<'_>, tile: usize, token: usize) {
    let layout = K::LAYOUT;
    let mut acc = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: the offsets are those of the module's header, for a tile, blocks and tokens that
    // exist. A prefetch may name any address.
    unsafe {
        let mut weights = call.weights.bytes().as_ptr().add(tile * call.weights.tile_bytes());
        let mut x = call.activations.add(token);
        let mut header = weights;
        for block in 0..call.weights.cols() / BLOCK_COLS {
            if layout.header_bytes() > 0 && block % SUPER_BLOCKS == 0 {
                header = weights;
                weights = weights.add(layout.header_bytes());
            }
            if TOKENS == 1 && layout.low_bits == 8 {
                prefetch(weights.wrapping_add(PREFETCH_BYTES), layout.block_bytes());
            }
            if TOKENS == TOKEN_GROUP {
                let ahead = x.wrapping_add(PREFETCH_BLOCKS * call.tokens);
                prefetch(ahead.cast(), TOKENS * size_of::<ActBlock>() + 63);
            }
            let integers = unpack::<K, TOKENS>(weights);
            let scales = Scales::load::<K, TOKENS>(header, weights);
            for (token, acc) in acc.iter_mut().enumerate() {
                *acc = advance::<K, TOKENS>(&integers, &scales, x.add(token), *acc);
            }
            weights = weights.add(layout.block_bytes());
            x = x.wrapping_add(call.tokens);
        }
        for (index, acc) in acc.iter().enumerate() {
            let y = call.y.add((tile * call.tokens + token + index) * TILE_ROWS);
            match call.epilogue {
                Epilogue::Store => _mm512_storeu_ps(y, *acc),
                Epilogue::AddTo => _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), *acc)),
            }
        }
    }
}

/// Asks for `length` bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(at: *const u8, length: usize) {
    for line in 0..length.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast());
    }
}

/// The unsigned integers of one block of one tile, k-group by k-group.
///
/// # Safety
/// The features are there; `at` points to the planes of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack<K: Kind, const TOKENS: usize>(at: *const u8) -> [__m512i; BLOCK_GROUPS] {
    let layout = K::LAYOUT;
    // SAFETY: vector < (low_bytes + high_bytes) / 64 for every call below.
    let load = |vector: usize| unsafe { _mm512_loadu_si512(at.add(vector * VECTOR_BYTES).cast()) };
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
struct Scales {
    /// `d`.
    d: __m512,
    /// `m` or `dmin`.
    minimum: __m512,
    /// Sub-block scales of the two halves (one, for sub-blocks of 32).
    scales: [__m512i; 2],
    /// Sub-block minima of the two halves as pairs of i16.
    minima: __m512i,
}

impl Scales {
    /// # Safety
    /// The features are there; `header` points to the super-block's header (ignored for block
    /// kinds) and `block` to the block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn load<K: Kind, const TOKENS: usize>(header: *const u8, block: *const u8) -> Self {
        let layout = K::LAYOUT;
        // SAFETY: block_bytes = planes + scale_bytes; each load stays below scale_bytes or
        // header_bytes of that scheme.
        unsafe {
            let scales = block.add(layout.low_bytes() + layout.high_bytes());
            let f16 = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
            let bytes = |at: usize| _mm_loadu_si128(scales.add(at * TILE_ROWS).cast());
            let unsigned = |at: usize| _mm512_cvtepu8_epi32(bytes(at));
            let signed = |at: usize| _mm512_cvtepi8_epi32(bytes(at));
            let pair = |low, high| _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
            let zero = _mm512_setzero_si512();
            let none = _mm512_setzero_ps();
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

/// Takes the accumulators of 16 rows and one token over one block.
///
/// # Safety
/// The features are there; `x` points to a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn advance<K: Kind, const TOKENS: usize>(
    integers: &[__m512i; BLOCK_GROUPS],
    scales: &Scales,
    x: *const ActBlock,
    acc: __m512,
) -> __m512 {
    let zero = K::LAYOUT.zero;
    // SAFETY: `x` is valid; q is 32 bytes, read as 8 words, s one word.
    let (words, sums, dx) = unsafe {
        let words = (&raw const (*x).q).cast::<i32>();
        let sums = (&raw const (*x).s).cast::<i32>().read_unaligned();
        (words, _mm512_set1_epi32(sums), _mm512_set1_ps((*x).d))
    };
    let dot = |start: __m512i, groups: core::ops::Range<usize>| {
        groups.fold(start, |sum, group| {
            // SAFETY: group < 8.
            let word = unsafe { words.add(group).read_unaligned() };
            _mm512_dpbusd_epi32(sum, integers[group], _mm512_set1_epi32(word))
        })
    };
    let none = _mm512_setzero_si512();
    // The zero points of (first half, second half) as a pair of i16.
    let pair = |low: i32, high: i32| _mm512_set1_epi32(low & 0xFFFF | high << 16);
    let fold = |low: i32, high: i32| match zero {
        0 => none,
        _ => _mm512_dpwssd_epi32(none, pair(low, high), sums),
    };
    let float = _mm512_cvtepi32_ps;
    let dot = match K::LAYOUT.scales {
        ScaleScheme::Block | ScaleScheme::BlockMinimum => float(dot(fold(-zero, -zero), 0..8)),
        ScaleScheme::Super32Minimum => {
            float(_mm512_mullo_epi32(dot(fold(-zero, -zero), 0..8), scales.scales[0]))
        }
        ScaleScheme::Super16 | ScaleScheme::Super16Minimum => {
            let low = _mm512_mullo_epi32(dot(fold(-zero, 0), 0..4), scales.scales[0]);
            let high = _mm512_mullo_epi32(dot(fold(0, -zero), 4..8), scales.scales[1]);
            float(_mm512_add_epi32(low, high))
        }
    };
    let acc = _mm512_fmadd_ps(dot, _mm512_mul_ps(scales.d, dx), acc);
    let minimum = _mm512_mul_ps(scales.minimum, dx);
    match K::LAYOUT.scales {
        ScaleScheme::Block | ScaleScheme::Super16 => acc,
        ScaleScheme::BlockMinimum => {
            let sum = _mm512_dpwssd_epi32(none, pair(1, 1), sums);
            _mm512_fmadd_ps(float(sum), minimum, acc)
        }
        ScaleScheme::Super32Minimum | ScaleScheme::Super16Minimum => {
            let sum = _mm512_dpwssd_epi32(none, scales.minima, sums);
            _mm512_fnmadd_ps(float(sum), minimum, acc)
        }
    }
}
