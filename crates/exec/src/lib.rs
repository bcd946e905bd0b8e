//! Executes a certified plan inside one arena.
//!
//! Linking resolves every task to numbers; a session maps the arena, starts the lanes and runs
//! phases. The token path interprets flat commands: no map, no lock, no allocation, no system
//! call but a futex.
//!
//! **Invariant:** this crate alone turns an offset into a pointer, and only in `memory`; it links
//! nothing without a [`dctms_verifier::Certificate`]; it must not know planning, files, text.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod beside;
mod command;
pub mod error;
mod host;
mod lane;
mod link;
pub mod load;
mod memory;
mod order;
mod retired;
mod run;
pub mod sample;
pub mod session;
pub mod trace;

pub use beside::{Beside, LongRun, Preparing};
pub use error::ExecError;
pub use host::HostTensor;
pub use load::{Constant, LoadHost};
pub use retired::RetiredSession;
pub use session::{CertifiedPlan, ConstantBytes, FilePart, Ran, Session, SessionOptions};
