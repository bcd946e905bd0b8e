//! Why a checkpoint cannot be read, or does not have what was asked of it, as data.
//!
//! Each variant names the file, the key or tensor, the byte offset, the bound or expectation and
//! the value. Text from the file is escaped when printed. Nothing here decides exit codes.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::fault::{Fault, Subject};
use crate::ggml_type::GgmlType;

/// Why a checkpoint cannot be read, or does not have what was asked of it.
#[derive(Debug)]
pub enum Error {
    /// A file cannot be opened.
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        error: io::Error,
    },
    /// A file is damaged or hostile, or of a version that is not supported.
    Format {
        /// Name of the file.
        file: String,
        /// Whose field.
        subject: Subject,
        /// What is wrong and where.
        fault: Box<Fault>,
    },
    /// A shard of the set cannot be opened.
    MissingShard {
        /// The shard's file.
        path: PathBuf,
        /// Its index in the set.
        index: u64,
        /// Shards in the set.
        count: u64,
        /// The operating system's word.
        error: io::Error,
    },
    /// The file is a shard that is not the first, or its name does not say which.
    NotFirstShard {
        /// Name of the file.
        file: String,
        /// `split.no`.
        index: u64,
        /// `split.count`.
        count: u64,
    },
    /// A metadata key that is not there.
    MissingKey {
        /// Name of the file.
        file: String,
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
    },
    /// A metadata value of another type, or out of the expected type's range.
    WrongType {
        /// Name of the file.
        file: String,
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
        /// Offset of the value in the file.
        offset: u64,
    },
    /// A metadata string that is no text.
    NotUtf8 {
        /// Name of the file.
        file: String,
        /// The key.
        key: String,
        /// Offset of the value in the file.
        offset: u64,
    },
    /// A metadata string longer than the reader allows.
    StringTooLong {
        /// Name of the file.
        file: String,
        /// The key.
        key: String,
        /// The bound in bytes.
        bound: u64,
        /// Its length in bytes.
        found: u64,
        /// Offset of the value in the file.
        offset: u64,
    },
    /// A tensor that is not there.
    MissingTensor {
        /// Name of the file.
        file: String,
        /// The tensor.
        name: String,
        /// The dimensions it should have, innermost first.
        expected: Vec<u64>,
    },
    /// A tensor of another shape.
    WrongShape {
        /// Name of the file.
        file: String,
        /// The tensor.
        name: String,
        /// The dimensions it should have, innermost first.
        expected: Vec<u64>,
        /// The dimensions it has.
        found: Vec<u64>,
        /// Offset of its table entry in the file.
        offset: u64,
    },
    /// A tensor of a type that the engine cannot run.
    UnsupportedType {
        /// Name of the file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type.
        ggml_type: GgmlType,
        /// Offset of its table entry in the file.
        offset: u64,
    },
    /// The file ends before the data of a tensor.
    Incomplete {
        /// Name of the file.
        file: String,
        /// The first tensor that passes the end.
        name: String,
        /// Offset of its data in the file.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
        /// The file's length in bytes.
        file_len_bytes: u64,
    },
    /// The operating system failed to read data behind the header.
    Read {
        /// Name of the file.
        file: String,
        /// What was read: a key or a tensor.
        name: String,
        /// Offset of the read in the file.
        offset: u64,
        /// The operating system's word.
        error: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Format { file, subject: Subject::File, fault } => write!(f, "{file}: {fault}"),
            Self::Format { file, subject, fault } => write!(f, "{file}: {subject}: {fault}"),
            Self::MissingShard { path, index, count, error } => {
                write!(
                    f,
                    "{}: shard {} of {count} cannot be opened: {error}",
                    path.display(),
                    index + 1
                )
            }
            Self::NotFirstShard { file, index, count } => write!(
                f,
                "{file}: this is shard {} of {count}; give the first, \
                 named like NAME-00001-of-{count:05}.gguf",
                index + 1
            ),
            Self::MissingKey { file, key, expected } => {
                write!(f, "{file}: metadata key {key:?} ({expected}) is missing")
            }
            Self::WrongType { file, key, expected, found, offset } => write!(
                f,
                "{file}: metadata key {key:?} at byte {offset}: expected {expected}, found {found}"
            ),
            Self::NotUtf8 { file, key, offset } => {
                write!(f, "{file}: metadata key {key:?} at byte {offset}: not valid UTF-8")
            }
            Self::StringTooLong { file, key, bound, found, offset } => write!(
                f,
                "{file}: metadata key {key:?} at byte {offset}: string of {found} bytes \
                 exceeds the bound {bound}"
            ),
            Self::MissingTensor { file, name, expected } => {
                write!(f, "{file}: tensor {name:?} with dimensions {expected:?} is missing")
            }
            Self::WrongShape { file, name, expected, found, offset } => write!(
                f,
                "{file}: tensor {name:?} (entry at byte {offset}): \
                 expected dimensions {expected:?}, found {found:?}"
            ),
            Self::UnsupportedType { file, name, ggml_type, offset } => write!(
                f,
                "{file}: tensor {name:?} (entry at byte {offset}): \
                 type {ggml_type} is not supported"
            ),
            Self::Incomplete { file, name, offset, len_bytes, file_len_bytes } => write!(
                f,
                "{file}: the file is incomplete: tensor {name:?} has {len_bytes} bytes \
                 at byte {offset}, the file ends at {file_len_bytes}"
            ),
            Self::Read { file, name, offset, error } => {
                write!(f, "{file}: cannot read {name:?} at byte {offset}: {error}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { error, .. }
            | Self::MissingShard { error, .. }
            | Self::Read { error, .. } => Some(error),
            Self::Format { .. }
            | Self::NotFirstShard { .. }
            | Self::MissingKey { .. }
            | Self::WrongType { .. }
            | Self::NotUtf8 { .. }
            | Self::StringTooLong { .. }
            | Self::MissingTensor { .. }
            | Self::WrongShape { .. }
            | Self::UnsupportedType { .. }
            | Self::Incomplete { .. } => None,
        }
    }
}
