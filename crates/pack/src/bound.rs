//! Lower bounds on the arena, each with its witness: buffers that conflict pairwise, so that
//! their bytes must lie side by side.
//!
//! - Intervals: buffers live at one step. A sweep finds the heaviest step; as intervals that meet
//!   pairwise have a common step, no heavier witness exists.
//! - Clocks: "precedes" is a partial order and a witness is an antichain. Running the buffers in
//!   any order that extends it, and ending each only when a successor starts, leaves an antichain
//!   live at each moment; a few such runs give a bound at once. The heaviest antichain of all is
//!   found by flow (`antichain.rs`) when the quick bound does not settle the matter.
//! - Graphs: cliques grown greedily from the heaviest neighbourhoods.

use crate::problem::{Clocks, Conflicts, Interval, Problem, le};
use crate::relation::{Relation, birth_order};

/// A lower bound and the buffers that need it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// Reserved bytes of the witness.
    pub bytes: u64,
    /// Pairwise conflicting buffers, ascending.
    pub witness: Vec<usize>,
}

/// A bound in nearly linear time, and for each buffer the heaviest such set found that holds it.
pub(crate) fn quick(problem: &Problem, relation: &Relation) -> (Bound, Vec<u64>) {
    let mut breadth = vec![0; relation.count()];
    let mut bound = match &problem.conflicts {
        Conflicts::Intervals(intervals) => sweep(intervals, relation, &mut breadth),
        Conflicts::Clocks(clocks) => extensions(clocks, relation, &mut breadth),
        Conflicts::Graph(_) => cliques(relation, &mut breadth),
    };
    bound.witness.sort_unstable();
    (bound, breadth)
}

fn sweep(intervals: &[Interval], relation: &Relation, breadth: &mut [u64]) -> Bound {
    let mut starts: Vec<usize> = (0..intervals.len()).filter(|&b| relation.sizes[b] > 0).collect();
    let mut stops = starts.clone();
    starts.sort_by_key(|&b| (intervals[b].lower, b));
    stops.sort_by_key(|&b| (intervals[b].upper, b));
    // Load after each birth; the load between two births never exceeds the one before it.
    let mut loads = Vec::with_capacity(starts.len());
    let (mut load, mut peak, mut peak_step) = (0, 0, 0);
    let mut stops = stops.into_iter().peekable();
    for &b in &starts {
        while let Some(gone) = stops.next_if(|&g| intervals[g].upper <= intervals[b].lower) {
            load -= relation.sizes[gone];
        }
        load += relation.sizes[b];
        if load > peak {
            (peak, peak_step) = (load, intervals[b].lower);
        }
        loads.push(load);
    }
    let table = RangeMaximum::new(loads);
    let births: Vec<u64> = starts.iter().map(|&b| intervals[b].lower).collect();
    for (place, &b) in starts.iter().enumerate() {
        let end = births.partition_point(|&birth| birth < intervals[b].upper);
        breadth[b] = table.maximum(place, end);
    }
    let live = |b: &usize| intervals[*b].lower <= peak_step && peak_step < intervals[*b].upper;
    Bound { bytes: peak, witness: starts.into_iter().filter(live).collect() }
}

/// Maxima of ranges, from the maxima of all runs of power-of-two length.
struct RangeMaximum {
    rows: Vec<Vec<u64>>,
}

impl RangeMaximum {
    fn new(values: Vec<u64>) -> Self {
        let mut rows = vec![values];
        let mut width = 1;
        while let Some(last) = rows.last().filter(|row| row.len() > width) {
            let row = last.iter().zip(&last[width..]).map(|(a, b)| *a.max(b)).collect();
            rows.push(row);
            width *= 2;
        }
        Self { rows }
    }

    /// Maximum of the non-empty range `start..end`.
    fn maximum(&self, start: usize, end: usize) -> u64 {
        let level = (end - start).ilog2() as usize;
        let row = &self.rows[level];
        row[start].max(row[end - (1 << level)])
    }
}

