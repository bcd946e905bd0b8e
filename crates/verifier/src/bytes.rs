//! C4, C6, R2 and R3 over bytes: tensors that share bytes never need them at the same time.
//!
//! Two tensors of one phase may share bytes iff one *precedes* the other: all its accesses are
//! done before the other's first write. In-place pairs are the one exception, and only for the
//! accesses of the one operation that declares them. A tensor that lives through a phase shares
//! with nothing that the phase writes. Pairs with common bytes are found by a sweep over offsets.

use std::collections::BTreeMap;

use dctms_ir::contract::{self, Mode, Split};
use dctms_ir::program::Phase;
use dctms_ir::{Op, OpId, Plan, Residence, TensorId};

use crate::facts::PhaseFacts;
use crate::flow::Life;
use crate::limits::PAIRS_MAX;
use crate::violation::{Found, Rule, place};

/// Operations that use a pair (input, output) of tensors in place.
pub(crate) type InPlace = BTreeMap<(TensorId, TensorId), Vec<OpId>>;

pub(crate) fn check(plan: &Plan, phases: &[PhaseFacts], lives: &[Life], found: &mut Found) {
    for (index, facts) in phases.iter().enumerate() {
        let phase = &plan.program.phases[index];
        let in_place = in_place(plan, phase, Some(found));
        let here = |id: &TensorId| {
            let tensor = plan.program.tensor(*id);
            tensor.phase.is_none_or(|own| own.index() == index)
        };
        let finished = sweep(plan, here, |a, b| {
            match (plan.program.tensor(a).phase, plan.program.tensor(b).phase) {
                (Some(_), Some(_)) => {
                    transient_pair(plan, (phase, facts, &in_place), (a, b), found);
                }
                (Some(_), None) => lasting_pair(plan, (index, facts), (b, a), lives, found),
                (None, Some(_)) => lasting_pair(plan, (index, facts), (a, b), lives, found),
                (None, None) => {
                    lasting_pair(plan, (index, facts), (a, b), lives, found);
                    lasting_pair(plan, (index, facts), (b, a), lives, found);
                    host_pair(plan, phase, (a, b), found);
                }
            }
            !found.is_full()
        });
        if !finished && !found.is_full() {
            found.add(Rule::R2, &phase.name, "too many pairs of tensors share bytes");
        }
    }
}

fn transient_pair(
    plan: &Plan,
    (phase, facts, in_place): (&Phase, &PhaseFacts, &InPlace),
    (a, b): (TensorId, TensorId),
    found: &mut Found,
) {
    if !ordered(facts, in_place, a, b) {
        shared(plan, phase, (a, b), found);
    }
}

fn shared(plan: &Plan, phase: &Phase, (a, b): (TensorId, TensorId), found: &mut Found) {
    let (a, b) = (&plan.program.tensor(a).name, &plan.program.tensor(b).name);
    let what = format!("{a} and {b} share bytes, and neither is done before the other");
    found.add(Rule::R2, &phase.name, what);
}

/// Whether one of two tensors precedes the other in a phase.
pub(crate) fn ordered(facts: &PhaseFacts, in_place: &InPlace, a: TensorId, b: TensorId) -> bool {
    facts.precedes(a, b)
        || facts.precedes(b, a)
        || in_place.get(&(a, b)).is_some_and(|ops| precedes_in_place(facts, ops, a, b))
        || in_place.get(&(b, a)).is_some_and(|ops| precedes_in_place(facts, ops, b, a))
}

/// As `precedes`, the accesses that one operation makes in place set aside.
fn precedes_in_place(facts: &PhaseFacts, ops: &[OpId], input: TensorId, output: TensorId) -> bool {
    if facts.touches(input).len().saturating_mul(facts.touches(output).len()) > PAIRS_MAX {
        return false;
    }
    facts.touches(input).iter().all(|touch| {
        let writes = facts.touches(output).iter().filter(|other| other.access.mode.writes());
        writes.into_iter().all(|write| {
            (touch.op == write.op && ops.contains(&touch.op))
                || facts.op_precedes(touch.op, write.op)
        })
    })
}

/// `kept` lives across phases; nothing that a phase writes may share with it while it lives.
fn lasting_pair(
    plan: &Plan,
    (phase, facts): (usize, &PhaseFacts),
    (kept, other): (TensorId, TensorId),
    lives: &[Life],
    found: &mut Found,
) {
    let bit = 1 << phase;
    let touches = facts.touches(other);
    if lives[kept.index()].kept & bit == 0 {
        // Dead at both ends of the phase: inside it, an ordinary value.
        let also_dead = lives[other.index()].kept & bit == 0;
        if also_dead && !facts.precedes(kept, other) && !facts.precedes(other, kept) {
            shared(plan, &plan.program.phases[phase], (kept, other), found);
        }
    } else if touches.iter().any(|touch| touch.access.mode.writes()) {
        let [live, written] = [kept, other].map(|id| &plan.program.tensor(id).name);
        let what = format!("writing {written} destroys {live}, which lives through the phase");
        found.add(Rule::R3, &plan.program.phases[phase].name, what);
    }
}

