//! The commands by name.

pub mod bench;
pub mod claims;
pub mod compare;
pub mod compile;
pub mod diff;
pub mod doctor;
pub mod eval;
pub mod experiment;
pub mod files;
pub mod hash;
mod help;
pub mod inspect;
pub mod pack;
pub mod plan;
pub mod run;
pub mod stream;
pub mod synth;
pub mod verify;

use crate::args::UsageError;
use crate::failure::Failure;

/// Runs the command that the first word names.
///
/// # Errors
/// Whatever the command ends with.
pub fn dispatch() -> Result<(), Failure> {
    crate::process::check_words()?;
    let mut parser = lexopt::Parser::from_env();
    let command = match parser.next()? {
        Some(lexopt::Arg::Value(value)) => value.to_string_lossy().into_owned(),
        Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h')) => "help".to_string(),
        Some(lexopt::Arg::Long("version") | lexopt::Arg::Short('V')) => "version".to_string(),
        Some(other) => return Err(crate::args::unknown(&other).into()),
        None => {
            files::note(help::GENERAL);
            return Err(Failure::Reported(dctms_engine::Class::Usage.exit_code()));
        }
    };
    let done = match command.as_str() {
        "run" => run::run(&mut parser),
        "eval" => eval::run(&mut parser),
        "plan" => plan::run(&mut parser),
        "verify" => verify::run(&mut parser),
        "inspect" => inspect::run(&mut parser),
        "pack" => pack::run(&mut parser),
        "synth" => synth::run(&mut parser),
        "bench" => bench::run(&mut parser),
        "compile" => compile::run(&mut parser),
        "doctor" => doctor::run(&mut parser),
        "experiment" => experiment::run(&mut parser),
        "help" => help(&mut parser),
        "version" => say(&format!("dctms {}\n", env!("CARGO_PKG_VERSION"))),
        other => Err(unknown_command(other)),
    };
    match done {
        Err(Failure::Usage(UsageError::HelpAsked)) => help_of(&command),
        done => done,
    }
}

/// Writes to standard output; a reader that has gone away is no failure.
///
/// # Errors
/// Any other failure to write.
pub fn say(text: &str) -> Result<(), Failure> {
    use dctms_system::SystemError;
    use dctms_system::output::Stream;
    match Stream::Output.write_all(text.as_bytes()) {
        Ok(()) | Err(SystemError::ReaderGone) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The general help, or that of the command that follows.
fn help(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    match parser.next()? {
        None => say(help::GENERAL),
        Some(lexopt::Arg::Value(command)) => help_of(&command.to_string_lossy()),
        Some(other) => Err(crate::args::unknown(&other).into()),
    }
}

fn help_of(command: &str) -> Result<(), Failure> {
    let parts = help::of(command).ok_or_else(|| unknown_command(command))?;
    say(&parts.concat())
}

fn unknown_command(word: &str) -> Failure {
    UsageError::Wrong(format!("unknown command {word}")).into()
}

/// The model file: the one given, else the default one of the cache.
///
/// # Errors
/// How to get the default model.
pub fn model_path(
    given: Option<&std::path::Path>,
) -> Result<std::path::PathBuf, dctms_engine::EngineError> {
    use std::path::PathBuf;
    if let Some(path) = given {
        return Ok(path.to_path_buf());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let folders =
        [Some(PathBuf::from(".cache/models")), home.map(|home| home.join(".cache/dctms/models"))];
    let candidates = folders.into_iter().flatten().map(|folder| folder.join(DEFAULT_MODEL));
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        dctms_engine::EngineError::new(
            dctms_engine::Class::Usage,
            format!(
                "no model given and no {DEFAULT_MODEL} in .cache/models or \
                 ~/.cache/dctms/models: scripts/fetch_models.py fetches it"
            ),
        )
    })
}

/// The model that is run when none is named.
const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
