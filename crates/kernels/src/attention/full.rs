//! Attention of every token over all tokens of the step, or over those of its window: an image
//! encoder's.
//!
//! The arithmetic is the module's, with all positions visible to everyone: segments of 256
//! positions, merged in increasing order. A window is attention of its tokens alone, positions
//! counted from its first. There is no cache, no mask, and no buffer grows with the square of the
//! tokens.
//!
//! **Shape of the work.** Both halves are products that the matmul already knows. Keys are packed
//! so that sixteen positions are the rows of a weight tile and the head's dimensions its columns:
//! times queries they give scores, positions across lanes. Values are packed so that sixteen
//! dimensions are the rows and the positions of a segment the columns: times the weights, as the
//! softmax leaves them, they give weighted sums. Some tokens pass at once, so that scores of a
//! segment stay near.
//!
//! **Any width of a head.** In the workspace a head is padded with zeros to whole vectors: a score
//! is then the same sum, and what stands in the padding of an answer is not kept. In the slices
//! heads follow each other without padding, so that one may begin within a tile and share it.

use super::{HEAD_DIM_MAX, SEGMENT_POSITIONS};
use crate::exp::softmax_weight;
use crate::isa::Isa;
use crate::limits::{FULL_ATTENTION_TOKENS, KV_BLOCK_POSITIONS};
use crate::matmul::{Epilogue, matmul_float};
use crate::packed::{PackedKind, PackedTiles};
use crate::simd::{Kernel, LANES, Operand, Simd, Tile, dispatch, tiles, tiles_mut};
use core::ops::Range;

/// Bytes of the keys, or of the values, of one head of `tokens` tokens in the workspace.
#[must_use]
pub const fn attention_full_head_bytes(head_dim: usize, tokens: usize) -> usize {
    tokens.next_multiple_of(KV_BLOCK_POSITIONS) * head_dim.next_multiple_of(LANES) * 4
}

/// Floats of the workspace: queries, scores, a segment's sums and the merged ones of some tokens.
#[must_use]
pub const fn attention_full_workspace_len(head_dim: usize) -> usize {
    FULL_ATTENTION_TOKENS * (SEGMENT_POSITIONS + 3 * head_dim.next_multiple_of(LANES))
}

/// Scratch of a call.
#[derive(Debug)]
pub struct FullWorkspace<'a> {
    /// [`attention_full_workspace_len`] floats.
    pub rows: &'a mut [f32],
    /// [`attention_full_head_bytes`] bytes.
    pub keys: &'a mut [u8],
    /// [`attention_full_head_bytes`] bytes.
    pub values: &'a mut [u8],
}

/// Attention of a run of heads; queries, keys, values and `out` are their tile-major slices,
/// `[heads · head_dim/16][tokens][16]`. The queries may be the output's bytes.
///
/// Panics unless the lengths agree and a head has at most 256 features.
#[expect(clippy::too_many_arguments, reason = "operands are told apart by name, not by a struct")]
pub fn attention_full(
    isa: Isa,
    shape: (usize, f32),
    tokens: usize,
    q: Operand<'_>,
    k: &[f32],
    v: &[f32],
    workspace: FullWorkspace<'_>,
    out: &mut [f32],
) {
    let all = core::iter::once(0..tokens);
    attention_windows(isa, shape, (tokens, all), q, k, v, workspace, out);
}

