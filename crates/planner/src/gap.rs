//! The longest gap between two tokens of an answer while a picture arrives.
//!
//! Beside the encoder: a step of the control lane and the choice of its token, in the rates that it
//! has while all other lanes encode ([`Balance::of_step_beside`]), and what it takes to start a
//! tile. A tile has no end that anybody waits for, so the number of tiles does not matter. Where
//! the plan has no such phases, an answer is not interrupted at all: the picture waits for its end,
//! so the gap is that of any step; what it would be if picture and prompt stood between two tokens
//! is said too.
//!
//! Two figures: what is *expected*, and a *bound* that is to hold. The first is what rates say of
//! the deepest step. The second allows for what rates are wrong by, and for a lane that is made to
//! stand still: nothing in a process can bound what the system does to it, so the bound is for a
//! machine that does no worse than when it was measured.

use dctms_ir::Program;
use dctms_ir::ids::PhaseId;
use dctms_ir::plan::{Arrival, Bounds, GapReport, Placement, Prediction, Schedule};

use crate::error::PlanError;
use crate::groups::Group;
use crate::predict::{Scene, constant_bytes, prompt_ps};
use crate::rates::Balance;

/// What expected times may be wrong by.
const MARGIN: f64 = 1.25;
/// Pauses of the longest kind that one gap may hold: one in the step, one in what stands before it.
const PAUSES: f64 = 2.0;
/// The least that a lane is taken to stand still at worst, picoseconds: two slices of a scheduler
/// that has something else to run. Who watches a quiet machine for some seconds may see less.
const PAUSE_LEAST_PS: f64 = 20e9;

/// The rates of a phase: those of all lanes, or what is left of them beside another phase for which
/// it has lanes of its own.
#[must_use]
pub fn balance_of(
    (program, schedules, placements): (&Program, &[Schedule], &[Placement]),
    phase: PhaseId,
    balance: &Balance,
) -> Balance {
    let busy = |phase: PhaseId| {
        let schedule = &schedules[phase.index()];
        let some = schedule.lanes.iter().filter(|tasks| !tasks.is_empty()).count();
        (some > 0 && some < schedule.lanes.len()).then(|| Group::of_schedule(schedule))
    };
    for (long, short) in &program.flow.overlap {
        let Some((others, _)) = busy(*long).zip(busy(*short)) else { continue };
        if phase == *short {
            return balance.of_step_beside(constant_bytes(program, *long, placements) as f64);
        }
        if phase == *long && others.count < balance.lanes {
            return balance.of_tile_beside();
        }
    }
    *balance
}

/// What a plan says of the gap; nothing of a model without eyes, or of several models.
///
/// # Errors
/// An operation that breaks its contract.
pub fn report(
    (program, schedules, placements): (&Program, &[Schedule], &[Placement]),
    predictions: &[Prediction],
    (balance, bounds): (&Balance, &Bounds),
) -> Result<Option<GapReport>, PlanError> {
    let longest = |phase: PhaseId| {
        let known = predictions.iter().filter(|known| known.phase == phase);
        known.max_by_key(|known| known.nanoseconds)
    };
    let named = |name: &str| program.phase_named(name).and_then(longest);
    let phases = (named("vision"), named("decode"), named("sample"));
    let (Some(tile), Some(decode), Some(sample)) = phases else { return Ok(None) };
    let beside = named("decode.beside").filter(|_| balance.lanes > 1);
    let (arrival, step) = match beside {
        Some(beside) => (Arrival::Beside, beside),
        None => (Arrival::AfterAnswer, decode),
    };
    let start_ns = balance.run_ps / 1e3;
    let pause_ns = balance.pause_ps.max(PAUSE_LEAST_PS) / 1e3;
    let expected = step.nanoseconds as f64 + sample.nanoseconds as f64 + start_ns;
    let picture_tokens =
        (bounds.max_image_tokens / bounds.max_images.max(1)).min(bounds.max_input_tokens);
    let picture_tiles = picture_tokens.div_ceil(tile.tokens.max(1));
    let prefill = program.phase_named("prefill").map(|phase| Scene {
        program,
        phase,
        schedule: &schedules[phase.index()],
        placements,
    });
    let prompt = (picture_tokens, bounds.prefill_chunk);
    let prompt_ps = prefill.map_or(Ok(0.0), |scene| prompt_ps(&scene, balance, prompt))?;
    Ok(Some(GapReport {
        arrival,
        expected_ns: expected as u64,
        bound_ns: (expected * MARGIN + pause_ns * PAUSES) as u64,
        pause_ns: pause_ns as u64,
        picture_tiles,
        picture_tokens,
        picture_ns: picture_tiles
            .saturating_mul(tile.nanoseconds)
            .saturating_add((prompt_ps / 1e3) as u64),
    }))
}
