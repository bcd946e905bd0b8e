//! Picking a token from logits, deterministically, without allocation.
//!
//! **Order of the filters**, as in llama.cpp: penalties, top-k, top-p, min-p, temperature, draw.
//! Candidates are ordered by falling logit, ties by rising id: a total order, so that a cut never
//! depends on how it was found. Weights are our own exp in f32; sums are f64, sixteen candidates
//! by one tree and those sums in order.
//!
//! **Finding the k best of a large vocabulary.** One pass compares whole tiles with a threshold,
//! the k-th best so far; the few that pass go to a buffer, which is cut back to k whenever it is
//! full. Top-p alone first sums all weights; then one pass finds those heavy enough to matter, and
//! only as many as are kept get sorted. Without a cut the row itself is summed and walked.
//!
//! **Hostile logits.** NaN and −∞ are never candidates; +∞ counts as the largest finite number.
//! If nothing is left the answer is token 0.

mod collect;
mod row;
#[cfg(test)]
mod tests;

pub use row::{LogitsRow, argmax, log_softmax_of};

use crate::exp::exp;
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd, Tile, dispatch};
use collect::Collect;
use core::cmp::Ordering;
use row::{Adjusted, Weight};

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
    let top_k = parameters.top_k as usize;
    // NaN is not below one: keep all.
    let cuts_share = parameters.top_p < 1.0;
    let temperature = parameters.temperature;
    let kept = if draws && 0 < top_k && top_k < logits.vocabulary {
        let threshold = f32::NEG_INFINITY;
        let found = dispatch(isa, Collect { logits, top_k, threshold, seen, workspace });
        let candidates = keep_best(&mut workspace[..found], top_k);
        candidates.sort_unstable_by(falling);
        let Some(best) = candidates.first().filter(|best| best.logit > f32::NEG_INFINITY) else {
            return 0;
        };
        let share = if cuts_share { parameters.top_p } else { f32::INFINITY };
        let target = f64::from(share) * weight_sum(isa, candidates, best.logit, 1.0);
        let best = best.logit;
        keep_top_p(isa, candidates, best, target)
    } else {
        let row = Adjusted { logits, seen: &workspace[..seen] };
        let best = row.best(isa);
        if !draws || best.logit == f32::NEG_INFINITY {
            return best.id;
        }
        let best = Candidate { logit: finite(best.logit), ..best };
        if !cuts_share {
            let least = least_of_min_p(best.logit, parameters.min_p);
            let weight = Weight { best: best.logit, temperature, least };
            let target = random.unit() * row.weight_sum(isa, weight);
            return row.find(isa, weight, target).unwrap_or(best.id);
        }
        let weight = Weight { best: best.logit, temperature: 1.0, least: f32::NEG_INFINITY };
        let total = row.weight_sum(isa, weight);
        let threshold = light(best.logit, total, parameters.top_p, logits.vocabulary);
        let top_k = logits.vocabulary;
        let found = dispatch(isa, Collect { logits, top_k, threshold, seen, workspace });
        let target = f64::from(parameters.top_p) * total;
        keep_top_p(isa, &mut workspace[..found], best.logit, target)
    };
    // Sorted, so what has too little weight stands last.
    let least = least_of_min_p(kept[0].logit, parameters.min_p);
    let kept = &kept[..kept.partition_point(|candidate| candidate.logit >= least)];
    draw(isa, kept, temperature, random)
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
        // What is no candidate stays in place, so that the ids remain sorted; it has no weight.
        let logit = candidate.logit;
        let none = logit.is_nan() || logit == f32::NEG_INFINITY;
        candidate.logit = if none { f32::NEG_INFINITY } else { finite(logit) };
    }
    seen
}

/// Moves the `count` best to the front.
fn keep_best(candidates: &mut [Candidate], count: usize) -> &mut [Candidate] {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, falling);
    }
    let count = count.min(candidates.len());
    &mut candidates[..count]
}

