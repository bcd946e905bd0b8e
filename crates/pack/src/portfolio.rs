//! The portfolio: several orders, each with two fits, until one meets the lower bound. No order
//! is best everywhere; on transformer graphs one of the first few nearly always is.

use crate::place::{Fit, Placer};
use crate::problem::{Conflicts, Problem};
use crate::relation::Relation;

/// Keys by which buffers are placed, largest first unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Bytes.
    Size,
    /// Bytes times duration.
    Area,
    /// Bytes of all conflicting buffers.
    ConflictBytes,
    /// Heaviest pairwise conflicting set known that holds the buffer, then bytes.
    Breadth,
    /// Duration, then bytes.
    Duration,
    /// Number of conflicts, then bytes.
    Degree,
    /// Own bytes times the bytes of all conflicting buffers.
    Pressure,
    /// Earliest first, longer-lived first among equals.
    Birth,
}

const KEYS: [Key; 8] = [
    Key::Size,
    Key::Area,
    Key::ConflictBytes,
    Key::Breadth,
    Key::Duration,
    Key::Degree,
    Key::Pressure,
    Key::Birth,
];

/// The best packing of the portfolio.
pub(crate) struct Placed {
    /// Offset of each buffer.
    pub offsets: Vec<u64>,
    /// Largest end.
    pub arena: u64,
    /// Order that led to it.
    pub order: Vec<usize>,
    /// Fit that led to it.
    pub fit: Fit,
}

/// Tries every key and fit, around what `pinned` places, until the arena is at most `enough`
/// bytes, or until `placer` has done `steps_max` steps and there is a packing.
pub(crate) fn portfolio(
    problem: &Problem,
    relation: &Relation,
    breadth: &[u64],
    pinned: &[u64],
    enough: u64,
    steps_max: u64,
    placer: &mut Placer,
) -> Placed {
    let measures = Measures::new(problem, relation, breadth);
    let mut best: Option<Placed> = None;
    let mut offsets = Vec::new();
    for key in KEYS {
        let order = measures.order(relation, key);
        for fit in [Fit::First, Fit::Best] {
            let ceiling = match &best {
                None => u64::MAX,
                Some(best) if best.arena <= enough || placer.steps >= steps_max => break,
                Some(best) => best.arena - 1,
            };
            pinned.clone_into(&mut offsets);
            if let Some(arena) = placer.place(relation, &order, fit, ceiling, &mut offsets) {
                let (offsets, order) = (offsets.clone(), order.clone());
                best = Some(Placed { offsets, arena, order, fit });
            }
        }
    }
    best.expect("the first placement has no ceiling")
}

/// What the keys are computed from.
struct Measures<'a> {
    durations: Vec<u64>,
    births: Vec<u64>,
    breadth: &'a [u64],
}

impl<'a> Measures<'a> {
    pub fn new(problem: &Problem, relation: &Relation, breadth: &'a [u64]) -> Self {
        let count = relation.count();
        let (durations, births) = match &problem.conflicts {
            Conflicts::Intervals(intervals) => {
                intervals.iter().map(|i| (i.upper - i.lower, i.lower)).unzip()
            }
            Conflicts::Clocks(clocks) => {
                let sum = |clock: &[u32]| clock.iter().map(|&c| u64::from(c)).sum::<u64>();
                let life = |b| (sum(clocks.upper(b)) - sum(clocks.lower(b)), sum(clocks.lower(b)));
                (0..count).map(life).unzip()
            }
            Conflicts::Graph(_) => {
                (relation.degrees.iter().map(|&d| u64::from(d)).collect(), vec![0; count])
            }
        };
        Self { durations, births, breadth }
    }

    /// The buffers by `key`; ties by longer duration, then more bytes, then index.
    pub fn order(&self, relation: &Relation, key: Key) -> Vec<usize> {
        let size = |b: usize| u128::from(relation.sizes[b]);
        let rank = |b: usize| match key {
            Key::Size => size(b),
            Key::Area => size(b) * u128::from(self.durations[b]),
            Key::ConflictBytes => u128::from(relation.conflict_bytes[b]),
            Key::Breadth => u128::from(self.breadth[b]),
            Key::Duration => u128::from(self.durations[b]),
            Key::Degree => u128::from(relation.degrees[b]),
            Key::Pressure => size(b) * u128::from(relation.conflict_bytes[b]),
            Key::Birth => u128::from(u64::MAX - self.births[b]),
        };
        let mut order: Vec<usize> = (0..relation.count()).collect();
        let second = |b: usize| match key {
            Key::Size | Key::Area | Key::Pressure | Key::Birth => u128::from(self.durations[b]),
            Key::ConflictBytes | Key::Breadth | Key::Duration | Key::Degree => size(b),
        };
        order.sort_by_cached_key(|&b| std::cmp::Reverse((rank(b), second(b), size(b), !b)));
        order
    }
}
