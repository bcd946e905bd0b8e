//! `dctms-baseline`: one system, or one neighbour, as a process.
//!
//! ```text
//! dctms-baseline dynamic|prototype MODEL.dctms --max-input N --max-output M [--lanes L]
//!                [--prefill-chunk C] [--kv-type f16|f32|q8_0] [--logits-sha]
//! dctms-baseline bursts BYTES | churn FILE | burner
//! ```

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dctms_baseline::neighbour::{Neighbour, run};
use dctms_baseline::serve::serve;
use dctms_baseline::system::{Digest, Kind, System};
use dctms_engine::artefact::Weights;
use dctms_engine::session::library_settings;
use dctms_engine::{EngineError, Model};
use dctms_ir::Dtype;

const USAGE: &str = "dctms-baseline dynamic|prototype MODEL.dctms --max-input N --max-output M \
                     [--lanes L] [--prefill-chunk C] [--kv-type T] [--logits-sha], or bursts \
                     BYTES, churn FILE, burner";

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match start(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("dctms-baseline: {message}");
            ExitCode::FAILURE
        }
    }
}

fn start(words: &[&str]) -> Result<(), String> {
    let neighbour = match words {
        ["bursts", bytes] => {
            let bytes = bytes.parse().map_err(|_| format!("{bytes}: no number of bytes"))?;
            Neighbour::Bursts { bytes }
        }
        ["churn", file] => Neighbour::Churn { file: PathBuf::from(file) },
        ["burner"] => Neighbour::Burner,
        [kind, model, options @ ..] => {
            let kind = Kind::from_name(kind).ok_or(USAGE)?;
            return answer(kind, Path::new(model), options).map_err(|error| error.to_string());
        }
        [] | [_] => return Err(USAGE.to_string()),
    };
    run(&neighbour).map_err(|error| error.to_string())
}

fn answer(kind: Kind, model: &Path, options: &[&str]) -> Result<(), EngineError> {
    let usage = |what: &str| EngineError::new(dctms_engine::Class::Usage, what.to_string());
    let mut settings = library_settings(0)?;
    let mut lanes = settings.machine.lanes;
    let mut options = options.iter();
    let mut digest = Digest::Skipped;
    while let Some(name) = options.next() {
        if *name == "--logits-sha" {
            digest = Digest::Computed;
            continue;
        }
        let value = options.next().ok_or_else(|| usage(USAGE))?;
        let number = || value.parse::<u64>().map_err(|_| usage(&format!("{name} {value}?")));
        match *name {
            "--max-input" => settings.max_input_tokens = Some(number()?),
            "--max-output" => settings.max_output_tokens = Some(number()?),
            "--prefill-chunk" => settings.prefill_chunk = number()?,
            "--lanes" => lanes = number()? as u32,
            "--kv-type" => {
                settings.kv_type = Dtype::from_name(value).ok_or_else(|| usage(USAGE))?;
            }
            _ => return Err(usage(USAGE)),
        }
    }
    settings.machine.lanes = lanes;
    dctms_text::initialise_templates();
    let model = Model::open(model)?.weighted(Weights::Mapped);
    let mut system = System::start(model, &settings, kind)?;
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    serve(&mut system, digest, &mut BufReader::new(input), &mut output)
        .map_err(|error| EngineError::new(dctms_engine::Class::System, error.to_string()))
}
