//! Blockwise attention over the cache, for many tokens of a prompt or one of each sequence.
//!
//! **Definition**, for each (token, query head), with visible positions `[lo, hi)`. They are cut
//! into segments of 256 absolute positions. In a segment:
//!
//! ```text
//! s[p] = (Σ_d q[d] · k[p][d]) · scale     fused multiply-add, d in order; then c·tanh(s/c)
//! m    = max s,   w[p] = exp(s[p] − m), or 0 where s[p] − m < −87
//! l    = Σ w      sixteen accumulators, accumulator p mod 16, then the tree of reduce_add
//! o[d] = Σ_p w[p] · v[p][d]               fused multiply-add, p in order
//! ```
//!
//! Segments are merged in increasing order: the first is copied; then `M = max(m, mₛ)`,
//! `a = exp(m − M)`, `b = exp(mₛ − M)`, both 0 below −87 too, `l = fma(l, a, lₛ·b)`,
//! `o = fma(o, a, oₛ·b)`; the answer
//! is `o · (1/l)`. Nothing in it depends on other tokens, on chunks, on lanes or on where the
//! ring wraps, so [`attention_prefill`] and [`attention_decode_partial`] with
//! [`attention_decode_merge`] give the same bits. A position that is not visible is skipped,
//! never multiplied by zero: its bytes may be anything. A token that sees nothing gets zeros.
//!
//! **Shape of the work.** Up to six query rows meet a segment together (`block.rs`): tokens of
//! one head in a prompt, heads of one group in a step. Scores have positions across lanes,
//! weighted sums have dimensions across lanes, so that neither needs a reduction.

mod block;
mod decode;
mod full;
#[cfg(test)]
mod tests;

pub use decode::{
    attention_decode_items, attention_decode_items_max, attention_decode_merge,
    attention_decode_merge_quantise, attention_decode_partial, attention_partial_len,
};

pub use full::{
    FullWorkspace, attention_full, attention_full_head_bytes, attention_full_workspace_len,
    attention_windows,
};

use crate::isa::Isa;
use crate::kv::{KvPlaces, KvShape};
use crate::limits::{ATTENTION_ROWS, HEAD_DIM_MAX, SEGMENT_POSITIONS};
use crate::simd::{LANES, Tile, dispatch, tiles, tiles_mut};
use block::{Ahead, Cache, Merge, Running, Workspace, rows_max};
use core::ops::Range;

/// Constants of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The caches; `kv.heads` divides `heads`.
    pub kv: KvShape,
    /// Query heads.
    pub heads: usize,
    /// Factor on each score.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

impl Attention {
    /// Query heads that share a key/value head.
    pub const fn group(&self) -> usize {
        self.heads / self.kv.heads
    }

    #[track_caller]
    fn assert_valid(&self) {
        self.kv.assert_valid();
        let (heads, kv_heads) = (self.heads, self.kv.heads);
        assert!(heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads over {kv_heads}");
    }

    /// Tiles of a head of one token.
    const fn head_tiles(&self) -> usize {
        self.kv.head_dim / LANES
    }
}

/// Which positions a token sees.
#[derive(Clone, Copy, Debug)]
pub enum Visibility<'a> {
    /// All up to its own.
    Causal,
    /// The last so many up to its own, which is one of them; at least 1.
    Window(u32),
    /// `[lo, hi)` for each token.
    Ranges(&'a [[u32; 2]]),
}

/// The step's tokens: where they stand and what they see.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Their positions and slots.
    pub places: KvPlaces<'a>,
    /// What they see.
    pub visibility: Visibility<'a>,
}

