//! Data only: dims, tensors, operations and their contracts, phases, schedules, plans, envelopes,
//! and their text form.
//!
//! What lives here is believed by every stage; nothing here decides anything. It must not know
//! files, kernels, threads, or how a plan is found.

#![forbid(unsafe_code)]

pub mod contract;
pub mod ids;
pub mod join;
pub mod json;
pub mod limits;
pub mod op;
pub mod plan;
pub mod program;
pub mod region;
pub mod size;
pub mod tensor;
pub mod twin;
pub mod vision;

pub use ids::{DimId, EventId, OpId, PhaseId, TensorId};
pub use op::{Op, OpKind};
pub use plan::Plan;
pub use program::Program;
pub use size::Size;
pub use tensor::{Dtype, Residence, Tensor};
