//! Tensors that live across phases, as the host knows them: where each stands, and which phases
//! have to do with it.
//!
//! Believes the plan, which was certified. Gives places, never bytes: those are the session's to
//! lend.

use dctms_ir::Residence;
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::op::{Op, OpKind};
use dctms_ir::plan::Plan;

use crate::beside::{Shares, bit};
use crate::memory::Place;

/// Where a host-visible tensor stands, and which phases have to do with it. Good for the session
/// that gave it, and refused by any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTensor {
    pub(crate) session: u64,
    pub(crate) place: Place,
    pub(crate) shares: Shares,
}

impl HostTensor {
    /// The place, for the session of this number.
    ///
    /// # Panics
    /// When another session gave the tensor.
    pub(crate) fn place_in(self, session: u64) -> Place {
        assert_eq!(self.session, session, "{:?} is of another session", self.place);
        self.place
    }
}

/// A tensor that lives across phases.
pub(crate) struct HostPlace {
    pub tensor: TensorId,
    pub place: Place,
    pub residence: Residence,
    pub shares: Shares,
    /// Phases that write it, one bit each.
    pub written: u64,
}

/// The tensors of a plan that live across phases and have a place.
pub(crate) fn host_places(plan: &Plan) -> Vec<HostPlace> {
    let place = |index: usize| {
        let placement = &plan.placements[index];
        let offset = placement.offset?;
        Some(Place { offset: offset as usize, len: placement.bytes as usize })
    };
    let mut named = vec![0; plan.program.tensors.len()];
    let mut written = named.clone();
    for (index, phase) in plan.program.phases.iter().enumerate() {
        for op in &phase.ops {
            for id in op.inputs.iter().chain(&op.outputs).chain(&op.workspace) {
                named[id.index()] |= bit(PhaseId::of(index));
            }
            for id in op.outputs.iter().chain(&op.workspace) {
                written[id.index()] |= bit(PhaseId::of(index));
            }
        }
    }
    let touched = |own: Place| {
        let common = |other: Place| {
            own.offset < other.offset + other.len && other.offset < own.offset + own.len
        };
        // Only phases that others run beside are ever asked for.
        match plan.program.flow.overlap.is_empty() {
            true => u64::MAX,
            false => (0..named.len())
                .filter(|other| place(*other).is_some_and(common))
                .fold(0, |all, other| all | named[other]),
        }
    };
    let mut places = Vec::new();
    for (index, tensor) in plan.program.tensors.iter().enumerate() {
        let (None, Some(place)) = (tensor.phase, place(index)) else { continue };
        let shares = Shares { named: named[index], touched: touched(place) };
        let (written, residence) = (written[index], tensor.residence);
        let tensor = TensorId::of(index);
        places.push(HostPlace { tensor, place, residence, shares, written });
    }
    places
}

/// How many of the arena's first bytes nothing stands on but constants that are loaded.
pub(crate) fn constants_len_bytes(plan: &Plan) -> usize {
    let tensors = &plan.program.tensors;
    let mut other: Vec<bool> =
        tensors.iter().map(|tensor| tensor.residence != Residence::Constant).collect();
    for op in plan.program.phases.iter().flat_map(|phase| &phase.ops) {
        written_otherwise(op).for_each(|id| other[id.index()] = true);
    }
    let placed = other.iter().zip(&plan.placements);
    let others = placed.filter(|(other, placement)| **other && placement.bytes > 0);
    let first = others.filter_map(|(_, placement)| placement.offset).min();
    first.unwrap_or(plan.arena.bytes) as usize
}

/// What an operation writes but for what it loads.
fn written_otherwise(op: &Op) -> impl Iterator<Item = TensorId> + '_ {
    let loads = matches!(
        op.kind,
        OpKind::LoadMatrix(_)
            | OpKind::LoadVector(_)
            | OpKind::LoadRopeFrequencies { .. }
            | OpKind::LoadTokenizer { .. }
    );
    let outputs = if loads { &[][..] } else { &op.outputs[..] };
    outputs.iter().chain(&op.workspace).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate lets any operation write a constant; only loading leaves out what is mapped.
    #[test]
    fn only_what_loading_gives_may_be_mapped() {
        let written = |kind: OpKind| -> Vec<TensorId> {
            let op = Op {
                name: "one".to_string(),
                kind,
                inputs: vec![TensorId(0)],
                outputs: vec![TensorId(1)],
                workspace: vec![TensorId(2)],
                grain: 1,
                in_place: Vec::new(),
            };
            written_otherwise(&op).collect()
        };
        assert_eq!(written(OpKind::LoadTokenizer { offset: 0, bytes: 1 }), [TensorId(2)]);
        assert_eq!(written(OpKind::Add), [TensorId(1), TensorId(2)]);
    }
}
