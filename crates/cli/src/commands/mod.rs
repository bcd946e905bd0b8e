//! The commands by name.

pub mod bench;
pub mod compare;
pub mod diff;
pub mod eval;
pub mod files;
pub mod hash;
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
            files::note(HELP);
            return Err(Failure::Reported(dctms_engine::Class::Usage.exit_code()));
        }
    };
    match command.as_str() {
        "run" => run::run(&mut parser),
        "eval" => eval::run(&mut parser),
        "plan" => plan::run(&mut parser),
        "verify" => verify::run(&mut parser),
        "inspect" => inspect::run(&mut parser),
        "pack" => pack::run(&mut parser),
        "synth" => synth::run(&mut parser),
        "bench" => bench::run(&mut parser),
        "help" => help(),
        "version" => say(&format!("dctms {}\n", env!("CARGO_PKG_VERSION"))),
        other => Err(UsageError(format!("unknown command {other}")).into()),
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

fn help() -> Result<(), Failure> {
    say(HELP)
}

const HELP: &str = "\
dctms: language models inside a memory envelope that is proven before they run

  dctms plan [MODEL]              the memory envelope, before anything is loaded
  dctms plan --diff OLD NEW       what changed between two plans, in bytes and why
  dctms run [MODEL] -p TEXT       generate text (chat template, greedy)
  dctms eval [MODEL] --perplexity FILE
                                  perplexity of a text, as llama-perplexity's
  dctms bench [MODEL]             speed, latency, memory (--depth N --json --compare OLD.json)
  dctms verify PLAN.json          check a plan from disk (--model FILE: against its model)
  dctms inspect [MODEL]           metadata, tensors and types of a model file
  dctms pack FILE.csv             place buffers in one arena
  dctms synth SHAPE MIX -o FILE   a model of random weights at a published shape
  dctms help                      this text

Plans: --max-input N --max-output M --sequences B --prefill-chunk C --kv-type f16|f32|q8_0
  --lanes L --isa scalar|avx2|avx512 --memory-limit BYTES --machine profile.json
  plan alone: --fit BYTES --json --html FILE --hash -o FILE

Runs: -p TEXT, -f FILE, --prompt-ids FILE or --prompts FILE.jsonl; without, a conversation on
  standard input. -n TOKENS --temp T --top-k K --top-p P --min-p P --repeat-penalty R --seed S
  --system TEXT --stop TEXT --ignore-eos --raw --replan --json

Exit codes: 0 done; 1 the system refused; 2 a defect or unsupported feature of a file;
3 does not fit; 4 over a bound at run time; 64 usage.
";

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
