//! Re-derives every promise of a plan from the program and the plan alone.
//!
//! # What is proved
//!
//! A program means its sequential execution: each phase's operations one after the other in
//! program order, every tensor in memory of its own, phases in any order that the flow allows (one
//! that overlaps an earlier one need not wait for its end, and yet means the same). A plan runs
//! shards of operations on several lanes, ordered only by lanes and events, in one arena where
//! tensors share bytes. [`verify`] accepts a plan only if every execution that the
//! plan allows reads, byte for byte, what the sequential one reads:
//!
//! - **C1** every task starts: the lanes and events have no cycle, all shards exist once (`order`);
//! - **C2** every tensor is as large as its size at the dims' maxima (sizes are monotone, so it is
//!   large enough in every smaller run), aligned, inside the arena (`sizes`);
//! - **C3** two operations that touch one tensor in slices that are not disjoint, one writing, are
//!   ordered as in the program (`edges`);
//! - **C4** of two tensors with common bytes, one is wholly done before the first write of the
//!   other; what lives through a phase shares with nothing that the phase writes; phases that may
//!   run at the same time touch no common bytes that either writes (`bytes`); a constant is written
//!   by one phase that never comes again, and shares with nothing, so that it may be read at any
//!   time after that (`flow`, `bytes`);
//! - **C5** every read has a write before it on every way through the flow, and nothing in between
//!   took its bytes (`flow`, `edges`);
//! - **C6** the one exception to C4 is a pair (output, input) of one operation that its contract
//!   allows, in equal slices (`bytes`);
//! - **C7** the figures of the arena, the lower bound's witness, the colouring and the envelope are
//!   true and add up (`account`).
//!
//! # What is believed
//!
//! The contracts in `dctms_ir::contract`: that an operation's shard touches the slices stated
//! there and nothing else. Barriers of all lanes between phases. That the host touches tensors only
//! between phases: `external` ones as it likes, those that no phase reads to read them, and
//! `state` to give it a value that a later phase reads.
//!
//! # What this crate must not know
//!
//! How a plan is found. It depends on the data types alone, computes its own happens-before, and
//! shares no code with the planner; only here can a [`Certificate`] be made.

#![forbid(unsafe_code)]

mod account;
mod bytes;
mod edges;
mod facts;
mod flow;
mod form;
pub mod limits;
mod order;
mod sizes;
mod violation;

use dctms_ir::{Plan, Program, json};

use violation::Found;
pub use violation::{Rule, Violation};

/// Proof that a plan was verified. It holds the digest of the plan as printed, which covers its
/// program, so that whoever runs the plan can check that it is the one that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    digest: [u8; 32],
    arena_len_bytes: u64,
}

impl Certificate {
    /// SHA-256 of the plan: equal to [`json::digest`] of the verified plan.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Bytes of the verified plan's arena.
    #[must_use]
    pub fn arena_len_bytes(&self) -> u64 {
        self.arena_len_bytes
    }

    /// Whether this plan is the verified one.
    #[must_use]
    pub fn is_of(&self, plan: &Plan) -> bool {
        self.digest == json::digest(plan)
    }
}

/// Checks a plan against its program.
///
/// # Errors
/// Every violation found, at least one and at most [`limits::VIOLATIONS_MAX`]. Later clauses are
/// only looked at when those that they rest on hold.
pub fn verify(program: &Program, plan: &Plan) -> Result<Certificate, Vec<Violation>> {
    let mut found = Found::default();
    if *program != plan.program {
        found.add(Rule::Form, "program", "the plan is for another program");
    }
    check(plan, &mut found);
    if !found.is_empty() {
        return Err(found.into_list());
    }
    Ok(Certificate { digest: json::digest(plan), arena_len_bytes: plan.arena.bytes })
}

fn check(plan: &Plan, found: &mut Found) {
    form::check(plan, found);
    if !found.is_empty() {
        return;
    }
    // From here on every identity indexes its array.
    let phases = facts::phases(plan, found);
    sizes::check(plan, &phases, found);
    if !found.is_empty() {
        return;
    }
    // From here on every task starts, every shard exists, every size has a value.
    let lives = flow::lives(plan, &phases, found);
    edges::check(plan, &phases, found);
    bytes::check(plan, &phases, &lives, found);
    account::check(plan, &phases, &lives, found);
}
