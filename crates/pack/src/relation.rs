//! The conflict relation in the form that the algorithms use: for each buffer, its neighbours.
//!
//! Sparse relations are stored as lists (compressed rows). Dense interval relations are not
//! stored at all: a tree over the buffers in order of birth enumerates neighbours in time
//! proportional to their number, so memory stays linear in the buffers. Buffers of no bytes have
//! no neighbours. Nothing here knows offsets.

use crate::limits;
use crate::problem::{Clocks, Conflicts, Interval, Problem};

/// A checked problem with its conflicts made enumerable.
pub(crate) struct Relation {
    /// Reserved bytes of each buffer.
    pub sizes: Vec<u64>,
    /// Alignment of each buffer.
    pub alignments: Vec<u64>,
    /// Number of neighbours of each buffer.
    pub degrees: Vec<u32>,
    /// Bytes of each buffer's neighbours, added up.
    pub conflict_bytes: Vec<u64>,
    /// For intervals, the ranks of a buffer's birth and death among all births and deaths.
    pub lives: Option<Vec<(u32, u32)>>,
    neighbours: Neighbours,
}

enum Neighbours {
    Rows { starts: Vec<usize>, list: Vec<u32> },
    Tree(BirthTree),
}

impl Relation {
    pub fn new(problem: &Problem) -> Self {
        let sizes: Vec<u64> = problem.buffers.iter().map(|b| b.reserved_bytes()).collect();
        let (degrees, neighbours) = match &problem.conflicts {
            Conflicts::Intervals(intervals) => from_intervals(&sizes, intervals),
            Conflicts::Clocks(clocks) => from_pairs(sizes.len(), &clock_pairs(clocks, &sizes)),
            Conflicts::Graph(given) => {
                let occupied = |b: usize| sizes[b] > 0;
                let mut pairs: Vec<(u32, u32)> = given
                    .iter()
                    .filter(|(a, b)| occupied(*a) && occupied(*b))
                    .map(|&(a, b)| (a.min(b) as u32, a.max(b) as u32))
                    .collect();
                pairs.sort_unstable();
                pairs.dedup();
                from_pairs(sizes.len(), &pairs)
            }
        };
        let lives = match &problem.conflicts {
            Conflicts::Intervals(intervals) => Some(ranks(intervals)),
            Conflicts::Clocks(_) | Conflicts::Graph(_) => None,
        };
        let alignments = problem.buffers.iter().map(|b| b.alignment).collect();
        let mut relation =
            Self { sizes, alignments, degrees, conflict_bytes: Vec::new(), lives, neighbours };
        relation.conflict_bytes = relation.add_up_conflicts();
        relation
    }

    /// Bytes of each buffer's neighbours. Under intervals: of those born before its death, less
    /// those dead by its birth, less its own.
    fn add_up_conflicts(&self) -> Vec<u64> {
        let Some(lives) = &self.lives else {
            let mut sums = vec![0; self.count()];
            for (b, sum) in sums.iter_mut().enumerate() {
                self.for_each_neighbour(b, |other| *sum += self.sizes[other]);
            }
            return sums;
        };
        let ranks = lives.iter().map(|life| life.1 as usize + 1).max().unwrap_or(0);
        let (mut born, mut dead) = (vec![0_u64; ranks + 1], vec![0_u64; ranks + 1]);
        for (b, &(lower, upper)) in lives.iter().enumerate() {
            born[lower as usize + 1] += self.sizes[b];
            dead[upper as usize] += self.sizes[b];
        }
        for rank in 0..ranks {
            born[rank + 1] += born[rank];
            dead[rank + 1] += dead[rank];
        }
        let sum = |(b, &(lower, upper)): (usize, &(u32, u32))| match self.sizes[b] {
            0 => 0,
            size => born[upper as usize] - dead[lower as usize] - size,
        };
        lives.iter().enumerate().map(sum).collect()
    }

    pub fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Calls `visit` with each buffer that conflicts with `buffer`.
    pub fn for_each_neighbour(&self, buffer: usize, mut visit: impl FnMut(usize)) {
        if self.degrees[buffer] == 0 {
            return;
        }
        match &self.neighbours {
            Neighbours::Rows { starts, list } => {
                for &other in &list[starts[buffer]..starts[buffer + 1]] {
                    visit(other as usize);
                }
            }
            Neighbours::Tree(tree) => tree.for_each_neighbour(buffer, &mut visit),
        }
    }
}

/// Birth and death of each interval as ranks among all births and deaths.
fn ranks(intervals: &[Interval]) -> Vec<(u32, u32)> {
    let mut ends: Vec<u64> = intervals.iter().flat_map(|i| [i.lower, i.upper]).collect();
    ends.sort_unstable();
    ends.dedup();
    let rank = |end: u64| ends.partition_point(|&e| e < end) as u32;
    intervals.iter().map(|i| (rank(i.lower), rank(i.upper))).collect()
}