/// As [`attention_full`], but each token sees those of its window only: `windows` are ranges of
/// tokens, each token in one of them. The workspace is that of the longest.
///
/// Panics as [`attention_full`], or when a window is longer than the workspace or not among the
/// tokens.
#[expect(clippy::too_many_arguments, reason = "operands are told apart by name, not by a struct")]
pub fn attention_windows(
    isa: Isa,
    (head_dim, scale): (usize, f32),
    (tokens, windows): (usize, impl Iterator<Item = Range<usize>> + Clone),
    q: Operand<'_>,
    k: &[f32],
    v: &[f32],
    workspace: FullWorkspace<'_>,
    out: &mut [f32],
) {
    assert!((1..=HEAD_DIM_MAX).contains(&head_dim), "head of {head_dim} features");
    let head_len = head_dim * tokens;
    assert!(head_len > 0 && out.len().is_multiple_of(head_len), "whole heads");
    assert_eq!((k.len(), v.len()), (out.len(), out.len()), "elements of keys and values");
    let FullWorkspace { rows, keys, values } = workspace;
    let rows = &mut rows[..attention_full_workspace_len(head_dim)];
    let (k, v, out) = (tiles(k), tiles(v), tiles_mut(out));
    let q = q.tiles(out.len());
    for head in 0..out.len() * LANES / head_len {
        let part = Features { first: head * head_dim, len: head_dim, tokens };
        for window in windows.clone() {
            let bytes = attention_full_head_bytes(head_dim, window.len());
            let (keys, values) = (&mut keys[..bytes], &mut values[..bytes]);
            pack_keys(k, (part, &window), keys);
            pack_values(v, (part, &window), values);
            let window_len = window.len();
            let mut work = Head { isa, scale, part, window_len, keys, values, q, out };
            for first in window.clone().step_by(FULL_ATTENTION_TOKENS) {
                work.attend(first, FULL_ATTENTION_TOKENS.min(window.end - first), rows);
            }
        }
    }
}

/// The features of a head in tile-major slices of so many tokens.
#[derive(Clone, Copy)]
struct Features {
    first: usize,
    len: usize,
    tokens: usize,
}

impl Features {
    /// Features with padding.
    const fn width(self) -> usize {
        self.len.next_multiple_of(LANES)
    }

    /// The tile in which vector `index` of the head begins, and the lane.
    const fn place(self, index: usize) -> (usize, usize) {
        let feature = self.first + index * LANES;
        (feature / LANES * self.tokens, feature % LANES)
    }

    /// Features of vector `index` of the head.
    fn count(self, index: usize) -> usize {
        LANES.min(self.len - index * LANES)
    }

    /// Vector `index` of the head of tokens `first..`, padded with zeros.
    fn read(self, tiles: &[Tile], index: usize, first: usize, to: &mut [Tile]) {
        let ((at, lane), count) = (self.place(index), self.count(index));
        if (lane, count) == (0, LANES) {
            return to.copy_from_slice(&tiles[at + first..][..to.len()]);
        }
        for (token, to) in (first..).zip(to) {
            *to = [0.0; LANES];
            for (index, to) in to[..count].iter_mut().enumerate() {
                let (tile, lane) = ((lane + index) / LANES, (lane + index) % LANES);
                *to = tiles[at + tile * self.tokens + token][lane];
            }
        }
    }

    /// Writes vector `index` of the head, `value(i)` of token `first + i`; other heads' features of
    /// the same tiles stay.
    fn write(
        self,
        tiles: &mut [Tile],
        index: usize,
        tokens: Range<usize>,
        value: impl Fn(usize) -> Tile,
    ) {
        let ((at, lane), count) = (self.place(index), self.count(index));
        for (row, token) in tokens.enumerate() {
            let value = value(row);
            if (lane, count) == (0, LANES) {
                tiles[at + token] = value;
                continue;
            }
            for (index, value) in value[..count].iter().enumerate() {
                let (tile, lane) = ((lane + index) / LANES, (lane + index) % LANES);
                tiles[at + tile * self.tokens + token][lane] = *value;
            }
        }
    }
}

/// One head, one window of it.
struct Head<'a> {
    isa: Isa,
    scale: f32,
    part: Features,
    /// Tokens that see each other.
    window_len: usize,
    keys: &'a [u8],
    values: &'a [u8],
    q: Option<&'a [Tile]>,
    out: &'a mut [Tile],
}

