//! A few query rows against one segment: scores, softmax numerators, weighted sum.
//!
//! The two inner loops, `score_tile` and `weigh_tile`, hold a tile of accumulators in registers: rows ×
//! groups of positions, and rows × tiles of the head's dimensions. What a tile covers follows
//! the register file and never the answer, since every accumulator is one output element.

use super::Attention;
use crate::exp::{softmax_weight, tanh};
use crate::isa::Isa;
use crate::kv::{Element, F16, F32, KvShape, KvType, Q8};
use crate::limits::{ATTENTION_ROWS, SEGMENT_POSITIONS};
use crate::simd::{Kernel, LANES, RegisterFile, Simd, Tile, dispatch, tiles_mut};
use core::marker::PhantomData;
use core::ops::Range;

/// Rows that a block may have: portable code takes one at a time, which spares the compiler the
/// taller tiles.
pub(super) const fn rows_max(isa: Isa) -> usize {
    match isa {
        Isa::Scalar => 1,
        Isa::Avx2(_) | Isa::Avx512(_) | Isa::Amx(_) => ATTENTION_ROWS,
    }
}

/// Groups of sixteen positions of a segment.
const SEGMENT_GROUPS: usize = SEGMENT_POSITIONS / LANES;

/// A layer's caches.
#[derive(Clone, Copy)]
pub(super) struct Cache<'a> {
    pub shape: &'a KvShape,
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

/// The caches of one head, and the slot in it.
#[derive(Clone, Copy)]
pub(super) struct SlotCache<'a> {
    shape: &'a KvShape,
    keys: &'a [u8],
    values: &'a [u8],
    slot: usize,
}

impl<'a> Cache<'a> {
    #[inline(always)]
    pub fn of(&self, kv_head: usize, slot: usize) -> SlotCache<'a> {
        let (key_bytes, value_bytes) = (self.shape.key_head_bytes(), self.shape.value_head_bytes());
        SlotCache {
            shape: self.shape,
            keys: &self.keys[kv_head * key_bytes..][..key_bytes],
            values: &self.values[kv_head * value_bytes..][..value_bytes],
            slot,
        }
    }
}

impl<'a> SlotCache<'a> {
    #[inline(always)]
    fn key_group(&self, position: usize) -> &'a [u8] {
        &self.keys[self.shape.key_group(self.slot, position)]
    }

    /// Keys of `visible` positions in `segment`, up to the end of the ring: enough to ask for.
    pub fn segment_keys(&self, visible: &Range<usize>, segment: usize) -> &'a [u8] {
        let positions = clip(visible, segment);
        let bytes = self.shape.key_group_bytes();
        let start = self.shape.key_group(self.slot, positions.start).start;
        let groups = positions.end.div_ceil(LANES) - positions.start / LANES;
        let end = (self.slot + 1) * (self.shape.capacity / LANES) * bytes;
        &self.keys[start..end.min(start + groups * bytes)]
    }

    /// Values of `visible` positions in `segment`, up to the end of the ring.
    pub fn segment_values(&self, visible: &Range<usize>, segment: usize) -> &'a [u8] {
        let positions = clip(visible, segment);
        let bytes = self.shape.value_row_bytes();
        let start = self.shape.value_row(self.slot, positions.start);
        let end = (self.slot + 1) * self.shape.capacity * bytes;
        &self.values[start..end.min(start + positions.len() * bytes)]
    }

    /// Rows of the sixteen positions of a group, which never straddle the end of the ring.
    #[inline(always)]
    fn value_rows(&self, position: usize) -> &'a [u8] {
        let start = self.shape.value_row(self.slot, position);
        &self.values[start..][..LANES * self.shape.value_row_bytes()]
    }
}

