//! What happens after the portfolio has missed the bound: local search and complete search take
//! turns with growing step limits until one meets the bound, the complete search proves a higher
//! one, or the budget is spent. Turns are counted in steps, so the result depends on nothing but
//! the problem and the budget.

use crate::exact::{Choice, Outcome, Search, Walls};
use crate::local;
use crate::place::{Placer, UNPLACED};
use crate::portfolio::Placed;
use crate::problem::{Conflicts, Problem};
use crate::random::SplitMix64;
use crate::relation::Relation;
use crate::sections::{Cliques, Sections, Shape};
use crate::{cover, limits};

/// What the improvement works on.
pub(crate) struct Task<'a> {
    pub problem: &'a Problem,
    pub relation: &'a Relation,
    /// Offsets of the pinned buffers.
    pub pinned: &'a [u64],
    /// Buffers that conflict pairwise and give the bound.
    pub witness: &'a [usize],
    /// No packing has a smaller arena.
    pub lower_bound: u64,
    /// An arena that ends the work.
    pub enough: u64,
    /// A lower bound above this ends the work as well: the capacity cannot be met.
    pub give_up_above: u64,
    /// Total of the placer's steps at which the work ends.
    pub steps_max: u64,
}

/// Improves `best` in place and returns the lower bound as far as it was raised.
pub(crate) fn improve(task: &mut Task, best: &mut Placed, placer: &mut Placer) -> u64 {
    if best.arena <= task.enough {
        // What the searches need costs more than all that came before.
        return task.lower_bound;
    }
    let sections = sections(task);
    let mut exact = sections.as_ref().map(|sections| Exact::new(task, sections));
    let mut local = local::Local::new(best);
    let mut slice = limits::SLICE_STEPS_MIN;
    let mut idle = 0;
    while best.arena > task.enough
        && task.lower_bound <= task.give_up_above
        && placer.steps < task.steps_max
    {
        let before = (best.arena, task.lower_bound, placer.steps);
        if exact.is_none() || idle < LOCAL_IDLE_TURNS_MAX {
            local.turn(task, slice, best, placer);
        }
        if best.arena < before.0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if let Some(exact) = &mut exact {
            exact.turn(task, best, placer);
        }
        if (best.arena, task.lower_bound) == (before.0, before.1) {
            slice += slice / 8;
        }
        if placer.steps == before.2 {
            break;
        }
    }
    task.lower_bound
}

/// Budgets that do not allow as many looks at each membership leave the complete search out.
const MEMBER_LOOKS_MIN: u64 = 200;

/// Turns without progress after which the local search leaves all work to the complete search.
const LOCAL_IDLE_TURNS_MAX: u32 = 3;

/// What the complete search works on, or `None` if the problem is too large for it.
fn sections(task: &Task) -> Option<Sections> {
    let relation = task.relation;
    let limit = (task.steps_max / MEMBER_LOOKS_MIN).min(limits::MEMBERS_MAX as u64) as usize;
    let cover = |clocks, durations: &dyn Fn(usize) -> u64| {
        let cliques = cover::cliques(relation, clocks, task.witness, task.steps_max)?;
        Sections::new(Shape::Free, relation, task.pinned, durations, cliques.into_iter(), limit)
    };
    match &task.problem.conflicts {
        Conflicts::Intervals(intervals) => {
            let durations = |b: usize| intervals[b].upper - intervals[b].lower;
            let cliques = Cliques::new(&relation.sizes, intervals);
            Sections::new(Shape::Line, relation, task.pinned, durations, cliques, limit)
        }
        Conflicts::Clocks(clocks) => {
            let sum = |clock: &[u32]| clock.iter().map(|&c| u64::from(c)).sum::<u64>();
            cover(Some(clocks), &|b| sum(clocks.upper(b)) - sum(clocks.lower(b)))
        }
        Conflicts::Graph(_) => cover(None, &|b| u64::from(relation.degrees[b])),
    }
}

/// The complete search and its place in the series of dives.
struct Exact<'a> {
    search: Search<'a>,
    sections: &'a Sections,
    loads: Vec<u64>,
    /// Every arena is a multiple of this.
    unit: u64,
    random: SplitMix64,
    dive: usize,
    /// Decisions of the next dive. The first is given a quarter more than a dive without a single
    /// dead end takes.
    decisions: u64,
}

/// By what candidates are ranked.
const RANKS: [Rank; 5] = [Rank::Duration, Rank::Size, Rank::Area, Rank::Load, Rank::Offset];
/// The whole way from the lower bound to the best arena, of which a target takes a share.
const SHARE_WHOLE: u64 = 64;
const SHARES: [u64; 7] = [0, 4, 32, 8, 48, 16, 24];
/// What raises a rank, two dives each.
const WALLS: [Walls; 2] = [Walls::Ignore, Walls::Prefer];
const CHOICES: [Choice; 3] = [Choice::Fewest, Choice::FewestPerFailure, Choice::MostFailures];

