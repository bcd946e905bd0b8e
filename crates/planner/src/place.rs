//! Where every tensor stands in the arena.
//!
//! Layout: `[weights][keys and values][persistent][carried | transients]`.
//!
//! The first three never share a byte. In the last region stand, from below, carried values (weights
//! that phases load again among them), live only round a part of the flow ([`crate::passing`]); from
//! above, the transients of each phase, packed on their own: at the very end, or below those of
//! phases that may run at the same time. The region is as long as the worst phase needs for both.
//! Inside a phase two tensors may share bytes only if one *precedes* the other (every access of one
//! before every write of the other), or if one replaces the other in place.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::contract::{accesses, may_in_place};
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::{ALIGNMENT_BYTES, PAGE_BYTES};
use dctms_ir::plan::{ArenaFigures, Placement, Schedule};
use dctms_ir::tensor::Term;
use dctms_ir::{Program, Residence};
use dctms_pack::{Budget, Buffer, Clocks, Conflicts, Packing, Problem};

use crate::choices::{Choice, Choices};
use crate::clocks::{TaskClock, clocks, join, meet, precedes};
use crate::error::PlanError;
use crate::passing;
use crate::witness::{members, needed_later};

/// Bytes of each term's region of the arena.
pub type Regions = BTreeMap<Term, u64>;

/// Places every tensor and chooses the in-place pairs (written into the program).
///
/// # Errors
/// A size that overflows, or a problem that the packer refuses.
pub fn place(
    program: &mut Program,
    schedules: &[Schedule],
    choices: &Choices,
) -> Result<(Vec<Placement>, ArenaFigures, Regions), PlanError> {
    let mut placements = sizes(program)?;
    let mut regions = Regions::new();
    let mut end = 0u64;
    for term in [Term::Weights, Term::Kv, Term::Persistent] {
        let start = end;
        end = lay_out(program, term, end, &mut placements)?;
        if term == Term::Persistent {
            end = end.next_multiple_of(ALIGNMENT_BYTES);
        }
        regions.insert(term, end - start);
    }
    let mut packed = Vec::new();
    for (phase, schedule) in schedules.iter().enumerate() {
        packed.push(pack_phase(program, PhaseId::of(phase), schedule, (&placements, choices))?);
    }
    let blocks: Vec<u64> = packed
        .iter()
        .map(|phase| phase.packing.arena_bytes.next_multiple_of(ALIGNMENT_BYTES))
        .collect();
    let overlap = program.flow.overlap.iter().map(|(a, b)| (a.index(), b.index()));
    let starts = block_starts(&blocks, &overlap.collect::<Vec<_>>());
    // How far down from the region's end each phase's block reaches.
    let depths: Vec<u64> = starts.iter().zip(&blocks).map(|(start, bytes)| start + bytes).collect();
    let transient_bytes = depths.iter().copied().max().unwrap_or(0);
    let passing = passing::lay_out(program, &placements)?;
    let both = passing.ends.iter().zip(&depths).map(|(end, depth)| end + depth);
    let region_bytes = both.max().unwrap_or(0).max(passing.bytes);
    // The page padding stands before the region, so that its span is exactly what it needs.
    let arena_bytes = (end + region_bytes).next_multiple_of(PAGE_BYTES);
    let region = arena_bytes - region_bytes;
    let kept_bytes = passing.covered_bytes - passing.weight_bytes;
    *regions.entry(Term::Persistent).or_insert(0) += region - end + kept_bytes;
    *regions.entry(Term::Weights).or_insert(0) += passing.weight_bytes;
    regions.insert(Term::Intermediate, region_bytes - passing.covered_bytes);
    for (id, offset) in &passing.offsets {
        placements[id.index()].offset = Some(region + offset);
    }
    for (phase, depth) in packed.iter().zip(&depths) {
        for (tensors, offset) in phase.classes.iter().zip(&phase.packing.offsets) {
            for tensor in tensors {
                placements[tensor.index()].offset = Some(arena_bytes - depth + offset);
            }
        }
    }
    let transient_offset = arena_bytes - transient_bytes;
    let arena = figures(program, &placements, &packed, transient_offset, transient_bytes);
    Ok((placements, arena, regions))
}

/// Where each block starts: the largest first, each at the lowest place that is clear of the
/// blocks that it may not share bytes with.
pub(crate) fn block_starts(blocks: &[u64], apart: &[(usize, usize)]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|block| std::cmp::Reverse(blocks[*block]));
    let mut starts: Vec<Option<u64>> = vec![None; blocks.len()];
    for block in order {
        let others = apart.iter().filter_map(|(a, b)| match block {
            block if block == *a => Some(*b),
            block if block == *b => Some(*a),
            _ => None,
        });
        let span = |other: usize| starts[other].map(|start| (start, start + blocks[other]));
        let mut taken: Vec<(u64, u64)> = others.filter_map(span).collect();
        taken.sort_unstable();
        let mut start = 0;
        for (from, to) in taken {
            if from < start + blocks[block] && start < to {
                start = to.next_multiple_of(ALIGNMENT_BYTES);
            }
        }
        starts[block] = Some(start);
    }
    starts.into_iter().map(|start| start.unwrap_or(0)).collect()
}