/// The workspace of a call, cut into its parts; rows are dense at the block's row count.
pub(super) struct Workspace<'a> {
    /// Scores, then weights: `[row][group]`.
    pub scores: &'a mut [[Tile; SEGMENT_GROUPS]],
    /// Queries, `[tile][row]`.
    pub q: &'a mut [Tile],
    /// Weighted sum of the segment, `[row][tile]`.
    pub part: &'a mut [Tile],
    /// Merged sum, `[row][tile]`.
    pub o: &'a mut [Tile],
}

impl<'a> Workspace<'a> {
    #[track_caller]
    pub fn new(shape: &Attention, workspace: &'a mut [f32]) -> Self {
        let len = super::attention_workspace_len(shape.kv.head_dim);
        let rows_len = ATTENTION_ROWS * shape.head_tiles();
        let have = workspace.len();
        let workspace = workspace.get_mut(..len);
        let workspace = workspace.unwrap_or_else(|| panic!("workspace of {have}, not {len}"));
        let (scores, rest) = tiles_mut(workspace).split_at_mut(ATTENTION_ROWS * SEGMENT_GROUPS);
        let (q, rest) = rest.split_at_mut(rows_len);
        let (part, o) = rest.split_at_mut(rows_len);
        Self { scores: scores.as_chunks_mut().0, q, part, o }
    }
}

/// Bytes that will be read soon. In a step the caches come from memory, in runs too short for the
/// processor to foresee, so each phase of a block asks for the bytes of the next phase. In a
/// prompt they are read again and again and stay near: nothing to ask for.
#[derive(Clone, Copy, Default)]
pub(super) struct Ahead<'a> {
    /// Asked for while scores are computed: the values of the same segment.
    pub values: &'a [u8],
    /// Asked for while values are weighed: the keys of the next segment.
    pub keys: &'a [u8],
}

/// Asks for the next `len` of `bytes`.
#[inline(always)]
fn fetch<S: Simd>(s: S, bytes: &mut &[u8], len: usize) {
    let (now, rest) = bytes.split_at(len.min(bytes.len()));
    s.prefetch(now);
    *bytes = rest;
}

/// Maximum and sum of each row's segment; rows that see nothing of it are not `seen`.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub seen: [bool; ATTENTION_ROWS],
    pub m: [f32; ATTENTION_ROWS],
    pub l: [f32; ATTENTION_ROWS],
}

impl Partial {
    /// No row sees anything.
    pub const NONE: Self =
        Self { seen: [false; ATTENTION_ROWS], m: [0.0; ATTENTION_ROWS], l: [0.0; ATTENTION_ROWS] };
}

/// Indices of the segments that any row sees.
pub(super) fn segments(visible: &[Range<usize>]) -> Range<usize> {
    let start = visible.iter().filter(|v| !v.is_empty()).map(|v| v.start).min().unwrap_or(0);
    let end = visible.iter().filter(|v| !v.is_empty()).map(|v| v.end).max().unwrap_or(0);
    start / SEGMENT_POSITIONS..end.div_ceil(SEGMENT_POSITIONS)
}

/// The rows of `workspace.q` against a segment; the sum goes to `workspace.part`.
pub(super) fn segment(
    isa: Isa,
    shape: &Attention,
    visible: &[Range<usize>],
    segment: usize,
    cache: SlotCache<'_>,
    ahead: Ahead<'_>,
    workspace: &mut Workspace<'_>,
) -> Partial {
    let base = segment * SEGMENT_POSITIONS;
    // Visible positions relative to the segment.
    let mut seen: [Range<usize>; ATTENTION_ROWS] = [const { 0..0 }; ATTENTION_ROWS];
    for (seen, visible) in seen.iter_mut().zip(visible) {
        let positions = clip(visible, segment);
        *seen = positions.start - base..positions.end - base;
    }
    let seen = &seen[..visible.len()];
    let work = Work { shape, seen, base, cache, ahead };
    match shape.kv.kind {
        KvType::F32 => work.run::<F32>(isa, workspace),
        KvType::F16 => work.run::<F16>(isa, workspace),
        KvType::Q8_0 => work.run::<Q8>(isa, workspace),
    }
}

