//! C5 and R3 across phases: which tensors live through which phase, and whether every read has a
//! write before it on every way through the flow.
//!
//! A phase *exposes* a tensor when its first touch reads: the value comes from outside. A tensor
//! is live at the end of a phase when some phase that may follow exposes it, or leaves it alone
//! and is live at its own end; this is the least fixpoint. Sets of phases are 64-bit words.
//!
//! Constants are more than the format asks for: once written they never change, read or not, since
//! they may be lent to readers beside any phase. So one phase writes one, and never runs again.

use std::collections::BTreeMap;

use dctms_ir::limits::PHASES_MAX;
use dctms_ir::{Plan, Residence, TensorId};

use crate::facts::PhaseFacts;
use crate::violation::{Found, Rule};

/// A set of phases.
pub(crate) type Phases = u64;

const _: () = assert!(PHASES_MAX <= Phases::BITS as usize);

/// Where a tensor lives.
#[derive(Clone, Copy, Default)]
pub(crate) struct Life {
    /// Phases that touch it.
    pub(crate) touched: Phases,
    /// Phases that write it.
    pub(crate) written: Phases,
    /// Whether any phase reads it.
    read: bool,
    /// Phases whose first touch reads it.
    exposed: Phases,
    /// Phases at whose start or end a later read needs it.
    pub(crate) live: Phases,
    /// As `live`; every phase for constants, and for what the host may touch between any two.
    pub(crate) kept: Phases,
}

/// The lives of every tensor, in id order. Empty for transients.
pub(crate) fn lives(plan: &Plan, phases: &[PhaseFacts], found: &mut Found) -> Vec<Life> {
    let flow = Flow::of(plan);
    let mut states: BTreeMap<&str, TensorId> = BTreeMap::new();
    let ids = (0..plan.program.tensors.len()).map(TensorId::of);
    ids.map(|id| {
        let tensor = plan.program.tensor(id);
        if tensor.phase.is_some() {
            return Life::default();
        }
        if let Some(state) = &tensor.state
            && states.insert(state, id).is_some()
        {
            // No operation takes one version and gives the next: a state is updated as one tensor.
            found.add(Rule::R4, state, "two tensors are versions of it");
        }
        let mut life = Life::default();
        for (phase, facts) in phases.iter().enumerate() {
            let touches = facts.touches(id);
            let bit = 1 << phase;
            life.read |= touches.iter().any(|touch| touch.access.mode.reads());
            life.touched |= if touches.is_empty() { 0 } else { bit };
            if touches.first().is_some_and(|touch| touch.access.mode.reads()) {
                life.exposed |= bit;
            }
            if touches.iter().any(|touch| touch.access.mode.writes()) {
                life.written |= bit;
            }
        }
        life.live = flow.live(&life);
        // What no phase reads is written for the host, which may read it between any two phases.
        let stays = match tensor.residence {
            Residence::External | Residence::Constant => true,
            Residence::State | Residence::Carried | Residence::Transient => !life.read,
        };
        life.kept = if stays { Phases::MAX } else { life.live };
        let changes = flow.comes_again(life.written) || life.written.count_ones() > 1;
        if tensor.residence == Residence::Constant && changes {
            found.add(Rule::R3, &tensor.name, "a constant that is written more than once");
        }
        match tensor.residence {
            // The host gives these their first value.
            Residence::External | Residence::State => {}
            Residence::Constant | Residence::Carried | Residence::Transient => {
                for phase in flow.unwritten(&life) {
                    let phase = &plan.program.phases[phase].name;
                    let what = format!("{phase} may read it before any phase has written it");
                    found.add(Rule::R3, &tensor.name, what);
                }
            }
        }
        life
    })
    .collect()
}

struct Flow {
    entry: Phases,
    next: Vec<Phases>,
}

impl Flow {
    fn of(plan: &Plan) -> Flow {
        let set = |ids: &[dctms_ir::PhaseId]| ids.iter().fold(0, |set, id| set | 1 << id.index());
        let flow = &plan.program.flow;
        Flow { entry: set(&flow.entry), next: flow.next.iter().map(|ids| set(ids)).collect() }
    }

    /// Phases at whose start or end the tensor is live.
    fn live(&self, life: &Life) -> Phases {
        let overwritten = life.touched & !life.exposed;
        let mut at_end: Phases = 0;
        loop {
            let at_start = life.exposed | (at_end & !overwritten);
            let live = (0..).zip(&self.next).filter(|(_, next)| **next & at_start != 0);
            let grown = live.fold(0, |set, (phase, _)| set | 1 << phase);
            if grown == at_end {
                return at_start | at_end;
            }
            at_end = grown;
        }
    }

    /// Phases that expose the tensor and can be reached with no phase before that writes it.
    fn unwritten(&self, life: &Life) -> Vec<usize> {
        let reached = self.reached(self.entry, !life.written);
        (0..self.next.len()).filter(|phase| reached & life.exposed & 1 << phase != 0).collect()
    }

    /// Whether one of these may run again, or another of them after it.
    fn comes_again(&self, phases: Phases) -> bool {
        self.reached(self.followers(phases), Phases::MAX) & phases != 0
    }

    /// These phases and all that may come after them, on ways through some phases.
    fn reached(&self, from: Phases, through: Phases) -> Phases {
        let grown = from | self.followers(from & through);
        if grown == from { from } else { self.reached(grown, through) }
    }

    /// Phases that may follow one of these.
    fn followers(&self, phases: Phases) -> Phases {
        let sets = (0..).zip(&self.next).filter(|(phase, _)| phases & 1 << phase != 0);
        sets.fold(0, |set, (_, next)| set | next)
    }
}