impl Head<'_> {
    /// Tokens `first..first + count` against all segments of their window.
    fn attend(&mut self, first: usize, count: usize, rows: &mut [f32]) {
        let Head { isa, scale, part: features, window_len: window, .. } = *self;
        let head_dim = features.width();
        let (q, rest) = rows.split_at_mut(head_dim * count);
        let (part, rest) = rest.split_at_mut(head_dim * count);
        let (o, rest) = rest.split_at_mut(head_dim * count);
        for (tile, to) in tiles_mut(q).chunks_exact_mut(count).enumerate() {
            features.read(self.q.unwrap_or(self.out), tile, first, to);
        }
        let mut running = Running::new();
        for start in (0..window).step_by(SEGMENT_POSITIONS) {
            let positions = SEGMENT_POSITIONS.min(window - start);
            let groups = positions.div_ceil(LANES);
            let scores = &mut rest[..groups * LANES * count];
            let keys = &self.keys[start * head_dim * 4..][..groups * LANES * head_dim * 4];
            let keys = PackedTiles::new(PackedKind::F32, head_dim, keys);
            matmul_float(isa, keys, q, count, Epilogue::Store, scores);
            let softmax = Softmax {
                scale,
                positions,
                count,
                scores: tiles_mut(scores),
                running: &mut running,
            };
            dispatch(isa, softmax);
            let values = &self.values[start * head_dim * 4..][..positions * head_dim * 4];
            let values = PackedTiles::new(PackedKind::F32, positions, values);
            let sums = if start == 0 { &mut *o } else { &mut *part };
            matmul_float(isa, values, scores, count, Epilogue::Store, sums);
            if start > 0 {
                let (part, o) = (tiles(part), tiles_mut(o));
                dispatch(isa, Merge { count, running: &running, part, o });
            }
        }
        let inverse = running.l.map(|l| 1.0 / l);
        for (tile, o) in tiles(o).chunks_exact(count).enumerate() {
            let answer = |row: usize| o[row].map(|o| o * inverse[row]);
            features.write(self.out, tile, first..first + count, answer);
        }
    }
}

/// Tokens in whole vectors.
const ROOM: usize = FULL_ATTENTION_TOKENS.next_multiple_of(LANES);

/// Of each token the maximum and the sum of all segments so far, and how the last merge weighs
/// what was before it and the segment.
struct Running {
    m: [f32; ROOM],
    l: [f32; ROOM],
    before: [f32; ROOM],
    segment: [f32; ROOM],
    is_first: bool,
}

impl Running {
    const fn new() -> Self {
        let zero = [0.0; ROOM];
        Self { m: zero, l: zero, before: zero, segment: zero, is_first: true }
    }
}

/// Turns the scores of a segment, `[group][token][16 positions]`, into weights, and merges their
/// maxima and sums.
struct Softmax<'a> {
    scale: f32,
    positions: usize,
    count: usize,
    scores: &'a mut [Tile],
    running: &'a mut Running,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { scale, positions, count, scores, running } = self;
        let (mut maxima, mut sums) = ([0.0; ROOM], [0.0; ROOM]);
        let none = s.splat(f32::NEG_INFINITY);
        // Lanes of the last group that are positions: the others are at −∞ and weigh nothing.
        let last = positions - (positions - 1) / LANES * LANES;
        let seen = s.mask_from_bits(((1u32 << last) - 1) as u16);
        let groups = positions.div_ceil(LANES);
        for token in 0..count {
            let mut largest = none;
            for group in 0..groups {
                let score = &mut scores[group * count + token];
                let scaled = s.mul(s.load(score), s.splat(scale));
                let scaled =
                    if group + 1 == groups { s.select(seen, scaled, none) } else { scaled };
                largest = s.max(scaled, largest);
                s.store(scaled, score);
            }
            let m = s.reduce_max(largest);
            let mut sum = s.splat(0.0);
            for group in 0..groups {
                let score = &mut scores[group * count + token];
                let weight = softmax_weight(s, s.sub(s.load(score), s.splat(m)));
                sum = s.add(sum, weight);
                s.store(weight, score);
            }
            (maxima[token], sums[token]) = (m, s.reduce_add(sum));
        }
        if running.is_first {
            (running.m, running.l, running.is_first) = (maxima, sums, false);
            return;
        }
        let rooms = maxima.as_chunks::<LANES>().0.iter().zip(sums.as_chunks::<LANES>().0);
        for (index, (next_m, next_l)) in rooms.enumerate() {
            let at = index * LANES;
            let tile =
                |x: &[f32; ROOM]| -> Tile { *x[at..].first_chunk().expect("a whole vector") };
            let (m, next_m) = (s.load(&tile(&running.m)), s.load(next_m));
            let (l, next_l) = (s.load(&tile(&running.l)), s.load(next_l));
            let largest = s.max(m, next_m);
            let before = softmax_weight(s, s.sub(m, largest));
            let segment = softmax_weight(s, s.sub(next_m, largest));
            let store = |value: S::F, x: &mut [f32; ROOM]| {
                s.store(value, x[at..].first_chunk_mut().expect("a whole vector"));
            };
            store(largest, &mut running.m);
            store(s.fma(l, before, s.mul(next_l, segment)), &mut running.l);
            store(before, &mut running.before);
            store(segment, &mut running.segment);
        }
    }
}

