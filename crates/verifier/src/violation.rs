//! What can be wrong with a plan: the rule that is broken, where, and the names and numbers that
//! show it.

use std::fmt;

use dctms_ir::Op;
use dctms_ir::program::Phase;

use crate::limits::VIOLATIONS_MAX;

/// A rule that a plan may break. R1 to R8 stand in the description of the plan format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The plan cannot be read as one, or is for another program.
    Form,
    /// Operands break an operation's contract.
    Contract,
    /// Every read of a transient has a write before it.
    R1,
    /// Conflicting accesses are ordered; used in-place pairs are allowed ones.
    R2,
    /// What lives through a phase is not overwritten in it, and was written before.
    R3,
    /// A state stands in one place.
    R4,
    /// Every task starts, every shard exists once.
    R5,
    /// Bytes are enough, aligned, inside the arena.
    R6,
    /// The witness shows the stated lower bound.
    R7,
    /// Colouring and envelope are true and add up.
    R8,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Where: a tensor, `phase/operation`, or a part of the plan.
    pub at: String,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.rule, self.at, self.what)
    }
}

impl std::error::Error for Violation {}

/// Violations found so far, bounded.
#[derive(Default)]
pub(crate) struct Found(Vec<Violation>);

impl Found {
    pub(crate) fn add(&mut self, rule: Rule, at: &str, what: impl Into<String>) {
        if !self.is_full() {
            self.0.push(Violation { rule, at: at.to_string(), what: what.into() });
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= VIOLATIONS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_list(self) -> Vec<Violation> {
        self.0
    }
}

/// An operation by name.
pub(crate) fn place(phase: &Phase, op: &Op) -> String {
    format!("{}/{}", phase.name, op.name)
}