impl Tokens<'_> {
    /// Number of tokens.
    pub const fn len(&self) -> usize {
        self.places.positions.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.places.positions.is_empty()
    }

    /// Positions that `token` sees.
    #[inline(always)]
    pub fn visible(&self, token: usize) -> Range<usize> {
        let position = self.places.positions[token] as usize;
        match self.visibility {
            Visibility::Causal => 0..position + 1,
            Visibility::Window(window) => {
                (position + 1).saturating_sub(window as usize)..position + 1
            }
            Visibility::Ranges(ranges) => ranges[token][0] as usize..ranges[token][1] as usize,
        }
    }

    #[inline(always)]
    fn slot(&self, token: usize) -> usize {
        self.places.slots[token] as usize
    }

    #[track_caller]
    fn assert_valid(&self, shape: &KvShape) {
        self.places.assert_valid(shape.slots);
        match self.visibility {
            Visibility::Causal => {}
            Visibility::Window(window) => assert!(window > 0, "a window of no position"),
            Visibility::Ranges(ranges) => assert_eq!(ranges.len(), self.len(), "ranges"),
        }
        for token in 0..self.len() {
            let (visible, capacity) = (self.visible(token), shape.capacity);
            assert!(visible.len() <= capacity, "token {token} sees {visible:?} of {capacity}");
        }
    }
}

/// Elements of the workspace that one call of an attention kernel needs.
pub const fn attention_workspace_len(head_dim: usize) -> usize {
    ATTENTION_ROWS * (SEGMENT_POSITIONS + 3 * head_dim)
}

/// Attention of query heads `heads` of all tokens: of a prompt, or of a step whose heads divide
/// over the lanes.
///
/// `q` and `out` are the tile-major slices of those heads, `[heads][head_dim/16][tokens][16]`;
/// `keys` and `values` are the whole caches, with the step's tokens appended. Consecutive tokens
/// of one slot are taken together; any order is correct.
///
/// Panics unless the lengths agree, the workspace has [`attention_workspace_len`] elements, and
/// no token sees more positions than a slot holds.
#[expect(clippy::too_many_arguments, reason = "operands are told apart by name, not by a struct")]
pub fn attention_prefill(
    isa: Isa,
    shape: &Attention,
    tokens: Tokens<'_>,
    heads: Range<usize>,
    q: &[f32],
    keys: &[u8],
    values: &[u8],
    workspace: &mut [f32],
    out: &mut [f32],
) {
    check(shape, tokens, keys, values);
    assert!(heads.end <= shape.heads, "heads {heads:?} of {}", shape.heads);
    let elements = heads.len() * shape.kv.head_dim * tokens.len();
    assert_eq!(q.len(), elements, "elements of the queries");
    assert_eq!(out.len(), elements, "elements of the attention's output");
    let workspace = Workspace::new(shape, workspace);
    let (q, out) = (tiles(q), tiles_mut(out));
    let cache = Cache { shape: &shape.kv, keys, values };
    let mut prefill = Prefill { isa, shape, tokens, q, cache, workspace, out };
    let parts = groups(shape, heads).flat_map(|(kv_head, heads)| {
        runs(tokens).flat_map(move |(slot, tokens)| {
            let rows = Rows { heads: heads.clone(), tokens };
            let is_step = rows.are_few(isa);
            rows.blocks(isa).map(move |block| Part { kv_head, slot, block, is_step })
        })
    });
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        prefill.attend(&part, parts.peek());
    }
}

/// Parts of a range of heads that share a key/value head; relative to the range's start.
fn groups(shape: &Attention, heads: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let group = shape.group();
    let kv_heads = heads.start / group..heads.end.div_ceil(group);
    kv_heads.map(move |kv_head| {
        let start = heads.start.max(kv_head * group) - heads.start;
        let end = heads.end.min((kv_head + 1) * group) - heads.start;
        (kv_head, start..end)
    })
}

/// Runs of consecutive tokens of one slot.
fn runs(tokens: Tokens<'_>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = 0;
    core::iter::from_fn(move || {
        let slot = *tokens.places.slots.get(start)?;
        let len = tokens.places.slots[start..].iter().take_while(|&&other| other == slot).count();
        let run = start..start + len;
        start = run.end;
        Some((slot as usize, run))
    })
}

#[track_caller]
fn check(shape: &Attention, tokens: Tokens<'_>, keys: &[u8], values: &[u8]) {
    shape.assert_valid();
    tokens.assert_valid(&shape.kv);
    assert_eq!(keys.len(), shape.kv.heads * shape.kv.key_head_bytes(), "bytes of the keys");
    assert_eq!(values.len(), shape.kv.heads * shape.kv.value_head_bytes(), "bytes of the values");
}

/// Query rows over the same keys: heads (of the shard) times tokens.
#[derive(Clone)]
struct Rows {
    heads: Range<usize>,
    tokens: Range<usize>,
}

