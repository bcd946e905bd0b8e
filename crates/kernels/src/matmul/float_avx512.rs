//! The AVX-512 shell of the matmul with f32 activations.
//!
//! One column of 16 rows is one vector; it meets the broadcast activation of each token. Two tiles
//! by twelve tokens are 24 accumulators, which leaves registers for two vectors of weights and one
//! of activations, and more multiply-adds than loads. With one token, four tiles run side by side
//! to hide the latency of the multiply-add.
//!
//! A pair of tiles stays in the second-level cache while all tokens pass; activations come from
//! further away each time, twelve lines for each sixteen columns, asked for early enough.
//!
//! Pointers stay inside the slices whose lengths [`crate::matmul::matmul_float`] checked.

use core::arch::x86_64::*;

use crate::isa::Avx512Token;
use crate::limits::{BLOCK_COLS, TILE_ROWS};
use crate::matmul::Epilogue;
use crate::matmul::float::{for_each_panel, x_index};
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedKind, PackedTiles};
use crate::unpack;

/// How many activation tiles ahead a token group's are asked for. Tiles are `tokens · 64` bytes
/// apart, often a multiple of the page, where the processor's own prefetching is blind.
const PREFETCH_TILES: usize = 2;
/// Tokens of a full group.
const GROUP_TOKENS: usize = 12;
/// Groups that share a dequantised block.
const RUN_GROUPS: usize = 16;

/// See [`crate::matmul::matmul_float`], which has checked the arguments.
pub(super) fn matmul(
    _proof: Avx512Token,
    weights: PackedTiles<'_>,
    x: &[f32],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    let call = Call { weights, x: x.as_ptr(), tokens, epilogue, y: y.as_mut_ptr() };
    // SAFETY: the token proves the features; the caller has checked the lengths of the slices
    // behind the pointers, and `y` is borrowed exclusively for the whole call.
    unsafe { run(&call) }
}

/// The arguments of a call.
struct Call<'a> {
    weights: PackedTiles<'a>,
    x: *const f32,
    tokens: usize,
    epilogue: Epilogue,
    y: *mut f32,
}

/// All tiles and tokens.
///
/// # Safety
/// The features are there; `call`'s pointers are valid for the lengths that its sizes imply.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn run(call: &Call<'_>) {
    let tiles = call.weights.tile_count();
    let mut tile = 0;
    while tile < tiles {
        // Pairs while there are tokens to share them, else as many tiles as hide the latency.
        let is_quantised = call.weights.kind().quant_layout().is_some();
        let tile_count = match (tiles - tile, call.tokens) {
            (_, GROUP_TOKENS..) if is_quantised => 1,
            (2.., GROUP_TOKENS..) => 2,
            (4.., _) => 4,
            (1.., _) => 1,
            (0, _) => unreachable!("the loop's bound"),
        };
        let mut token = 0;
        if is_quantised && call.tokens >= GROUP_TOKENS {
            // SAFETY: the tile exists.
            token = unsafe { for_kind!(call.weights.kind(), quantised(call, tile)) };
        }
        // SAFETY: every group lies in tiles and tokens that exist.
        unsafe {
            while call.tokens - token >= GROUP_TOKENS {
                match tile_count {
                    2 => group::<2, GROUP_TOKENS>(call, tile, token),
                    _ => group::<1, GROUP_TOKENS>(call, tile, token),
                }
                token += GROUP_TOKENS;
            }
            while call.tokens - token >= 4 {
                match tile_count {
                    4 => group::<4, 4>(call, tile, token),
                    2 => group::<2, 4>(call, tile, token),
                    _ => group::<1, 4>(call, tile, token),
                }
                token += 4;
            }
            while call.tokens - token >= 1 {
                match tile_count {
                    4 => group::<4, 1>(call, tile, token),
                    2 => group::<2, 1>(call, tile, token),
                    _ => group::<1, 1>(call, tile, token),
                }
                token += 1;
            }
        }
        tile += tile_count;
    }
}

/// One tile of a quantised kind, for as many tokens as make whole groups; returns their number.
/// Each block is dequantised once for a run of groups, whose accumulators stand on the stack.
///
/// # Safety
/// As [`run`]'s; the tile exists.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn quantised<K: Kind>(call: &Call<'_>, tile: usize) -> usize {
    let groups = call.tokens / GROUP_TOKENS;
    let bytes = call.weights.tile(tile);
    for first in (0..groups).step_by(RUN_GROUPS) {
        let count = RUN_GROUPS.min(groups - first);
        let mut run = [[_mm512_setzero_ps(); GROUP_TOKENS]; RUN_GROUPS];
        for block in 0..call.weights.cols() / BLOCK_COLS {
            let values = unpack::block_values(&K::LAYOUT, bytes, block);
            let columns = block * BLOCK_COLS..(block + 1) * BLOCK_COLS;
            for (group, acc) in run[..count].iter_mut().enumerate() {
                let token = (first + group) * GROUP_TOKENS;
                let (acc, values) = (core::array::from_mut(acc), values.as_ptr().cast::<u8>());
                // SAFETY: the columns and tokens exist; a column's sixteen values are loaded.
                unsafe {
                    panel(
                        call,
                        (values, 0, 64),
                        |at| _mm512_loadu_ps(at.cast()),
                        columns.clone(),
                        token,
                        acc,
                    )
                };
            }
        }
        for (group, acc) in run[..count].iter().enumerate() {
            let token = (first + group) * GROUP_TOKENS;
            // SAFETY: the tile and the tokens exist.
            unsafe { finish(call, tile, token, core::array::from_ref(acc)) };
        }
    }
    groups * GROUP_TOKENS
}

