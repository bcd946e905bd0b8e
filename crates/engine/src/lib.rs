//! Requests, sampling and generation over an executable.
//!
//! The library's envelope is the arena plus the heap that the caller declares; allocator, latch
//! and process limits belong to the binary. The engine must not know HTTP, arguments or exit
//! codes beyond their classes.

#![forbid(unsafe_code)]

pub mod artefact;
pub mod bench;
pub mod error;
pub mod evaluate;
pub mod eyes;
pub mod generation;
pub mod loading;
pub mod model;
pub mod model_file;
pub mod peaks;
pub mod pictures;
pub mod planning;
pub mod rotary;
pub mod runner;
pub mod session;
pub mod turns;
pub mod vocabulary;

pub use dctms_models::VisionMode;
pub use error::{Class, EngineError};
pub use eyes::{Eyes, ImageLimits};
pub use model::{Model, ModelFiles};
pub use runner::Runner;
