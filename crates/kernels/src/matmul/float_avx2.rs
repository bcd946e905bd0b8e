//! The AVX2 shell of the matmul with f32 activations: half a tile is one vector.
//!
//! Pointers stay inside the slices whose lengths [`crate::matmul::matmul_float`] checked.

use core::arch::x86_64::*;

use crate::isa::Avx2Token;
use crate::limits::{BLOCK_COLS, TILE_ROWS};
use crate::matmul::Epilogue;
use crate::matmul::float::{for_each_panel, x_index};
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedKind, PackedTiles};
use crate::unpack;

/// Rows of half a tile: lanes of a 256-bit vector.
const HALF_ROWS: usize = TILE_ROWS / 2;
/// How many activation tiles ahead a token group's are asked for: as far as the first-level cache
/// holds lines that are a multiple of the page apart.
const PREFETCH_TILES: usize = 4;
/// Tokens of a full group: twelve accumulators, two vectors of weights, one of activations.
const GROUP_TOKENS: usize = 6;
/// Groups that share a dequantised block.
const RUN_GROUPS: usize = 32;

/// See [`crate::matmul::matmul_float`], which has checked the arguments.
pub(super) fn matmul(
    _proof: Avx2Token,
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run(call: &Call<'_>) {
    let tiles = call.weights.tile_count();
    let mut tile = 0;
    while tile < tiles {
        let is_quantised = call.weights.kind().quant_layout().is_some();
        let is_group = call.tokens >= GROUP_TOKENS;
        let tile_count = if tiles - tile >= 4 && !is_group { 4 } else { 1 };
        let mut token = 0;
        if is_quantised && is_group {
            // SAFETY: the tile exists.
            token = unsafe { for_kind!(call.weights.kind(), quantised(call, tile)) };
        }
        // SAFETY: every group lies in tiles and tokens that exist.
        unsafe {
            while call.tokens - token >= GROUP_TOKENS {
                group::<1, GROUP_TOKENS>(call, tile, token);
                token += GROUP_TOKENS;
            }
            while call.tokens - token >= 4 {
                (tile..tile + tile_count).for_each(|tile| group::<1, 4>(call, tile, token));
                token += 4;
            }
            while call.tokens - token >= 1 {
                match tile_count {
                    4 => group::<4, 1>(call, tile, token),
                    _ => group::<1, 1>(call, tile, token),
                }
                token += 1;
            }
        }
        tile += tile_count;
    }
}

/// Accumulators `[tile][token][half]`.
type Accumulators<const TILES: usize, const TOKENS: usize> = [[[__m256; 2]; TOKENS]; TILES];

/// One tile of a quantised kind, for as many tokens as make whole groups; returns their number.
/// Each block is dequantised once for a run of groups, whose accumulators stand on the stack.
///
/// # Safety
/// As [`run`]'s; the tile exists.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantised<K: Kind>(call: &Call<'_>, tile: usize) -> usize {
    let groups = call.tokens / GROUP_TOKENS;
    let bytes = call.weights.tile(tile);
    for first in (0..groups).step_by(RUN_GROUPS) {
        let count = RUN_GROUPS.min(groups - first);
        let mut run = [[[_mm256_setzero_ps(); 2]; GROUP_TOKENS]; RUN_GROUPS];
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
                        |at| _mm256_loadu_ps(at.cast()),
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
) {
    let mut acc = [[[_mm256_setzero_ps(); 2]; TOKENS]; TILES];
    let cols = call.weights.cols();
    let tile_bytes = call.weights.tile_bytes();
    // SAFETY: the tiles exist, each `cols` columns of 16 elements; x_index of a column and token
    // that exist is inside x; as is the output of a tile and token that exist inside y.
    unsafe {
        let base = call.weights.bytes().as_ptr().add(tile * tile_bytes);
        let f16 = |at: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(at.cast()));
        let bf16 = |at: *const u8| {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        };
        let f32 = |at: *const u8| _mm256_loadu_ps(at.cast());
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn finish<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
    acc: &Accumulators<TILES, TOKENS>,
) {
    // SAFETY: the output of a tile and token that exist is inside y.
    unsafe {
        for (i, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                for (half, acc) in acc.iter().enumerate() {
                    let element = ((tile + i) * call.tokens + token + j) * TILE_ROWS;
                    let y = call.y.add(element + half * HALF_ROWS);
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
}

/// Columns `columns`, whose weights start at `weights.0`, `weights.1` bytes from tile to tile and
/// `weights.2` from column to column, as `load` reads 8 of them.
///
/// # Safety
/// As [`group`]'s; the columns exist and the weights of each can be loaded.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel<const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    weights: (*const u8, usize, usize),
    load: impl Fn(*const u8) -> __m256,
    columns: core::ops::Range<usize>,
    token: usize,
    acc: &mut Accumulators<TILES, TOKENS>,
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
            for (tile, acc) in local.iter_mut().enumerate() {
                let tile_at = at.add(tile * tile_bytes);
                let w = [load(tile_at), load(tile_at.add(column_bytes / 2))];
                for (token, acc) in acc.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.add(token * TILE_ROWS));
                    for half in 0..2 {
                        acc[half] = _mm256_fmadd_ps(w[half], x, acc[half]);
                    }
                }
            }
            at = at.add(column_bytes);
        }
    }
    *acc = local;
}