/// A segment's work.
#[derive(Clone, Copy)]
struct Work<'a> {
    shape: &'a Attention,
    /// What each row sees, relative to the segment.
    seen: &'a [Range<usize>],
    /// First position of the segment.
    base: usize,
    cache: SlotCache<'a>,
    ahead: Ahead<'a>,
}

/// The part of `visible` in a segment; empty, but inside of it, if there is none.
fn clip(visible: &Range<usize>, segment: usize) -> Range<usize> {
    let base = segment * SEGMENT_POSITIONS;
    let clamp = |p: usize| p.clamp(base, base + SEGMENT_POSITIONS);
    clamp(visible.start)..clamp(visible.end)
}

impl Work<'_> {
    fn run<E: Element>(self, isa: Isa, workspace: &mut Workspace<'_>) -> Partial {
        self.scores::<E>(isa, workspace);
        let scores = &mut *workspace.scores;
        let partial = dispatch(isa, Softmax { seen: self.seen, scores });
        self.weigh::<E>(isa, workspace);
        partial
    }

    /// Scores of all groups that a row sees.
    fn scores<E: Element>(self, isa: Isa, workspace: &mut Workspace<'_>) {
        let some = || self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some().map(|seen| seen.start / LANES).min().unwrap_or(0);
        let end = some().map(|seen| seen.end.div_ceil(LANES)).max().unwrap_or(0);
        let q = &workspace.q[..self.seen.len() * self.shape.head_tiles()];
        let work = Scores { work: self, groups: start..end, q, element: PhantomData::<E> };
        let scores = &mut *workspace.scores;
        match self.seen.len() {
            1 => dispatch(isa, Rows::<1, _, _> { work, out: scores }),
            2 => dispatch(isa, Rows::<2, _, _> { work, out: scores }),
            3 => dispatch(isa, Rows::<3, _, _> { work, out: scores }),
            4 => dispatch(isa, Rows::<4, _, _> { work, out: scores }),
            5 => dispatch(isa, Rows::<5, _, _> { work, out: scores }),
            6 => dispatch(isa, Rows::<6, _, _> { work, out: scores }),
            rows => unreachable!("{rows} rows in a block"),
        }
    }

    /// Weighted sums of all rows. Positions that all rows see go through the full tile; those at
    /// the edges that only some see go row by row, before and after.
    fn weigh<E: Element>(self, isa: Isa, workspace: &mut Workspace<'_>) {
        let head_tiles = self.shape.head_tiles();
        let part = &mut workspace.part[..self.seen.len() * head_tiles];
        part.fill([0.0; LANES]);
        let scores = &*workspace.scores;
        let common = self.seen.iter().fold(0..SEGMENT_POSITIONS, |common, seen| {
            common.start.max(seen.start)..common.end.min(seen.end)
        });
        // Where the rows have nothing in common, everything is edge.
        let (middle, tail) =
            if common.is_empty() { (0..0, 0) } else { (common.clone(), common.end) };
        let edge = |row: usize, positions: Range<usize>, part: &mut [Tile]| {
            if !positions.is_empty() {
                let scores = &scores[row..];
                let element = PhantomData::<E>;
                let work = Weigh { work: self, positions, scores, ahead: &[], element };
                let out = &mut part[row * head_tiles..][..head_tiles];
                dispatch(isa, Rows::<1, _, _> { work, out });
            }
        };
        for (row, seen) in self.seen.iter().enumerate().filter(|_| !middle.is_empty()) {
            edge(row, seen.start..middle.start, part);
        }
        let (ahead, element) = (self.ahead.keys, PhantomData::<E>);
        let work = Weigh { work: self, positions: middle, scores, ahead, element };
        match self.seen.len() {
            1 => dispatch(isa, Rows::<1, _, _> { work, out: &mut part[..] }),
            2 => dispatch(isa, Rows::<2, _, _> { work, out: &mut part[..] }),
            3 => dispatch(isa, Rows::<3, _, _> { work, out: &mut part[..] }),
            4 => dispatch(isa, Rows::<4, _, _> { work, out: &mut part[..] }),
            5 => dispatch(isa, Rows::<5, _, _> { work, out: &mut part[..] }),
            6 => dispatch(isa, Rows::<6, _, _> { work, out: &mut part[..] }),
            rows => unreachable!("{rows} rows in a block"),
        }
        for (row, seen) in self.seen.iter().enumerate() {
            edge(row, seen.start.max(tail)..seen.end, part);
        }
    }
}

