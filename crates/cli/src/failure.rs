//! Everything that a command can end with, and its exit code.

use dctms_engine::{Class, EngineError};

use crate::args::UsageError;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The words are wrong.
    Usage(UsageError),
    /// The work failed.
    Engine(EngineError),
    /// Said already; only the exit code is left.
    Reported(u8),
}

impl Failure {
    /// Prints the failure to standard error and gives its exit code.
    #[must_use]
    pub fn report(&self) -> u8 {
        match self {
            Failure::Usage(error) => {
                eprintln!("dctms: {error}\nTry `dctms help`.");
                Class::Usage.exit_code()
            }
            Failure::Engine(error) => {
                eprintln!("dctms: {error}");
                error.class.exit_code()
            }
            Failure::Reported(code) => *code,
        }
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Failure::Usage(error)
    }
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Self {
        Failure::Usage(error.into())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Failure::Engine(error)
    }
}

impl From<dctms_system::SystemError> for Failure {
    fn from(error: dctms_system::SystemError) -> Self {
        Failure::Engine(error.into())
    }
}
