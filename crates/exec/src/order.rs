//! Which phase may run next: what the flow allows, and what a phase that failed leaves of it.
//!
//! Believes the plan's flow and its certificate. Runs nothing.

use dctms_ir::ids::PhaseId;
use dctms_ir::program::Flow;

use crate::beside::bit;
use crate::error::ExecError;
use crate::session::Session;

impl Session {
    /// Whether a phase may run now.
    pub(crate) fn check_order(&self, phase: PhaseId) -> Result<(), ExecError> {
        if self.withheld {
            return Err(ExecError::Withheld);
        }
        let finished = self.unfinished.is_none_or(|unfinished| unfinished == phase);
        match finished && follows(&self.flow, self.last, phase) {
            true => Ok(()),
            false => Err(self.order_error(phase)),
        }
    }

    pub(crate) fn order_error(&self, phase: PhaseId) -> ExecError {
        ExecError::Order {
            phase: self.phases[phase.index()].name.clone(),
            after: self.last.map(|last| self.phases[last.index()].name.clone()),
        }
    }

    /// Whether a loading phase may run in the place of one that failed: it may follow it, and no
    /// way from it comes to a phase that has to do with what the failed one writes, unless that one
    /// runs before. All else that lived through the failed phase is as it was (R3).
    pub(crate) fn may_replace(&self, failed: PhaseId, phase: PhaseId) -> bool {
        let missing = self.host_places.iter().filter(|host| host.written & bit(failed) != 0);
        let users = missing.fold(0, |all, host| all | host.shares.named) & !bit(failed);
        let mut reached = bit(phase);
        loop {
            let mut grown = reached;
            for (index, next) in self.flow.next.iter().enumerate() {
                if reached & !bit(failed) & bit(PhaseId::of(index)) != 0 {
                    grown = next.iter().fold(grown, |all, phase| all | bit(*phase));
                }
            }
            if grown == reached {
                break;
            }
            reached = grown;
        }
        follows(&self.flow, Some(failed), phase) && reached & users == 0 && !self.withheld
    }
}

/// Whether a phase may come after another, or first.
pub(crate) fn follows(flow: &Flow, after: Option<PhaseId>, phase: PhaseId) -> bool {
    match after {
        None => flow.entry.contains(&phase),
        Some(after) => flow.next[after.index()].contains(&phase),
    }
}
