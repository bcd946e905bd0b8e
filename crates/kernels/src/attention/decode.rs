//! Attention of one step by pieces: partial results of segments, then their merge.
//!
//! An **item** is (token, key/value head, segment). Items are numbered in that order, tokens
//! outermost, counting only segments that the token sees, so that `0..items` has no holes. Item
//! i writes record i of the partials: for each query head of the group one tile `{m, l, 0 …}`,
//! then the weighted sums, `[group][head_dim/16][16]`. Any contiguous split of the items is
//! correct.

use super::block::{self, Ahead, Cache, Merge, Partial, Running, Workspace, rows_max};
use super::{Attention, Tokens, check};
use crate::isa::Isa;
use crate::limits::{ATTENTION_ROWS, BLOCK_COLS, HEAD_DIM_MAX, SEGMENT_POSITIONS};
use crate::quantise::{ActBlock, quantise_block};
use crate::simd::{Kernel, LANES, Simd, Tile, dispatch, tiles, tiles_mut};
use core::ops::Range;

/// Elements of the record of one item.
pub const fn attention_partial_len(shape: &Attention) -> usize {
    shape.group() * (LANES + shape.kv.head_dim)
}

/// The number of items of a step.
pub fn attention_decode_items(shape: &Attention, tokens: Tokens<'_>) -> usize {
    let segments = |token| token_segments(tokens, token).len();
    shape.kv.heads * (0..tokens.len()).map(segments).sum::<usize>()
}

/// The most items that a step of `tokens` tokens can have if each sees at most `visible_max`
/// consecutive positions, `window` of them at a time if there is one.
pub const fn attention_decode_items_max(
    kv_heads: usize,
    tokens: usize,
    visible_max: usize,
    window: Option<usize>,
) -> usize {
    let from_start = visible_max.div_ceil(SEGMENT_POSITIONS);
    let segments = match window {
        // A window may begin at the last position of a segment.
        Some(window) if window < visible_max => {
            let anywhere = (window + SEGMENT_POSITIONS - 2) / SEGMENT_POSITIONS + 1;
            if anywhere < from_start { anywhere } else { from_start }
        }
        Some(_) | None => from_start,
    };
    kv_heads * tokens * segments
}

fn token_segments(tokens: Tokens<'_>, token: usize) -> Range<usize> {
    block::segments(&[tokens.visible(token)])
}

/// Partial results of `items`, in `partials`.
///
/// `q` is all query heads, tile-major; `partials` are the records of those items. Panics unless
/// the lengths agree and the workspace has [`super::attention_workspace_len`] elements.
#[expect(clippy::too_many_arguments, reason = "operands are told apart by name, not by a struct")]
pub fn attention_decode_partial(
    isa: Isa,
    shape: &Attention,
    tokens: Tokens<'_>,
    items: Range<usize>,
    q: &[f32],
    keys: &[u8],
    values: &[u8],
    workspace: &mut [f32],
    partials: &mut [f32],
) {
    check(shape, tokens, keys, values);
    assert_eq!(q.len(), shape.heads * shape.kv.head_dim * tokens.len(), "queries");
    let count = attention_decode_items(shape, tokens);
    assert!(items.end <= count, "items {items:?} of {count}");
    assert_eq!(partials.len(), items.len() * attention_partial_len(shape), "partials");
    let mut workspace = Workspace::new(shape, workspace);
    let cache = Cache { shape: &shape.kv, keys, values };
    let (q, partials) = (tiles(q), tiles_mut(partials));
    let (group, head_tiles) = (shape.group(), shape.head_tiles());
    let mut place = Place::of(shape, tokens, items.start);
    for record in partials.chunks_exact_mut(group * (1 + head_tiles)) {
        let Place { token, kv_head, segment } = place;
        place.advance(shape, tokens);
        let slot_cache = cache.of(kv_head, tokens.slot(token));
        let visible = [(); ATTENTION_ROWS].map(|()| tokens.visible(token));
        let next_keys = place.keys(tokens, cache);
        let blocks = group.div_ceil(rows_max(isa));
        for i in 0..blocks {
            let heads = i * group / blocks..(i + 1) * group / blocks;
            let rows = heads.len();
            for (r, head) in heads.clone().enumerate() {
                for tile in 0..head_tiles {
                    let from = ((kv_head * group + head) * head_tiles + tile) * tokens.len();
                    workspace.q[tile * rows + r] = q[from + token];
                }
            }
            let visible = &visible[..rows];
            // The first block brings the segment in, the last one asks for the next item's.
            let mut ahead = Ahead::default();
            if i == 0 {
                ahead.values = slot_cache.segment_values(&visible[0], segment);
            }
            if i + 1 == blocks {
                ahead.keys = next_keys;
            }
            let workspace = &mut workspace;
            let partial =
                block::segment(isa, shape, visible, segment, slot_cache, ahead, workspace);
            for (r, head) in heads.enumerate() {
                record[head] = [0.0; LANES];
                (record[head][0], record[head][1]) = (partial.m[r], partial.l[r]);
                let sums = &workspace.part[r * head_tiles..][..head_tiles];
                record[group + head * head_tiles..][..head_tiles].copy_from_slice(sums);
            }
        }
    }
}

