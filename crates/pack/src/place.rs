//! Placing buffers one after another, each at the best gap that its placed neighbours leave.
//! Believes the relation and the order it is given; pinned buffers come first, at their pins.

use crate::problem::{Error, Problem};
use crate::relation::Relation;
use crate::shelf::{Entry, Shelf};

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
    shelf: Shelf,
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
        let crowded = |&degree: &u32| degree as usize > order.len() / SHELF_SHARE;
        let dense = relation.lives.is_some()
            && order.len() >= SHELF_BUFFERS_MIN
            && relation.degrees.iter().any(crowded);
        self.shelf.clear();
        if dense {
            for b in (0..offsets.len()).filter(|&b| offsets[b] != UNPLACED) {
                self.shelve(relation, b, offsets[b]);
            }
        }
        let mut arena = 0;
        for (placed, &b) in order.iter().enumerate() {
            if offsets[b] == UNPLACED {
                let walk = dense && crowded(&relation.degrees[b]);
                offsets[b] = match &relation.lives {
                    _ if relation.sizes[b] == 0 => 0,
                    Some(lives) if walk => {
                        self.steps += placed as u64 / 4 + 1;
                        let meets = |e: &&Entry| e.lower < lives[b].1 && lives[b].0 < e.upper;
                        let spans = self.shelf.entries().filter(meets).map(|e| (e.offset, e.end));
                        gap(relation, b, fit, spans)
                    }
                    Some(_) | None => {
                        self.collect(relation, b, offsets);
                        gap(relation, b, fit, self.spans.iter().copied())
                    }
                };
                if dense {
                    self.shelve(relation, b, offsets[b]);
                }
            }
            arena = arena.max(offsets[b] + relation.sizes[b]);
            if arena > ceiling {
                return None;
            }
        }
        Some(arena)
    }

    /// Adds a placed buffer to the shelf.
    fn shelve(&mut self, relation: &Relation, b: usize, offset: u64) {
        if let (Some(lives), true) = (&relation.lives, relation.sizes[b] > 0) {
            let (lower, upper) = lives[b];
            self.shelf.insert(Entry { offset, end: offset + relation.sizes[b], lower, upper });
        }
    }

    /// Collects the spans of the placed neighbours, lowest first.
    fn collect(&mut self, relation: &Relation, buffer: usize, offsets: &[u64]) {
        self.steps += u64::from(relation.degrees[buffer]) + 1;
        self.spans.clear();
        relation.for_each_neighbour(buffer, |other| {
            let offset = offsets[other];
            if offset != UNPLACED {
                self.spans.push((offset, offset + relation.sizes[other]));
            }
        });
        self.spans.sort_unstable();
    }
}

/// Buffers from which on the shelf is kept, and the share of all buffers (one in this many) that
/// a buffer must conflict with for the walk to be cheaper than collecting and sorting.
const SHELF_BUFFERS_MIN: usize = 1000;
const SHELF_SHARE: usize = 40;

/// The offset that `fit` chooses for `buffer` between `spans`, which come lowest first.
fn gap(
    relation: &Relation,
    buffer: usize,
    fit: Fit,
    spans: impl Iterator<Item = (u64, u64)>,
) -> u64 {
    let (size, alignment) = (relation.sizes[buffer], relation.alignments[buffer]);
    let (mut floor, mut best, mut best_gap) = (0, UNPLACED, u64::MAX);
    for (start, end) in spans {
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

/// The least multiple of `alignment`, a power of two, at or above `offset`.
pub(crate) fn align_up(offset: u64, alignment: u64) -> u64 {
    (offset + (alignment - 1)) & !(alignment - 1)
}
