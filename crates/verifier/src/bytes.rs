//! C4, C6, R2 and R3 over bytes: tensors that share bytes never need them at the same time.
//!
//! Two tensors of one phase may share bytes iff one *precedes* the other: all its accesses are
//! done before the other's first write. In-place pairs are the one exception, and only for the
//! accesses of the one operation that declares them. A tensor that lives through a phase shares
//! with nothing that the phase writes; a constant lives through every phase. Phases that may run at the same time are ordered by nothing,
//! so they share nothing that one writes. Pairs with common bytes are found by a sweep over offsets.

use std::collections::BTreeMap;

use dctms_ir::contract::{self, Mode, Split};
use dctms_ir::program::Phase;
use dctms_ir::{Op, OpId, PhaseId, Plan, Residence, TensorId};

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
        let own = |id: TensorId| plan.program.tensor(id).phase;
        let lasts = |id: TensorId| own(id).is_none();
        let here = |id: &TensorId| own(*id).is_none_or(|own| own.index() == index);
        sweep(plan, &phase.name, here, found, |a, b, found| {
            for (kept, other) in [(a, b), (b, a)].into_iter().filter(|(kept, _)| lasts(*kept)) {
                lasting_pair(plan, (index, facts), (kept, other), lives, found);
            }
            if lasts(a) && lasts(b) {
                host_pair(plan, phase, (a, b), found);
            } else if !lasts(a) && !lasts(b) && !ordered(facts, &in_place, a, b) {
                shared(plan, &phase.name, (a, b), found);
            }
        });
    }
    for (one, other) in &plan.program.flow.overlap {
        let name = |id: PhaseId| plan.program.phases[id.index()].name.as_str();
        let at = format!("{} beside {}", name(*one), name(*other));
        beside(plan, &at, [&phases[one.index()], &phases[other.index()]], found);
    }
}

/// Phases that may run at the same time touch no common bytes that one of them writes.
fn beside(plan: &Plan, at: &str, facts: [&PhaseFacts; 2], found: &mut Found) {
    let clash = |a: TensorId, b: TensorId| {
        let [a, b] = [facts[0].touches(a), facts[1].touches(b)];
        let writes = a.iter().chain(b).any(|touch| touch.access.mode.writes());
        writes && !a.is_empty() && !b.is_empty()
    };
    let here = |id: &TensorId| facts.iter().any(|facts| !facts.touches(*id).is_empty());
    for id in (0..plan.program.tensors.len()).map(TensorId::of).filter(|id| clash(*id, *id)) {
        shared(plan, at, (id, id), found);
    }
    sweep(plan, at, here, found, |a, b, found| {
        if clash(a, b) || clash(b, a) {
            shared(plan, at, (a, b), found);
        }
    });
}

fn shared(plan: &Plan, at: &str, (a, b): (TensorId, TensorId), found: &mut Found) {
    let (a, b) = (&plan.program.tensor(a).name, &plan.program.tensor(b).name);
    let what = format!("{a} and {b} share bytes, and neither is done before the other");
    found.add(Rule::R2, at, what);
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
            shared(plan, &plan.program.phases[phase].name, (kept, other), found);
        }
    } else if touches.iter().any(|touch| touch.access.mode.writes()) {
        let [live, written] = [kept, other].map(|id| &plan.program.tensor(id).name);
        let what = format!("writing {written} destroys {live}, which lives through the phase");
        found.add(Rule::R3, &plan.program.phases[phase].name, what);
    }
}

/// Two tensors that hold a first value from the host cannot share; nor can anything with a tensor
/// that the host may touch between any two phases, or with a constant.
fn host_pair(plan: &Plan, phase: &Phase, (a, b): (TensorId, TensorId), found: &mut Found) {
    let residences = [a, b].map(|id| plan.program.tensor(id).residence);
    let alone = |residence| matches!(residence, Residence::External | Residence::Constant);
    let first_value = |residence| matches!(residence, Residence::External | Residence::State);
    if residences.into_iter().any(alone) || residences.into_iter().all(first_value) {
        shared(plan, &phase.name, (a, b), found);
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

/// Visits every pair of placed tensors with common bytes until enough is found.
fn sweep(
    plan: &Plan,
    at: &str,
    here: impl Fn(&TensorId) -> bool,
    found: &mut Found,
    visit: impl Fn(TensorId, TensorId, &mut Found),
) {
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
            found.add(Rule::R2, at, "too many pairs of tensors share bytes");
        }
        if pairs > PAIRS_MAX || found.is_full() {
            return;
        }
        for (_, other) in &open {
            visit(*other, id, found);
        }
        open.push((end, id));
    }
}
