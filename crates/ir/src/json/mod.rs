//! The plan as JSON: one object that a stranger can check with no code of ours.
//!
//! [`write`](fn@write) prints a plan, [`read`] takes it back: `read(&write(p)) == p`. The same
//! plan prints the same bytes. What is derived from other fields (identities, `access`, `may_in_place`,
//! totals) is printed for strangers and, on reading, must equal what the plan says. The `digest`
//! is the SHA-256 of the printed bytes with its own value left empty, so nothing may be printed
//! before or after the object, not even a newline.
//!
//! Reading believes nothing: sizes, depth, numbers, names and identities are checked here. That
//! the plan is *right* is not checked here; that is the verifier's work.

mod gap;
mod kinds;
mod parse;
mod read;
mod regions;
mod write;

pub use read::read;
pub use write::{digest, write};

/// Why a text is not a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// Not JSON, or past a limit of the reader.
    Syntax {
        /// Where, in bytes from the start.
        offset_bytes: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A value is missing, of another type, out of range, or contradicts the rest.
    Field {
        /// Where, e.g. `$.tensors[3].size`.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The digest is not that of the bytes.
    Digest {
        /// The digest that the text states.
        stated: String,
        /// The digest of its bytes.
        computed: String,
    },
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JsonError::Syntax { offset_bytes, what } => {
                write!(f, "plan JSON, byte {offset_bytes}: {what}")
            }
            JsonError::Field { path, what } => write!(f, "plan JSON, {path}: {what}"),
            JsonError::Digest { stated, computed } => {
                write!(f, "plan JSON: states digest {stated}, its bytes have {computed}")
            }
        }
    }
}

impl std::error::Error for JsonError {}

#[cfg(test)]
mod tests;
