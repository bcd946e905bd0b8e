//! One error for everything that a request or a plan can fail on, each with its class.

use std::fmt;

/// The class of an error: it decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A defect or an unsupported feature of a file.
    File,
    /// M_max is above the machine's limit.
    DoesNotFit,
    /// A request passes a bound of the plan.
    OverBound,
    /// The command line is wrong.
    Usage,
    /// The operating system refused something.
    System,
}

impl Class {
    /// The name in answers to requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::File => "file",
            Class::DoesNotFit => "does_not_fit",
            Class::OverBound => "over_bound",
            Class::Usage => "usage",
            Class::System => "system",
        }
    }

    /// The documented exit code.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Class::File => 2,
            Class::DoesNotFit => 3,
            Class::OverBound => 4,
            Class::Usage => 64,
            Class::System => 1,
        }
    }
}

/// An error with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// What kind.
    pub class: Class,
    /// What, where, which bound, what would fit.
    pub message: String,
}

impl EngineError {
    /// An error of a class.
    pub fn new(class: Class, message: impl fmt::Display) -> EngineError {
        EngineError { class, message: message.to_string() }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EngineError {}

impl From<dctms_models::ModelError> for EngineError {
    fn from(error: dctms_models::ModelError) -> Self {
        let class = match error {
            dctms_models::ModelError::Bound { .. } => Class::Usage,
            dctms_models::ModelError::UnknownArchitecture { .. }
            | dctms_models::ModelError::Metadata { .. }
            | dctms_models::ModelError::BadValue { .. }
            | dctms_models::ModelError::Unsupported { .. }
            | dctms_models::ModelError::MissingTensor { .. }
            | dctms_models::ModelError::WrongShape { .. }
            | dctms_models::ModelError::WrongType { .. }
            | dctms_models::ModelError::UnknownTensor { .. }
            | dctms_models::ModelError::Overflow { .. } => Class::File,
        };
        EngineError::new(class, error)
    }
}

impl From<dctms_planner::PlanError> for EngineError {
    fn from(error: dctms_planner::PlanError) -> Self {
        EngineError::new(Class::File, error)
    }
}

impl From<dctms_format::Error> for EngineError {
    fn from(error: dctms_format::Error) -> Self {
        EngineError::new(Class::File, error)
    }
}

impl From<dctms_system::SystemError> for EngineError {
    fn from(error: dctms_system::SystemError) -> Self {
        EngineError::new(Class::System, error)
    }
}

impl From<dctms_exec::ExecError> for EngineError {
    fn from(error: dctms_exec::ExecError) -> Self {
        let class = match error {
            dctms_exec::ExecError::Dim { .. } => Class::OverBound,
            dctms_exec::ExecError::Load { .. } => Class::File,
            dctms_exec::ExecError::WrongCertificate
            | dctms_exec::ExecError::Isa { .. }
            | dctms_exec::ExecError::System { .. }
            | dctms_exec::ExecError::Lanes { .. }
            | dctms_exec::ExecError::Lent
            | dctms_exec::ExecError::Mapped { .. }
            | dctms_exec::ExecError::MappedLate
            | dctms_exec::ExecError::Withheld
            | dctms_exec::ExecError::Order { .. }
            | dctms_exec::ExecError::Beside { .. } => Class::System,
        };
        EngineError::new(class, error)
    }
}
