//! The AVX-512 VNNI shell.
//!
//! A vector `[row][4 k]` of packed weights meets one broadcast k-group of a token in one
//! `vpdpbusd` (unsigned weights times signed activations). Zero points are folded by starting
//! the integer accumulator at −z·S.
//!
//! **A stream** ([`stream`]) takes tiles over all k, with up to eight tokens, whose accumulators
//! stay in registers. With few tokens it is bound by memory, and by how many lines one core can
//! wait for: [`SIDE_TILES`] tiles are read side by side, for each of which the processor's own
//! prefetching looks ahead on its own, and lines are asked for [`AHEAD_BYTES`] ahead, since a
//! block takes so long that the processor's window ends before the next line that is missing. On
//! cores that wait for many lines either is worth little; on others both together double the speed.
//! With eight tokens a stream is bound by the pipes for products, where more tokens, and more
//! tiles, gain nothing.
//!
//! **A panel** ([`panel`]) is for kinds that take long to unpack: sixteen tokens, and k in pieces.
//! A piece of activations stays in the first-level cache while some tiles meet it, and its
//! [`Sums`] are made once for them.
//!
//! **Inlining.** All of a block must end up in one function, where its vectors are registers. The
//! helpers take `TOKENS`, which most have no use for, so that each instance has one caller:
//! the compiler then inlines it whatever its size, where `inline(always)` is not allowed.
//!
//! Every pointer below stays inside the slices whose lengths [`crate::matmul::matmul`] checked:
//! tile `i` starts at `i · tile_bytes`, block `b` inside it at `block_offset_bytes(b)`, the
//! activations of block `b` and token `t` at index `b · tokens + t`, the output of tile `i` and
//! token `t` at `(i · tokens + t) · 16`.

mod block;
pub(super) mod tiles;

use core::arch::x86_64::*;
use core::ops::Range;

use crate::isa::Avx512Token;
use crate::limits::{BLOCK_COLS, SUPER_BLOCKS, TILE_ROWS};
use crate::matmul::Epilogue;
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedTiles, ScaleScheme};
use crate::quantise::ActBlock;

use block::{IN_ORDER_TOKENS_MAX, Scales, Sums, advance, prefetch, sums, unpack};

/// Bytes of activations that one pass over the weights meets: small enough to stay in the caches,
/// large enough that reading the weights again for the next tokens costs little.
const TOKEN_CHUNK_BYTES: usize = 2048 * 1024;

/// How far ahead weights are asked for: what memory gives in its latency.
const AHEAD_BYTES: usize = 3072;

/// Tiles that are read side by side for at most [`IN_ORDER_TOKENS_MAX`] tokens. Two gained half as
/// much, and eight nothing more.
const SIDE_TILES: usize = 4;

/// Tokens of a panel.
const PANEL_TOKENS: usize = 16;

/// Tiles of a panel.
const PANEL_TILES: usize = 8;

/// Blocks of a piece: the activations of a panel's tokens, 20 KiB, stay in the first-level cache.
const PIECE_BLOCKS: usize = 32;

const _: () = assert!(PIECE_BLOCKS.is_multiple_of(SUPER_BLOCKS));

/// How many blocks ahead the activations of a panel are asked for. Blocks are `tokens · 40`
/// bytes apart, often a multiple of the page, where the processor's own prefetching is blind.
const PREFETCH_BLOCKS: usize = 3;

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

impl Call<'_> {
    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.weights.cols() / BLOCK_COLS
    }
}

