//! From a logical program to a plan: legalise, cut, schedule, place, account.
//!
//! One function, [`plan`], from data to data: no files, no threads, no clock, no randomness. What
//! it says is not believed by anyone: the verifier derives it again.

#![forbid(unsafe_code)]

pub mod clocks;
pub mod error;
pub mod grain;
pub mod legalise;
pub mod paper;
pub mod passing;
pub mod place;
pub mod roofline;
pub mod schedule;
pub mod witness;

pub use error::PlanError;
pub use legalise::Activations;
pub use roofline::Balance;

use dctms_ir::ids::PhaseId;
use dctms_ir::join::{Steps, join};
use dctms_ir::limits::{LANES_MAX, PAGE_BYTES};
use dctms_ir::plan::{Bounds, Envelope, Machine, RuntimeBytes};
use dctms_ir::tensor::Term;
use dctms_ir::{Plan, Program};

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
    let program = legal(logical, steps, options.machine.lanes, options.activations)?;
    plan_legal(program, options)
}

/// The program that a plan of these is made for: each legalised and cut for the lanes, joined.
///
/// # Errors
/// As [`plan_together`].
pub fn legal(
    logical: &[Program],
    steps: Steps,
    lanes: u32,
    activations: Activations,
) -> Result<Program, PlanError> {
    if lanes == 0 || lanes as usize > LANES_MAX {
        return Err(PlanError::Lanes { lanes, max: LANES_MAX });
    }
    let legalised = logical.iter().map(|logical| {
        let mut program = legalise::legalise(logical, lanes, activations)?;
        grain::assign(&mut program, lanes);
        Ok(program)
    });
    Ok(join(&legalised.collect::<Result<Vec<_>, PlanError>>()?, steps)?)
}

fn plan_legal(mut program: Program, options: &PlanOptions) -> Result<Plan, PlanError> {
    let lanes = options.machine.lanes;
    let phases: Vec<PhaseId> = (0..program.phases.len()).map(PhaseId::of).collect();
    let schedules = phases
        .iter()
        .map(|phase| schedule::schedule(&program, *phase, lanes))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut placements, arena, regions) = place::place(&mut program, &schedules)?;
    let (buffers, summary) = paper::colour(&program, &mut placements)?;
    let mut costs = Vec::new();
    let mut concurrency = Vec::new();
    for phase in &phases {
        let phase_costs = roofline::costs(&program, *phase, &placements, &options.balance)?;
        concurrency.push(roofline::concurrency(&program, *phase, &phase_costs)?);
        costs.push(phase_costs);
    }
    let tasks = schedules.iter().flat_map(|schedule| &schedule.lanes).map(Vec::len).sum::<usize>();
    let events = schedules.iter().map(|schedule| u64::from(schedule.events)).sum::<u64>();
    let code_bytes =
        tasks as u64 * options.heap_per_task_bytes + events * options.heap_per_event_bytes;
    let envelope = envelope(&regions, options, code_bytes)?;
    Ok(Plan {
        program,
        bounds: options.bounds.clone(),
        machine: options.machine.clone(),
        schedules,
        concurrency,
        costs,
        placements,
        buffers,
        arena,
        summary,
        envelope,
    })
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