/// A kernel for a fixed number of rows.
struct Rows<const ROWS: usize, W, O> {
    work: W,
    out: O,
}

/// Whether tiles of `ROWS` rows are left out on `S`; [`rows_max`] keeps blocks below.
#[inline(always)]
const fn absent<S: Simd, const ROWS: usize>() -> bool {
    match S::REGISTERS {
        RegisterFile::None => ROWS > 1,
        RegisterFile::Eight | RegisterFile::ThirtyTwo => false,
    }
}

/// Scores of `groups`.
struct Scores<'a, E> {
    work: Work<'a>,
    groups: Range<usize>,
    q: &'a [Tile],
    element: PhantomData<E>,
}

impl<const ROWS: usize, E: Element> Kernel
    for Rows<ROWS, Scores<'_, E>, &mut [[Tile; SEGMENT_GROUPS]]>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if absent::<S, ROWS>() {
            return;
        }
        let scores: &mut [_; ROWS] = self.out.first_chunk_mut().expect("scores of each row");
        let Range { start: mut group, end } = self.work.groups.clone();
        let mut ahead = self.work.work.ahead.values;
        match S::REGISTERS {
            RegisterFile::ThirtyTwo => {
                while group + 4 <= end {
                    score_tile::<S, E, ROWS, 4>(s, &self.work, group, &mut ahead, scores);
                    group += 4;
                }
            }
            RegisterFile::Eight => {}
            RegisterFile::None => {}
        }
        while group < end {
            score_tile::<S, E, ROWS, 1>(s, &self.work, group, &mut ahead, scores);
            group += 1;
        }
    }
}

/// Scores of `GROUPS` groups from `group` on.
#[inline(always)]
fn score_tile<S: Simd, E: Element, const ROWS: usize, const GROUPS: usize>(
    s: S,
    job: &Scores<'_, E>,
    group: usize,
    ahead: &mut &[u8],
    scores: &mut [[Tile; SEGMENT_GROUPS]; ROWS],
) {
    let Work { shape, base, cache, .. } = job.work;
    let head_dim = shape.kv.head_dim;
    let tile_bytes = shape.kv.key_group_bytes() / shape.head_tiles() * GROUPS;
    let mut groups: [&[u8]; GROUPS] = [&[]; GROUPS];
    for (g, keys) in groups.iter_mut().enumerate() {
        *keys = cache.key_group(base + (group + g) * LANES);
    }
    let mut dots = [[s.splat(0.0); GROUPS]; ROWS];
    for (tile, q) in job.q.as_chunks::<ROWS>().0.iter().enumerate() {
        fetch(s, ahead, tile_bytes);
        let mut keys = [E::keys(groups[0], head_dim, tile); GROUPS];
        let mut scales = [E::key_scale(s, keys[0]); GROUPS];
        for g in 1..GROUPS {
            keys[g] = E::keys(groups[g], head_dim, tile);
            scales[g] = E::key_scale(s, keys[g]);
        }
        for dim in 0..LANES {
            let mut k = [s.splat(0.0); GROUPS];
            for g in 0..GROUPS {
                k[g] = E::key(s, keys[g], scales[g], dim);
            }
            for r in 0..ROWS {
                let q = s.splat(q[r][dim]);
                for g in 0..GROUPS {
                    dots[r][g] = s.fma(q, k[g], dots[r][g]);
                }
            }
        }
    }
    for (dots, scores) in dots.iter().zip(scores) {
        for (g, &dot) in dots.iter().enumerate() {
            let score = s.mul(dot, s.splat(shape.scale));
            let score = match shape.soft_cap {
                None => score,
                Some(cap) => s.mul(s.splat(cap), tanh(s, s.div(score, s.splat(cap)))),
            };
            s.store(score, &mut scores[group + g]);
        }
    }
}