/// The least logit that `min_p` keeps: at most the best one, so that one is always left.
fn least_of_min_p(best: f32, min_p: f32) -> f32 {
    let cuts = min_p > 0.0;
    if !cuts {
        return f32::NEG_INFINITY;
    }
    let exact = f64::from(best) + libm::log(f64::from(min_p)).min(0.0);
    let rounded = exact as f32;
    if f64::from(rounded) < exact { rounded.next_up() } else { rounded }
}

/// A logit so small that all logits up to it can be cut off together by `top_p`: each weighs
/// less than an even part of what may go. Half of that, because weights are rounded.
fn light(best: f32, total: f64, top_p: f32, vocabulary: usize) -> f32 {
    let weight = 0.5 * (1.0 - f64::from(top_p)) * total / vocabulary as f64;
    ((f64::from(best) + libm::log(weight).min(0.0)) as f32).next_down()
}

/// The best ones, sorted, until their weights reach `target`.
fn keep_top_p(isa: Isa, candidates: &mut [Candidate], best: f32, target: f64) -> &mut [Candidate] {
    let (mut sum, mut sorted, mut step) = (0.0, 0, 256);
    while sorted < candidates.len() {
        let block = keep_best(&mut candidates[sorted..], step);
        block.sort_unstable_by(falling);
        for i in (0..block.len()).step_by(LANES) {
            let part = &block[i..block.len().min(i + LANES)];
            for &weight in &weights(isa, part, best, 1.0)[..part.len()] {
                sum += f64::from(weight);
                sorted += 1;
                if sum >= target {
                    return &mut candidates[..sorted];
                }
            }
        }
        step *= 4;
    }
    candidates
}

/// Draws one of sorted candidates by its weight at `temperature`.
fn draw(isa: Isa, candidates: &[Candidate], temperature: f32, random: &mut RandomState) -> u32 {
    let best = candidates[0];
    let target = random.unit() * weight_sum(isa, candidates, best.logit, temperature);
    let mut sum = 0.0;
    for part in candidates.chunks(LANES) {
        let weights = weights(isa, part, best.logit, temperature);
        let before = sum;
        sum += tree_sum(&weights);
        if sum > target {
            return part[lane_at(&weights, target - before)].id;
        }
    }
    best.id
}

/// The first lane at which the sum of the weights exceeds `target`, or, if rounding leaves none,
/// the last one with a weight. Some lane has one.
fn lane_at(weights: &Tile, target: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for (lane, &weight) in weights.iter().enumerate() {
        sum += f64::from(weight);
        if weight > 0.0 {
            last = lane;
            if sum > target {
                break;
            }
        }
    }
    last
}

/// The sum of sixteen weights, by the tree of `reduce_add` in f64.
#[inline]
fn tree_sum(weights: &Tile) -> f64 {
    let mut sums = weights.map(f64::from);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// `exp((logit − best) / temperature)` of up to sixteen candidates.
fn weights(isa: Isa, candidates: &[Candidate], best: f32, temperature: f32) -> Tile {
    let mut out = [0.0; LANES];
    dispatch(isa, Weights { candidates, best, temperature, out: &mut out });
    out
}

/// Their sum, for any number.
fn weight_sum(isa: Isa, candidates: &[Candidate], best: f32, temperature: f32) -> f64 {
    let mut sum = 0.0;
    let mut out = [[0.0; LANES]; 64];
    for candidates in candidates.chunks(64 * LANES) {
        dispatch(isa, Weights { candidates, best, temperature, out: out.as_flattened_mut() });
        sum = out[..candidates.len().div_ceil(LANES)].iter().fold(sum, |s, w| s + tree_sum(w));
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
            let mut logits = [f32::NEG_INFINITY; LANES];
            for (logit, candidate) in logits.iter_mut().zip(part) {
                *logit = candidate.logit;
            }
            // Missing candidates have no weight, and neither has what turns out NaN: an infinite
            // difference over an infinite temperature.
            let scaled = s.div(s.sub(s.load(&logits), best), temperature);
            let weight = exp(s, scaled);
            s.store(s.select(s.less(s.splat(0.0), weight), weight, s.splat(0.0)), out);
        }
    }
}
