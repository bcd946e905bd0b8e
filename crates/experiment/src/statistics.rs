//! Means, spreads, percentiles, and confidence intervals by a seeded bootstrap.
//!
//! Latencies of different prompts have different means, so the spread of a system is taken within
//! its prompts: each latency is divided by its prompt's mean, and the coefficient of variation is
//! that of the quotients (with as many degrees of freedom less as there are prompts). The plain
//! figure over all calls, which the paper gives, stands beside it.
//!
//! Systems run interleaved, so what disturbs one round disturbs all of them: the bootstrap draws
//! whole rounds, and both systems of a comparison are seen in the same ones.

/// What is reported of a list of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of a sample (n − 1).
    pub sigma: f64,
    /// `sigma / mean`.
    pub cv: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

/// The summary of values; zeros for none.
#[must_use]
pub fn summary(values: &[f64]) -> Summary {
    if values.is_empty() {
        return Summary::default();
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mean = mean(values);
    let sigma = sigma(values, mean, 1);
    Summary {
        count: values.len(),
        mean,
        sigma,
        cv: if mean > 0.0 { sigma / mean } else { 0.0 },
        p50: percentile(&sorted, 0.50),
        p99: percentile(&sorted, 0.99),
        min: sorted[0],
        max: sorted[sorted.len() - 1],
    }
}

/// Arithmetic mean; 0 for none.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Spread about `mean` with so many degrees of freedom used up.
fn sigma(values: &[f64], mean: f64, used: usize) -> f64 {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    match values.len().saturating_sub(used) {
        0 => 0.0,
        freedom => (squares / freedom as f64).sqrt(),
    }
}

/// The value below which a share of a sorted list lies, between two neighbours by proportion.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - at.floor())
}

/// Coefficient of variation within groups: of each value divided by its group's mean.
#[must_use]
pub fn cv_within(groups: &[Vec<f64>]) -> f64 {
    let groups: Vec<&Vec<f64>> = groups.iter().filter(|group| !group.is_empty()).collect();
    let quotients: Vec<f64> = groups
        .iter()
        .flat_map(|group| {
            let mean = mean(group);
            group.iter().map(move |value| value / mean)
        })
        .collect();
    sigma(&quotients, 1.0, groups.len())
}

/// A figure with the interval in which it lies in 95 of 100 resamples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Of the data as they are; `None` where there is none, as of a spread over no spread.
    pub value: Option<f64>,
    /// 2.5th and 97.5th percentile; `None` of fewer rounds than [`ROUNDS_MIN`].
    pub range: Option<(f64, f64)>,
}

/// Latencies of two systems under one condition: `[prompt][round]`, the same rounds in both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// The system that is compared.
    pub ours: Vec<Vec<f64>>,
    /// The one that it is compared with.
    pub theirs: Vec<Vec<f64>>,
}

/// How two systems differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// Mean latency of ours over theirs, less 1: below zero is faster.
    pub mean: Interval,
    /// Spread of ours over theirs, less 1: below zero is steadier.
    pub cv: Interval,
}

/// Fewest rounds that have an interval. Resamples of few rounds are too often the same ones, so that
/// intervals of five cover less than they say; of fewer there is nothing to draw from.
pub const ROUNDS_MIN: usize = 5;
/// Resamples of a bootstrap.
pub const RESAMPLES: usize = 2000;

impl Pair {
    /// The differences; `None` without two rounds.
    #[must_use]
    pub fn difference(&self, seed: u64) -> Option<Difference> {
        let rounds = self.ours.iter().chain(&self.theirs).map(Vec::len).min()?;
        if rounds < 2 {
            return None;
        }
        let all: Vec<usize> = (0..rounds).collect();
        let mut random = SplitMix64::new(seed);
        let (mut means, mut cvs) = (Vec::new(), Vec::new());
        let resamples = if rounds < ROUNDS_MIN { 0 } else { RESAMPLES };
        for _ in 0..resamples {
            let drawn: Vec<usize> = (0..rounds).map(|_| random.below(rounds)).collect();
            let (mean, cv) = self.ratios(&drawn);
            means.push(mean);
            // One round drawn again and again has no spread to compare with.
            cvs.extend(cv.is_finite().then_some(cv));
        }
        let (mean, cv) = self.ratios(&all);
        Some(Difference { mean: interval(mean, means), cv: interval(cv, cvs) })
    }