/// An item by its coordinates.
#[derive(Clone, Copy)]
struct Place {
    token: usize,
    kv_head: usize,
    segment: usize,
}

impl Place {
    /// The place of item `item`, or one beyond the last token.
    fn of(shape: &Attention, tokens: Tokens<'_>, mut item: usize) -> Self {
        for token in 0..tokens.len() {
            let segments = token_segments(tokens, token);
            let count = shape.kv.heads * segments.len();
            if item < count {
                let (kv_head, segment) = (item / segments.len(), item % segments.len());
                return Self { token, kv_head, segment: segments.start + segment };
            }
            item -= count;
        }
        Self { token: tokens.len(), kv_head: 0, segment: 0 }
    }

    /// The keys that the item reads; none beyond the last one.
    fn keys<'a>(&self, tokens: Tokens<'_>, cache: Cache<'a>) -> &'a [u8] {
        if self.token == tokens.len() {
            return &[];
        }
        let slot_cache = cache.of(self.kv_head, tokens.slot(self.token));
        slot_cache.segment_keys(&tokens.visible(self.token), self.segment)
    }

    fn advance(&mut self, shape: &Attention, tokens: Tokens<'_>) {
        let segments = token_segments(tokens, self.token);
        self.segment += 1;
        if self.segment < segments.end {
            return;
        }
        (self.segment, self.kv_head) = (segments.start, self.kv_head + 1);
        if self.kv_head < shape.kv.heads {
            return;
        }
        (self.kv_head, self.token) = (0, self.token + 1);
        while self.token < tokens.len() {
            let segments = token_segments(tokens, self.token);
            if !segments.is_empty() {
                self.segment = segments.start;
                return;
            }
            self.token += 1;
        }
    }
}

/// Merges the partial results of query heads `heads` of all tokens.
///
/// `partials` are the records of all items; `out` is the tile-major slice of those heads. Panics
/// unless the lengths agree.
pub fn attention_decode_merge(
    isa: Isa,
    shape: &Attention,
    tokens: Tokens<'_>,
    heads: Range<usize>,
    partials: &[f32],
    out: &mut [f32],
) {
    let elements = heads.len() * shape.kv.head_dim * tokens.len();
    assert_eq!(out.len(), elements, "elements of the attention's output");
    let sink = Floats { tokens: tokens.len(), out: tiles_mut(out) };
    merge(isa, shape, tokens, heads, partials, sink);
}

