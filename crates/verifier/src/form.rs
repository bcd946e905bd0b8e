//! What every other check takes for granted: rows for everything, identities in range.

use dctms_ir::Plan;
use dctms_ir::contract;
use dctms_ir::limits::{ITEMS_MAX, LANES_MAX, PHASES_MAX};

use crate::limits::CLOCK_ENTRIES_MAX;
use crate::violation::{Found, Rule, place};

pub(crate) fn check(plan: &Plan, found: &mut Found) {
    let program = &plan.program;
    let phases = program.phases.len();
    let rows = [
        ("placements", plan.placements.len(), program.tensors.len()),
        ("schedules", plan.schedules.len(), phases),
        ("concurrency reports", plan.concurrency.len(), phases),
        ("cost tables", plan.costs.len(), phases),
        ("flow rows", program.flow.next.len(), phases),
    ];
    for (what, have, expected) in rows {
        if have != expected {
            found.add(Rule::Form, what, format!("{have}, expected {expected}"));
        }
    }
    if phases > PHASES_MAX || program.tensors.len() > ITEMS_MAX {
        let what = format!("more than {PHASES_MAX} phases or {ITEMS_MAX} tensors");
        found.add(Rule::Form, "program", what);
    }
    if program.flow.entry.is_empty() {
        found.add(Rule::Form, "flow", "no phase may run first");
    }
    let beside = program.flow.overlap.iter().flat_map(|(one, other)| [one, other]);
    let follow = program.flow.entry.iter().chain(program.flow.next.iter().flatten());
    if follow.chain(beside).any(|phase| phase.index() >= phases) {
        found.add(Rule::Form, "flow", "an unknown phase");
    }
    for (index, phase) in program.phases.iter().enumerate() {
        if program.phases[..index].iter().any(|other| other.name == phase.name) {
            found.add(Rule::Form, &phase.name, "two phases have this name");
        }
    }
    for dim in &program.dims {
        if dim.min > dim.max {
            found.add(Rule::Form, &dim.name, format!("least value {} above {}", dim.min, dim.max));
        }
    }
    for tensor in &program.tensors {
        if tensor.phase.is_some_and(|phase| phase.index() >= phases) {
            found.add(Rule::Form, &tensor.name, "lives in an unknown phase");
        }
    }
    if plan.arena.witness.iter().any(|id| id.index() >= program.tensors.len()) {
        found.add(Rule::Form, "witness", "an unknown tensor");
    }
    if found.is_empty() {
        operations(plan, found);
        schedules(plan, found);
    }
}

fn operations(plan: &Plan, found: &mut Found) {
    let tensors = plan.program.tensors.len();
    for (phase, costs) in plan.program.phases.iter().zip(&plan.costs) {
        if costs.len() != phase.ops.len() {
            let what = format!("{} costs, not one an operation", costs.len());
            found.add(Rule::Form, &phase.name, what);
        }
        for op in &phase.ops {
            let operands = op.inputs.iter().chain(&op.outputs).chain(&op.workspace);
            if operands.into_iter().any(|id| id.index() >= tensors) {
                found.add(Rule::Form, &place(phase, op), "an unknown tensor");
            } else if let Err(malformed) = contract::accesses(op) {
                found.add(Rule::Contract, &phase.name, malformed.to_string());
            }
        }
    }
}

fn schedules(plan: &Plan, found: &mut Found) {
    let mut clock_entries = 0usize;
    let rows = plan.program.phases.iter().zip(&plan.schedules).zip(&plan.concurrency);
    for ((phase, schedule), report) in rows {
        let name = &phase.name;
        let lanes = schedule.lanes.len();
        if lanes > LANES_MAX || lanes as u64 > u64::from(plan.machine.lanes) {
            let what = format!("{lanes} lanes, the machine has {}", plan.machine.lanes);
            found.add(Rule::Form, name, what);
            continue;
        }
        let tasks = schedule.lanes.iter().map(Vec::len).sum::<usize>();
        let rows = tasks + phase.ops.len() * 2 + plan.program.tensors.len() * 2;
        clock_entries += rows.saturating_mul(lanes);
        if tasks > ITEMS_MAX || clock_entries > CLOCK_ENTRIES_MAX {
            found.add(Rule::Form, name, format!("{tasks} tasks on {lanes} lanes are too many"));
        }
        // Each event needs a task that signals it, so there cannot be more events than tasks.
        if schedule.events as usize > tasks {
            found.add(Rule::R5, name, format!("{} events for {tasks} tasks", schedule.events));
        }
        for task in schedule.lanes.iter().flatten() {
            let known = |event: &dctms_ir::EventId| event.0 < schedule.events;
            if task.op.index() >= phase.ops.len()
                || !task.waits.iter().all(known)
                || !task.signals.iter().all(known)
            {
                found.add(Rule::Form, name, "a task of an unknown operation or event");
                break;
            }
        }
        let sets = report.concurrent_sets.iter().flatten();
        let pairs = report.serialised.iter().flat_map(|(first, second, _)| [first, second]);
        if sets.chain(pairs).any(|op| op.index() >= phase.ops.len()) {
            found.add(Rule::Form, name, "the concurrency report names an unknown operation");
        }
    }
}