/// Degrees and rows from distinct pairs of `count` buffers.
fn from_pairs(count: usize, pairs: &[(u32, u32)]) -> (Vec<u32>, Neighbours) {
    let mut degrees = vec![0_u32; count];
    for &(a, b) in pairs {
        degrees[a as usize] += 1;
        degrees[b as usize] += 1;
    }
    let mut starts = Vec::with_capacity(count + 1);
    starts.push(0);
    starts.extend(degrees.iter().scan(0, |sum, &degree| {
        *sum += degree as usize;
        Some(*sum)
    }));
    let mut next = starts.clone();
    let mut list = vec![0_u32; starts[count]];
    for &(a, b) in pairs {
        for (from, to) in [(a, b), (b, a)] {
            list[next[from as usize]] = to;
            next[from as usize] += 1;
        }
    }
    (degrees, Neighbours::Rows { starts, list })
}

/// Degrees and neighbours of intervals, stored or enumerable.
fn from_intervals(sizes: &[u64], intervals: &[Interval]) -> (Vec<u32>, Neighbours) {
    let tree = BirthTree::new(sizes, intervals);
    let degrees = tree.degrees(sizes.len());
    let pairs: usize = degrees.iter().map(|&d| d as usize).sum::<usize>() / 2;
    if pairs > limits::STORED_PAIRS_MAX {
        return (degrees, Neighbours::Tree(tree));
    }
    let mut starts = Vec::with_capacity(sizes.len() + 1);
    let mut list = Vec::with_capacity(pairs * 2);
    starts.push(0);
    for (buffer, &size) in sizes.iter().enumerate() {
        if size > 0 {
            tree.for_each_neighbour(buffer, &mut |other| list.push(other as u32));
        }
        starts.push(list.len());
    }
    (degrees, Neighbours::Rows { starts, list })
}

/// Pairs that conflict under clocks. Buffers are taken by the sum of their lower clock, which is
/// a linear extension of "precedes"; once every later lower clock is at or above a buffer's
/// upper clock, no later buffer can conflict with it.
fn clock_pairs(clocks: &Clocks, sizes: &[u64]) -> Vec<(u32, u32)> {
    let lanes = clocks.lanes();
    let order = birth_order(clocks, sizes);
    let mut floor = vec![u32::MAX; (order.len() + 1) * lanes];
    for (position, &buffer) in order.iter().enumerate().rev() {
        for lane in 0..lanes {
            floor[position * lanes + lane] =
                floor[(position + 1) * lanes + lane].min(clocks.lower(buffer)[lane]);
        }
    }
    let mut pairs = Vec::new();
    for (position, &a) in order.iter().enumerate() {
        let upper = clocks.upper(a);
        for (later, &b) in order.iter().enumerate().skip(position + 1) {
            if crate::problem::le(upper, &floor[later * lanes..][..lanes]) {
                break;
            }
            if !clocks.precedes(a, b) {
                pairs.push((a as u32, b as u32));
            }
        }
    }
    pairs
}

/// Buffers of at least one byte by the sum of their lower clock, then by index: no buffer comes
/// before one that precedes it, because `lower ≤ upper ≤ lower of the successor` and the sums
/// differ unless the predecessor's lifetime is empty, which is refused.
pub(crate) fn birth_order(clocks: &Clocks, sizes: &[u64]) -> Vec<usize> {
    let sum = |b: &usize| clocks.lower(*b).iter().map(|&c| u64::from(c)).sum::<u64>();
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&b| sizes[b] > 0).collect();
    order.sort_by_cached_key(|b| (sum(b), *b));
    order
}

/// Buffers in order of birth with, over them, a tree of latest deaths. The neighbours of a buffer
/// are those born during its life, a range, and those born before it that die after its birth.
struct BirthTree {
    /// Buffers of at least one byte by (lower, index).
    order: Vec<u32>,
    /// Birth of each entry of `order`.
    lowers: Vec<u64>,
    /// Place of each buffer in `order`.
    places: Vec<u32>,
    /// Death of each buffer.
    uppers: Vec<u64>,
    /// Complete binary tree: the maximum of `uppers` below each node; leaves are `order`.
    latest: Vec<u64>,
    leaves: usize,
}

