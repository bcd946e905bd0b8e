//! The options of `dctms bench`, and the earlier figures that it compares with.

use std::path::{Path, PathBuf};

use dctms_engine::bench::BenchSettings;
use dctms_engine::{Class, EngineError, VisionMode};
use lexopt::prelude::*;
use serde_json::Value;

use crate::args::{PlanArgs, UsageError, count, unknown, within};
use crate::commands::files::read_at_most;
use crate::commands::stream::note;

/// Longest prompt, context or generation, tokens.
const TOKENS_MAX: u64 = 1 << 24;
/// Most repetitions.
const REPETITIONS_MAX: u64 = 1000;
/// Tiles of a picture when nobody says.
const TILES: u64 = 4;
/// Most tiles of a picture.
const TILES_MAX: u64 = 64;
/// Longest earlier report, bytes.
const EARLIER_BYTES_MAX: u64 = 64 * 1024;
/// Share of a run in which something may wait for a processor before its figures are doubted.
pub const WAITED_PERCENT_MAX: f64 = 10.0;

/// What goes to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table.
    Text,
    /// One JSON object.
    Json,
}

/// The options.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchArgs {
    /// Model file, when given.
    pub model: Option<PathBuf>,
    /// Options of the plan.
    pub plan: PlanArgs,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Decode steps.
    pub gen_tokens: u64,
    /// Tokens of context before decoding.
    pub depth: u64,
    /// Tiles of the picture, with a vision file only.
    pub tiles: Option<u64>,
    /// Repetitions.
    pub repetitions: u64,
    /// Output.
    pub format: Format,
    /// An earlier report.
    pub compare: Option<PathBuf>,
}

impl BenchArgs {
    /// Reads the rest of the command line.
    ///
    /// # Errors
    /// Names the word that is wrong.
    pub fn parse(parser: &mut lexopt::Parser) -> Result<BenchArgs, UsageError> {
        let mut args = BenchArgs {
            model: None,
            plan: PlanArgs::default(),
            prompt_tokens: 512,
            gen_tokens: 128,
            depth: 0,
            tiles: None,
            repetitions: 5,
            format: Format::Text,
            compare: None,
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Short('m') => args.model = Some(parser.value()?.into()),
                Long(name) => {
                    let name = name.to_string();
                    args.take(&name, parser)?;
                }
                Value(value) if args.model.is_none() => args.model = Some(value.into()),
                other => return Err(unknown(&other)),
            }
        }
        match args.plan.vision.is_some() {
            // Both ways run under the plan of mode overlapped.
            true if args.plan.mode.is_some_and(|mode| mode != VisionMode::Overlapped) => {
                return Err(UsageError::Wrong(
                    "bench of pictures is of --mode overlapped, which has both ways".to_string(),
                ));
            }
            true => {}
            false => {
                args.plan.require_blind("bench")?;
                if args.tiles.is_some() {
                    let what = "--tiles is of a picture, for a model with a vision file";
                    return Err(UsageError::Wrong(format!("{what} (--mmproj FILE)")));
                }
                within(args.prompt_tokens, "prompt-tokens", 1, TOKENS_MAX)?;
            }
        }
        Ok(args)
    }

    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), UsageError> {
        let tokens = |parser: &mut lexopt::Parser, least: u64| {
            within(count(parser, name)?, name, least, TOKENS_MAX)
        };
        match name {
            "prompt-tokens" => self.prompt_tokens = tokens(parser, 0)?,
            "tiles" => self.tiles = Some(within(count(parser, name)?, name, 1, TILES_MAX)?),
            "gen-tokens" => self.gen_tokens = tokens(parser, 1)?,
            "depth" => self.depth = tokens(parser, 0)?,
            "repetitions" => {
                self.repetitions = within(count(parser, name)?, name, 1, REPETITIONS_MAX)?;
            }
            "json" => self.format = Format::Json,
            "compare" => self.compare = Some(parser.value()?.into()),
            _ if self.plan.take(name, parser)? => {}
            other => return Err(unknown(&Long(other))),
        }
        Ok(())
    }

    /// Tiles of the picture: those asked for, else a few.
    #[must_use]
    pub fn picture_tiles(&self) -> u64 {
        self.tiles.unwrap_or(TILES)
    }

    /// The workload.
    #[must_use]
    pub fn bench_settings(&self) -> BenchSettings {
        BenchSettings {
            prompt_tokens: self.prompt_tokens as usize,
            gen_tokens: self.gen_tokens as usize,
            depth_tokens: self.depth as usize,
            sequences: self.plan.sequences.unwrap_or(1) as usize,
            repetitions: self.repetitions as usize,
        }
    }
}

/// Figures of an earlier report of the same work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Earlier {
    /// Tokens of a prompt a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens decoded a second.
    pub decode_tokens_per_s: f64,
    /// The 99th percentile of the step, milliseconds.
    pub step_p99_ms: f64,
    /// Peak memory, bytes.
    pub peak_bytes: u64,
}

impl Earlier {
    /// Reads a report that `--json` wrote, and notes what ran in another way then: that may be
    /// what is to be compared, so it is said and not refused.
    ///
    /// # Errors
    /// Class `Usage` for a file that is none, or of other work.
    pub fn read(
        path: &Path,
        args: &BenchArgs,
        model: &str,
        (isa, lanes): (&str, u32),
    ) -> Result<Earlier, EngineError> {
        let bad = |what: String| {
            EngineError::new(Class::Usage, format!("--compare {}: {what}", path.display()))
        };
        let text = read_at_most(path, EARLIER_BYTES_MAX).map_err(bad)?;
        let old: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let same = [
            ("prompt_tokens", args.prompt_tokens),
            ("gen_tokens", args.gen_tokens),
            ("depth", args.depth),
            ("sequences", args.plan.sequences.unwrap_or(1)),
        ];
        for (key, now) in same {
            if old.get(key).and_then(Value::as_u64) != Some(now) {
                return Err(bad(format!("{key} is not {now}: another benchmark")));
            }
        }
        if old.get("model").and_then(Value::as_str) != Some(model) {
            return Err(bad(format!("not a benchmark of {model}")));
        }
        for (key, now) in [
            ("isa", Value::from(isa)),
            ("lanes", Value::from(lanes)),
            ("kv_type", Value::from(args.plan.kv_type.name())),
            ("prefill_chunk", Value::from(args.plan.prefill_chunk)),
        ] {
            let before = old.get(key).unwrap_or(&Value::Null);
            if *before != now {
                note(format_args!("dctms: --compare: {key} is {now} and was {before}\n"));
            }
        }
        let waited = old.pointer("/cpu_pressure/waited_percent").and_then(Value::as_f64);
        if let Some(waited) = waited.filter(|waited| *waited > WAITED_PERCENT_MAX) {
            note(format_args!(
                "dctms: --compare: earlier, something waited for a processor {waited:.0} % of the run\n"
            ));
        }
        let number = |pointer: &str| {
            let value = old.pointer(pointer).and_then(Value::as_f64);
            value.filter(|value| *value > 0.0).ok_or_else(|| bad(format!("no {pointer}")))
        };
        Ok(Earlier {
            prefill_tokens_per_s: number("/prefill_tokens_per_s")?,
            decode_tokens_per_s: number("/decode_tokens_per_s")?,
            step_p99_ms: number("/step_ms/p99")?,
            peak_bytes: number("/peak_bytes")? as u64,
        })
    }
}
