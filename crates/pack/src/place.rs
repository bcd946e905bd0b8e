//! Placing buffers one after another, each at the best gap that its placed neighbours leave.
//! Believes the relation and the order it is given; pinned buffers come first, at their pins.

use crate::problem::{Error, Problem};
use crate::relation::Relation;

/// Which gap a buffer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest gap that is large enough.
    First,
    /// The smallest gap that is large enough, the lowest among equals; on top if there is none.
    Best,
}

/// Offset of a buffer that has none yet.
pub(crate) const UNPLACED: u64 = u64::MAX;

/// Reusable memory of the placer, and its count of work.
#[derive(Default)]
pub(crate) struct Placer {
    /// Neighbours looked at.
    pub steps: u64,
    spans: Vec<(u64, u64)>,
}

/// Offsets with only the pinned buffers placed.
///
/// # Errors
/// If two of them conflict on common bytes.
pub(crate) fn pins(problem: &Problem, relation: &Relation) -> Result<Vec<u64>, Error> {
    let pin = |b: usize| problem.buffers[b].pinned;
    let offsets = (0..relation.count()).map(|b| pin(b).unwrap_or(UNPLACED)).collect();
    for a in 0..relation.count() {
        let Some(offset) = pin(a) else { continue };
        let end = offset + relation.sizes[a];
        let mut clash = None;
        relation.for_each_neighbour(a, |b| {
            let meets = pin(b).is_some_and(|p| p < end && offset < p + relation.sizes[b]);
            clash = clash.or(meets.then_some(b));
        });
        if let Some(b) = clash {
            return Err(Error::PinnedOverlap { a: a.min(b), b: a.max(b) });
        }
    }
    Ok(offsets)
}

impl Placer {
    /// Places every buffer of `order` that has no offset yet. Returns the arena in bytes, or
    /// `None` as soon as a buffer would end beyond `ceiling` bytes.
    pub fn place(
        &mut self,
        relation: &Relation,
        order: &[usize],
        fit: Fit,
        ceiling: u64,
        offsets: &mut [u64],
    ) -> Option<u64> {
        let mut arena = 0;
        for &b in order {
            if offsets[b] == UNPLACED {
                offsets[b] = self.gap(relation, b, fit, offsets);
            }
            arena = arena.max(offsets[b] + relation.sizes[b]);
            if arena > ceiling {
                return None;
            }
        }
        Some(arena)
    }

    /// The offset that `fit` chooses for `buffer` among its placed neighbours.
    fn gap(&mut self, relation: &Relation, buffer: usize, fit: Fit, offsets: &[u64]) -> u64 {
        let size = relation.sizes[buffer];
        let alignment = relation.alignments[buffer];
        if size == 0 {
            return 0;
        }
        self.steps += u64::from(relation.degrees[buffer]) + 1;
        self.spans.clear();
        relation.for_each_neighbour(buffer, |other| {
            let offset = offsets[other];
            if offset != UNPLACED {
                self.spans.push((offset, offset + relation.sizes[other]));
            }
        });
        self.spans.sort_unstable();
        let (mut floor, mut best, mut best_gap) = (0, UNPLACED, u64::MAX);
        for &(start, end) in &self.spans {
            let candidate = align_up(floor, alignment);
            if candidate + size <= start {
                match fit {
                    Fit::First => return candidate,
                    Fit::Best => {
                        if start - floor < best_gap {
                            (best, best_gap) = (candidate, start - floor);
                        }
                    }
                }
            }
            floor = floor.max(end);
        }
        if best == UNPLACED { align_up(floor, alignment) } else { best }
    }
}

/// The least multiple of `alignment`, a power of two, at or above `offset`.
pub(crate) fn align_up(offset: u64, alignment: u64) -> u64 {
    (offset + (alignment - 1)) & !(alignment - 1)
}