/// Looks at each membership that a dive may take: several times what a dive down to a packing
/// does, so that one dive does not eat the budget.
const MEMBER_LOOKS_MAX: u64 = 2000;
/// Growth of the decisions that a dive may make, from one dive to the next, in thousandths.
const GROWTH: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum Rank {
    Duration,
    Size,
    Area,
    Load,
    /// Lowest in the best packing so far first.
    Offset,
}

impl<'a> Exact<'a> {
    fn new(task: &Task, sections: &'a Sections) -> Self {
        let memory = (task.steps_max / 256).clamp(1 << 10, limits::FAILED_STATES_MAX as u64);
        let size = |b: &u32| sections.sizes[*b as usize];
        let load = |s: usize| sections.members(s).iter().map(size).sum::<u64>();
        let section_loads: Vec<u64> = (0..sections.count()).map(load).collect();
        let peak = |b| sections.span(b).iter().map(|&s| section_loads[s as usize]).max();
        let pins = sections.pins.iter().copied().filter(|&pin| pin != UNPLACED);
        Self {
            search: Search::new(sections, (memory as usize).next_power_of_two()),
            sections,
            loads: (0..sections.ids.len()).map(|b| peak(b).unwrap_or(0)).collect(),
            unit: unit(sections.sizes.iter().copied().chain(pins), &sections.alignments),
            random: SplitMix64::new(2),
            dive: 0,
            decisions: sections.ids.len() as u64 * 5 / 4 + 100,
        }
    }

    /// One round of dives, one for each share.
    fn turn(&mut self, task: &mut Task, best: &mut Placed, placer: &mut Placer) {
        for share in SHARES {
            if best.arena <= task.enough || placer.steps >= task.steps_max {
                return;
            }
            self.aim(task, share, best, placer);
        }
    }

    /// One dive for a packing within a target between the bound and the best arena.
    fn aim(&mut self, task: &mut Task, share: u64, best: &mut Placed, placer: &mut Placer) {
        let low = task.enough.max(task.lower_bound);
        let target = low + (best.arena - low) / SHARE_WHOLE * share;
        let target = target.min(best.arena - 1) / self.unit * self.unit;
        let rank = RANKS[self.dive % RANKS.len()];
        self.search.choice = CHOICES[self.dive / RANKS.len() % CHOICES.len()];
        self.search.walls = WALLS[self.dive / 2 % WALLS.len()];
        self.rank(rank, best);
        self.dive += 1;
        let before = self.search.sky.steps;
        let whole = self.sections.members_count() as u64 * MEMBER_LOOKS_MAX;
        let limit = before + (task.steps_max - placer.steps).min(whole);
        let outcome = self.search.dive(target, self.decisions, limit);
        self.decisions += self.decisions * GROWTH / 1000;
        placer.steps += self.search.sky.steps - before + self.sections.ids.len() as u64;
        match outcome {
            Outcome::Found => {
                let end = |b: usize| self.search.sky.lower[b] + self.sections.sizes[b];
                best.arena = (0..self.sections.ids.len()).map(end).max().unwrap_or(0);
                for (k, &b) in self.sections.ids.iter().enumerate() {
                    best.offsets[b] = self.search.sky.lower[k];
                }
            }
            Outcome::Failed => {
                task.lower_bound = task.lower_bound.max(target + self.unit);
                task.enough = task.enough.max(task.lower_bound);
            }
            Outcome::Undecided => {}
        }
    }

    /// Ranks the candidates; all but the first few dives blur the ranks.
    fn rank(&mut self, rank: Rank, best: &Placed) {
        let blur = self.dive >= RANKS.len();
        for b in 0..self.sections.ids.len() {
            let (size, duration) = (self.sections.sizes[b], self.sections.durations[b]);
            let key = match rank {
                Rank::Duration => u128::from(duration),
                Rank::Size => u128::from(size),
                Rank::Area => u128::from(size) * u128::from(duration),
                Rank::Load => u128::from(self.loads[b]),
                Rank::Offset => u128::from(best.arena - best.offsets[self.sections.ids[b]]),
            };
            let factor = if blur { 512 + self.random.below(1024) } else { 1024 };
            let key = key.saturating_mul(u128::from(factor)) / 64;
            self.search.ranks[b] = u64::try_from(key).unwrap_or(u64::MAX);
        }
    }
}

/// What divides every offset of a bottom-justified packing: ends are sums of sizes and pins, and
/// rounding a multiple of the unit up to an alignment gives a multiple of the unit again, as
/// either the largest alignment divides it or it is itself a smaller power of two.
fn unit(lengths: impl Iterator<Item = u64>, alignments: &[u64]) -> u64 {
    let common = lengths.fold(0, gcd).max(1);
    let largest = alignments.iter().copied().max().unwrap_or(1);
    if common.is_multiple_of(largest) { common } else { gcd(common, largest) }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