/// Bytes of every tensor, nothing placed.
///
/// # Errors
/// A size that overflows.
pub fn sizes(program: &Program) -> Result<Vec<Placement>, PlanError> {
    let dims = program.dims_max();
    let sized = program.tensors.iter().map(|tensor| {
        let bytes = tensor
            .size
            .value(&dims)
            .filter(|bytes| *bytes <= dctms_pack::limits::ARENA_BYTES_MAX)
            .ok_or_else(|| PlanError::Overflow { tensor: tensor.name.clone() })?;
        Ok(Placement { bytes, ..Placement::default() })
    });
    sized.collect()
}

fn lay_out(
    program: &Program,
    term: Term,
    start: u64,
    placements: &mut [Placement],
) -> Result<u64, PlanError> {
    let mut end = start;
    for (tensor, placement) in program.tensors.iter().zip(placements) {
        let passes = tensor.residence == Residence::Transient || passing::comes_and_goes(tensor);
        if passes || tensor.term != term {
            continue;
        }
        placement.offset = Some(end);
        end = end
            .checked_add(placement.bytes.next_multiple_of(ALIGNMENT_BYTES))
            .filter(|end| *end <= dctms_pack::limits::ARENA_BYTES_MAX)
            .ok_or_else(|| PlanError::Overflow { tensor: tensor.name.clone() })?;
    }
    Ok(end)
}

/// Bytes that the transients of one phase need under a schedule.
///
/// # Errors
/// As [`place`].
pub fn transient_bytes(
    program: &mut Program,
    phase: PhaseId,
    schedule: &Schedule,
    choices: &Choices,
) -> Result<u64, PlanError> {
    let placements = sizes(program)?;
    Ok(pack_phase(program, phase, schedule, (&placements, choices))?.packing.arena_bytes)
}

/// One phase's packing: each class is a chain of tensors that replace each other in place.
struct PackedPhase {
    classes: Vec<Vec<TensorId>>,
    packing: Packing,
    lives: BTreeMap<TensorId, Life>,
    replaced: BTreeMap<TensorId, TensorId>,
}

/// Vector clocks of a tensor: least `before` of its writes, greatest `through` of its accesses.
#[derive(Clone)]
pub struct Life {
    /// Least `before` of its writes.
    pub lower: Vec<u32>,
    /// Greatest `through` of its accesses.
    pub upper: Vec<u32>,
}

fn pack_phase(
    program: &mut Program,
    phase: PhaseId,
    schedule: &Schedule,
    (placements, choices): (&[Placement], &Choices),
) -> Result<PackedPhase, PlanError> {
    let ops = program.phases[phase.index()].ops.len();
    let task_clocks = clocks(schedule, ops);
    let lives = lives(program, phase, &task_clocks, schedule.lanes.len())?;
    let replaced = match choices.has(Choice::InPlace) {
        true => choose_in_place(program, phase, &task_clocks, &lives, placements),
        false => BTreeMap::new(),
    };
    let mut class_of: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut classes: Vec<Vec<TensorId>> = Vec::new();
    for id in lives.keys() {
        // Inputs are made before the outputs that replace them, but ids say nothing of order:
        // walk back to the head of the chain.
        let mut head = *id;
        while let Some(earlier) = replaced.get(&head) {
            head = *earlier;
        }
        let class = *class_of.entry(head).or_insert_with(|| {
            classes.push(Vec::new());
            classes.len() - 1
        });
        classes[class].push(*id);
    }
    let mut order = Clocks::new(schedule.lanes.len());
    let mut buffers = Vec::new();
    for tensors in &classes {
        let mut whole = lives[&tensors[0]].clone();
        for tensor in &tensors[1..] {
            meet(&mut whole.lower, &lives[tensor].lower);
            join(&mut whole.upper, &lives[tensor].upper);
        }
        order.push(&whole.lower, &whole.upper);
        let bytes = tensors.iter().map(|id| placements[id.index()].bytes).max().unwrap_or(0);
        buffers.push(Buffer::aligned(bytes, ALIGNMENT_BYTES));
    }
    let problem = Problem { buffers, conflicts: Conflicts::Clocks(order), capacity: None };
    let packing =
        dctms_pack::pack(&problem, &Budget::PLAN).map_err(|error| PlanError::Packing {
            phase: program.phases[phase.index()].name.clone(),
            message: error.to_string(),
        })?;
    Ok(PackedPhase { classes, packing, lives, replaced })
}

