//! For tests only: random programs, random right plans of them, mutations that may spoil a plan,
//! and a simulator that says whether a spoiled plan really computes something wrong.
//!
//! It knows the data types and the contracts, never the verifier or the planner: it is what they
//! are tested with.

#![forbid(unsafe_code)]

pub mod arrange;
pub mod generate;
pub mod mutate;
pub mod random;
pub mod shadow;
pub mod simulate;

pub use random::Random;
pub use simulate::{Corruption, Policy, exhaust, simulate};