/// Merges a segment's sums `part` into `o`, both `[tile][token]`.
struct Merge<'a> {
    count: usize,
    running: &'a Running,
    part: &'a [Tile],
    o: &'a mut [Tile],
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { count, running, part, o } = self;
        for (part, o) in part.chunks_exact(count).zip(o.chunks_exact_mut(count)) {
            for (token, (part, o)) in part.iter().zip(o).enumerate() {
                let scaled = s.mul(s.load(part), s.splat(running.segment[token]));
                s.store(s.fma(s.load(o), s.splat(running.before[token]), scaled), o);
            }
        }
    }
}

/// Keys of a window as `[positions/16][width][16]`; lanes past the last position are 0, and so is
/// the padding.
fn pack_keys(k: &[Tile], (head, window): (Features, &Range<usize>), keys: &mut [u8]) {
    let tokens = head.tokens;
    for (group, keys) in keys.chunks_exact_mut(head.width() * LANES * 4).enumerate() {
        for (dim, keys) in keys.chunks_exact_mut(LANES * 4).enumerate() {
            let feature = head.first + dim;
            let tile = match dim < head.len {
                true => &k[feature / LANES * tokens..][window.clone()],
                false => &[],
            };
            for (lane, key) in keys.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let tile = tile.get(group * LANES + lane);
                *key = tile.map_or(0.0, |tile| tile[feature % LANES]).to_le_bytes();
            }
        }
    }
}