/// Two tensors that hold a first value from the host cannot share; nor can anything with a tensor
/// that the host may touch between any two phases.
fn host_pair(plan: &Plan, phase: &Phase, (a, b): (TensorId, TensorId), found: &mut Found) {
    let residences = [a, b].map(|id| plan.program.tensor(id).residence);
    let first_value = |residence| matches!(residence, Residence::External | Residence::State);
    if residences.contains(&Residence::External) || residences.into_iter().all(first_value) {
        shared(plan, phase, (a, b), found);
    }
}

/// The in-place pairs that a phase uses; with `found`, each is checked against the contract.
pub(crate) fn in_place(plan: &Plan, phase: &Phase, mut found: Option<&mut Found>) -> InPlace {
    let mut pairs = InPlace::new();
    for (id, op) in phase.ops.iter().enumerate() {
        for pair in &op.in_place {
            let tensors = match tensors_of(plan, op, *pair) {
                Ok(tensors) => tensors,
                Err(what) => {
                    if let Some(found) = found.as_deref_mut() {
                        let what = format!("in place, output and input {pair:?}: {what}");
                        found.add(Rule::R2, &place(phase, op), what);
                    }
                    continue;
                }
            };
            pairs.entry(tensors).or_default().push(OpId::of(id));
        }
    }
    pairs
}

/// The tensors (input, output) of a used pair, or what is wrong with it.
fn tensors_of(
    plan: &Plan,
    op: &Op,
    pair: (u32, u32),
) -> Result<(TensorId, TensorId), &'static str> {
    if !contract::may_in_place(&op.kind).contains(&pair) {
        return Err("the contract does not allow it");
    }
    let output = op.outputs.get(pair.0 as usize);
    let (Some(output), Some(input)) = (output, op.inputs.get(pair.1 as usize)) else {
        return Err("names no operand");
    };
    if output == input {
        // An update of one tensor: the contract already made it one access.
        return Ok((*input, *output));
    }
    let (from, to) = (plan.program.tensor(*input), plan.program.tensor(*output));
    let (at, onto) = (plan.placements[input.index()], plan.placements[output.index()]);
    if (at.offset, at.bytes) != (onto.offset, onto.bytes) {
        return Err("the two do not stand at the same bytes");
    }
    if (from.dtype, &from.shape, &from.size) != (to.dtype, &to.shape, &to.size) {
        return Err("the two are not laid out alike");
    }
    // The same tensor may be several operands: each of them must be part of a pair.
    let alone = (0u32..)
        .zip(&op.inputs)
        .all(|(other, id)| id != input || op.in_place.contains(&(pair.0, other)));
    let accesses = contract::accesses(op).unwrap_or_default();
    let split = accesses.iter().find(|access| access.tensor == *output).map(|a| a.split);
    let alike = accesses
        .iter()
        .filter(|access| access.tensor == *input)
        .all(|access| access.mode == Mode::Read && Some(access.split) == split);
    if !alone || !alike || !matches!(split, Some(Split::Even { .. })) {
        return Err("a shard reads more of it than it overwrites");
    }
    Ok((*input, *output))
}

/// Visits every pair of placed tensors with common bytes until the visitor returns false. Whether
/// it saw them all.
fn sweep(
    plan: &Plan,
    here: impl Fn(&TensorId) -> bool,
    mut visit: impl FnMut(TensorId, TensorId) -> bool,
) -> bool {
    let mut spans: Vec<(u64, u64, TensorId)> = (0..plan.placements.len())
        .map(TensorId::of)
        .filter(here)
        .filter_map(|id| {
            let placement = plan.placements[id.index()];
            let start = placement.offset?;
            (placement.bytes > 0).then_some((start, start + placement.bytes, id))
        })
        .collect();
    spans.sort_unstable();
    let mut open: Vec<(u64, TensorId)> = Vec::new();
    let mut pairs = 0;
    for (start, end, id) in spans {
        open.retain(|(other_end, _)| *other_end > start);
        pairs += open.len();
        if pairs > PAIRS_MAX {
            return false;
        }
        for (_, other) in &open {
            if !visit(*other, id) {
                return false;
            }
        }
        open.push((end, id));
    }
    true
}