/// All tiles and tokens.
///
/// # Safety
/// The features are there; `call`'s pointers are valid for the lengths that its sizes imply.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn run<K: Kind>(call: &Call<'_>) {
    let tiles = call.weights.tile_count();
    let chunk = token_chunk(call, PANEL_TOKENS);
    for first in (0..call.tokens).step_by(chunk) {
        let end = call.tokens.min(first + chunk);
        let panels = match K::LAYOUT.scales {
            ScaleScheme::Super16 => (end - first) / PANEL_TOKENS * PANEL_TOKENS,
            ScaleScheme::Block
            | ScaleScheme::BlockMinimum
            | ScaleScheme::Super32Minimum
            | ScaleScheme::Super16Minimum => 0,
        };
        for tile in (0..tiles).step_by(PANEL_TILES) {
            for token in (first..first + panels).step_by(PANEL_TOKENS) {
                // SAFETY: as this function's; the tiles and tokens exist.
                unsafe { panel::<K>(call, tile..tiles.min(tile + PANEL_TILES), token) };
            }
        }
        for tile in (0..tiles).step_by(SIDE_TILES) {
            let tiles = tile..tiles.min(tile + SIDE_TILES);
            // SAFETY: as this function's; the tiles and the tokens exist.
            unsafe { streams::<K>(call, tiles, first + panels..end) };
        }
    }
}

/// How many tokens one pass over the weights meets: [`TOKEN_CHUNK_BYTES`] of them, in whole groups.
fn token_chunk(call: &Call<'_>, group: usize) -> usize {
    let column_bytes = call.blocks() * size_of::<ActBlock>();
    (TOKEN_CHUNK_BYTES / column_bytes).next_multiple_of(group).max(group)
}

/// At most [`SIDE_TILES`] tiles and some tokens, eight at a time and then the rest at once: a second
/// pass over a tile's weights finds them in the cache, but memory stands still during it.
///
/// # Safety
/// As [`run`]'s; the tiles and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn streams<K: Kind>(call: &Call<'_>, tiles: Range<usize>, tokens: Range<usize>) {
    for token in tokens.clone().step_by(8) {
        let count = (tokens.end - token).min(8);
        if count <= IN_ORDER_TOKENS_MAX && tiles.len() == SIDE_TILES {
            // SAFETY: as this function's; the tiles and tokens lie in those that were given.
            unsafe {
                match count {
                    1 => stream::<K, SIDE_TILES, 1>(call, tiles.start, token),
                    2 => stream::<K, SIDE_TILES, 2>(call, tiles.start, token),
                    _ => stream::<K, SIDE_TILES, 3>(call, tiles.start, token),
                }
            }
            continue;
        }
        for tile in tiles.clone() {
            // SAFETY: as this function's; the tile and tokens lie in those that were given.
            unsafe {
                match count {
                    1 => stream::<K, 1, 1>(call, tile, token),
                    2 => stream::<K, 1, 2>(call, tile, token),
                    3 => stream::<K, 1, 3>(call, tile, token),
                    4 => stream::<K, 1, 4>(call, tile, token),
                    5 => stream::<K, 1, 5>(call, tile, token),
                    6 => stream::<K, 1, 6>(call, tile, token),
                    7 => stream::<K, 1, 7>(call, tile, token),
                    _ => stream::<K, 1, 8>(call, tile, token),
                }
            }
        }
    }
}

/// A panel of tiles, [`PANEL_TOKENS`] tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tiles, at most [`PANEL_TILES`], and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn panel<K: Kind>(call: &Call<'_>, tiles: Range<usize>, token: usize) {
    let mut acc = [[_mm512_setzero_ps(); PANEL_TOKENS]; PANEL_TILES];
    let mut given = [[[0; 2]; PANEL_TOKENS]; PIECE_BLOCKS];
    for first in (0..call.blocks()).step_by(PIECE_BLOCKS) {
        let count = PIECE_BLOCKS.min(call.blocks() - first);
        // SAFETY: the blocks, tiles and tokens exist; a prefetch may name any address.
        unsafe {
            let x = call.activations.add(first * call.tokens + token);
            for (block, given) in given[..count].iter_mut().enumerate() {
                let ahead = x.wrapping_add((block + PREFETCH_BLOCKS) * call.tokens);
                prefetch(ahead.cast(), PANEL_TOKENS * size_of::<ActBlock>() + 63);
                for (token, given) in given.iter_mut().enumerate() {
                    *given = sums::<K>((*x.add(block * call.tokens + token)).s);
                }
            }
            for (tile, acc) in tiles.clone().zip(&mut acc) {
                blocks::<K>(call, tile, first, x, &given[..count], acc);
            }
        }
    }
    for (tile, acc) in tiles.zip(&acc) {
        // SAFETY: the tile and the tokens exist.
        unsafe { finish(call, tile, token, acc) };
    }
}

