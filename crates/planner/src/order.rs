//! The order of operations that needs the least memory at once, found exactly.
//!
//! An operation that every other one leads to or from stands at one place in every order. Such
//! operations cut a phase into segments, and an order of the phase is an order of each segment:
//! the least peak of the phase is the greatest of the segments' least peaks. In a segment the
//! search goes over *downsets* (sets of operations closed under "comes before"): what is live
//! after a downset does not depend on the order within it, so the least peak on the way to each
//! is found once. Layers repeat, so equal segments are searched once: one layer, then tiled.
//!
//! The order is judged as on one lane, in aligned bytes, with every replacement in place that the
//! contracts allow.

use std::collections::BTreeMap;

use dctms_ir::contract::{accesses, may_in_place};
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::ALIGNMENT_BYTES;
use dctms_ir::{Op, Program, Residence};

use crate::error::PlanError;
use crate::roofline::reachability;

/// Operations of a segment that are searched; a longer one keeps its order.
const OPS_MAX: usize = 20;
/// Downsets of a segment that are looked at.
const STATES_MAX: usize = 1 << 16;

/// What the search found for a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Peak of the order that the program has, bytes.
    pub program_bytes: u64,
    /// Least peak of all orders.
    pub least_bytes: u64,
    /// Downsets looked at.
    pub states: u64,
    /// Whether every segment was searched to its end.
    pub complete: bool,
    /// For each place the operation of the program's order that stands there in the best one.
    pub order: Vec<usize>,
}

/// Searches a phase of a legalised program.
///
/// # Errors
/// An operation that breaks its contract.
pub fn least_peak(program: &Program, phase: PhaseId) -> Result<Found, PlanError> {
    let ops = &program.phases[phase.index()].ops;
    let memory = Memory::new(program, ops)?;
    let reach = reachability(ops)?;
    let mut descendants = vec![0usize; ops.len()];
    let mut ancestors = vec![0usize; ops.len()];
    for index in 0..ops.len() {
        for (earlier, count) in descendants.iter_mut().enumerate().take(index) {
            if reach[index].contains(earlier) {
                ancestors[index] += 1;
                *count += 1;
            }
        }
    }
    let fixed =
        |index: usize| ancestors[index] == index && descendants[index] == ops.len() - 1 - index;
    let mut found = Found {
        program_bytes: 0,
        least_bytes: 0,
        states: 0,
        complete: true,
        order: Vec::with_capacity(ops.len()),
    };
    let mut known: BTreeMap<Vec<u64>, Segment> = BTreeMap::new();
    let mut segments = Vec::new();
    let mut first = 0;
    while first < ops.len() {
        let mut end = first + 1;
        if !fixed(first) {
            while end < ops.len() && !fixed(end) {
                end += 1;
            }
        }
        let before = |a: usize, b: usize| reach[b].contains(a);
        let signature = memory.signature(first, end, &before);
        let segment = match known.get(&signature) {
            Some(segment) => segment.clone(),
            None => {
                let segment = search(&memory, first, end, &before);
                found.states += segment.states;
                known.insert(signature, segment.clone());
                segment
            }
        };
        found.complete &= segment.complete;
        found.program_bytes = found.program_bytes.max(segment.program_bytes);
        found.least_bytes = found.least_bytes.max(segment.least_bytes);
        segments.push((first, end, segment));
        first = end;
    }
    for (first, end, segment) in segments {
        // What is no worse than the best peak stays as it was written.
        match segment.program_bytes > found.least_bytes {
            true => found.order.extend(segment.order.iter().map(|index| first + index)),
            false => found.order.extend(first..end),
        }
    }
    Ok(found)
}

/// Puts a phase's operations into another order.
pub fn reorder(program: &mut Program, phase: PhaseId, order: &[usize]) {
    let ops = &mut program.phases[phase.index()].ops;
    let mut old: Vec<Option<Op>> = std::mem::take(ops).into_iter().map(Some).collect();
    ops.extend(order.iter().map(|index| old[*index].take().expect("each stands once")));
}

#[derive(Clone)]
struct Segment {
    program_bytes: u64,
    least_bytes: u64,
    states: u64,
    complete: bool,
    order: Vec<usize>,
}

/// Who uses which transient, in program order.
struct Memory<'a> {
    ops: &'a [Op],
    /// Of each operation the transients that it touches, each once.
    touched: Vec<Vec<usize>>,
    /// Of each transient its users.
    users: Vec<Vec<usize>>,
    bytes: Vec<u64>,
    index: BTreeMap<TensorId, usize>,
}

