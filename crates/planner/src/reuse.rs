//! Cuts that no data ask for, so that bytes can be used again (`--memory-first`).
//!
//! Between two cuts the lanes drift apart, and what one of them has done with may still be read by
//! another. One more cut orders them, and lifetimes that overlapped become disjoint. It is tried
//! before every operation of one role (the same name in every layer), and the role that saves
//! most is taken, if the predicted path of the phase stays within a five-hundredth; then the next.
//! Layers are alike, so roles are tried on the first few of them, and what is found is tried on all.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::ids::PhaseId;
use dctms_ir::plan::{Bounds, Placement, Schedule};
use dctms_ir::region::Streams;
use dctms_ir::{Op, Program};

use crate::choices::Choices;
use crate::error::PlanError;
use crate::groups::Group;
use crate::place::transient_bytes;
use crate::predict::{Scene, Step, step_ps};
use crate::rates::Balance;
use crate::schedule::schedule;

/// Roles that are given cuts.
const ROLES_MAX: usize = 4;
/// Layers that roles are tried on.
const LAYERS: u32 = 3;
/// How much of the path the cuts of a role may cost: one part in so many, less than any measuring shows.
const PATH_PART: f64 = 500.0;

/// Adds cuts to the schedule of the phase that needs most, as long as that saves bytes.
///
/// # Errors
/// As placing and predicting.
pub fn add_cuts(
    program: &mut Program,
    schedules: &mut [Schedule],
    (placements, groups): (&[Placement], &[Group]),
    (balance, bounds): (&Balance, &Bounds),
    choices: &Choices,
) -> Result<(), PlanError> {
    let lanes = schedules.first().map_or(1, |schedule| schedule.lanes.len() as u32);
    if lanes < 2 {
        return Ok(());
    }
    let mut cuts: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); schedules.len()];
    let mut needs = Vec::new();
    for (index, schedule) in schedules.iter().enumerate() {
        // A region's lanes are shared between its streams: cuts over all of them would undo that.
        if Streams::of(&program.phases[index]).is_some() {
            needs.push(0);
            continue;
        }
        needs.push(transient_bytes(program, PhaseId::of(index), schedule, choices)?);
    }
    for _ in 0..ROLES_MAX {
        let Some(worst) = (0..needs.len()).max_by_key(|index| needs[*index]) else { break };
        let phase = PhaseId::of(worst);
        let mut sample = program.clone();
        truncate(&mut sample.phases[worst].ops);
        let family = dctms_ir::twin::family(&program.phases[worst].name);
        let tokens = match family.ends_with("prefill") {
            true => bounds.prefill_chunk,
            false => bounds.sequences,
        };
        let path = |program: &Program, schedule: &Schedule| {
            let scene = Scene { program, phase, schedule, placements };
            step_ps(&scene, balance, Step { tokens, depth: 0 })
        };
        let kept = |places: &BTreeSet<usize>, ops: usize| -> BTreeSet<usize> {
            places.iter().copied().filter(|place| *place < ops).collect()
        };
        let ops = sample.phases[worst].ops.len();
        let group = groups[worst];
        let now = schedule(&sample, phase, group, &kept(&cuts[worst], ops))?;
        let limit = path(&sample, &now)? * (1.0 + 1.0 / PATH_PART);
        let mut least = transient_bytes(&mut sample, phase, &now, choices)?;
        let mut best: Option<BTreeSet<usize>> = None;
        for places in roles(program, phase).into_values() {
            let more: BTreeSet<usize> = cuts[worst].union(&places).copied().collect();
            let tried = schedule(&sample, phase, group, &kept(&more, ops))?;
            if tried.events == now.events || path(&sample, &tried)? > limit {
                continue;
            }
            let bytes = transient_bytes(&mut sample, phase, &tried, choices)?;
            if bytes < least {
                (least, best) = (bytes, Some(more));
            }
        }
        let Some(more) = best else { break };
        let limit = path(program, &schedules[worst])? * (1.0 + 1.0 / PATH_PART);
        let tried = schedule(program, phase, group, &more)?;
        let bytes = transient_bytes(program, phase, &tried, choices)?;
        if bytes >= needs[worst] || path(program, &tried)? > limit {
            break;
        }
        (needs[worst], schedules[worst], cuts[worst]) = (bytes, tried, more);
    }
    Ok(())
}

/// The first layers alone.
fn truncate(ops: &mut Vec<Op>) {
    let layer = |op: &Op| op.name.split('.').find_map(|part| part.parse::<u32>().ok());
    if let Some(end) = ops.iter().position(|op| layer(op) == Some(LAYERS)) {
        ops.truncate(end);
    }
}

/// Operations of a phase by their name without the layer's number.
fn roles(program: &Program, phase: PhaseId) -> BTreeMap<String, BTreeSet<usize>> {
    let mut roles: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (index, op) in program.phases[phase.index()].ops.iter().enumerate() {
        let parts = op.name.split('.').filter(|part| part.parse::<u32>().is_err());
        roles.entry(parts.collect::<Vec<_>>().join(".")).or_default().insert(index);
    }
    roles
}
