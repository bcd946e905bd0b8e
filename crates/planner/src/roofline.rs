//! What each operation costs, and what limits it.
//!
//! A roofline model: an operation whose arithmetic per byte is below the machine's balance is
//! bandwidth-bound. The balance is of the machine that the plan is for: a table by instruction
//! set, or a measured profile. All figures are at the bounds' maximum.

use std::collections::BTreeSet;

use dctms_ir::contract::{Mode, accesses};
use dctms_ir::ids::{OpId, PhaseId};
use dctms_ir::op::{Op, OpKind};
use dctms_ir::plan::{Concurrency, Cost, Placement, Schedule};
use dctms_ir::region::Streams;
use dctms_ir::vision::VisionOp;
use dctms_ir::{Program, TensorId};

use crate::error::PlanError;
use crate::groups::Group;
use crate::rates::Balance;
use crate::region::Layout;

/// Costs of a phase's operations, in order.
///
/// # Errors
/// An operation that breaks its contract.
pub fn costs(
    program: &Program,
    phase: PhaseId,
    placements: &[Placement],
    balance: &Balance,
) -> Result<Vec<Cost>, PlanError> {
    let dims = program.dims_max();
    program.phases[phase.index()]
        .ops
        .iter()
        .map(|op| cost(program, op, placements, &dims, balance))
        .collect()
}

fn cost(
    program: &Program,
    op: &Op,
    placements: &[Placement],
    dims: &[u64],
    balance: &Balance,
) -> Result<Cost, PlanError> {
    let mut bytes_moved = 0u64;
    for access in accesses(op)? {
        let bytes = touched_bytes(program, op, access.tensor, placements, dims);
        let times = if access.mode == Mode::ReadWrite { 2 } else { 1 };
        bytes_moved = bytes_moved.saturating_add(bytes.saturating_mul(times));
    }
    let (flops, peak) = match &op.kind {
        OpKind::MatMul { rows, cols, .. } => {
            let tokens = tokens(program, op, dims);
            let quantised = program.tensor(op.inputs[0]).dtype == dctms_ir::Dtype::U8;
            let peak = if quantised { balance.integer_ops_per_s } else { balance.float_ops_per_s };
            (rows.saturating_mul(*cols).saturating_mul(2 * tokens), peak)
        }
        OpKind::GatedMatMul { rows, cols, .. } => {
            let products = rows.saturating_mul(*cols).saturating_mul(4 * tokens(program, op, dims));
            (products, balance.integer_ops_per_s)
        }
        OpKind::AttentionPrefill(shape) | OpKind::AttentionDecodePartial(shape) => {
            let seen = match shape.window {
                0 => shape.capacity,
                window => shape.capacity.min(window),
            };
            let pairs = u64::from(seen) * u64::from(shape.heads) * u64::from(shape.head_dim);
            (pairs.saturating_mul(4 * tokens(program, op, dims)), balance.float_ops_per_s)
        }
        OpKind::Vision(VisionOp::FullAttention(shape)) => {
            let width = u64::from(shape.heads) * u64::from(shape.head_dim);
            let tokens = tokens(program, op, dims);
            (width.saturating_mul(4 * tokens * tokens), balance.float_ops_per_s)
        }
        OpKind::Vision(VisionOp::WindowAttention { shape, .. }) => {
            let width = u64::from(shape.heads) * u64::from(shape.head_dim);
            let pairs = tokens(program, op, dims) * u64::from(shape.positions);
            (width.saturating_mul(4 * pairs), balance.float_ops_per_s)
        }
        OpKind::Vision(VisionOp::GatedProducts { rows, cols, .. }) => {
            let quantised = program.tensor(op.inputs[0]).dtype == dctms_ir::Dtype::U8;
            let peak = if quantised { balance.integer_ops_per_s } else { balance.float_ops_per_s };
            (rows.saturating_mul(*cols).saturating_mul(4 * tokens(program, op, dims)), peak)
        }
        _ => (bytes_moved / 4, balance.float_ops_per_s),
    };
    let bandwidth_bound = flops as f64 / peak < bytes_moved as f64 / balance.read_bytes_per_s;
    Ok(Cost { flops, bytes_moved, bandwidth_bound, predicted_ns: 0 })
}

/// Tokens that an operation works on.
fn tokens(program: &Program, op: &Op, dims: &[u64]) -> u64 {
    let shape = &program.tensor(op.inputs[0]).shape;
    shape.get(1).and_then(|size| size.value(dims)).unwrap_or(1)
}

/// Bytes of an operand that are really moved: rows of a table, one slot of a cache.
fn touched_bytes(
    program: &Program,
    op: &Op,
    tensor: TensorId,
    placements: &[Placement],
    dims: &[u64],
) -> u64 {
    let bytes = placements[tensor.index()].bytes;
    match &op.kind {
        OpKind::EmbedRows { .. } if op.inputs[1] == tensor => {
            let rows = program.tensor(tensor).shape[0].value(dims).unwrap_or(1).max(1);
            bytes / rows * tokens_of_output(program, op, dims)
        }
        OpKind::KvAppend(shape) if op.outputs.contains(&tensor) => {
            let capacity = u64::from(shape.capacity).max(1);
            bytes / capacity * tokens(program, op, dims)
        }
        _ => bytes,
    }
}