/// Turns the seen scores of each row into weights.
struct Softmax<'a> {
    seen: &'a [Range<usize>],
    scores: &'a mut [[Tile; SEGMENT_GROUPS]],
}

impl Kernel for Softmax<'_> {
    type Output = Partial;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Partial {
        let mut partial = Partial::NONE;
        for (r, (seen, scores)) in self.seen.iter().zip(self.scores).enumerate() {
            if !seen.is_empty() {
                partial.seen[r] = true;
                (partial.m[r], partial.l[r]) = softmax(s, seen, scores);
            }
        }
        partial
    }
}

/// Bits of the lanes of `group` that `seen` covers.
#[inline(always)]
fn lanes_seen(seen: &Range<usize>, group: usize) -> u16 {
    let below = |end: usize| ((1u32 << end.saturating_sub(group * LANES).min(LANES)) - 1) as u16;
    below(seen.end) & !below(seen.start)
}

/// Turns the seen scores into weights; returns their maximum and the weights' sum.
#[inline(always)]
fn softmax<S: Simd>(s: S, seen: &Range<usize>, scores: &mut [Tile; SEGMENT_GROUPS]) -> (f32, f32) {
    let scores = &mut scores[seen.start / LANES..seen.end.div_ceil(LANES)];
    // Only the first and the last group may have lanes that are not seen: at −∞ they are never
    // the maximum, weigh nothing, and leave a sum that is not negative as it was.
    let none = s.splat(f32::NEG_INFINITY);
    for group in [seen.start / LANES, (seen.end - 1) / LANES] {
        let score = &mut scores[group - seen.start / LANES];
        let mask = s.mask_from_bits(lanes_seen(seen, group));
        s.store(s.select(mask, s.load(score), none), score);
    }
    let mut largest = none;
    for score in &*scores {
        largest = s.max(s.load(score), largest);
    }
    let m = s.reduce_max(largest);
    let mut sum = s.splat(0.0);
    for score in scores {
        let weight = softmax_weight(s, s.sub(s.load(score), s.splat(m)));
        sum = s.add(sum, weight);
        s.store(weight, score);
    }
    (m, s.reduce_add(sum))
}

/// Adds `positions` to the weighted sums.
struct Weigh<'a, E> {
    work: Work<'a>,
    positions: Range<usize>,
    scores: &'a [[Tile; SEGMENT_GROUPS]],
    ahead: &'a [u8],
    element: PhantomData<E>,
}

impl<const ROWS: usize, E: Element> Kernel for Rows<ROWS, Weigh<'_, E>, &mut [Tile]> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if absent::<S, ROWS>() {
            return;
        }
        let head_tiles = self.work.work.shape.head_tiles();
        let mut ahead = self.work.ahead;
        let mut tile = 0;
        match S::REGISTERS {
            RegisterFile::ThirtyTwo => {
                while tile + 4 <= head_tiles {
                    weigh_tile::<S, E, ROWS, 4>(s, &self.work, tile, &mut ahead, self.out);
                    tile += 4;
                }
            }
            RegisterFile::Eight => {}
            RegisterFile::None => {}
        }
        while tile < head_tiles {
            weigh_tile::<S, E, ROWS, 1>(s, &self.work, tile, &mut ahead, self.out);
            tile += 1;
        }
    }
}

