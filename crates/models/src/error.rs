//! What can be wrong with a model that its file format allows.

use std::fmt;

/// A defect or an unsupported feature of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelError {
    /// The architecture is not one that is built here.
    UnknownArchitecture {
        /// Its name in the file.
        name: String,
    },
    /// A metadata key is missing, or its value has the wrong type.
    Metadata {
        /// What the reader said: key, expected and found type, byte offset.
        message: String,
    },
    /// A metadata value is out of range.
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is accepted.
        expected: String,
    },
    /// A feature that is not supported.
    Unsupported {
        /// What.
        what: String,
    },
    /// A tensor is missing.
    MissingTensor {
        /// Its name.
        name: String,
        /// The shape that it should have, in file order.
        expected: Vec<u64>,
    },
    /// A tensor has another shape.
    WrongShape {
        /// Its name.
        name: String,
        /// The shape that it should have, in file order.
        expected: Vec<u64>,
        /// The shape that it has.
        found: Vec<u64>,
    },
    /// A tensor has an element type that its use does not support.
    WrongType {
        /// Its name.
        name: String,
        /// The type that it has.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A tensor that the architecture does not use.
    UnknownTensor {
        /// Its name.
        name: String,
        /// The architecture.
        architecture: String,
    },
    /// A bound that makes no sense for the model.
    Bound {
        /// What is wrong, with both numbers.
        what: String,
    },
    /// Sizes pass 64 bits.
    Overflow {
        /// Where.
        what: String,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::UnknownArchitecture { name } => write!(
                f,
                "unsupported architecture {name:?} (general.architecture); supported: {}",
                crate::ARCHITECTURES.join(", ")
            ),
            ModelError::Metadata { message } => f.write_str(message),
            ModelError::BadValue { key, value, expected } => {
                write!(f, "metadata {key}: {value} is out of range, expected {expected}")
            }
            ModelError::Unsupported { what } => write!(f, "unsupported feature: {what}"),
            ModelError::MissingTensor { name, expected } => {
                write!(f, "tensor {name} is missing, expected shape {expected:?}")
            }
            ModelError::WrongShape { name, expected, found } => {
                write!(f, "tensor {name} has shape {found:?}, expected {expected:?}")
            }
            ModelError::WrongType { name, found, expected } => {
                write!(f, "tensor {name} has type {found}, expected {expected}")
            }
            ModelError::UnknownTensor { name, architecture } => {
                write!(f, "tensor {name} is not one that architecture {architecture} uses")
            }
            ModelError::Bound { what } => f.write_str(what),
            ModelError::Overflow { what } => write!(f, "{what} passes 64 bits"),
        }
    }
}

impl std::error::Error for ModelError {}
