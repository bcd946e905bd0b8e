//! C7, R7 and R8: the figures that a plan states about itself are true and add up.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::tensor::Term;
use dctms_ir::{Plan, TensorId};

use crate::bytes::{in_place, ordered};
use crate::facts::PhaseFacts;
use crate::flow::Life;
use crate::limits::PAIRS_MAX;
use crate::violation::{Found, Rule};

pub(crate) fn check(plan: &Plan, phases: &[PhaseFacts], lives: &[Life], found: &mut Found) {
    intervals(plan, phases, found);
    colouring(plan, found);
    region(plan, phases, found);
    witness(plan, phases, lives, found);
    envelope(plan, phases, lives, found);
}

/// The operations of its phase that first and last touch a transient.
fn steps(plan: &Plan, phases: &[PhaseFacts], id: TensorId) -> Option<(u32, u32)> {
    let touches = phases[plan.program.tensor(id).phase?.index()].touches(id);
    Some((touches.first()?.op.0, touches.last()?.op.0))
}

fn intervals(plan: &Plan, phases: &[PhaseFacts], found: &mut Found) {
    for id in (0..plan.program.tensors.len()).map(TensorId::of) {
        let derived = steps(plan, phases, id);
        let stated = plan.placements[id.index()].interval.map(|i| (i.first, i.last));
        if stated != derived {
            let what = format!("steps {stated:?}, but its operations give {derived:?}");
            found.add(Rule::R8, &plan.program.tensor(id).name, what);
        }
    }
}

/// Tenants of one buffer have disjoint closed intervals, and the buffer is as large as the largest.
fn colouring(plan: &Plan, found: &mut Found) {
    let mut largest = vec![0; plan.buffers.len()];
    let mut tenants: BTreeMap<(u32, u32), Vec<(u32, u32)>> = BTreeMap::new();
    let mut counts: BTreeMap<u32, (u64, BTreeSet<u32>, u64)> = BTreeMap::new();
    for (tensor, placement) in plan.program.tensors.iter().zip(&plan.placements) {
        let Some(buffer) = placement.buffer else { continue };
        let mut add = |what| found.add(Rule::R8, &tensor.name, format!("buffer {buffer}: {what}"));
        let Some(bytes) = largest.get_mut(buffer as usize) else {
            add("no such buffer");
            continue;
        };
        *bytes = placement.bytes.max(*bytes);
        let (Some(phase), Some(interval)) = (tensor.phase, placement.interval) else {
            add("coloured, but not of one phase");
            continue;
        };
        tenants.entry((phase.0, buffer)).or_default().push((interval.first, interval.last));
        let (tensors, buffers, bytes) = counts.entry(phase.0).or_default();
        *tensors += 1;
        buffers.insert(buffer);
        *bytes = bytes.saturating_add(placement.bytes);
    }
    for ((_, buffer), mut intervals) in tenants {
        intervals.sort_unstable();
        if intervals.windows(2).any(|pair| pair[0].1 >= pair[1].0) {
            let what = "two tenants live at the same step";
            found.add(Rule::R8, &format!("buffer {buffer}"), what);
        }
    }
    for ((buffer, stated), largest) in (0..).zip(&plan.buffers).zip(largest) {
        if stated.bytes != largest {
            let what = format!("{} bytes, its largest tenant has {largest}", stated.bytes);
            found.add(Rule::R8, &format!("buffer {buffer}"), what);
        }
    }
    let summary = plan.summary;
    let stated = (summary.logical_tensors, summary.physical_buffers, summary.sum_of_tensor_bytes);
    let mut derived =
        counts.values().map(|(tensors, buffers, bytes)| (*tensors, buffers.len() as u64, *bytes));
    if !derived.any(|counts| counts == stated) && stated != (0, 0, 0) {
        found.add(Rule::R8, "summary", "counts no phase's colouring");
    }
}

/// Every transient stands in the transient region, and the figures are in order.
fn region(plan: &Plan, phases: &[PhaseFacts], found: &mut Found) {
    let arena = &plan.arena;
    let mut add = |what: String| found.add(Rule::R7, "arena", what);
    let end = arena.transient_offset.checked_add(arena.transient_bytes);
    if end.is_none_or(|end| end > arena.bytes) {
        add(format!("the transient region passes the arena's {} bytes", arena.bytes));
    }
    for (peak, bytes, of) in [
        (arena.live_peak_bytes, arena.bytes, "arena"),
        (arena.transient_live_peak_bytes, arena.transient_bytes, "transient region"),
    ] {
        if peak > bytes {
            add(format!("live peak {peak} above the {bytes} bytes of the {of}"));
        }
    }
    for id in (0..plan.program.tensors.len()).map(TensorId::of) {
        let (Some(_), placement) = (steps(plan, phases, id), plan.placements[id.index()]) else {
            continue;
        };
        let Some(offset) = placement.offset else { continue };
        if offset < arena.transient_offset || end.is_none_or(|end| offset + placement.bytes > end) {
            add(format!("{} is outside the transient region", plan.program.tensor(id).name));
        }
    }
}