/// The same for `TILES` tiles of dimensions from `tile` on.
#[expect(clippy::needless_range_loop, reason = "one index walks positions, weights and values")]
#[inline(always)]
fn weigh_tile<S: Simd, E: Element, const ROWS: usize, const TILES: usize>(
    s: S,
    job: &Weigh<'_, E>,
    tile: usize,
    ahead: &mut &[u8],
    part: &mut [Tile],
) {
    let Work { shape, base, cache, .. } = job.work;
    let (head_tiles, row_bytes) = (shape.head_tiles(), shape.kv.value_row_bytes());
    let weights: &[_; ROWS] = job.scores.first_chunk().expect("scores of each row");
    let mut sums = [[s.splat(0.0); TILES]; ROWS];
    for r in 0..ROWS {
        for w in 0..TILES {
            sums[r][w] = s.load(&part[r * head_tiles + tile + w]);
        }
    }
    let positions = &job.positions;
    for group in positions.start / LANES..positions.end.div_ceil(LANES) {
        let first = positions.start.max(group * LANES) - group * LANES;
        let last = positions.end.min((group + 1) * LANES) - group * LANES;
        let rows = cache.value_rows(base + group * LANES);
        fetch(s, ahead, LANES * row_bytes / head_tiles * TILES);
        for lane in first..last {
            let value = &rows[lane * row_bytes..][..row_bytes];
            let mut v = [s.splat(0.0); TILES];
            for (w, v) in v.iter_mut().enumerate() {
                *v = E::value(s, value, tile + w);
            }
            for r in 0..ROWS {
                let weight = s.splat(weights[r][group][lane]);
                for w in 0..TILES {
                    sums[r][w] = s.fma(weight, v[w], sums[r][w]);
                }
            }
        }
    }
    for r in 0..ROWS {
        for w in 0..TILES {
            s.store(sums[r][w], &mut part[r * head_tiles + tile + w]);
        }
    }
}

/// Maximum and sum of each row over the segments so far.
pub(super) struct Running(Partial);

impl Running {
    pub const fn new() -> Self {
        Self(Partial::NONE)
    }

    /// The answer of row `r` from a tile of its merged sum.
    #[inline]
    pub fn finish(&self, r: usize, o: &Tile) -> Tile {
        let factor = 1.0 / self.0.l[r];
        if self.0.seen[r] { o.map(|o| o * factor) } else { [0.0; LANES] }
    }
}

/// Merges the next segment: `part` into `o`, both `[row][tile]`.
pub(super) struct Merge<'a> {
    pub running: &'a mut Running,
    pub next: Partial,
    pub part: &'a [Tile],
    pub o: &'a mut [Tile],
    pub head_tiles: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { running: Running(running), next, part, o, head_tiles } = self;
        // Both factors of all rows in one vector.
        let mut factors = [0.0; LANES];
        let mut largest = [0.0; ATTENTION_ROWS];
        for r in 0..ATTENTION_ROWS {
            largest[r] = if running.m[r] > next.m[r] { running.m[r] } else { next.m[r] };
            factors[r] = running.m[r] - largest[r];
            factors[ATTENTION_ROWS + r] = next.m[r] - largest[r];
        }
        s.store(softmax_weight(s, s.load(&factors)), &mut factors);
        for r in (0..ATTENTION_ROWS).filter(|&r| next.seen[r]) {
            let part = &part[r * head_tiles..][..head_tiles];
            let o = &mut o[r * head_tiles..][..head_tiles];
            if !running.seen[r] {
                (running.seen[r], running.m[r], running.l[r]) = (true, next.m[r], next.l[r]);
                o.copy_from_slice(part);
                continue;
            }
            let (a, b) = (factors[r], factors[ATTENTION_ROWS + r]);
            running.m[r] = largest[r];
            running.l[r] = running.l[r].mul_add(a, next.l[r] * b);
            for (o, part) in o.iter_mut().zip(part) {
                let scaled = s.mul(s.load(part), s.splat(b));
                s.store(s.fma(s.load(o), s.splat(a), scaled), o);
            }
        }
    }
}