/// [`attention_decode_merge`], then quantised: `out` is `[heads][head_dim/32][tokens]`.
///
/// Panics as that, and unless heads are whole blocks.
pub fn attention_decode_merge_quantise(
    isa: Isa,
    shape: &Attention,
    tokens: Tokens<'_>,
    heads: Range<usize>,
    partials: &[f32],
    out: &mut [ActBlock],
) {
    let head_dim = shape.kv.head_dim;
    assert!(head_dim.is_multiple_of(BLOCK_COLS), "heads of {head_dim} are no whole blocks");
    let blocks = heads.len() * head_dim / BLOCK_COLS * tokens.len();
    assert_eq!(out.len(), blocks, "blocks of the attention's output");
    merge(isa, shape, tokens, heads, partials, Blocks { tokens: tokens.len(), out });
}

fn merge<K: Sink>(
    isa: Isa,
    shape: &Attention,
    tokens: Tokens<'_>,
    heads: Range<usize>,
    partials: &[f32],
    sink: K,
) {
    shape.assert_valid();
    tokens.assert_valid(&shape.kv);
    assert!(heads.end <= shape.heads, "heads {heads:?} of {}", shape.heads);
    let items = attention_decode_items(shape, tokens);
    assert!(partials.len() >= items * attention_partial_len(shape), "partials of {items} items");
    dispatch(isa, MergeHeads { shape, tokens, heads, partials: tiles(partials), sink });
}

/// What becomes of the answer of a head of the shard and a token.
trait Sink {
    fn put<S: Simd>(&mut self, s: S, head: usize, token: usize, answer: &[Tile]);
}

struct Floats<'a> {
    tokens: usize,
    out: &'a mut [Tile],
}

impl Sink for Floats<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, _: S, head: usize, token: usize, answer: &[Tile]) {
        for (tile, answer) in (head * answer.len()..).zip(answer) {
            self.out[tile * self.tokens + token] = *answer;
        }
    }
}

struct Blocks<'a> {
    tokens: usize,
    out: &'a mut [ActBlock],
}

impl Sink for Blocks<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, head: usize, token: usize, answer: &[Tile]) {
        let pairs = answer.as_chunks::<2>().0;
        for (block, [low, high]) in (head * pairs.len()..).zip(pairs) {
            let out = &mut self.out[block * self.tokens + token];
            quantise_block(s, s.load(low), s.load(high), out);
        }
    }
}

/// All records of some heads; heads of a group together.
struct MergeHeads<'a, K: Sink> {
    shape: &'a Attention,
    tokens: Tokens<'a>,
    heads: Range<usize>,
    partials: &'a [Tile],
    sink: K,
}

impl<K: Sink> Kernel for MergeHeads<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Self { shape, tokens, ref heads, partials, .. } = self;
        let (group, head_tiles) = (shape.group(), shape.head_tiles());
        let record_tiles = group * (1 + head_tiles);
        let mut o = [[0.0; LANES]; ATTENTION_ROWS * HEAD_DIM_MAX / LANES];
        let mut first_item = 0;
        for token in 0..tokens.len() {
            let segments = token_segments(tokens, token).len();
            let mut head = heads.start;
            while head < heads.end {
                let (kv_head, row) = (head / group, head % group);
                let rows = (heads.end - head).min(group - row).min(ATTENTION_ROWS);
                let mut running = Running::new();
                let first = first_item + kv_head * segments;
                for item in first..first + segments {
                    let record = &partials[item * record_tiles..][..record_tiles];
                    let mut next = Partial::NONE;
                    for (r, [m, l, ..]) in record[row..row + rows].iter().enumerate() {
                        (next.seen[r], next.m[r], next.l[r]) = (true, *m, *l);
                    }
                    let part = &record[group + row * head_tiles..][..rows * head_tiles];
                    let (running, o) = (&mut running, &mut o[..]);
                    Merge { running, next, part, o, head_tiles }.run(s);
                }
                for r in 0..rows {
                    let answer = &mut o[r * head_tiles..][..head_tiles];
                    answer.iter_mut().for_each(|o| *o = running.finish(r, o));
                    self.sink.put(s, head + r - heads.start, token, answer);
                }
                head += rows;
            }
            first_item += shape.kv.heads * segments;
        }
    }
}
