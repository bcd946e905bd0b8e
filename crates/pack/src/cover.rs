//! Sections for relations that are not intervals: cliques that together hold every conflict.
//!
//! Heavy cliques give strong conclusions, so the bound's witness and, under clocks, the sets
//! live together in one linear extension come first; what they leave uncovered is covered by
//! cliques grown from each remaining pair, heaviest buffers first.

use crate::limits;
use crate::problem::{Clocks, le};
use crate::relation::{Relation, birth_order};

/// Cliques that hold every conflict and every buffer, or `None` beyond `steps_max` steps.
pub(crate) fn cliques(
    relation: &Relation,
    clocks: Option<&Clocks>,
    witness: &[usize],
    steps_max: u64,
) -> Option<Vec<Vec<usize>>> {
    let entries: u64 = relation.degrees.iter().map(|&d| u64::from(d)).sum();
    if entries > limits::MEMBERS_MAX as u64 {
        return None;
    }
    let mut cover = Cover::new(relation);
    cover.add(witness.to_vec());
    if let Some(clocks) = clocks {
        for clique in extension(clocks, relation) {
            cover.add(clique);
        }
    }
    for a in 0..relation.count() {
        for k in 0..cover.rows[a].len() {
            let (b, covered) = cover.rows[a][k];
            if !covered && (b as usize) > a {
                let clique = cover.grow(a, b as usize);
                cover.add(clique);
            }
        }
        if cover.steps > steps_max {
            return None;
        }
    }
    for b in (0..relation.count()).filter(|&b| relation.sizes[b] > 0) {
        if relation.degrees[b] == 0 && witness != [b] {
            cover.cliques.push(vec![b]);
        }
    }
    Some(cover.cliques)
}

/// Neighbours of each buffer in ascending order, and whether the pair is in a clique yet.
struct Cover<'a> {
    relation: &'a Relation,
    rows: Vec<Vec<(u32, bool)>>,
    cliques: Vec<Vec<usize>>,
    steps: u64,
}

impl<'a> Cover<'a> {
    fn new(relation: &'a Relation) -> Self {
        let row = |b| {
            let mut row = Vec::with_capacity(relation.degrees[b] as usize);
            relation.for_each_neighbour(b, |other| row.push((other as u32, false)));
            row.sort_unstable();
            row
        };
        let rows = (0..relation.count()).map(row).collect();
        Self { relation, rows, cliques: Vec::new(), steps: 0 }
    }

    fn find(&self, a: usize, b: usize) -> Option<usize> {
        self.rows[a].binary_search_by_key(&(b as u32), |&(other, _)| other).ok()
    }

    fn add(&mut self, clique: Vec<usize>) {
        if clique.is_empty() {
            return;
        }
        self.steps += (clique.len() * clique.len()) as u64;
        for &a in &clique {
            for &b in clique.iter().filter(|&&b| b != a) {
                let at = self.find(a, b).expect("members of a clique conflict");
                self.rows[a][at].1 = true;
            }
        }
        self.cliques.push(clique);
    }

    /// A maximal clique that holds `a` and `b`.
    fn grow(&mut self, a: usize, b: usize) -> Vec<usize> {
        let common = |&(c, _): &(u32, bool)| self.find(b, c as usize).map(|_| c as usize);
        let mut candidates: Vec<usize> = self.rows[a].iter().filter_map(common).collect();
        candidates.sort_by_key(|&c| (std::cmp::Reverse(self.relation.sizes[c]), c));
        self.steps += self.rows[a].len() as u64;
        let mut clique = vec![a, b];
        for c in candidates {
            self.steps += clique.len() as u64;
            if clique[2..].iter().all(|&d| self.find(c, d).is_some()) {
                clique.push(c);
            }
        }
        clique
    }
}

/// The maximal sets live together when the buffers start in order of birth and end only when a
/// successor starts.
fn extension(clocks: &Clocks, relation: &Relation) -> Vec<Vec<usize>> {
    let mut live: Vec<usize> = Vec::new();
    let mut sets = Vec::new();
    for b in birth_order(clocks, &relation.sizes) {
        if live.iter().any(|&a| le(clocks.upper(a), clocks.lower(b))) {
            sets.push(live.clone());
            live.retain(|&a| !le(clocks.upper(a), clocks.lower(b)));
        }
        live.push(b);
    }
    sets.push(live);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Conflicts, Problem};
    use crate::random::SplitMix64;

    #[test]
    fn cliques_hold_every_conflict_and_nothing_else() {
        let mut random = SplitMix64::new(5);
        for round in 0..200 {
            let count = 1 + random.below(24) as usize;
            let clocks = random.clocks(count, 1 + round % 4, 12);
            let buffers = (0..count).map(|_| Buffer::new(random.below(9))).collect();
            let conflicts = Conflicts::Clocks(clocks.clone());
            let relation = Relation::new(&Problem { buffers, conflicts, capacity: None });
            let given = if round % 2 == 0 { Some(&clocks) } else { None };
            let cliques = cliques(&relation, given, &[], u64::MAX).expect("no limit");
            let mut together = vec![vec![false; count]; count];
            for clique in &cliques {
                for &a in clique {
                    for &b in clique {
                        together[a][b] = true;
                    }
                }
            }
            for a in (0..count).filter(|&a| relation.sizes[a] > 0) {
                assert!(together[a][a], "{a} is in a section");
                for b in (0..count).filter(|&b| b != a && relation.sizes[b] > 0) {
                    let conflict = !clocks.precedes(a, b) && !clocks.precedes(b, a);
                    assert_eq!(together[a][b], conflict, "round {round}: {a} and {b}");
                }
            }
        }
    }
}
