//! Picking a token from logits, deterministically, without allocation.
//!
//! **Order of the filters**, as in llama.cpp: penalties, top-k, top-p, min-p, temperature, draw.
//! Candidates are ordered by falling logit, ties by rising id: a total order, so that a cut never
//! depends on how it was found. Weights are our own exp, sums are f64 in candidate order.
//!
//! **Finding the k best of a large vocabulary.** One pass compares whole tiles with a threshold,
//! the k-th best so far; the few that pass go to a buffer, which is cut back to k whenever it is
//! full. Without top-k every token becomes a candidate, and top-p sorts only as many as it keeps.
//!
//! **Hostile logits.** NaN and −∞ are never candidates; +∞ counts as the largest finite number.
//! If nothing is left the answer is token 0.

use crate::exp::exp;
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd, Tile, dispatch, tiles};
use core::cmp::Ordering;

/// One token's logits in a tile-major tensor `[⌈vocabulary/16⌉][rows][16]`.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow<'a> {
    tiles: &'a [Tile],
    rows: usize,
    row: usize,
    vocabulary: usize,
}

impl<'a> LogitsRow<'a> {
    /// Row `row` of `rows`. Panics unless `logits` has `⌈vocabulary/16⌉ · rows · 16` elements and
    /// there is a token at all.
    pub fn new(logits: &'a [f32], rows: usize, row: usize, vocabulary: usize) -> Self {
        let tiles = tiles(logits);
        assert!(row < rows, "row {row} of {rows}");
        assert!(0 < vocabulary && vocabulary <= TOKENS_MAX, "vocabulary of {vocabulary}");
        assert_eq!(tiles.len(), vocabulary.div_ceil(LANES) * rows, "tiles of the logits");
        Self { tiles, rows, row, vocabulary }
    }

    /// The logit of token `id`.
    pub fn get(&self, id: u32) -> f32 {
        let id = id as usize;
        assert!(id < self.vocabulary, "token {id} of {}", self.vocabulary);
        self.tiles[id / LANES * self.rows + self.row][id % LANES]
    }

    /// The row's tiles, each with the bits of its lanes that are tokens.
    #[inline(always)]
    fn tiles(self) -> impl Iterator<Item = (&'a Tile, u16)> {
        let tiles = self.tiles.iter().skip(self.row).step_by(self.rows);
        tiles.enumerate().map(move |(i, tile)| {
            let rest = self.vocabulary - i * LANES;
            (tile, if rest >= LANES { u16::MAX } else { (1 << rest) - 1 })
        })
    }
}

/// Ids are below it.
const TOKENS_MAX: usize = u32::MAX as usize;

/// How a token is picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParameters {
    /// Logits are divided by it; 0 or less picks the best token and draws nothing.
    pub temperature: f32,
    /// Keep the so many best; 0 keeps all.
    pub top_k: u32,
    /// Keep the best until they hold this share; 1 or more keeps all.
    pub top_p: f32,
    /// Keep those with at least this share of the best one's weight; 0 or less keeps all.
    pub min_p: f32,
    /// Divides positive logits of seen tokens and multiplies the others; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Taken off a seen token's logit for each time it was seen.
    pub frequency_penalty: f32,
    /// Taken off a seen token's logit once.
    pub presence_penalty: f32,
}

impl SampleParameters {
    /// The best token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
    };

    fn penalises(&self) -> bool {
        let [repeat, frequency, presence] =
            [self.repeat_penalty, self.frequency_penalty, self.presence_penalty];
        repeat != 1.0 || frequency != 0.0 || presence != 0.0
    }
}

/// Random numbers of one sequence: xoshiro256++ (Blackman and Vigna), seeded by SplitMix64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct RandomState(pub [u64; 4]);

