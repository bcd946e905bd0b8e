//! From a logical program to a plan: legalise, cut, schedule, place, account.
//!
//! One function, [`plan`], from data to data: no files, no threads, no clock, no randomness. What
//! it says is not believed by anyone: the verifier derives it again.

#![forbid(unsafe_code)]

mod builtin;
pub mod choices;
pub mod clocks;
pub mod error;
pub mod gap;
pub mod grain;
pub mod groups;
pub mod legalise;
pub mod order;
pub mod paper;
pub mod passing;
pub mod place;
pub mod predict;
pub mod rates;
pub mod region;
pub mod reuse;
pub mod roofline;
pub mod schedule;
pub mod second_unit;
pub mod timeline;
pub mod witness;

pub use choices::{Choice, Choices, Shaping};
pub use error::PlanError;
pub use groups::Group;
pub use legalise::Activations;
pub use rates::Balance;

use std::collections::BTreeSet;

use dctms_ir::ids::PhaseId;
use dctms_ir::join::{Steps, join};
use dctms_ir::limits::{LANES_MAX, PAGE_BYTES};
use dctms_ir::plan::{Bounds, Envelope, Machine, OrderReport, Preference, RuntimeBytes};
use dctms_ir::region::Streams;
use dctms_ir::tensor::Term;
use dctms_ir::{Plan, Program};

use groups::groups;

/// Everything that a plan depends on beside the program.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Bounds that the program was built for.
    pub bounds: Bounds,
    /// The machine.
    pub machine: Machine,
    /// Peak rates of the machine.
    pub balance: Balance,
    /// Path of the products.
    pub activations: Activations,
    /// What is preferred, and what is switched off.
    pub choices: Choices,
    /// Memory of the process beside the arena; `heap` is what a run needs beside `heap_per_task`.
    pub runtime: RuntimeBytes,
    /// Heap bytes that executing takes for each scheduled task.
    pub heap_per_task_bytes: u64,
    /// Heap bytes for each event of a schedule.
    pub heap_per_event_bytes: u64,
    /// Heap that reading, planning and verifying may take. It is given back before the arena is
    /// touched, so only what passes the arena counts.
    pub compile_heap_bytes: u64,
    /// What the envelope does not cover.
    pub not_covered: Vec<String>,
}

/// Makes the plan of a logical program.
///
/// # Errors
/// A malformed program, sizes past 64 bits, lanes out of range. A plan that does not fit the
/// machine is no error: see [`Envelope::fits`].
pub fn plan(logical: &Program, options: &PlanOptions) -> Result<Plan, PlanError> {
    plan_together(std::slice::from_ref(logical), Steps::Exclusive, options)
}

/// Makes the plan of several programs that are resident together; of one, as [`plan`].
///
/// # Errors
/// As [`plan`]; more phases together than a program may have.
pub fn plan_together(
    logical: &[Program],
    steps: Steps,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    let shaping = Shaping {
        lanes: options.machine.lanes,
        activations: options.activations,
        choices: options.choices.clone(),
    };
    let (program, groups) = shaped(logical, steps, &shaping)?;
    plan_legal(program, &groups, options)
}

/// The program that a plan of these is made for: each legalised and cut for the lanes, joined.
///
/// # Errors
/// As [`plan_together`].
pub fn legal(logical: &[Program], steps: Steps, shaping: &Shaping) -> Result<Program, PlanError> {
    Ok(shaped(logical, steps, shaping)?.0)
}

/// The legal program, and the lanes of each of its phases.
fn shaped(
    logical: &[Program],
    steps: Steps,
    shaping: &Shaping,
) -> Result<(Program, Vec<Group>), PlanError> {
    let lanes = shaping.lanes;
    if lanes == 0 || lanes as usize > LANES_MAX {
        return Err(PlanError::Lanes { lanes, max: LANES_MAX });
    }
    // A joined program has the phases of the first model, then those of the second, and so on.
    let mut all = Vec::new();
    let legalised = logical.iter().map(|logical| {
        let groups = groups(logical, lanes);
        let mut program = legalise::legalise(logical, shaping, &groups)?;
        grain::assign(&mut program, &groups);
        for phase in (0..program.phases.len()).map(PhaseId::of) {
            order_phase(&mut program, phase, shaping, &groups)?;
        }
        all.extend(groups);
        Ok(program)
    });
    let legalised = legalised.collect::<Result<Vec<_>, PlanError>>()?;
    Ok((join(&legalised, steps)?, all))
}

