//! Why no plan could be made.

use std::fmt;

use dctms_ir::contract::Malformed;
use dctms_ir::join::JoinError;

/// A failure of planning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The program breaks an operation's contract.
    Malformed(Malformed),
    /// A size passes 64 bits at the bounds' maximum.
    Overflow {
        /// The tensor.
        tensor: String,
    },
    /// The packer refused the problem.
    Packing {
        /// The phase.
        phase: String,
        /// What it said.
        message: String,
    },
    /// The programs cannot be joined.
    Join(JoinError),
    /// Lanes out of range.
    Lanes {
        /// Asked for.
        lanes: u32,
        /// Greatest number.
        max: usize,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Malformed(malformed) => malformed.fmt(f),
            PlanError::Join(error) => error.fmt(f),
            PlanError::Overflow { tensor } => {
                write!(f, "tensor {tensor}: its size passes 64 bits at these bounds")
            }
            PlanError::Packing { phase, message } => write!(f, "packing phase {phase}: {message}"),
            PlanError::Lanes { lanes, max } => write!(f, "lanes {lanes}: 1 to {max}"),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<Malformed> for PlanError {
    fn from(malformed: Malformed) -> Self {
        PlanError::Malformed(malformed)
    }
}

impl From<JoinError> for PlanError {
    fn from(error: JoinError) -> Self {
        PlanError::Join(error)
    }
}
