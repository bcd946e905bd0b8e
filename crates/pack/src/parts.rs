//! Independent parts of an interval problem, and packing them one by one.
//!
//! Two facts that cost nothing. Buffers that no chain of conflicts connects do not influence each
//! other: the arena is the larger of the two. And a buffer that is live throughout such a part
//! may as well lie at the bottom: in any packing, swap it with what lies below it. Taking these
//! away in turn leaves parts that each stand on a *base*. A hard part then has its own budget and
//! its own restarts, and easy ones stay solved.
//!
//! Swapping shifts other buffers by the size of the moved one, which must keep their alignment:
//! only problems of one alignment and no pins are taken apart.

use crate::bound;
use crate::improve::{Task, improve};
use crate::limits;
use crate::place::{Placer, UNPLACED};
use crate::portfolio::{Placed, portfolio};
use crate::problem::{Conflicts, Interval, Problem};
use crate::relation::Relation;

/// A part that no conflict connects to another.
struct Part {
    /// Bytes below, taken by buffers that are live throughout.
    base: u64,
    /// Its buffers.
    ids: Vec<usize>,
}

/// What taking the problem apart gives.
struct Parts {
    parts: Vec<Part>,
    /// Offsets of the buffers at the bottom; the others have none yet.
    offsets: Vec<u64>,
}

/// Improves the parts of a problem one by one, if it has any. Returns the lower bound as far as
/// it was raised, or `None` if the problem cannot be taken apart.
pub(crate) fn improve_parts(
    task: &mut Task,
    best: &mut Placed,
    placer: &mut Placer,
) -> Option<u64> {
    let Conflicts::Intervals(intervals) = &task.problem.conflicts else { return None };
    let sizes = &task.relation.sizes;
    let even = task.relation.alignments.windows(2).all(|pair| pair[0] == pair[1]);
    if !even || task.pinned.iter().any(|&pin| pin != UNPLACED) {
        return None;
    }
    let Parts { parts, mut offsets } = take_apart(sizes, intervals);
    if parts.len() < 2 && parts.iter().all(|part| part.base == 0) {
        return None;
    }
    let end = |b: usize| if offsets[b] == UNPLACED { 0 } else { offsets[b] + sizes[b] };
    let mut arena = (0..sizes.len()).map(end).max().unwrap_or(0);
    let problems: Vec<Problem> =
        parts.iter().map(|part| restrict(task.problem, intervals, &part.ids)).collect();
    let mut open = Vec::new();
    for (part, problem) in parts.iter().zip(&problems) {
        let relation = Relation::new(problem);
        let (bound, breadth) = bound::quick(problem, &relation);
        let pinned = vec![UNPLACED; part.ids.len()];
        let enough = task.enough - part.base;
        let steps_max = placer.steps + limits::PORTFOLIO_STEPS / parts.len() as u64;
        let placed = portfolio(problem, &relation, &breadth, &pinned, enough, steps_max, placer);
        if placed.arena > enough {
            open.push((part, relation, bound, placed, problem));
        } else {
            arena = arena.max(settle(part, &placed, &mut offsets));
        }
    }
    open.sort_by_key(|(part, _, _, placed, _)| std::cmp::Reverse(part.base + placed.arena));
    let mut count = open.len() as u64;
    for (part, relation, bound, mut placed, problem) in open {
        let share = task.steps_max.saturating_sub(placer.steps) / count;
        count -= 1;
        let mut sub = Task {
            problem,
            relation: &relation,
            pinned: &vec![UNPLACED; part.ids.len()],
            witness: &bound.witness,
            lower_bound: bound.bytes,
            enough: task.enough.max(arena) - part.base,
            give_up_above: task.give_up_above.saturating_sub(part.base),
            steps_max: placer.steps + share,
        };
        let lower_bound = improve(&mut sub, &mut placed, placer);
        task.lower_bound = task.lower_bound.max(part.base + lower_bound);
        arena = arena.max(settle(part, &placed, &mut offsets));
    }
    if arena < best.arena {
        best.arena = arena;
        best.offsets = offsets;
    }
    Some(task.lower_bound)
}

/// Puts a part on its base. Returns its end.
fn settle(part: &Part, placed: &Placed, offsets: &mut [u64]) -> u64 {
    for (&b, &offset) in part.ids.iter().zip(&placed.offsets) {
        offsets[b] = part.base + offset;
    }
    part.base + placed.arena
}

fn restrict(problem: &Problem, intervals: &[Interval], ids: &[usize]) -> Problem {
    Problem {
        buffers: ids.iter().map(|&b| problem.buffers[b]).collect(),
        conflicts: Conflicts::Intervals(ids.iter().map(|&b| intervals[b]).collect()),
        capacity: None,
    }
}

/// Rounds of taking away and splitting; each is linear, and few problems need more.
const ROUNDS_MAX: usize = 64;

fn take_apart(sizes: &[u64], intervals: &[Interval]) -> Parts {
    let mut offsets = vec![UNPLACED; sizes.len()];
    let mut ids: Vec<usize> = (0..sizes.len()).filter(|&b| sizes[b] > 0).collect();
    ids.sort_by_key(|&b| (intervals[b].lower, b));
    (0..sizes.len()).filter(|&b| sizes[b] == 0).for_each(|b| offsets[b] = 0);
    let mut parts = Vec::new();
    let mut queue = vec![(0, 0, ids)];
    while let Some((round, base, ids)) = queue.pop() {
        for mut ids in connected(intervals, ids) {
            let first = intervals[ids[0]].lower;
            let last = ids.iter().map(|&b| intervals[b].upper).max().unwrap_or(first);
            let mut top = base;
            ids.retain(|&b| {
                let throughout = intervals[b].lower == first && intervals[b].upper == last;
                if throughout {
                    offsets[b] = top;
                    top += sizes[b];
                }
                !throughout
            });
            if ids.is_empty() {
                continue;
            }
            if top > base && round < ROUNDS_MAX {
                queue.push((round + 1, top, ids));
            } else {
                parts.push(Part { base: top, ids });
            }
        }
    }
    parts.sort_by_key(|part| (part.ids[0], part.base));
    Parts { parts, offsets }
}

/// Splits buffers in order of birth wherever all earlier ones have died.
fn connected(intervals: &[Interval], ids: Vec<usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut reach = 0;
    for b in ids {
        match groups.last_mut() {
            Some(group) if intervals[b].lower < reach => group.push(b),
            Some(_) | None => groups.push(vec![b]),
        }
        reach = reach.max(intervals[b].upper);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_throughout_goes_to_the_bottom() {
        let life = |lower, upper| Interval { lower, upper };
        let lives = [life(0, 10), life(0, 4), life(1, 3), life(5, 9), life(6, 7), life(20, 21)];
        let Parts { parts, offsets } = take_apart(&[8, 1, 2, 4, 5, 6], &lives);
        assert_eq!(offsets, [0, 8, 9, 8, 12, 0]);
        assert!(parts.is_empty());
        let lives = [life(0, 10), life(0, 4), life(3, 9)];
        let Parts { parts, offsets } = take_apart(&[8, 1, 2], &lives);
        assert_eq!(offsets, [0, UNPLACED, UNPLACED]);
        assert_eq!((parts.len(), parts[0].base, parts[0].ids.as_slice()), (1, 8, &[1, 2][..]));
    }
}
