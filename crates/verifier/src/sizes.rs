//! C2 and R6: sizes at the dims' maxima, places in the arena, workspace, units of slices.
//!
//! Sizes are monotone in the dims, so what fits at the maxima fits in every run.

use dctms_ir::contract::{self, Split};
use dctms_ir::limits::{ALIGNMENT_BYTES, SIZE_DEPTH_MAX};
use dctms_ir::program::Phase;
use dctms_ir::{Op, OpId, Plan, Residence, Size, TensorId};

use crate::facts::PhaseFacts;
use crate::violation::{Found, Rule, place};

pub(crate) fn check(plan: &Plan, phases: &[PhaseFacts], found: &mut Found) {
    let alignment = plan.arena.alignment;
    if !alignment.is_power_of_two() || alignment < ALIGNMENT_BYTES {
        let what = format!("alignment {alignment} is no power of two from {ALIGNMENT_BYTES} up");
        found.add(Rule::R6, "arena", what);
        return;
    }
    let dims = plan.program.dims_max();
    for id in (0..plan.program.tensors.len()).map(TensorId::of) {
        tensor(plan, id, &dims, found);
        residence(plan, id, found);
    }
    // Without facts a schedule is broken, and shards are not known.
    for (index, facts) in phases.iter().enumerate() {
        let phase = &plan.program.phases[index];
        for (id, op) in phase.ops.iter().enumerate() {
            operands(plan, index, op, found);
            let shards = facts.seats(OpId::of(id)).len() as u64;
            units(plan, phase, (op, shards), &dims, found);
            workspace(plan, phase, op, shards, found);
        }
    }
}

fn tensor(plan: &Plan, id: TensorId, dims: &[u64], found: &mut Found) {
    let tensor = plan.program.tensor(id);
    let placement = plan.placements[id.index()];
    let value = |size: &Size| (size.depth() <= SIZE_DEPTH_MAX).then(|| size.value(dims)).flatten();
    let elements = tensor.shape.iter().try_fold(1u64, |n, axis| n.checked_mul(value(axis)?));
    let least = elements.and_then(|elements| tensor.dtype.least_bytes(elements));
    let needs = [(value(&tensor.size), "its size"), (least, "its type and shape")];
    for (needed, why) in needs {
        let needed = needed.unwrap_or(u64::MAX);
        if placement.bytes < needed {
            let what = format!("{} bytes, but {why} needs {needed}", placement.bytes);
            found.add(Rule::R6, &tensor.name, what);
        }
    }
    let Some(offset) = placement.offset else { return };
    let alignment = plan.arena.alignment;
    if !offset.is_multiple_of(alignment) {
        let what = format!("offset {offset} is not a multiple of {alignment}");
        found.add(Rule::R6, &tensor.name, what);
    }
    if offset.checked_add(placement.bytes).is_none_or(|end| end > plan.arena.bytes) {
        let what =
            format!("{} bytes at {offset} pass the arena's {}", placement.bytes, plan.arena.bytes);
        found.add(Rule::R6, &tensor.name, what);
    }
}

fn residence(plan: &Plan, id: TensorId, found: &mut Found) {
    let tensor = plan.program.tensor(id);
    let mut add = |what: &str| found.add(Rule::R3, &tensor.name, what);
    if (tensor.residence == Residence::Transient) != tensor.phase.is_some() {
        add("lives in one phase if and only if it is transient");
    }
    if tensor.state.is_some() && tensor.residence != Residence::State {
        add("a version of a state, but no state");
    }
}

/// Every operand has a place, and lives in this phase or across phases.
fn operands(plan: &Plan, index: usize, op: &Op, found: &mut Found) {
    let phase = &plan.program.phases[index];
    for id in op.inputs.iter().chain(&op.outputs).chain(&op.workspace) {
        let tensor = plan.program.tensor(*id);
        if plan.placements[id.index()].offset.is_none() {
            let what = format!("{} uses it, but it has no place", place(phase, op));
            found.add(Rule::R6, &tensor.name, what);
        }
        if tensor.phase.is_some_and(|own| own.index() != index) {
            let what = format!("{} uses it outside its phase", place(phase, op));
            found.add(Rule::R3, &tensor.name, what);
        }
    }
}

