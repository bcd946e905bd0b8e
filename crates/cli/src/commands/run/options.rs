//! The options of `dctms run`.

use std::path::PathBuf;

use dctms_engine::generation::{EndTokens, GenerationOptions, LogitsDigest, STOP_BYTES_MAX};
use dctms_engine::{Class, EngineError};
use dctms_exec::sample::SamplerRecord;
use lexopt::prelude::*;

use crate::args::{PlanArgs, UsageError, count, number, text, tokens, unknown};
use crate::room::Growth;

/// What goes to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The generated text.
    Text,
    /// One JSON object.
    Json,
}

/// Where the prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A conversation on standard input.
    Chat,
    /// `-p`.
    Text(String),
    /// `-f`.
    File(PathBuf),
    /// `--prompt-ids`.
    Ids(PathBuf),
    /// `--prompts`.
    Lines(PathBuf),
    /// `--requests`.
    Requests(PathBuf),
}

/// The options.
#[derive(Clone, Debug, PartialEq)]
pub struct RunArgs {
    /// Model file, when given.
    pub model: Option<PathBuf>,
    /// Options of the plan.
    pub plan: PlanArgs,
    /// Prompt.
    pub input: Input,
    /// `-n`.
    pub limit: Option<u64>,
    /// Sampling.
    pub sampler: SamplerRecord,
    /// Seed.
    pub seed: u64,
    /// System message.
    pub system: Option<String>,
    /// Stop texts.
    pub stop: Vec<String>,
    /// End tokens.
    pub end_tokens: EndTokens,
    /// Make a new plan when a bound is passed.
    pub replan: bool,
    /// No template.
    pub raw: bool,
    /// Where the lanes' timeline goes.
    pub trace: Option<PathBuf>,
    /// Pictures.
    pub images: Vec<PathBuf>,
    /// Output.
    pub format: Format,
    /// Whether answers to requests carry the digest of their logits.
    pub digest: LogitsDigest,
}