impl RandomState {
    /// The state of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut generator = crate::random::SplitMix64::new(seed);
        Self([(); 4].map(|()| generator.bits()))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A token and its logit: the unit of the sampler's workspace.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// Logit, after penalties.
    pub logit: f32,
    /// Token.
    pub id: u32,
}

const _: () = assert!(size_of::<Candidate>() == 8 && align_of::<Candidate>() == 4);

/// Candidates that the workspace of [`sample`] needs: 8 bytes for each token.
pub const fn sample_workspace_len(vocabulary: usize) -> usize {
    vocabulary
}

/// Picks a token. `history` are the tokens that penalties look at; `random` advances by one
/// number if a token is drawn.
///
/// Panics unless the workspace has [`sample_workspace_len`] candidates and the history's ids are
/// below the vocabulary.
pub fn sample(
    isa: Isa,
    logits: LogitsRow<'_>,
    parameters: &SampleParameters,
    history: &[u32],
    random: &mut RandomState,
    workspace: &mut [Candidate],
) -> u32 {
    let penalised = parameters.penalises() && !history.is_empty();
    // NaN is not above zero: greedy.
    let draws = parameters.temperature > 0.0 && parameters.top_k != 1;
    if !draws && !penalised {
        return argmax(isa, logits).0;
    }
    let len = sample_workspace_len(logits.vocabulary);
    assert!(workspace.len() >= len, "workspace of {}, not {len}", workspace.len());
    let workspace = &mut workspace[..len];
    let seen = if penalised { penalise(logits, parameters, history, workspace) } else { 0 };
    let top_k = match (draws, parameters.top_k as usize) {
        (false, _) => 1,
        (true, 0) => logits.vocabulary,
        (true, k) => k.min(logits.vocabulary),
    };
    let found = dispatch(isa, Collect { logits, top_k, seen, workspace });
    let candidates = &mut workspace[..found];
    let Some(best) = candidates.iter().copied().min_by(falling) else {
        return 0;
    };
    if !draws {
        return best.id;
    }
    let cut = top_k < candidates.len();
    let candidates = if cut { keep_best(candidates, top_k) } else { candidates };
    if top_k < logits.vocabulary {
        candidates.sort_unstable_by(falling);
    }
    let kept = keep_top_p(isa, candidates, best.logit, parameters.top_p);
    let kept = keep_min_p(&mut candidates[..kept], best.logit, parameters.min_p);
    draw(isa, &candidates[..kept], best, parameters.temperature, random)
}

/// Falling logit, then rising id. Candidates have no NaN.
fn falling(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// A candidate's logit: finite, so that differences are no NaN, and without negative zero, so
/// that equal logits are equal in the total order.
fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX) + 0.0
}

/// Writes the seen tokens, rising and distinct, with their penalised logits, to the front of the
/// workspace; returns their number.
fn penalise(
    logits: LogitsRow<'_>,
    parameters: &SampleParameters,
    history: &[u32],
    workspace: &mut [Candidate],
) -> usize {
    let SampleParameters { repeat_penalty, frequency_penalty, presence_penalty, .. } = *parameters;
    let mut seen = 0;
    for &id in history {
        match workspace[..seen].binary_search_by_key(&id, |candidate| candidate.id) {
            Ok(at) => workspace[at].logit -= frequency_penalty,
            Err(at) => {
                let raw = logits.get(id);
                let repeated = if raw > 0.0 { raw / repeat_penalty } else { raw * repeat_penalty };
                let logit = repeated - presence_penalty - frequency_penalty;
                workspace.copy_within(at..seen, at + 1);
                workspace[at] = Candidate { logit, id };
                seen += 1;
            }
        }
    }
    for candidate in &mut workspace[..seen] {
        // −∞ and NaN stay in place as the least logit, so that the ids remain sorted.
        let logit = candidate.logit;
        candidate.logit = if logit.is_nan() { f32::MIN } else { finite(logit) };
    }
    seen
}