/// Even slices are of whole units, and every operand that is cut evenly is cut in as many; of one
/// that each shard has for itself there is a copy for each.
fn units(plan: &Plan, phase: &Phase, (op, shards): (&Op, u64), dims: &[u64], found: &mut Found) {
    let own = contract::own_copy(&plan.program, op, shards).unwrap_or_else(|malformed| {
        found.add(Rule::Contract, &phase.name, malformed.to_string());
        None
    });
    let mut expected: Option<u64> = None;
    for access in contract::accesses(op).unwrap_or_default() {
        let Split::Even { axis, unit } = access.split else { continue };
        let tensor = plan.program.tensor(access.tensor);
        let at = format!("{}: {}", place(phase, op), tensor.name);
        let Some(extent) = tensor.shape.get(axis as usize) else {
            found.add(Rule::Contract, &at, format!("has no axis {axis} to cut"));
            continue;
        };
        if unit == 0 || !divides(extent, unit) {
            found.add(Rule::Contract, &at, format!("axis {axis} is not whole units of {unit}"));
            continue;
        }
        let count = extent.value(dims).map(|extent| extent / unit);
        // Scratch and copies are cut by shards, not by features.
        if op.workspace.contains(&access.tensor) || own == Some(access.tensor) {
            continue;
        }
        if *expected.get_or_insert(count.unwrap_or(0)) != count.unwrap_or(0) {
            found.add(Rule::Contract, &at, "is cut in other units than the operands before it");
        }
    }
}

/// Whether a size is a multiple of a unit at every value of the dims.
fn divides(size: &Size, unit: u64) -> bool {
    match size {
        Size::Const(value) => value.is_multiple_of(unit),
        Size::Dim(_) | Size::CeilDiv(..) => unit == 1,
        Size::Mul(parts) => parts.iter().any(|part| divides(part, unit)),
        Size::Add(parts) | Size::Min(parts) | Size::Max(parts) => {
            parts.iter().all(|part| divides(part, unit))
        }
    }
}

/// Each shard's slice of the scratch holds what the contract asks for, at both ends of the dims.
fn workspace(plan: &Plan, phase: &Phase, op: &Op, shards: u64, found: &mut Found) {
    let needed = match contract::workspace_bytes(&plan.program, op) {
        Ok(needed) => needed,
        Err(malformed) => {
            found.add(Rule::Contract, &phase.name, malformed.to_string());
            return;
        }
    };
    let ends: [Vec<u64>; 2] =
        [plan.program.dims_max(), plan.program.dims.iter().map(|dim| dim.min).collect()];
    for access in contract::accesses(op).unwrap_or_default() {
        if !op.workspace.contains(&access.tensor) {
            continue;
        }
        let tensor = plan.program.tensor(access.tensor);
        let slice = |dims: &Vec<u64>| slice_bytes(tensor, access.split, shards, dims).unwrap_or(0);
        let bytes = ends.iter().map(slice).min().unwrap_or(0);
        if bytes < needed {
            let what = format!("{bytes} bytes a shard, the contract needs {needed}");
            found.add(Rule::R6, &tensor.name, what);
        }
    }
}

/// Bytes of the least slice that a shard gets.
fn slice_bytes(tensor: &dctms_ir::Tensor, split: Split, shards: u64, dims: &[u64]) -> Option<u64> {
    let bytes = tensor.size.value(dims)?;
    match split {
        Split::Whole => Some(bytes),
        Split::Even { axis, unit } => {
            let units = tensor.shape.get(axis as usize)?.value(dims)?.checked_div(unit)?;
            bytes.checked_div(units)?.checked_mul(units.checked_div(shards)?)
        }
    }
}