impl<'a> Memory<'a> {
    fn new(program: &Program, ops: &'a [Op]) -> Result<Memory<'a>, PlanError> {
        let dims = program.dims_max();
        let mut memory = Memory {
            ops,
            touched: vec![Vec::new(); ops.len()],
            users: Vec::new(),
            bytes: Vec::new(),
            index: BTreeMap::new(),
        };
        for (op_index, op) in ops.iter().enumerate() {
            for access in accesses(op)? {
                let tensor = program.tensor(access.tensor);
                if tensor.residence != Residence::Transient {
                    continue;
                }
                let next = memory.bytes.len();
                let id = *memory.index.entry(access.tensor).or_insert(next);
                if id == next {
                    let bytes = tensor.size.value(&dims).unwrap_or(u64::MAX >> 16);
                    memory.bytes.push(bytes.next_multiple_of(ALIGNMENT_BYTES));
                    memory.users.push(Vec::new());
                }
                if memory.users[id].last() != Some(&op_index) {
                    memory.users[id].push(op_index);
                    memory.touched[op_index].push(id);
                }
            }
        }
        Ok(memory)
    }

    /// Live bytes before a segment: touched before it, and in it or after it.
    fn base(&self, first: usize) -> u64 {
        let live =
            self.users.iter().zip(&self.bytes).filter(|(users, _)| {
                users[0] < first && *users.last().expect("has users") >= first
            });
        live.map(|(_, bytes)| bytes).sum()
    }

    /// Live bytes while an operation runs after `done`, and after it.
    fn step(&self, op: usize, live: u64, done: &dyn Fn(usize) -> bool) -> (u64, u64) {
        let others_done = |id: usize| self.users[id].iter().all(|user| *user == op || done(*user));
        let fresh = |id: usize| self.users[id].iter().all(|user| *user == op || !done(*user));
        let mut during = live;
        let mut after = live;
        for id in &self.touched[op] {
            if fresh(*id) {
                during += self.bytes[*id];
                after += self.bytes[*id];
            }
            if others_done(*id) {
                after -= self.bytes[*id];
            }
        }
        for (output, input) in may_in_place(&self.ops[op].kind) {
            let id = |tensor: TensorId| self.index.get(&tensor).copied();
            let (output, input) =
                (self.ops[op].outputs[*output as usize], self.ops[op].inputs[*input as usize]);
            if let (Some(new), Some(old)) = (id(output), id(input))
                && new != old
                && fresh(new)
                && others_done(old)
                && self.bytes[new] == self.bytes[old]
            {
                during -= self.bytes[new];
                break;
            }
        }
        (during, after)
    }

    /// A segment up to the names of its tensors and operations.
    fn signature(
        &self,
        first: usize,
        end: usize,
        before: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<u64> {
        let mut names: BTreeMap<usize, u64> = BTreeMap::new();
        let mut signature = vec![self.base(first)];
        for op in first..end {
            signature.push(u64::MAX);
            signature.extend((first..op).map(|earlier| u64::from(before(earlier, op))));
            for id in &self.touched[op] {
                let next = names.len() as u64;
                let users = &self.users[*id];
                let outside = u64::from(users[0] < first)
                    + 2 * u64::from(*users.last().expect("has users") >= end);
                signature.extend([*names.entry(*id).or_insert(next), self.bytes[*id], outside]);
            }
            let pairs = may_in_place(&self.ops[op].kind).iter();
            signature
                .extend(pairs.map(|(output, input)| u64::from(*output) << 32 | u64::from(*input)));
        }
        signature
    }
}

/// The least peak of a segment over all its orders.
fn search(
    memory: &Memory<'_>,
    first: usize,
    end: usize,
    before: &dyn Fn(usize, usize) -> bool,
) -> Segment {
    let count = end - first;
    let base = memory.base(first);
    let (mut live, mut peak) = (base, base);
    for op in first..end {
        let (during, after) = memory.step(op, live, &|user| user < op);
        (live, peak) = (after, peak.max(during));
    }
    let order: Vec<usize> = (0..count).collect();
    let mut segment =
        Segment { program_bytes: peak, least_bytes: peak, states: 1, complete: true, order };
    if count == 1 {
        return segment;
    }
    if count > OPS_MAX {
        segment.complete = false;
        return segment;
    }
    // For each downset (by its bits): least peak so far, live bytes, and how it was come to.
    let mut layer: BTreeMap<u32, (u64, u64)> = BTreeMap::from([(0, (base, base))]);
    let mut came: BTreeMap<u32, usize> = BTreeMap::new();
    for _ in 0..count {
        let mut next: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (set, (peak, live)) in &layer {
            for op in (0..count).filter(|op| set >> op & 1 == 0) {
                let ready = (0..count)
                    .all(|earlier| set >> earlier & 1 == 1 || !before(first + earlier, first + op));
                if !ready {
                    continue;
                }
                let done =
                    |user: usize| user < first || (user < end && set >> (user - first) & 1 == 1);
                let (during, after) = memory.step(first + op, *live, &done);
                let (reached, peak) = (set | 1 << op, (*peak).max(during));
                let better = next.get(&reached).is_none_or(|(known, _)| peak < *known);
                if better {
                    next.insert(reached, (peak, after));
                    came.insert(reached, op);
                }
            }
        }
        segment.states += next.len() as u64;
        if segment.states > STATES_MAX as u64 {
            segment.complete = false;
            return segment;
        }
        layer = next;
    }
    let mut set = u32::MAX >> (32 - count);
    segment.least_bytes = layer[&set].0;
    if segment.least_bytes < segment.program_bytes {
        let mut reversed = Vec::new();
        while set != 0 {
            let op = came[&set];
            reversed.push(op);
            set &= !(1 << op);
        }
        segment.order = reversed.into_iter().rev().collect();
    }
    segment
}
