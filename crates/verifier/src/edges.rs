//! C3 and R1: what a program orders, the schedule orders; what is read was written.
//!
//! The touches of one tensor stand in program order. It is enough to order each touch after the
//! last write before it, and each write after the reads since: every operation has all its
//! shards, so any earlier touch whose slice is not disjoint is reached through some shard of the
//! write between (an even write that is cut as both sides are by the same shard, any other by all
//! of its shards).

use dctms_ir::contract::Split;
use dctms_ir::program::Phase;
use dctms_ir::{OpId, Plan, TensorId};

use crate::facts::{PhaseFacts, Touch};
use crate::violation::{Found, Rule, place};

pub(crate) fn check(plan: &Plan, phases: &[PhaseFacts], found: &mut Found) {
    for (phase, facts) in plan.program.phases.iter().zip(phases) {
        for id in (0..plan.program.tensors.len()).map(TensorId::of) {
            let touches = facts.touches(id);
            let tensor = plan.program.tensor(id);
            let place_of = |op: OpId| place(phase, &phase.ops[op.index()]);
            if let (Some(first), true) = (touches.first(), tensor.phase.is_some())
                && first.access.mode.reads()
            {
                let what = format!("reads {}, which nothing has written", tensor.name);
                found.add(Rule::R1, &place_of(first.op), what);
            }
            within_operations(phase, facts, touches, &tensor.name, found);
            for (first, second) in unordered(facts, touches) {
                let (first, second) = (place_of(first), place_of(second));
                let what = format!("{first} must be done before {second} begins");
                found.add(Rule::R2, &tensor.name, what);
            }
        }
    }
}

/// An operation touches a tensor that it writes once, each shard in a slice of its own.
fn within_operations(
    phase: &Phase,
    facts: &PhaseFacts,
    touches: &[Touch],
    tensor: &str,
    found: &mut Found,
) {
    for same in touches.chunk_by(|a, b| a.op == b.op) {
        let Some(write) = same.iter().find(|touch| touch.access.mode.writes()) else { continue };
        let what = if same.len() > 1 {
            "written and touched by another operand too"
        } else if write.access.split == Split::Whole && facts.seats(write.op).len() > 1 {
            "written whole by several shards"
        } else {
            continue;
        };
        let op = place(phase, &phase.ops[write.op.index()]);
        found.add(Rule::R2, &op, format!("{tensor}: {what}"));
    }
}

/// Pairs of operations that the program orders and the schedule does not.
fn unordered(facts: &PhaseFacts, touches: &[Touch]) -> Vec<(OpId, OpId)> {
    let mut pairs = Vec::new();
    let mut last_write: Option<&Touch> = None;
    let mut reads: Vec<&Touch> = Vec::new();
    for touch in touches {
        let writes = touch.access.mode.writes();
        let since = if writes { reads.as_slice() } else { &[] };
        for earlier in last_write.into_iter().chain(since.iter().copied()) {
            if earlier.op != touch.op && !facts.touch_precedes(earlier, touch) {
                pairs.push((earlier.op, touch.op));
            }
        }
        if writes {
            last_write = Some(touch);
            reads.clear();
        } else {
            reads.push(touch);
        }
    }
    pairs
}