/// Collects candidates behind the `seen` ones: all of them, or at least the `top_k` best.
struct Collect<'a> {
    logits: LogitsRow<'a>,
    top_k: usize,
    seen: usize,
    workspace: &'a mut [Candidate],
}

impl Kernel for Collect<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let (seen, others) = self.workspace.split_at_mut(self.seen);
        // Room for the k best and as many again, so that cutting back is rare.
        let room = others.len().min(self.top_k.saturating_mul(2).max(self.top_k + 1024));
        let mut threshold = f32::NEG_INFINITY;
        let mut found = 0;
        for (i, (tile, tokens)) in self.logits.tiles().enumerate() {
            let above = s.mask_bits(s.less(s.splat(threshold), s.load(tile)));
            let mut lanes = above & tokens;
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                let id = (i * LANES + lane) as u32;
                if seen.binary_search_by_key(&id, |candidate| candidate.id).is_ok() {
                    continue;
                }
                if found == room {
                    found = keep_best(&mut others[..room], self.top_k).len();
                    let worst = others[..found].iter().max_by(|a, b| falling(a, b));
                    threshold = worst.map_or(threshold, |worst| worst.logit);
                    if finite(tile[lane]) <= threshold {
                        continue;
                    }
                }
                others[found] = Candidate { logit: finite(tile[lane]), id };
                found += 1;
            }
        }
        self.seen + found
    }
}

/// Moves the `count` best to the front.
fn keep_best(candidates: &mut [Candidate], count: usize) -> &mut [Candidate] {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, falling);
    }
    let count = count.min(candidates.len());
    &mut candidates[..count]
}

/// Sorts as many as hold the share `top_p`; returns their number.
fn keep_top_p(isa: Isa, candidates: &mut [Candidate], best: f32, top_p: f32) -> usize {
    // NaN is not below one: keep all.
    let cuts = top_p < 1.0;
    if !cuts {
        return candidates.len();
    }
    let target = f64::from(top_p) * weight_sum(isa, candidates, best, 1.0);
    let (mut sum, mut sorted, mut step) = (0.0, 0, 256);
    while sorted < candidates.len() {
        let block = keep_best(&mut candidates[sorted..], step);
        block.sort_unstable_by(falling);
        for part in block.chunks(LANES) {
            for &weight in &weights(isa, part, best, 1.0)[..part.len()] {
                sum += f64::from(weight);
                sorted += 1;
                if sum >= target {
                    return sorted;
                }
            }
        }
        step *= 4;
    }
    sorted
}

/// Keeps, in order, those of at least `min_p` times the best one's weight; returns their number.
fn keep_min_p(candidates: &mut [Candidate], best: f32, min_p: f32) -> usize {
    let cuts = min_p > 0.0;
    if !cuts {
        return candidates.len();
    }
    // At most the best one's own logit, so that one is always left.
    let least = f64::from(best) + libm::log(f64::from(min_p)).min(0.0);
    let mut kept = 0;
    for i in 0..candidates.len() {
        if f64::from(candidates[i].logit) >= least {
            candidates[kept] = candidates[i];
            kept += 1;
        }
    }
    kept
}

/// Draws one by its weight at `temperature`.
fn draw(
    isa: Isa,
    candidates: &[Candidate],
    best: Candidate,
    temperature: f32,
    random: &mut RandomState,
) -> u32 {
    let target = random.unit() * weight_sum(isa, candidates, best.logit, temperature);
    let mut sum = 0.0;
    let mut last = best.id;
    for part in candidates.chunks(LANES) {
        let weights = weights(isa, part, best.logit, temperature);
        for (candidate, &weight) in part.iter().zip(&weights) {
            sum += f64::from(weight);
            if weight > 0.0 {
                last = candidate.id;
            }
            if sum > target {
                return candidate.id;
            }
        }
    }
    last
}