fn tokens_of_output(program: &Program, op: &Op, dims: &[u64]) -> u64 {
    let shape = &program.tensor(op.outputs[0]).shape;
    shape.get(1).and_then(|size| size.value(dims)).unwrap_or(1)
}

/// Maximal sets of operations that no path connects (paper §3.5), and what became of them.
///
/// The lanes work on one operation at a time, each on its own slice: members of a set are
/// serialised, for bandwidth where both are bound by it, else because each fills every lane. In a
/// region with lanes for each stream, operations of different streams do run beside each other.
///
/// # Errors
/// An operation that breaks its contract.
pub fn concurrency(
    program: &Program,
    phase: PhaseId,
    costs: &[Cost],
    (schedule, layout): (&Schedule, Option<&Layout>),
) -> Result<Concurrency, PlanError> {
    let ops = &program.phases[phase.index()].ops;
    if program.phases[phase.index()].is_loading() {
        return Ok(Concurrency::default());
    }
    let reach = reachability(ops)?;
    let independent = |a: usize, b: usize| {
        let (low, high) = (a.min(b), a.max(b));
        low != high && !reach[high].contains(low)
    };
    let mut sets: BTreeSet<Vec<usize>> = BTreeSet::new();
    for start in 0..ops.len() {
        let mut set = vec![start];
        for other in 0..ops.len() {
            if set.iter().all(|member| independent(*member, other)) {
                set.push(other);
            }
        }
        set.sort_unstable();
        if set.len() > 1 {
            sets.insert(set);
        }
    }
    let unaligned = crate::schedule::unaligned(program, phase, Group::of_schedule(schedule))?;
    let mut report = Concurrency { cuts_unaligned: unaligned.events, ..Concurrency::default() };
    let segments = segments(ops.len(), schedule);
    let region = &program.phases[phase.index()];
    let streams = Streams::of(region).map(|streams| streams.split(region));
    let beside = |a: usize, b: usize| {
        let both = layout.zip(streams.as_ref());
        both.is_some_and(|(layout, streams)| layout.is_beside(streams, a, b))
    };
    for set in sets {
        for pair in set.windows(2) {
            let apart = costs[pair[0]].bandwidth_bound != costs[pair[1]].bandwidth_bound;
            let ids = (OpId::of(pair[0]), OpId::of(pair[1]));
            let runs_beside = beside(pair[0], pair[1]);
            if runs_beside && !apart {
                continue;
            }
            if apart && (runs_beside || segments[pair[0]] == segments[pair[1]]) {
                if !report.complementary.contains(&ids) {
                    report.complementary.push(ids);
                }
                continue;
            }
            let why = match costs[pair[0]].bandwidth_bound && costs[pair[1]].bandwidth_bound {
                true => "bandwidth",
                false => "each fills every lane",
            };
            let entry = (OpId::of(pair[0]), OpId::of(pair[1]), why.to_string());
            if !report.serialised.contains(&entry) {
                report.serialised.push(entry);
            }
        }
        report.concurrent_sets.push(set.into_iter().map(OpId::of).collect());
    }
    Ok(report)
}

/// The number of the cut that each operation comes after.
fn segments(ops: usize, schedule: &Schedule) -> Vec<usize> {
    let mut segments = vec![0; ops];
    for tasks in &schedule.lanes {
        let mut cuts = 0;
        for task in tasks {
            cuts += task.waits.len();
            segments[task.op.index()] = cuts;
        }
    }
    segments
}

/// A set of operation indices.
#[derive(Clone)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn union(&mut self, other: &Bits) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }
}

/// For each operation, those that some path of data leads from.
pub(crate) fn reachability(ops: &[Op]) -> Result<Vec<Bits>, PlanError> {
    let mut reach = vec![Bits(vec![0; ops.len().div_ceil(64)]); ops.len()];
    let mut last_writer: std::collections::BTreeMap<TensorId, usize> = Default::default();
    let mut readers: std::collections::BTreeMap<TensorId, Vec<usize>> = Default::default();
    for (index, op) in ops.iter().enumerate() {
        let mut from = Vec::new();
        for access in accesses(op)? {
            from.extend(last_writer.get(&access.tensor).copied());
            if access.mode.writes() {
                from.extend(readers.remove(&access.tensor).unwrap_or_default());
                last_writer.insert(access.tensor, index);
            } else {
                readers.entry(access.tensor).or_default().push(index);
            }
        }
        for source in from.into_iter().filter(|source| *source != index) {
            let earlier = reach[source].clone();
            reach[index].union(&earlier);
            reach[index].insert(source);
        }
    }
    Ok(reach)
}