/// One tile and the tokens of a panel from block `first` on, as many blocks as `given` has.
///
/// # Safety
/// As [`run`]'s; the tile and the blocks exist, `x` is the activations of the first of them;
/// `first` is a multiple of [`SUPER_BLOCKS`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn blocks<K: Kind>(
    call: &Call<'_>,
    tile: usize,
    first: usize,
    mut x: *const ActBlock,
    given: &[[Sums; PANEL_TOKENS]],
    acc: &mut [__m512; PANEL_TOKENS],
) {
    let layout = K::LAYOUT;
    let mut sum = *acc;
    // SAFETY: the offsets are those of the module's header, for a tile, blocks and tokens that
    // exist.
    unsafe {
        let start = layout.block_offset_bytes(first) - layout.header_bytes();
        let mut weights = call.weights.bytes().as_ptr();
        weights = weights.add(tile * call.weights.tile_bytes() + start);
        let mut header = weights;
        for (block, given) in given.iter().enumerate() {
            if layout.header_bytes() > 0 && block % SUPER_BLOCKS == 0 {
                header = weights;
                weights = weights.add(layout.header_bytes());
            }
            let integers = unpack::<K, PANEL_TOKENS>(weights);
            let scales = Scales::load::<K, PANEL_TOKENS>(header, weights);
            for (token, sum) in sum.iter_mut().enumerate() {
                let (x, given) = (x.add(token), &raw const given[token]);
                *sum = advance::<K, PANEL_TOKENS>(&integers, &scales, x, given, *sum);
            }
            weights = weights.add(layout.block_bytes());
            x = x.wrapping_add(call.tokens);
        }
    }
    *acc = sum;
}

/// `TILES` tiles side by side, `TOKENS` tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tiles from `tile` on and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn stream<K: Kind, const TILES: usize, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
) {
    let (layout, tile_bytes) = (K::LAYOUT, call.weights.tile_bytes());
    let mut acc = [[_mm512_setzero_ps(); TOKENS]; TILES];
    // SAFETY: the offsets are those of the module's header, for tiles, blocks and tokens that
    // exist. A prefetch may name any address.
    unsafe {
        let mut weights = call.weights.bytes().as_ptr().add(tile * tile_bytes);
        let mut x = call.activations.add(token);
        let mut header = weights;
        for block in 0..call.blocks() {
            if layout.header_bytes() > 0 && block % SUPER_BLOCKS == 0 {
                header = weights;
                weights = weights.add(layout.header_bytes());
            }
            let mut given = [[0; 2]; TOKENS];
            for (token, given) in given.iter_mut().enumerate() {
                *given = sums::<K>((*x.add(token)).s);
            }
            for (tile, acc) in acc.iter_mut().enumerate() {
                let weights = weights.add(tile * tile_bytes);
                prefetch(weights.wrapping_add(AHEAD_BYTES), layout.block_bytes());
                let integers = unpack::<K, TOKENS>(weights);
                let scales = Scales::load::<K, TOKENS>(header.add(tile * tile_bytes), weights);
                for (token, acc) in acc.iter_mut().enumerate() {
                    let (x, given) = (x.add(token), &raw const given[token]);
                    *acc = advance::<K, TOKENS>(&integers, &scales, x, given, *acc);
                }
            }
            weights = weights.add(layout.block_bytes());
            x = x.wrapping_add(call.tokens);
        }
        for (index, acc) in acc.iter().enumerate() {
            finish(call, tile + index, token, acc);
        }
    }
}

/// Applies the epilogue to 16 rows of some tokens.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens from `token` on exist.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn finish<const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
    acc: &[__m512; TOKENS],
) {
    for (index, acc) in acc.iter().enumerate() {
        // SAFETY: the offset is that of the module's header.
        unsafe {
            let y = call.y.add((tile * call.tokens + token + index) * TILE_ROWS);
            match call.epilogue {
                Epilogue::Store => _mm512_storeu_ps(y, *acc),
                Epilogue::AddTo => _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), *acc)),
            }
        }
    }
}