impl BirthTree {
    fn new(sizes: &[u64], intervals: &[Interval]) -> Self {
        let mut order: Vec<u32> =
            (0..sizes.len() as u32).filter(|&b| sizes[b as usize] > 0).collect();
        order.sort_by_key(|&b| (intervals[b as usize].lower, b));
        let mut places = vec![0; sizes.len()];
        for (place, &b) in order.iter().enumerate() {
            places[b as usize] = place as u32;
        }
        let leaves = order.len().next_power_of_two();
        let mut latest = vec![0; 2 * leaves];
        for (place, &b) in order.iter().enumerate() {
            latest[leaves + place] = intervals[b as usize].upper;
        }
        for node in (1..leaves).rev() {
            latest[node] = latest[2 * node].max(latest[2 * node + 1]);
        }
        let lowers = order.iter().map(|&b| intervals[b as usize].lower).collect();
        let uppers = intervals.iter().map(|i| i.upper).collect();
        Self { order, lowers, places, uppers, latest, leaves }
    }

    /// Neighbours of each of `count` buffers, counted without enumerating them.
    fn degrees(&self, count: usize) -> Vec<u32> {
        let mut deaths: Vec<u64> = self.order.iter().map(|&b| self.uppers[b as usize]).collect();
        deaths.sort_unstable();
        let mut degrees = vec![0; count];
        for (place, &b) in self.order.iter().enumerate() {
            let born_before_end = self.lowers.partition_point(|&l| l < self.uppers[b as usize]);
            let dead_at_birth = deaths.partition_point(|&u| u <= self.lowers[place]);
            degrees[b as usize] = (born_before_end - dead_at_birth - 1) as u32;
        }
        degrees
    }

    fn for_each_neighbour(&self, buffer: usize, visit: &mut impl FnMut(usize)) {
        let place = self.places[buffer] as usize;
        self.visit_earlier(1, self.leaves, place, self.lowers[place], visit);
        let end = self.uppers[buffer];
        for later in place + 1..self.order.len() {
            if self.lowers[later] >= end {
                break;
            }
            visit(self.order[later] as usize);
        }
    }

    /// Visits, below `node` of `width` leaves, the first `limit` leaves that die after `birth`.
    fn visit_earlier(
        &self,
        node: usize,
        width: usize,
        limit: usize,
        birth: u64,
        visit: &mut impl FnMut(usize),
    ) {
        if limit == 0 || self.latest[node] <= birth {
            return;
        }
        if width == 1 {
            visit(self.order[node - self.leaves] as usize);
            return;
        }
        let half = width / 2;
        self.visit_earlier(2 * node, half, limit.min(half), birth, visit);
        self.visit_earlier(2 * node + 1, half, limit.saturating_sub(half), birth, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Buffer;
    use crate::random::SplitMix64;

    fn problem(buffers: Vec<Buffer>, conflicts: Conflicts) -> Problem {
        Problem { buffers, conflicts, capacity: None }
    }

    fn check(problem: &Problem, conflict: impl Fn(usize, usize) -> bool) {
        let relation = Relation::new(problem);
        for a in 0..problem.buffers.len() {
            let mut found = Vec::new();
            relation.for_each_neighbour(a, |b| found.push(b));
            found.sort_unstable();
            let occupied = |b: usize| problem.buffers[b].size > 0;
            let expected: Vec<usize> = (0..problem.buffers.len())
                .filter(|&b| b != a && occupied(a) && occupied(b) && conflict(a, b))
                .collect();
            assert_eq!(found, expected, "neighbours of {a}");
            assert_eq!(relation.degrees[a] as usize, expected.len());
            let bytes: u64 = expected.iter().map(|&b| problem.buffers[b].size).sum();
            assert_eq!(relation.conflict_bytes[a], bytes, "conflict bytes of {a}");
        }
    }

    #[test]
    fn neighbours_are_those_of_the_definition() {
        let mut random = SplitMix64::new(1);
        for _ in 0..200 {
            let count = random.below(20) as usize;
            let buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(random.below(3))).collect();
            let intervals: Vec<Interval> = (0..count)
                .map(|_| {
                    let lower = random.below(20);
                    Interval { lower, upper: lower + 1 + random.below(8) }
                })
                .collect();
            let meet = |a: usize, b: usize| {
                intervals[a].lower < intervals[b].upper && intervals[b].lower < intervals[a].upper
            };
            check(&problem(buffers.clone(), Conflicts::Intervals(intervals.clone())), meet);
            let clocks = random.clocks(count, 3, 10);
            let unordered = |a: usize, b: usize| !clocks.precedes(a, b) && !clocks.precedes(b, a);
            check(&problem(buffers.clone(), Conflicts::Clocks(clocks.clone())), unordered);
            let mut pairs = Vec::new();
            for _ in 0..count * 2 {
                let (a, b) = (random.below(count as u64), random.below(count as u64));
                if a != b {
                    pairs.push((a as usize, b as usize));
                }
            }
            let listed = |a: usize, b: usize| pairs.contains(&(a, b)) || pairs.contains(&(b, a));
            check(&problem(buffers, Conflicts::Graph(pairs.clone())), listed);
        }
    }
}