    /// Both ratios less 1, seen in some rounds. Every prompt weighs the same.
    fn ratios(&self, rounds: &[usize]) -> (f64, f64) {
        let seen = |groups: &[Vec<f64>]| -> Vec<Vec<f64>> {
            let pick = |group: &Vec<f64>| rounds.iter().map(|round| group[*round]).collect();
            groups.iter().map(pick).collect()
        };
        let (ours, theirs) = (seen(&self.ours), seen(&self.theirs));
        let of_means = ours.iter().zip(&theirs).map(|(a, b)| mean(a) / mean(b));
        let ratio = mean(&of_means.collect::<Vec<_>>());
        (ratio - 1.0, cv_within(&ours) / cv_within(&theirs) - 1.0)
    }
}

fn interval(value: f64, mut resampled: Vec<f64>) -> Interval {
    resampled.sort_by(f64::total_cmp);
    let value = Some(value).filter(|value| value.is_finite());
    let at = |share: f64| percentile(&resampled, share);
    let is_known = value.is_some() && !resampled.is_empty();
    Interval { value, range: is_known.then(|| (at(0.025), at(0.975))) }
}

/// A small generator of known quality.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_list_has_its_known_figures() {
        // σ of 2, 4, 4, 4, 5, 5, 7, 9 is √(32/7) with n − 1.
        let known = summary(&[9.0, 2.0, 4.0, 5.0, 4.0, 7.0, 4.0, 5.0]);
        assert_eq!((known.count, known.mean, known.min, known.max), (8, 5.0, 2.0, 9.0));
        assert!((known.sigma - (32f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!((known.cv - known.sigma / 5.0).abs() < 1e-12);
        assert_eq!(known.p50, 4.5);
        assert!((known.p99 - (7.0 + 2.0 * 0.93)).abs() < 1e-9, "{}", known.p99);
        assert_eq!(summary(&[3.0]).sigma, 0.0);
        assert_eq!(summary(&[]), Summary::default());
    }

    #[test]
    fn spread_within_prompts_does_not_see_their_lengths() {
        let steady = [vec![10.0, 10.0], vec![100.0, 100.0]];
        assert_eq!(cv_within(&steady), 0.0);
        // Quotients 0.9, 1.1, 0.9, 1.1; two means taken: √(0.04 / 2).
        let spread = [vec![9.0, 11.0], vec![90.0, 110.0]];
        assert!((cv_within(&spread) - 0.02f64.sqrt()).abs() < 1e-12);
        assert_eq!(cv_within(&[Vec::new(), vec![1.0]]), 0.0);
    }

    #[test]
    fn an_interval_covers_what_the_data_were_drawn_from() {
        // Ours is 10 % slower and half as steady, by construction, with known noise.
        let mut random = SplitMix64::new(7);
        let mut noise = |width: f64| {
            let sum: f64 = (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum();
            (sum - 6.0) * width
        };
        let ours = (0..3).map(|_| (0..60).map(|_| 110.0 * (1.0 + noise(0.02))).collect()).collect();
        let theirs = (0..3).map(|_| (0..60).map(|_| 100.0 * (1.0 + noise(0.04))).collect());
        let pair = Pair { ours, theirs: theirs.collect() };
        let difference = pair.difference(1).unwrap();
        let Difference { mean, cv } = difference;
        let (low, high) = mean.range.unwrap();
        assert!(low < 0.10 && 0.10 < high && high - low < 0.03, "{mean:?}");
        let (low, high) = cv.range.unwrap();
        assert!(low < -0.5 && -0.5 < high && high - low < 0.4, "{cv:?}");
        assert_eq!(pair.difference(1), Some(difference), "the seed decides");
        assert_eq!(Pair::default().difference(1), None);
        // Few rounds have a figure and no interval.
        let few = |factor: f64, rounds: usize| vec![[1.0, 1.1 * factor, 0.9].repeat(rounds / 3)];
        let of = |rounds: usize| {
            let pair = Pair { ours: few(1.0, rounds), theirs: few(1.1, rounds) };
            pair.difference(1).unwrap()
        };
        assert!(of(3).mean.value.is_some() && of(3).mean.range.is_none());
        assert!(of(3).cv.value.is_some() && of(3).cv.range.is_none());
        assert!(of(6).mean.range.is_some() && of(6).cv.range.is_some());
        let flat = || vec![vec![1.0; 9]];
        let flat = Pair { ours: flat(), theirs: flat() }.difference(1).unwrap();
        assert_eq!(flat.cv, Interval::default(), "a spread over no spread is none");
        assert_eq!(flat.mean, Interval { value: Some(0.0), range: Some((0.0, 0.0)) });
    }
}