/// `TILES` tiles from `tile` on, `TOKENS` tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tiles and tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn group<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
) {
    let mut acc = [[_mm512_setzero_ps(); TOKENS]; TILES];
    let cols = call.weights.cols();
    let tile_bytes = call.weights.tile_bytes();
    // SAFETY: the tiles exist, each `cols` columns of 16 elements; x_index of a column and token
    // that exist is inside x; as is the output of a tile and token that exist inside y.
    unsafe {
        let base = call.weights.bytes().as_ptr().add(tile * tile_bytes);
        let f16 = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
        let bf16 = |at: *const u8| {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        };
        let f32 = |at: *const u8| _mm512_loadu_ps(at.cast());
        match call.weights.kind() {
            PackedKind::F32 => panel(call, (base, tile_bytes, 64), f32, 0..cols, token, &mut acc),
            PackedKind::F16 => panel(call, (base, tile_bytes, 32), f16, 0..cols, token, &mut acc),
            PackedKind::BF16 => panel(call, (base, tile_bytes, 32), bf16, 0..cols, token, &mut acc),
            PackedKind::Q8_0
            | PackedKind::Q4_0
            | PackedKind::Q4_1
            | PackedKind::Q5_0
            | PackedKind::Q5_1
            | PackedKind::Q2K
            | PackedKind::Q3K
            | PackedKind::Q4K
            | PackedKind::Q5K
            | PackedKind::Q6K => {
                // What is left of the tokens by whole groups: see `quantised`.
                for (index, acc) in acc.iter_mut().enumerate() {
                    let acc = core::array::from_mut(acc);
                    for_each_panel(call.weights, call.weights.tile(tile + index), |k, values| {
                        let values_at = (values.as_ptr().cast::<u8>(), 0, 64);
                        panel(call, values_at, f32, k..k + values.len(), token, acc);
                    });
                }
            }
        }
        finish(call, tile, token, &acc);
    }
}

/// Writes finished accumulators.
///
/// # Safety
/// As [`group`]'s.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn finish<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
    acc: &[[__m512; TOKENS]; TILES],
) {
    // SAFETY: the output of a tile and token that exist is inside y.
    unsafe {
        for (i, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                let y = call.y.add(((tile + i) * call.tokens + token + j) * TILE_ROWS);
                match call.epilogue {
                    Epilogue::Store => _mm512_storeu_ps(y, *acc),
                    Epilogue::AddTo => {
                        _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), *acc));
                    }
                }
            }
        }
    }
}

/// Columns `columns`, whose weights start at `weights.0`, `weights.1` bytes from tile to tile and
/// `weights.2` from column to column, as `load` reads them.
///
/// # Safety
/// As [`group`]'s; the columns exist and the weights of each can be loaded.
#[expect(clippy::needless_range_loop, reason = "one index walks activations and accumulators")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn panel<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    weights: (*const u8, usize, usize),
    load: impl Fn(*const u8) -> __m512,
    columns: core::ops::Range<usize>,
    token: usize,
    acc: &mut [[__m512; TOKENS]; TILES],
) {
    let (mut at, tile_bytes, column_bytes) = weights;
    let mut local = *acc;
    // SAFETY: as this function's. A prefetch may name any address.
    unsafe {
        for k in columns {
            let x = call.x.add(x_index(k, token, call.tokens));
            if TOKENS == GROUP_TOKENS && k % TILE_ROWS == 0 {
                let ahead = x.wrapping_add(PREFETCH_TILES * call.tokens * TILE_ROWS);
                for line in 0..TOKENS {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * TILE_ROWS).cast());
                }
            }
            let mut w = [_mm512_setzero_ps(); TILES];
            for (tile, w) in w.iter_mut().enumerate() {
                *w = load(at.add(tile * tile_bytes));
            }
            for token in 0..TOKENS {
                let x = _mm512_set1_ps(*x.add(token * TILE_ROWS));
                for tile in 0..TILES {
                    local[tile][token] = _mm512_fmadd_ps(w[tile], x, local[tile][token]);
                }
            }
            at = at.add(column_bytes);
        }
    }
    *acc = local;
}