/// A few rows, at most [`ATTENTION_ROWS`]: head and token of each.
#[derive(Clone, Copy)]
struct RowBlock {
    len: usize,
    rows: [(usize, usize); ATTENTION_ROWS],
}

impl Rows {
    /// Whether there are so few tokens that one head's do not fill a block: those of a step.
    fn are_few(&self, isa: Isa) -> bool {
        self.tokens.len() < rows_max(isa)
    }

    /// Blocks of equal size. Many tokens: a block is of one head, so that what its rows see is
    /// nearly the same. Few tokens: heads are mixed, so that a block is full.
    fn blocks(self, isa: Isa) -> impl Iterator<Item = RowBlock> {
        let (heads, tokens) = (self.heads.len(), self.tokens.len());
        let rows_max = rows_max(isa);
        let run = if self.are_few(isa) { heads * tokens } else { tokens };
        let runs = heads * tokens / run;
        let blocks = run.div_ceil(rows_max);
        (0..runs * blocks).map(move |i| {
            let (base, i) = (i / blocks * run, i % blocks);
            let range = base + i * run / blocks..base + (i + 1) * run / blocks;
            let mut block = RowBlock { len: range.len(), rows: [(0, 0); ATTENTION_ROWS] };
            for (row, index) in block.rows.iter_mut().zip(range) {
                *row = (self.heads.start + index / tokens, self.tokens.start + index % tokens);
            }
            block
        })
    }
}

/// A block of rows, and the keys and values that it meets.
struct Part {
    kv_head: usize,
    slot: usize,
    block: RowBlock,
    /// Whether the caches come from memory, as in a step, and are asked for ahead.
    is_step: bool,
}

impl Part {
    /// The keys that it meets first.
    fn first_keys<'a>(&self, tokens: Tokens<'_>, cache: Cache<'a>) -> &'a [u8] {
        let (_, token) = self.block.rows[self.block.len - 1];
        let visible = tokens.visible(token);
        let first = block::segments(core::slice::from_ref(&visible)).start;
        cache.of(self.kv_head, self.slot).segment_keys(&visible, first)
    }
}

struct Prefill<'a> {
    isa: Isa,
    shape: &'a Attention,
    tokens: Tokens<'a>,
    q: &'a [Tile],
    cache: Cache<'a>,
    workspace: Workspace<'a>,
    out: &'a mut [Tile],
}

impl Prefill<'_> {
    /// The rows of a part against all that they see; `then` comes after it.
    fn attend(&mut self, part: &Part, then: Option<&Part>) {
        let Self { isa, shape, tokens, q, cache, workspace, out } = self;
        let (block, head_tiles) = (&part.block, shape.head_tiles());
        let rows = &block.rows[..block.len];
        let mut visible = [const { 0..0 }; ATTENTION_ROWS];
        for (r, &(head, token)) in rows.iter().enumerate() {
            visible[r] = tokens.visible(token);
            for tile in 0..head_tiles {
                let from = (head * head_tiles + tile) * tokens.len() + token;
                workspace.q[tile * block.len + r] = q[from];
            }
        }
        let (visible, last) = (&visible[..block.len], &visible[block.len - 1]);
        let slot_cache = cache.of(part.kv_head, part.slot);
        let mut running = Running::new();
        let segments = block::segments(visible);
        for segment in segments.clone() {
            let mut ahead = Ahead::default();
            if part.is_step {
                ahead.values = slot_cache.segment_values(last, segment);
                ahead.keys = match segment + 1 < segments.end {
                    true => slot_cache.segment_keys(last, segment + 1),
                    false => then.map_or(&[][..], |then| then.first_keys(*tokens, *cache)),
                };
            }
            let next = block::segment(*isa, shape, visible, segment, slot_cache, ahead, workspace);
            let (part, o) = (&*workspace.part, &mut *workspace.o);
            dispatch(*isa, Merge { running: &mut running, next, part, o, head_tiles });
        }
        for (r, &(head, token)) in rows.iter().enumerate() {
            for tile in 0..head_tiles {
                let to = (head * head_tiles + tile) * tokens.len() + token;
                out[to] = running.finish(r, &workspace.o[r * head_tiles + tile]);
            }
        }
    }
}