/// `exp((logit − best) / temperature)` of up to sixteen candidates.
fn weights(isa: Isa, candidates: &[Candidate], best: f32, temperature: f32) -> Tile {
    let mut out = [0.0; LANES];
    dispatch(isa, Weights { candidates, best, temperature, out: &mut out });
    out
}

/// Their sum, in order.
fn weight_sum(isa: Isa, candidates: &[Candidate], best: f32, temperature: f32) -> f64 {
    let mut sum = 0.0;
    let mut out = [[0.0; LANES]; 64];
    for candidates in candidates.chunks(64 * LANES) {
        let out = out.as_flattened_mut();
        dispatch(isa, Weights { candidates, best, temperature, out });
        for &weight in &out[..candidates.len()] {
            sum += f64::from(weight);
        }
    }
    sum
}

struct Weights<'a> {
    candidates: &'a [Candidate],
    best: f32,
    temperature: f32,
    out: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (best, temperature) = (s.splat(self.best), s.splat(self.temperature));
        let chunks = self.candidates.chunks(LANES).zip(self.out.as_chunks_mut::<LANES>().0);
        for (part, out) in chunks {
            let mut logits = [f32::MIN; LANES];
            for (logit, candidate) in logits.iter_mut().zip(part) {
                *logit = candidate.logit;
            }
            // An infinite temperature over an infinite difference is NaN: no weight.
            let scaled = s.div(s.sub(s.load(&logits), best), temperature);
            let weight = exp(s, scaled);
            s.store(s.select(s.less(s.splat(0.0), weight), weight, s.splat(0.0)), out);
        }
    }
}

/// The token of the largest logit, the lowest id among equals, and that logit. NaNs are passed
/// over; if nothing else is there, token 0 and −∞.
pub fn argmax(isa: Isa, logits: LogitsRow<'_>) -> (u32, f32) {
    dispatch(isa, ArgMax { logits })
}

struct ArgMax<'a> {
    logits: LogitsRow<'a>,
}

impl Kernel for ArgMax<'_> {
    type Output = (u32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (u32, f32) {
        let mut largest = s.splat(f32::NEG_INFINITY);
        for (tile, tokens) in self.logits.tiles() {
            let mask = s.mask_from_bits(tokens);
            largest = s.max(s.select(mask, s.load(tile), largest), largest);
        }
        let max = s.reduce_max(largest);
        if max == f32::NEG_INFINITY {
            return (0, max);
        }
        // Equal to the largest is above its lower neighbour; a NaN is not.
        let below = s.splat(max.next_down());
        for (i, (tile, tokens)) in self.logits.tiles().enumerate() {
            let lanes = s.mask_bits(s.less(below, s.load(tile))) & tokens;
            if lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                return ((i * LANES + lane) as u32, tile[lane]);
            }
        }
        unreachable!("the largest logit is one of the logits")
    }
}

/// The natural logarithm of the probability of token `id`. NaN if any logit is.
///
/// The exponentials are ours in f32; they are summed in f64, sixteen accumulators and one tree.
pub fn log_softmax_of(isa: Isa, logits: LogitsRow<'_>, id: u32) -> f64 {
    let (_, max) = argmax(isa, logits);
    let sum = dispatch(isa, ExpSum { logits, max });
    f64::from(logits.get(id)) - f64::from(max) - libm::log(sum)
}

struct ExpSum<'a> {
    logits: LogitsRow<'a>,
    max: f32,
}

impl Kernel for ExpSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let max = s.splat(self.max);
        let mut sums = [0.0f64; LANES];
        let mut weights = [0.0; LANES];
        for (tile, tokens) in self.logits.tiles() {
            let weight = exp(s, s.sub(s.load(tile), max));
            let weight = s.select(s.mask_from_bits(tokens), weight, s.splat(0.0));
            s.store(weight, &mut weights);
            for (sum, &weight) in sums.iter_mut().zip(&weights) {
                *sum += f64::from(weight);
            }
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
        }
        sums[0]
    }
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
