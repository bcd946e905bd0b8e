//! The heaviest antichain of a partial order, by flow.
//!
//! Theory (Dilworth 1950, weighted): cover every buffer `size` times by chains of the order. A
//! chain meets an antichain at most once, so the number of chains is at least the weight of any
//! antichain, and the minimum equals the maximum. The minimum is a *minimum flow*: split each
//! buffer into an entry and an exit joined by an edge that must carry at least `size`; flow may
//! pass from the exit of `a` to the entry of `b` where `b` follows `a`. One feasible flow is one
//! chain a buffer; pushing flow back from the sink to the source, as far as the edges' minima
//! allow, makes it minimal. What the source still reaches then is a cut, and the buffers whose
//! minimum edge crosses it form the antichain.
//!
//! Only covering pairs are edges (`b` follows `a` with nothing between): longer chains compose.

use std::collections::VecDeque;

use crate::bound::Bound;
use crate::problem::{Clocks, le};
use crate::relation::{Relation, birth_order};

/// The heaviest antichain, or `None` if finding it would take `steps` beyond about `steps_max`
/// more; buffers of no bytes are left out.
pub(crate) fn heaviest(
    clocks: &Clocks,
    relation: &Relation,
    steps_max: u64,
    steps: &mut u64,
) -> Option<Bound> {
    let steps_max = steps.saturating_add(steps_max);
    let order = birth_order(clocks, &relation.sizes);
    let mut network = Network::new(2 * order.len() + 2);
    let (source, sink) = (2 * order.len(), 2 * order.len() + 1);
    for (k, &b) in order.iter().enumerate() {
        // Carries `size` at first and must: its spare for pushing back is what exceeds `size`.
        network.edge(2 * k, 2 * k + 1, UNLIMITED, 0);
        network.edge(source, 2 * k, UNLIMITED, relation.sizes[b]);
        network.edge(2 * k + 1, sink, UNLIMITED, relation.sizes[b]);
    }
    covers(clocks, &order, steps_max, steps, &mut |a, b| {
        network.edge(2 * a + 1, 2 * b, UNLIMITED, 0);
    })?;
    network.push_all(sink, source, steps_max, steps)?;
    // Still reachable from the sink over spare capacity: the sink's side of the cut.
    let reached = network.levels(sink);
    let crossing = |k: &usize| reached[2 * k + 1] != UNREACHED && reached[2 * k] == UNREACHED;
    let witness: Vec<usize> = (0..order.len()).filter(crossing).map(|k| order[k]).collect();
    let bytes = witness.iter().map(|&b| relation.sizes[b]).sum();
    Some(Bound { bytes, witness })
}

const UNLIMITED: u64 = u64::MAX / 4;
const UNREACHED: u32 = u32::MAX;

/// Visits each pair of places in `order` of which the second covers the first. Once every later
/// buffer follows some cover found already, there are no more.
fn covers(
    clocks: &Clocks,
    order: &[usize],
    steps_max: u64,
    steps: &mut u64,
    visit: &mut impl FnMut(usize, usize),
) -> Option<()> {
    let lanes = clocks.lanes();
    let mut floor = vec![u32::MAX; (order.len() + 1) * lanes];
    for (k, &b) in order.iter().enumerate().rev() {
        for lane in 0..lanes {
            floor[k * lanes + lane] = floor[(k + 1) * lanes + lane].min(clocks.lower(b)[lane]);
        }
    }
    let mut found: Vec<usize> = Vec::new();
    for (k, &a) in order.iter().enumerate() {
        found.clear();
        for (later, &b) in order.iter().enumerate().skip(k + 1) {
            *steps += 1 + found.len() as u64;
            let beyond = &floor[later * lanes..][..lanes];
            if found.iter().any(|&c| le(clocks.upper(c), beyond)) {
                break;
            }
            if clocks.precedes(a, b) && !found.iter().any(|&c| clocks.precedes(c, b)) {
                found.push(b);
                visit(k, later);
            }
        }
        if *steps > steps_max {
            return None;
        }
    }
    Some(())
}

/// A flow network as adjacency lists of paired edges; edge `e ^ 1` is the reverse of `e`.
struct Network {
    heads: Vec<Vec<u32>>,
    to: Vec<u32>,
    spare: Vec<u64>,
}

impl Network {
    fn new(nodes: usize) -> Self {
        Self { heads: vec![Vec::new(); nodes], to: Vec::new(), spare: Vec::new() }
    }

    /// An edge with `spare` capacity forwards and `back` (flow that may be returned) backwards.
    fn edge(&mut self, from: usize, to: usize, spare: u64, back: u64) {
        for (from, to, spare) in [(from, to, spare), (to, from, back)] {
            self.heads[from].push(self.to.len() as u32);
            self.to.push(to as u32);
            self.spare.push(spare);
        }
    }