/// Runs several linear extensions of the order.
fn extensions(clocks: &Clocks, relation: &Relation, breadth: &mut [u64]) -> Bound {
    let births = birth_order(clocks, &relation.sizes);
    let mut best = Bound::default();
    run(clocks, relation, &births, breadth, &mut best);
    let total = |clock: &[u32]| clock.iter().map(|&c| u64::from(c)).sum::<u64>();
    let mut order = births.clone();
    order.sort_by_cached_key(|&b| (total(clocks.upper(b)), b));
    run(clocks, relation, &order, breadth, &mut best);
    for lane in 0..clocks.lanes() {
        order.clone_from(&births);
        order.sort_by_key(|&b| clocks.lower(b)[lane]);
        run(clocks, relation, &order, breadth, &mut best);
    }
    best
}

/// Starts the buffers in `order`, ending a live one only when its successor starts: what is live
/// is an antichain at every moment.
fn run(
    clocks: &Clocks,
    relation: &Relation,
    order: &[usize],
    breadth: &mut [u64],
    best: &mut Bound,
) {
    let mut live: Vec<usize> = Vec::new();
    let mut load = 0;
    for &b in order {
        live.retain(|&a| {
            let over = le(clocks.upper(a), clocks.lower(b));
            load -= if over { relation.sizes[a] } else { 0 };
            !over
        });
        live.push(b);
        load += relation.sizes[b];
        for &a in &live {
            breadth[a] = breadth[a].max(load);
        }
        if load > best.bytes {
            *best = Bound { bytes: load, witness: live.clone() };
        }
    }
}

/// Cliques from which a graph's bound is grown.
const CLIQUE_SEEDS: usize = 64;

/// Grows a clique from each of the heaviest closed neighbourhoods, largest candidate first.
fn cliques(relation: &Relation, breadth: &mut [u64]) -> Bound {
    let mut best = Bound::default();
    for (b, weight) in breadth.iter_mut().enumerate() {
        *weight = relation.sizes[b];
        relation.for_each_neighbour(b, |other| *weight += relation.sizes[other]);
    }
    let mut seeds: Vec<usize> = (0..relation.count()).collect();
    seeds.sort_by_key(|&b| (std::cmp::Reverse(breadth[b]), b));
    seeds.truncate(CLIQUE_SEEDS);
    let mut mark = vec![0_u32; relation.count()];
    for seed in seeds {
        let clique = grow_clique(relation, breadth, seed, &mut mark);
        let bytes = clique.iter().map(|&b| relation.sizes[b]).sum();
        if bytes > best.bytes {
            best = Bound { bytes, witness: clique };
        }
    }
    best
}

/// A maximal clique that holds `seed`. `mark[b]` counts the members that `b` is known to be a
/// neighbour of; a candidate is a neighbour of all of them.
fn grow_clique(relation: &Relation, weights: &[u64], seed: usize, mark: &mut [u32]) -> Vec<usize> {
    mark.fill(0);
    let mut candidates = Vec::new();
    let mut clique = Vec::new();
    let mut next = Some(seed);
    while let Some(member) = next {
        clique.push(member);
        relation.for_each_neighbour(member, |b| mark[b] += 1);
        if clique.len() == 1 {
            relation.for_each_neighbour(member, |b| candidates.push(b));
        } else {
            candidates.retain(|&b| mark[b] as usize == clique.len());
        }
        next = candidates
            .iter()
            .copied()
            .max_by_key(|&b| (relation.sizes[b], weights[b], std::cmp::Reverse(b)));
    }
    clique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_maxima_are_maxima() {
        let values = vec![3, 1, 4, 1, 5, 9, 2, 6];
        let table = RangeMaximum::new(values.clone());
        for start in 0..values.len() {
            for end in start + 1..=values.len() {
                assert_eq!(Some(&table.maximum(start, end)), values[start..end].iter().max());
            }
        }
    }
}