/// The witness is needed at once: no placement can do with fewer bytes than its sum.
fn witness(plan: &Plan, phases: &[PhaseFacts], lives: &[Life], found: &mut Found) {
    let arena = &plan.arena;
    let mut add = |what: String| found.add(Rule::R7, "witness", what);
    let dims = plan.program.dims_max();
    let mut distinct = BTreeSet::new();
    let (mut sum, mut transient_sum) = (0u64, 0u64);
    let mut transients = Vec::new();
    for id in &arena.witness {
        let tensor = plan.program.tensor(*id);
        if !distinct.insert(*id) {
            add(format!("names {} twice", tensor.name));
        }
        // A tensor that was given more than its size would lift the bound with it.
        let bytes = tensor.size.value(&dims).unwrap_or(0);
        if bytes != plan.placements[id.index()].bytes {
            add(format!("{} has more bytes than its size", tensor.name));
        }
        let aligned = bytes.checked_next_multiple_of(arena.alignment).unwrap_or(u64::MAX);
        sum = sum.saturating_add(aligned);
        if tensor.phase.is_some() {
            transient_sum = transient_sum.saturating_add(aligned);
            transients.push(*id);
        }
    }
    for (what, stated, derived) in [
        ("live peak", arena.live_peak_bytes, sum),
        ("transient live peak", arena.transient_live_peak_bytes, transient_sum),
    ] {
        if stated != derived {
            add(format!("{what} {stated}, but the witness adds up to {derived}"));
        }
    }
    let needed_in = |phase: usize| {
        arena.witness.iter().all(|id| match plan.program.tensor(*id).phase {
            Some(own) => own.index() == phase,
            None => lives[id.index()].live & 1 << phase != 0,
        })
    };
    let Some(phase) = (0..phases.len()).find(|phase| needed_in(*phase)) else {
        add("not all of one phase or live through it".to_string());
        return;
    };
    if transients.len().saturating_mul(transients.len()) > PAIRS_MAX {
        add("too many tensors to compare every pair".to_string());
        return;
    }
    let (facts, pairs) = (&phases[phase], in_place(plan, &plan.program.phases[phase], None));
    for (i, a) in transients.iter().enumerate() {
        for b in &transients[..i] {
            if ordered(facts, &pairs, *a, *b) {
                let name = |id: TensorId| &plan.program.tensor(id).name;
                add(format!("{} and {} are not needed at once", name(*a), name(*b)));
                return;
            }
        }
    }
}

fn envelope(plan: &Plan, phases: &[PhaseFacts], lives: &[Life], found: &mut Found) {
    let envelope = &plan.envelope;
    let mut add = |what: String| found.add(Rule::R8, "envelope", what);
    let terms = [envelope.weights, envelope.kv, envelope.persistent, envelope.intermediate];
    let arena = terms.iter().try_fold(0u64, |sum, term| sum.checked_add(*term));
    if arena != Some(plan.arena.bytes) {
        add(format!("weights, kv, persistent and intermediate are not {}", plan.arena.bytes));
    }
    let total = arena.zip(envelope.runtime.total()).and_then(|(a, b)| a.checked_add(b));
    if total != Some(envelope.total) {
        add(format!("its terms do not add up to {}", envelope.total));
    }
    if envelope.load_peak > envelope.total {
        add(format!("load peak {} above the total {}", envelope.load_peak, envelope.total));
    }
    if envelope.hardware != plan.machine.memory_bytes {
        let limit = plan.machine.memory_bytes;
        add(format!("hardware {} is not the machine's {limit}", envelope.hardware));
    }
    let needed = exclusive_bytes(plan, phases, lives);
    for ((term, stated), needed) in Term::ALL.into_iter().zip(terms).zip(needed) {
        if stated < needed {
            add(format!("{} {stated}, but its tensors take {needed} bytes", term.name()));
        }
    }
}

/// For each term, the bytes of the arena that tensors of this term alone stand on.
fn exclusive_bytes(plan: &Plan, phases: &[PhaseFacts], lives: &[Life]) -> [u64; 4] {
    let mut edges = Vec::new();
    for id in (0..plan.program.tensors.len()).map(TensorId::of) {
        let used = steps(plan, phases, id).is_some() || lives[id.index()].touched != 0;
        let (true, placement) = (used, plan.placements[id.index()]) else { continue };
        let Some(offset) = placement.offset else { continue };
        let term = plan.program.tensor(id).term as usize;
        edges.push((offset, term, 1i64));
        edges.push((offset + placement.bytes, term, -1));
    }
    edges.sort_unstable();
    let (mut open, mut sums, mut from) = ([0i64; 4], [0u64; 4], 0);
    for (at, term, change) in edges {
        let mut terms = (0..4).filter(|term| open[*term] > 0);
        if let (Some(only), None) = (terms.next(), terms.next()) {
            sums[only] += at - from;
        }
        from = at;
        open[term] += change;
    }
    sums
}
