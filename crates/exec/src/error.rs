//! What can go wrong between a plan and its execution.

use std::fmt;

/// A failure of linking, loading or running.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecError {
    /// The certificate was made for another plan.
    WrongCertificate,
    /// The plan was made for another instruction set than the processor has.
    Isa {
        /// The plan's.
        wanted: String,
    },
    /// The operating system refused memory or a thread.
    System {
        /// What it said.
        message: String,
    },
    /// The session was to have fewer lanes than the plan has work for.
    Lanes {
        /// The plan's.
        needed: usize,
        /// The session's.
        value: usize,
    },
    /// Pages of the arena were to change while somebody holds bytes of a constant.
    Lent,
    /// Pages of a file were to take the place of more than constants.
    Mapped {
        /// Bytes of the file.
        len_bytes: usize,
        /// First bytes of the arena that hold constants alone.
        bound: usize,
    },
    /// Pages of a file were to come for the second time, or after something was loaded.
    MappedLate,
    /// The arena's first bytes were taken from it, and no pages of a file came in their place.
    Withheld,
    /// A dim is out of its bounds.
    Dim {
        /// Its name.
        name: String,
        /// The value asked for.
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// A phase was run that may not follow the one before it.
    Order {
        /// The phase.
        phase: String,
        /// The one before, if any.
        after: Option<String>,
    },
    /// A phase was run beside another, or with room for one beside it, and may not.
    Beside {
        /// The phase.
        phase: String,
        /// The one that goes on, if it is that which may not be beside it.
        beside: Option<String>,
    },
    /// Loading failed.
    Load {
        /// The tensor or table.
        what: String,
        /// Why.
        message: String,
    },
}

impl fmt::Display for ExecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecError::WrongCertificate => f.write_str("the certificate is of another plan"),
            ExecError::Isa { wanted } => {
                write!(f, "the plan is for instruction set {wanted}, which this processor lacks")
            }
            ExecError::System { message } => f.write_str(message),
            ExecError::Lent => f.write_str("a constant is lent, so the arena keeps its pages"),
            ExecError::Lanes { needed, value } => {
                write!(f, "the plan has work for {needed} lanes, the session has {value}")
            }
            ExecError::Mapped { len_bytes, bound } => write!(
                f,
                "{len_bytes} bytes of a file were to be mapped over the arena's first {bound}, \
                 which hold constants alone"
            ),
            ExecError::MappedLate => {
                f.write_str("a file is mapped before anything is loaded, and once")
            }
            ExecError::Withheld => f.write_str(
                "making the arena resident failed, and its first bytes are out of reach since",
            ),
            ExecError::Dim { name, value, min, max } => {
                write!(f, "{name} = {value} is outside the plan's bounds {min} to {max}")
            }
            ExecError::Order { phase, after: Some(after) } => {
                write!(f, "phase {phase} may not follow {after}")
            }
            ExecError::Order { phase, after: None } => {
                write!(f, "phase {phase} may not come first")
            }
            ExecError::Beside { phase, beside: Some(beside) } => {
                write!(f, "phase {phase} may not run beside {beside}")
            }
            ExecError::Beside { phase, beside: None } => {
                write!(f, "phase {phase} leaves no lane for what is to run beside it")
            }
            ExecError::Load { what, message } => write!(f, "loading {what}: {message}"),
        }
    }
}

impl std::error::Error for ExecError {}
