//! Model files: untrusted bytes in, a typed checkpoint or a typed error out.
//!
//! A GGUF file is a header (metadata, then a table of tensors) and, after padding, the tensors'
//! bytes. Planning needs the header alone, so this crate reads the header alone: through a window
//! of 64 KiB, keeping compact tables whose sum is bounded by [`limits`], never the large arrays
//! (a tokeniser's 262,144 strings stay in the file and are streamed when somebody wants them).
//!
//! ```text
//!   Source ──Cursor──▶ header ──▶ Checkpoint ──▶ accessors, tensor table, streams, tensor bytes
//!   (pread)  (window)  (tables)   (all shards)
//! ```
//!
//! It believes nothing that the file says: every count is compared with a limit and with the
//! bytes that are left before anything is done with it, every sum and product is checked, and
//! nothing is ever reserved by a claimed count. It must not know what a model is: which keys an
//! architecture needs, how a block of weights is decoded and where tensors go in memory are the
//! business of other crates.

#![forbid(unsafe_code)]

mod array;
mod checkpoint;
mod cursor;
mod error;
mod fault;
mod ggml_type;
mod header;
pub mod limits;
mod metadata;
mod shard;
mod source;
mod tensor;
mod text;
mod value;
pub mod write;

pub use array::{ArrayRef, ScalarReader, StringReader};
pub use checkpoint::{Checkpoint, HistogramRow};
pub use error::Error;
pub use fault::{Defect, Fault, Field, Subject};
pub use ggml_type::GgmlType;
pub use shard::{ShardName, shard_file_name};
pub use source::{FileSource, Source};
pub use tensor::Tensor;
pub use value::{Scalar, Value, ValueType};