    /// Pushes as much as possible from `from` to `to` (Dinic 1970: shortest augmenting paths, a
    /// whole level graph at a time).
    fn push_all(&mut self, from: usize, to: usize, steps_max: u64, steps: &mut u64) -> Option<()> {
        loop {
            let levels = self.levels(from);
            *steps += self.to.len() as u64;
            if levels[to] == UNREACHED {
                return Some(());
            }
            let mut next = vec![0_u32; self.heads.len()];
            while self.augment(from, to, &levels, &mut next, steps) {
                if *steps > steps_max {
                    return None;
                }
            }
        }
    }

    /// Distance of each node from `from` over edges with spare capacity.
    fn levels(&self, from: usize) -> Vec<u32> {
        let mut levels = vec![UNREACHED; self.heads.len()];
        levels[from] = 0;
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.heads[node] {
                let other = self.to[edge as usize] as usize;
                if self.spare[edge as usize] > 0 && levels[other] == UNREACHED {
                    levels[other] = levels[node] + 1;
                    queue.push_back(other);
                }
            }
        }
        levels
    }

    /// Finds one path down the levels and fills it. `next` skips edges that led nowhere.
    fn augment(
        &mut self,
        from: usize,
        to: usize,
        levels: &[u32],
        next: &mut [u32],
        steps: &mut u64,
    ) -> bool {
        let mut path: Vec<u32> = Vec::new();
        let mut node = from;
        while node != to {
            *steps += 1;
            if let Some(&edge) = self.heads[node].get(next[node] as usize) {
                let other = self.to[edge as usize] as usize;
                if self.spare[edge as usize] > 0 && levels[other] == levels[node] + 1 {
                    path.push(edge);
                    node = other;
                } else {
                    next[node] += 1;
                }
            } else {
                let Some(edge) = path.pop() else { return false };
                node = self.to[edge as usize ^ 1] as usize;
                next[node] += 1;
            }
        }
        let amount = path.iter().map(|&e| self.spare[e as usize]).min().unwrap_or(0);
        for &edge in &path {
            self.spare[edge as usize] -= amount;
            self.spare[edge as usize ^ 1] += amount;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Conflicts, Problem};
    use crate::random::SplitMix64;

    /// The heaviest antichain by looking at every subset.
    fn by_force(clocks: &Clocks, sizes: &[u64]) -> u64 {
        let ordered = |a: usize, b: usize| clocks.precedes(a, b) || clocks.precedes(b, a);
        let count = sizes.len();
        let mut best = 0;
        for set in 0_u32..1 << count {
            let members: Vec<usize> = (0..count).filter(|b| set >> b & 1 == 1).collect();
            let pairs = |a: &usize| members.iter().any(|b| b > a && ordered(*a, *b));
            if !members.iter().any(pairs) {
                best = best.max(members.iter().map(|&b| sizes[b]).sum());
            }
        }
        best
    }

    #[test]
    fn flow_finds_the_heaviest_antichain() {
        let mut random = SplitMix64::new(3);
        for round in 0..300 {
            let count = random.below(11) as usize;
            let span = 2 + random.below(12);
            let clocks = random.clocks(count, 1 + round % 4, span);
            let buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(random.below(9))).collect();
            let conflicts = Conflicts::Clocks(clocks.clone());
            let relation = Relation::new(&Problem { buffers, conflicts, capacity: None });
            let bound = heaviest(&clocks, &relation, u64::MAX, &mut 0).expect("no step limit");
            assert_eq!(bound.bytes, by_force(&clocks, &relation.sizes), "round {round}");
            for (i, &a) in bound.witness.iter().enumerate() {
                for &b in &bound.witness[i + 1..] {
                    assert!(!clocks.precedes(a, b) && !clocks.precedes(b, a));
                }
            }
        }
    }

    #[test]
    fn a_layered_order_is_quick() {
        let mut random = SplitMix64::new(4);
        let count = 2000_usize;
        let mut clocks = Clocks::new(8);
        for b in 0..count {
            let base = b as u32 / 8 * 2;
            let lower: Vec<u32> = (0..8).map(|_| base + random.below(3) as u32).collect();
            let upper: Vec<u32> = lower.iter().map(|l| l + 1 + random.below(6) as u32).collect();
            clocks.push(&lower, &upper);
        }
        let buffers = (0..count).map(|_| Buffer::new(1 + random.below(1000))).collect();
        let conflicts = Conflicts::Clocks(clocks.clone());
        let relation = Relation::new(&Problem { buffers, conflicts, capacity: None });
        let mut steps = 0;
        heaviest(&clocks, &relation, u64::MAX, &mut steps).expect("no step limit");
        assert!(steps < 40_000_000, "{steps} steps");
    }
}