fn lives(
    program: &Program,
    phase: PhaseId,
    task_clocks: &[Vec<TaskClock>],
    lanes: usize,
) -> Result<BTreeMap<TensorId, Life>, PlanError> {
    let mut lives: BTreeMap<TensorId, Life> = BTreeMap::new();
    for (op, tasks) in program.phases[phase.index()].ops.iter().zip(task_clocks) {
        for access in accesses(op)? {
            if program.tensor(access.tensor).residence != Residence::Transient {
                continue;
            }
            let life = lives
                .entry(access.tensor)
                .or_insert_with(|| Life { lower: vec![u32::MAX; lanes], upper: vec![0; lanes] });
            for task in tasks {
                join(&mut life.upper, &task.through);
                if access.mode.writes() {
                    meet(&mut life.lower, &task.before);
                }
            }
        }
    }
    Ok(lives)
}

/// Pairs (output → the input that it replaces) that are sound: same bytes, the input transient,
/// nobody else touching it after or beside the operation, each input replaced once.
fn choose_in_place(
    program: &mut Program,
    phase: PhaseId,
    task_clocks: &[Vec<TaskClock>],
    lives: &BTreeMap<TensorId, Life>,
    placements: &[Placement],
) -> BTreeMap<TensorId, TensorId> {
    let last_readers = last_readers(program, phase);
    let mut replaced: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for index in 0..program.phases[phase.index()].ops.len() {
        let op = &program.phases[phase.index()].ops[index];
        let mut used = Vec::new();
        for (output, input) in may_in_place(&op.kind) {
            let (out, old) = (op.outputs[*output as usize], op.inputs[*input as usize]);
            let sound = out != old
                && lives.contains_key(&out)
                && lives.contains_key(&old)
                && placements[out.index()].bytes == placements[old.index()].bytes
                && last_readers.get(&old).is_some_and(|users| users.last() == Some(&index))
                && op.inputs.iter().filter(|id| **id == old).count() == 1
                && others_before(&last_readers[&old], index, task_clocks)
                && updates_after(program, phase, (out, index), task_clocks)
                && !taken.contains(&old)
                && !replaced.contains_key(&out);
            if sound {
                replaced.insert(out, old);
                taken.insert(old);
                used.push((*output, *input));
            }
        }
        program.phases[phase.index()].ops[index].in_place = used;
    }
    replaced
}

/// Operations that touch each transient, in program order.
fn last_readers(program: &Program, phase: PhaseId) -> BTreeMap<TensorId, Vec<usize>> {
    let mut users: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
    for (index, op) in program.phases[phase.index()].ops.iter().enumerate() {
        for id in op.inputs.iter().chain(&op.outputs).chain(&op.workspace) {
            let list = users.entry(*id).or_default();
            if list.last() != Some(&index) {
                list.push(index);
            }
        }
    }
    users
}

/// Whether every task of the other users is before every task of the operation.
fn others_before(users: &[usize], op: usize, task_clocks: &[Vec<TaskClock>]) -> bool {
    users.iter().filter(|user| **user != op).all(|user| {
        task_clocks[*user].iter().all(|earlier| {
            task_clocks[op].iter().all(|task| precedes(&earlier.through, &task.before))
        })
    })
}

/// Whether every later write of an operation's output waits for all of the operation's tasks: the
/// replaced input stands on the same bytes until the last of them is done.
fn updates_after(
    program: &Program,
    phase: PhaseId,
    (output, op): (TensorId, usize),
    task_clocks: &[Vec<TaskClock>],
) -> bool {
    let ops = program.phases[phase.index()].ops.iter().enumerate();
    let mut updates = ops.filter(|(index, other)| *index != op && other.outputs.contains(&output));
    updates.all(|(update, _)| {
        task_clocks[op].iter().all(|earlier| {
            task_clocks[update].iter().all(|task| precedes(&earlier.through, &task.before))
        })
    })
}

fn figures(
    program: &Program,
    placements: &[Placement],
    packed: &[PackedPhase],
    transient_offset: u64,
    transient_bytes: u64,
) -> ArenaFigures {
    let worst = packed.iter().enumerate().max_by_key(|(_, phase)| phase.packing.witness_bytes);
    let needed =
        worst.map_or_else(BTreeSet::new, |(phase, _)| needed_later(program, PhaseId::of(phase)));
    let mut witness: Vec<TensorId> = Vec::new();
    let mut lasting = 0;
    for (index, tensor) in program.tensors.iter().enumerate() {
        let id = TensorId::of(index);
        if tensor.residence != Residence::Transient && needed.contains(&id) {
            witness.push(id);
            lasting += placements[index].bytes.next_multiple_of(ALIGNMENT_BYTES);
        }
    }
    let mut peak = 0;
    if let Some((_, phase)) = worst {
        let classes: Vec<&[TensorId]> =
            phase.packing.witness.iter().map(|class| phase.classes[*class].as_slice()).collect();
        for id in members(&classes, &phase.lives, &phase.replaced) {
            peak += placements[id.index()].bytes.next_multiple_of(ALIGNMENT_BYTES);
            witness.push(id);
        }
    }
    ArenaFigures {
        bytes: transient_offset + transient_bytes,
        alignment: ALIGNMENT_BYTES,
        live_peak_bytes: lasting + peak,
        witness,
        transient_bytes,
        transient_live_peak_bytes: peak,
        transient_offset,
    }
}