impl RunArgs {
    /// Reads the rest of the command line.
    ///
    /// # Errors
    /// Names the word that is wrong.
    pub fn parse(parser: &mut lexopt::Parser) -> Result<RunArgs, UsageError> {
        let mut args = RunArgs {
            model: None,
            plan: PlanArgs::default(),
            input: Input::Chat,
            limit: None,
            sampler: SamplerRecord::GREEDY,
            seed: 0,
            system: None,
            stop: Vec::new(),
            end_tokens: EndTokens::Obeyed,
            replan: false,
            raw: false,
            trace: None,
            images: Vec::new(),
            format: Format::Text,
            digest: LogitsDigest::Skipped,
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Short('p') | Long("prompt") => {
                    let prompt = text(parser, "prompt")?;
                    args.set_input(Input::Text(prompt))?;
                }
                Short('f') | Long("file") => {
                    let path = parser.value()?.into();
                    args.set_input(Input::File(path))?;
                }
                Short('n') => args.limit = Some(tokens(parser, "n")?),
                Short('m') => args.model = Some(parser.value()?.into()),
                Long(name) => {
                    let name = name.to_string();
                    args.take(&name, parser)?;
                }
                Value(value) if args.model.is_none() => args.model = Some(value.into()),
                other => return Err(unknown(&other)),
            }
        }
        args.check_images()?;
        args.check_requests()?;
        let alone = [
            (args.raw, "--raw"),
            (args.trace.is_some(), "--trace"),
            (args.format == Format::Json, "--json"),
        ];
        if let (Input::Chat, Some((_, name))) = (&args.input, alone.iter().find(|(is, _)| *is)) {
            return Err(UsageError::Wrong(format!(
                "{name}: a prompt is needed (-p, -f, --prompt-ids, --prompts or --requests)"
            )));
        }
        let templated = !args.raw && !matches!(args.input, Input::Ids(_));
        if args.system.is_some() && !templated {
            return Err(UsageError::Wrong(
                "--system: there is no chat template with --raw or --prompt-ids".to_string(),
            ));
        }
        Ok(args)
    }

    /// Pictures belong to one prompt, and are counted with it.
    fn check_images(&mut self) -> Result<(), UsageError> {
        let given = self.images.len() as u64;
        let wrong = |message: String| Err(UsageError::Wrong(message));
        match &self.input {
            _ if given == 0 => {}
            Input::Text(_) | Input::File(_) => {}
            Input::Chat => {
                return wrong(
                    "--image: a prompt is needed (-p or -f); a conversation takes \
                              pictures by a line /image FILE"
                        .to_string(),
                );
            }
            Input::Requests(_) => {
                return wrong("--image: requests name their pictures themselves".to_string());
            }
            Input::Ids(_) | Input::Lines(_) => {
                return wrong("--image goes with one prompt (-p or -f)".to_string());
            }
        }
        if let Some(max) = self.plan.max_images.filter(|max| given > *max) {
            let pictures = if given == 1 { "picture" } else { "pictures" };
            let message = format!("{given} {pictures}, at most {max} planned for (--max-images)");
            return wrong(message);
        }
        if given > 0 {
            self.plan.max_images = self.plan.max_images.or(Some(given));
        }
        Ok(())
    }

    /// Requests keep one plan, and their answers are JSON.
    fn check_requests(&mut self) -> Result<(), UsageError> {
        let asked = matches!(self.input, Input::Requests(_));
        if self.digest == LogitsDigest::Computed && !asked {
            let message = "--logits-sha is of --requests; --json reports it always";
            return Err(UsageError::Wrong(message.to_string()));
        }
        let single = self.plan.sequences.is_some_and(|sequences| sequences > 1);
        let alone =
            [(self.replan, "--replan"), (self.trace.is_some(), "--trace"), (single, "--sequences")];
        match alone.iter().find(|(is, _)| *is && asked) {
            Some((_, name)) => Err(UsageError::Wrong(format!(
                "{name}: requests are answered one after another by one plan"
            ))),
            None => Ok(()),
        }
    }

    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), UsageError> {
        match name {
            "temp" => self.sampler.temperature = number(parser, name, 0.0, 100.0)?,
            "top-k" => self.sampler.top_k = count(parser, name)?.min(u64::from(u32::MAX)) as u32,
            "top-p" => self.sampler.top_p = number(parser, name, 0.0, 1.0)?,
            "min-p" => self.sampler.min_p = number(parser, name, 0.0, 1.0)?,
            "repeat-penalty" => self.sampler.repeat_penalty = number(parser, name, 0.01, 100.0)?,
            "seed" => self.seed = count(parser, name)?,
            "system" => self.system = Some(text(parser, name)?),
            "stop" => self.stop.push(stop_text(text(parser, name)?)?),
            "ignore-eos" => self.end_tokens = EndTokens::Ignored,
            "replan" => self.replan = true,
            "raw" => self.raw = true,
            "trace" => self.trace = Some(parser.value()?.into()),
            "image" => self.images.push(parser.value()?.into()),
            "json" => self.format = Format::Json,
            "prompt-ids" => {
                let path = parser.value()?.into();
                self.set_input(Input::Ids(path))?;
            }
            "logits-sha" => self.digest = LogitsDigest::Computed,
            "requests" => {
                let path = parser.value()?.into();
                self.set_input(Input::Requests(path))?;
            }
            "prompts" => {
                let path = parser.value()?.into();
                self.set_input(Input::Lines(path))?;
            }
            _ if self.plan.take(name, parser)? => {}
            other => return Err(unknown(&Long(other))),
        }
        Ok(())
    }

    fn set_input(&mut self, input: Input) -> Result<(), UsageError> {
        if self.input != Input::Chat {
            return Err(UsageError::Wrong(
                "only one of -p, -f, --prompt-ids, --prompts and --requests can be given"
                    .to_string(),
            ));
        }
        self.input = input;
        Ok(())
    }

    /// The model file: the one given, else the default one of the cache.
    ///
    /// # Errors
    /// How to get the default model.
    pub fn model_path(&self) -> Result<PathBuf, EngineError> {
        crate::commands::model_path(self.model.as_deref())
    }

    /// Whether a conversation may outgrow its plan.
    #[must_use]
    pub fn growth(&self) -> Growth {
        match self.replan {
            true => Growth::Replanned,
            false => Growth::Bounded,
        }
    }

    /// Options of the generation.
    #[must_use]
    pub fn generation_options(&self) -> GenerationOptions {
        GenerationOptions {
            sampler: self.sampler,
            seed: self.seed,
            end_tokens: self.end_tokens,
            stop_texts: self.stop.clone(),
            digest: match (&self.input, self.format) {
                (Input::Requests(_), _) => self.digest,
                (_, Format::Json) => LogitsDigest::Computed,
                (_, Format::Text) => LogitsDigest::Skipped,
            },
        }
    }
}

fn stop_text(text: String) -> Result<String, UsageError> {
    if text.is_empty() || text.len() > STOP_BYTES_MAX {
        return Err(UsageError::Wrong(format!(
            "--stop: {} bytes, expected 1 to {STOP_BYTES_MAX}",
            text.len()
        )));
    }
    Ok(text)
}

/// A usage error as one of the engine's.
#[must_use]
pub fn usage(message: String) -> EngineError {
    EngineError::new(Class::Usage, message)
}