fn plan_legal(
    mut program: Program,
    groups: &[Group],
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    let lanes = options.machine.lanes;
    let phases: Vec<PhaseId> = (0..program.phases.len()).map(PhaseId::of).collect();
    let (choices, rates) = (&options.choices, (&options.balance, &options.bounds));
    let none = BTreeSet::new();
    let mut schedules = Vec::new();
    let mut layouts = Vec::new();
    let bytes = place::sizes(&program)?;
    for (phase, group) in phases.iter().zip(groups) {
        let (schedule, layout) =
            match (Streams::of(&program.phases[phase.index()]), choices.has(Choice::Alignment)) {
                (_, false) => (schedule::unaligned(&program, *phase, *group)?, None),
                (None, true) => (schedule::schedule(&program, *phase, *group, &none)?, None),
                (Some(streams), true) => {
                    region::schedule(&program, *phase, (lanes, streams), rates, &bytes)?
                }
            };
        schedules.push(schedule);
        layouts.push(layout);
    }
    if choices.preference == Preference::MemoryFirst {
        reuse::add_cuts(&mut program, &mut schedules, (&bytes, groups), rates, choices)?;
    }
    let (mut placements, arena, regions) = place::place(&mut program, &schedules, choices)?;
    let (buffers, summary) = paper::colour(&program, &mut placements)?;
    let mut costs = Vec::new();
    let mut concurrency = Vec::new();
    for phase in &phases {
        let phase_costs = roofline::costs(&program, *phase, &placements, &options.balance)?;
        let (schedule, layout) = (&schedules[phase.index()], layouts[phase.index()].as_ref());
        concurrency.push(roofline::concurrency(
            &program,
            *phase,
            &phase_costs,
            (schedule, layout),
        )?);
        costs.push(phase_costs);
    }
    let predictions = predict::predictions(&program, &schedules, &placements, rates, &mut costs)?;
    let parts = (&program, schedules.as_slice(), placements.as_slice());
    let gap = gap::report(parts, &predictions, rates)?;
    let mut reports = Vec::new();
    for phase in &phases {
        if Streams::of(&program.phases[phase.index()]).is_some() {
            let (program, placements) = (&program, placements.as_slice());
            let schedule = &schedules[phase.index()];
            let scene = predict::Scene { program, phase: *phase, schedule, placements };
            let layout = layouts[phase.index()].as_ref();
            reports.push(region::report(&scene, layout, (&schedules, &costs), rates)?);
        }
    }
    let tasks = schedules.iter().flat_map(|schedule| &schedule.lanes).map(Vec::len).sum::<usize>();
    let events = schedules.iter().map(|schedule| u64::from(schedule.events)).sum::<u64>();
    let code_bytes =
        tasks as u64 * options.heap_per_task_bytes + events * options.heap_per_event_bytes;
    let envelope = envelope(&regions, options, code_bytes)?;
    Ok(Plan {
        orders: orders(&program)?,
        program,
        bounds: options.bounds.clone(),
        machine: options.machine.clone(),
        schedules,
        concurrency,
        costs,
        predictions,
        preference: choices.preference,
        variants: Vec::new(),
        regions: reports,
        gap,
        placements,
        buffers,
        arena,
        summary,
        envelope,
    })
}

/// Takes the order of least peak where that saves bytes, and (unless memory goes first) costs no
/// cut.
fn order_phase(
    program: &mut Program,
    phase: PhaseId,
    shaping: &Shaping,
    groups: &[Group],
) -> Result<(), PlanError> {
    let own = &program.phases[phase.index()];
    // The streams of a region do not order each other: there is nothing to search.
    if own.name.ends_with("load") || Streams::of(own).is_some() {
        return Ok(());
    }
    let found = order::least_peak(program, phase)?;
    if found.least_bytes == found.program_bytes {
        return Ok(());
    }
    let (group, choices) = (groups[phase.index()], &shaping.choices);
    let mut other = program.clone();
    order::reorder(&mut other, phase, &found.order);
    grain::assign(&mut other, groups);
    let schedule = |program: &Program| schedule::schedule(program, phase, group, &BTreeSet::new());
    let (now, then) = (schedule(program)?, schedule(&other)?);
    let saves = place::transient_bytes(&mut other, phase, &then, choices)?
        < place::transient_bytes(program, phase, &now, choices)?;
    let free = choices.preference == Preference::MemoryFirst || then.events <= now.events;
    if saves && free {
        *program = other;
    }
    Ok(())
}

/// The order of each phase with transients beside the best; loading has none that matter.
fn orders(program: &Program) -> Result<Vec<OrderReport>, PlanError> {
    let mut reports = Vec::new();
    for phase in (0..program.phases.len()).map(PhaseId::of) {
        let own = &program.phases[phase.index()];
        if own.name.ends_with("load") || Streams::of(own).is_some() {
            continue;
        }
        let found = order::least_peak(program, phase)?;
        reports.push(OrderReport {
            phase,
            plan_bytes: found.program_bytes,
            least_bytes: found.least_bytes,
            states: found.states,
            complete: found.complete,
        });
    }
    Ok(reports)
}

/// Adds the terms up.
fn envelope(
    regions: &place::Regions,
    options: &PlanOptions,
    code_bytes: u64,
) -> Result<Envelope, PlanError> {
    let overflow = || PlanError::Overflow { tensor: "envelope".to_string() };
    let region = |term: Term| regions.get(&term).copied().unwrap_or(0);
    let terms = Term::ALL.map(region);
    let arena =
        terms.iter().try_fold(0u64, |sum, term| sum.checked_add(*term)).ok_or_else(overflow)?;
    let run_heap = options.runtime.heap + code_bytes;
    let heap =
        run_heap.max(options.compile_heap_bytes.saturating_sub(arena)).next_multiple_of(PAGE_BYTES);
    let runtime = RuntimeBytes { heap, ..options.runtime };
    let total = runtime.total().and_then(|bytes| bytes.checked_add(arena)).ok_or_else(overflow)?;
    Ok(Envelope {
        weights: terms[0],
        kv: terms[1],
        persistent: terms[2],
        intermediate: terms[3],
        runtime,
        total,
        load_peak: total,
        hardware: options.machine.memory_bytes,
        not_covered: options.not_covered.clone(),
    })
}
