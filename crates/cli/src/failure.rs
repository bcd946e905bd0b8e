//! Everything that a command can end with, and its exit code.

use dctms_engine::{Class, EngineError};
use dctms_system::interrupt::stop_requested;
use dctms_system::output::Stream;
use dctms_system::overflow::{OverflowMessage, tell_overflow};

use crate::args::UsageError;
use crate::show::printable;

/// Exit code of a command that was interrupted before it had its figure: 128 + `SIGINT`.
pub const INTERRUPTED: u8 = 130;

/// A chat template is a stranger's program: one that recurses beyond the stack is a defect of its
/// file.
const TEMPLATE_OVERFLOW: OverflowMessage = OverflowMessage {
    text: "dctms: the chat template nests its values deeper than the stack allows\n",
    exit_code: 2,
};

/// Runs work on a chat template, which may overflow the stack: compiling, rendering, and dropping
/// what it made.
pub fn on_template<T>(work: impl FnOnce() -> T) -> T {
    tell_overflow(TEMPLATE_OVERFLOW, work)
}

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
                complain(&format!("{error}"), "\nTry `dctms help`.\n");
                Class::Usage.exit_code()
            }
            Failure::Engine(error) => {
                complain(&format!("{error}"), "\n");
                // Work that was stopped fails where it stood; that says nothing of a file.
                match stop_requested() {
                    true => INTERRUPTED,
                    false => error.class.exit_code(),
                }
            }
            Failure::Reported(code) => *code,
        }
    }
}

/// Messages name things of files and words of strangers: nothing in them may move a cursor. That
/// nobody listens is no failure.
fn complain(message: &str, end: &str) {
    let lines: Vec<String> = message.lines().map(printable).collect();
    let text = format!("dctms: {}{end}", lines.join("\n"));
    let _ = Stream::Error.write_all(text.as_bytes());
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