/// Values of a window segment by segment, `[width/16][positions][16]`.
fn pack_values(v: &[Tile], (head, window): (Features, &Range<usize>), values: &mut [u8]) {
    let width = head.width();
    let mut block = [[0.0; LANES]; LANES];
    for start in (0..window.len()).step_by(SEGMENT_POSITIONS) {
        let positions = SEGMENT_POSITIONS.min(window.len() - start);
        let values = &mut values[start * width * 4..][..positions * width * 4];
        for (tile, to) in values.chunks_exact_mut(positions * LANES * 4).enumerate() {
            for (at, to) in to.chunks_mut(LANES * LANES * 4).enumerate() {
                let block = &mut block[..to.len() / (LANES * 4)];
                head.read(v, tile, window.start + start + at * LANES, block);
                let from = block.as_flattened().iter();
                for (to, value) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
                    *to = value.to_le_bytes();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::exact::attend;
    use crate::naive::layout::{to_rows, to_tile_major};
    use crate::testing::{Random, assert_same_bits};

    #[test]
    fn every_token_sees_every_token() {
        let mut random = Random(41);
        for (heads, head_dim, tokens) in [
            (1, 16, 1),
            (2, 32, 7),
            (3, 64, 17),
            (2, 16, 256),
            (2, 48, 301),
            (1, 64, 523),
            (4, 72, 17),
            (4, 24, 259),
            (2, 80, 33),
            (16, 5, 31),
        ] {
            let width = heads * head_dim;
            let scale = 1.0 / (head_dim as f32).sqrt();
            let [q, k, v] = [2.0, 1.0, 1.0].map(|factor| -> Vec<f32> {
                random.normals(tokens * width).into_iter().map(|x| x * factor).collect()
            });
            let [q_tiles, k_tiles, v_tiles] = [&q, &k, &v].map(|x| to_tile_major(x, tokens));
            let mut want = Vec::new();
            for token in 0..tokens {
                for head in 0..heads {
                    let at = |p: usize| p * width + head * head_dim;
                    let query = &q[at(token)..][..head_dim];
                    let element = |p: usize, d: usize| [k[at(p) + d], v[at(p) + d]];
                    want.extend(attend(query, 0..tokens, element, scale, None));
                }
            }
            let bytes = attention_full_head_bytes(head_dim, tokens);
            for isa in Isa::available() {
                let run = |heads: core::ops::Range<usize>, in_place: bool, out: &mut [f32]| {
                    let part = heads.start * head_dim * tokens..heads.end * head_dim * tokens;
                    let q = &q_tiles[part.clone()];
                    let q = if in_place { Operand::InPlace } else { Operand::At(q) };
                    let workspace = FullWorkspace {
                        rows: &mut vec![f32::NAN; attention_full_workspace_len(head_dim)],
                        keys: &mut vec![0xFF; bytes],
                        values: &mut vec![0xFF; bytes],
                    };
                    let (k, v) = (&k_tiles[part.clone()], &v_tiles[part]);
                    attention_full(isa, (head_dim, scale), tokens, q, k, v, workspace, out);
                };
                let mut out = q_tiles.clone();
                run(0..heads, true, &mut out);
                assert_same_bits(&to_rows(&out, tokens), &want, "in place");
                out.fill(f32::NAN);
                // Shards are whole tiles as well as whole heads.
                let first = (1..=heads).find(|heads| (heads * head_dim) % LANES == 0);
                let first = first.expect("a width of whole tiles");
                let (low, high) = out.split_at_mut(first * head_dim * tokens);
                run(0..first, false, low);
                if heads > first {
                    run(first..heads, false, high);
                }
                assert_same_bits(&to_rows(&out, tokens), &want, "in shards");
            }
        }
    }

    #[test]
    fn a_window_is_attention_of_its_tokens_alone() {
        let mut random = Random(43);
        let (heads, head_dim, tokens) = (2, 80, 400);
        let windows = [0..64, 64..65, 65..81, 81..400];
        let scale = 0.11;
        let [q, k, v] = [(); 3].map(|()| random.normals(tokens * heads * head_dim));
        let run = |isa, tokens: usize, windows: &[Range<usize>], [q, k, v]: [&[f32]; 3]| {
            let bytes = attention_full_head_bytes(head_dim, 319);
            let workspace = FullWorkspace {
                rows: &mut vec![f32::NAN; attention_full_workspace_len(head_dim)],
                keys: &mut vec![0xFF; bytes],
                values: &mut vec![0xFF; bytes],
            };
            let mut out = to_tile_major(q, tokens);
            let [k, v] = [k, v].map(|x| to_tile_major(x, tokens));
            let windows = (tokens, windows.iter().cloned());
            let (shape, q) = ((head_dim, scale), Operand::InPlace);
            attention_windows(isa, shape, windows, q, &k, &v, workspace, &mut out);
            to_rows(&out, tokens)
        };
        for isa in Isa::available() {
            let together = run(isa, tokens, &windows, [&q, &k, &v]);
            for window in &windows {
                let part = window.start * heads * head_dim..window.end * heads * head_dim;
                let own = [&q[part.clone()], &k[part.clone()], &v[part.clone()]];
                let alone = run(isa, window.len(), std::slice::from_ref(&(0..window.len())), own);
                assert_same_bits(&together[part], &alone, isa.name());
            }
        }
    }
}
