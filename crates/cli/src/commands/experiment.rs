//! `dctms experiment`: starts the program beside this one that runs the paper's experiment.
//!
//! It is a program of its own, so that neither its code nor its memory is part of what it measures.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use dctms_engine::{Class, EngineError};

use crate::failure::Failure;

/// The program's name.
const PROGRAM: &str = "dctms-experiment";

/// Becomes the program, with the same words.
///
/// # Errors
/// Class `System` when it is not there or cannot be started.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let own = std::env::current_exe()
        .map_err(|error| EngineError::new(Class::System, format!("finding {PROGRAM}: {error}")))?;
    let program = own.with_file_name(PROGRAM);
    // Unread words as they are; what they mean is the program's business.
    let words: Vec<_> = parser.raw_args()?.collect();
    Err(start(program, words).into())
}

/// Does not come back if it succeeds.
fn start(program: PathBuf, words: Vec<std::ffi::OsString>) -> EngineError {
    let error = Command::new(&program).args(words).exec();
    let what = match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{} is not there: cargo build --release builds it", program.display())
        }
        _ => format!("{}: {error}", program.display()),
    };
    EngineError::new(Class::System, what)
}
