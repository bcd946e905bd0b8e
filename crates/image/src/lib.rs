//! Pictures for vision models: an untrusted file in, rows of RGB bytes out.
//!
//! ```text
//! file ──header──▶ size, checked ──decode──▶ Picture ──preprocess──▶ tiles ──▶ caller's buffers
//! ```
//!
//! Three rules hold everywhere. *The size is known before anything is reserved*: headers are read
//! by hand, compared with the caller's bounds, and only then a decoder starts. *Files are read in
//! pieces*: what a decoder takes is stated by [`ImageBounds::decode_heap_bytes`] from the bounds
//! alone, never from the file. *A resized picture is not kept*: rows are computed when a tile
//! asks for them, so one tile costs one tile and a few rows.
//!
//! Resampling is Pillow's, bit for bit; geometry is that of the processors that the models were
//! trained with. Pixels become numbers (scaled, normalised, cut into patches) elsewhere.
//!
//! Believes: nothing of a file. Must not know: models, plans, memory regions, paths.

#![forbid(unsafe_code)]

pub mod bounds;
pub mod decode;
pub mod error;
pub mod header;
pub mod limits;
mod orientation;
pub mod picture;
pub mod preprocess;
pub mod resize;
mod window;

pub use bounds::ImageBounds;
pub use decode::decode;
pub use error::ImageError;
pub use header::{Format, Header};
pub use picture::{Picture, Size};
