//! Packing by offsets: sizes and conflicts in, offsets, a lower bound and its witness out.
//!
//! The entry points are [`pack`], the independent check [`validate`], and [`colour_intervals`]
//! for the paper's count of buffers. The theory is in `docs/packing.md`. This crate knows bytes,
//! conflicts and steps; tensors, operators, files and clocks on the wall are not its business.
//!
//! **Invariant:** the same problem and budget give the same packing on every machine: work is
//! counted, never timed; no hash order, no threads, seeds fixed.

#![forbid(unsafe_code)]

mod antichain;
mod bound;
mod colour;
mod cover;
pub mod csv;
mod exact;
mod improve;
pub mod limits;
mod local;
mod parts;
mod place;
mod portfolio;
mod problem;
mod random;
mod relation;
mod report;
mod sections;
mod shelf;
mod skyline;
pub mod svg;
mod validate;

pub use colour::colour_intervals;
pub use problem::{
    Budget, Buffer, Clocks, Conflicts, Error, Goal, Interval, Packing, Problem, Proof, Status,
};
pub use report::{Drawing, PackError, PackOptions, PackReport, Verdict, pack_csv};
pub use validate::{Overlap, validate};

/// Places every buffer so that no two conflicting ones share a byte.
///
/// The arena is as small as the budget allows; `status` says whether it is proved minimal. A
/// capacity that is not met is not an error: compare `arena_bytes` with it.
///
/// # Errors
/// If the problem is malformed, beyond the [`limits`], or its pins contradict each other.
pub fn pack(problem: &Problem, budget: &Budget) -> Result<Packing, Error> {
    problem::check(problem)?;
    let relation = relation::Relation::new(problem);
    let pinned = place::pins(problem, &relation)?;
    let pinned_end = pinned_end(problem, &relation);
    let (mut bound, breadth) = bound::quick(problem, &relation);
    let mut lower_bound = bound.bytes.max(pinned_end);
    let mut enough = match budget.goal {
        Goal::Minimize => lower_bound,
        Goal::Fit => problem.capacity.map_or(lower_bound, |c| c.max(lower_bound)),
    };
    let mut placer = place::Placer::default();
    let steps_max = limits::PORTFOLIO_STEPS;
    let mut best =
        portfolio::portfolio(problem, &relation, &breadth, &pinned, enough, steps_max, &mut placer);
    if best.arena > enough
        && let Conflicts::Clocks(clocks) = &problem.conflicts
    {
        let steps_max = limits::ANTICHAIN_STEPS + budget.steps / 4;
        let heaviest = antichain::heaviest(clocks, &relation, steps_max, &mut placer.steps);
        bound = heaviest.filter(|heaviest| heaviest.bytes > bound.bytes).unwrap_or(bound);
        lower_bound = lower_bound.max(bound.bytes);
        enough = enough.max(lower_bound);
        bound.witness.sort_unstable();
    }
    let steps_max = placer.steps + budget.steps;
    let mut task = improve::Task {
        problem,
        relation: &relation,
        pinned: &pinned,
        witness: &bound.witness,
        lower_bound,
        enough,
        give_up_above: match budget.goal {
            Goal::Minimize => u64::MAX,
            Goal::Fit => problem.capacity.unwrap_or(u64::MAX),
        },
        steps_max,
    };
    let lower_bound = if best.arena <= enough {
        lower_bound
    } else {
        parts::improve_parts(&mut task, &mut best, &mut placer)
            .unwrap_or_else(|| improve::improve(&mut task, &mut best, &mut placer))
    };
    Ok(Packing {
        status: status(best.arena, lower_bound, bound.bytes, pinned_end),
        offsets: best.offsets,
        arena_bytes: best.arena,
        lower_bound,
        witness: bound.witness,
        witness_bytes: bound.bytes,
        steps: placer.steps,
    })
}

fn status(arena: u64, lower_bound: u64, witness_bytes: u64, pinned_end: u64) -> Status {
    if arena > lower_bound {
        Status::Gap
    } else if arena == witness_bytes {
        Status::Optimal(Proof::Witness)
    } else if arena == pinned_end {
        Status::Optimal(Proof::Pinned)
    } else {
        Status::Optimal(Proof::Exhausted)
    }
}

/// Largest end of a pinned buffer.
fn pinned_end(problem: &Problem, relation: &relation::Relation) -> u64 {
    let end = |(b, size): (&Buffer, &u64)| b.pinned.map(|offset| offset + size);
    problem.buffers.iter().zip(&relation.sizes).filter_map(end).max().unwrap_or(0)
}
