//! Command-line words to typed options. Every number is checked here, and a wrong word names
//! itself and what is accepted.

use std::path::PathBuf;

use dctms_engine::VisionMode;
use dctms_engine::artefact::{Verify, Weights};
use dctms_ir::Dtype;
use dctms_ir::plan::Preference;
use lexopt::prelude::*;

/// Why the words are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageError {
    /// What is wrong, and what is accepted.
    Wrong(String),
    /// Nothing: the words ask how the command is used.
    HelpAsked,
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UsageError::Wrong(what) => f.write_str(what),
            UsageError::HelpAsked => f.write_str("help is asked for"),
        }
    }
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        UsageError::Wrong(error.to_string())
    }
}

/// What becomes of a picture over the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Larger {
    /// It is refused.
    Refused,
    /// It is made smaller.
    Resized,
}

/// Options that decide a plan, shared by `plan`, `run` and `eval`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanArgs {
    /// Tokens of a prompt.
    pub max_input: Option<u64>,
    /// Tokens generated.
    pub max_output: Option<u64>,
    /// Sequences decoded together.
    pub sequences: Option<u64>,
    /// Tokens of a prefill step.
    pub prefill_chunk: u64,
    /// Type of keys and values.
    pub kv_type: Dtype,
    /// Lanes.
    pub lanes: Option<u32>,
    /// Instruction set.
    pub isa: Option<String>,
    /// Memory limit, bytes.
    pub memory_limit: Option<u64>,
    /// Machine profile.
    pub machine: Option<PathBuf>,
    /// f32 activations, for parity tests.
    pub float_activations: bool,
    /// Vision file.
    pub vision: Option<PathBuf>,
    /// Which weights are resident when; chosen by what fits if nobody says.
    pub mode: Option<VisionMode>,
    /// Pictures of a request or a conversation.
    pub max_images: Option<u64>,
    /// Pixels of the largest picture: width, height.
    pub max_image_size: Option<(u32, u32)>,
    /// What becomes of larger ones, where it was said.
    pub oversize: Option<Larger>,
    /// Pixels of the largest that is made smaller: width, height.
    pub max_source_size: Option<(u32, u32)>,
    /// Sizes of pictures that have a plan of their own in the same arena.
    pub family: Option<u64>,
    /// How much of a compiled model is checked while loading.
    pub verify: Verify,
    /// Where weights are while the model runs.
    pub weights: Weights,
    /// What is preferred where memory and time pull apart.
    pub preference: Preference,
    /// The preference that was asked for, if one was.
    pub preferred: Option<Preference>,
}

impl Default for PlanArgs {
    fn default() -> Self {
        PlanArgs {
            max_input: None,
            max_output: None,
            sequences: None,
            prefill_chunk: 256,
            kv_type: Dtype::F16,
            lanes: None,
            isa: None,
            memory_limit: None,
            machine: None,
            float_activations: false,
            vision: None,
            mode: None,
            max_images: None,
            max_image_size: None,
            oversize: None,
            max_source_size: None,
            family: None,
            verify: Verify::Headers,
            weights: Weights::Resident,
            preference: Preference::default(),
            preferred: None,
        }
    }
}

impl PlanArgs {
    /// Refuses a vision file where no picture is looked at.
    ///
    /// # Errors
    /// When there is one, or a mode that only it gives a meaning.
    pub fn require_blind(&self, command: &str) -> Result<(), UsageError> {
        match self.vision.is_some() || self.mode.is_some() {
            true => Err(UsageError::Wrong(format!(
                "{command} looks at no pictures: not with --mmproj or --mode"
            ))),
            false => Ok(()),
        }
    }

    /// Takes a preference, unless it contradicts one before it.
    fn prefer(&mut self, preference: Preference) -> Result<(), UsageError> {
        match self.preferred.replace(preference) {
            Some(before) if before != preference => Err(UsageError::Wrong(
                "--memory-first and --latency-first contradict each other".to_string(),
            )),
            Some(_) | None => {
                self.preference = preference;
                Ok(())
            }
        }
    }

    /// Takes an option of the plan; gives back whether it was one.
    ///
    /// # Errors
    /// A value that is missing or out of range.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, UsageError> {
        match name {
            "max-input" => self.max_input = Some(tokens(parser, name)?),
            "max-output" => self.max_output = Some(tokens(parser, name)?),
            "sequences" => self.sequences = Some(within(count(parser, name)?, name, 1, 64)?),
            "prefill-chunk" => {
                self.prefill_chunk = within(count(parser, name)?, name, 1, 1 << 16)?;
            }
            "kv-type" => self.kv_type = kv_type(&text(parser, name)?)?,
            "lanes" => {
                self.lanes = Some(within(count(parser, name)?, name, 1, 64)? as u32);
            }
            "isa" => self.isa = Some(isa(&text(parser, name)?)?),
            "memory-limit" => self.memory_limit = Some(bytes(parser, name)?),
            "verify" => self.verify = Verify::All,
            "weights" => {
                self.weights = match text(parser, name)?.as_str() {
                    "resident" => Weights::Resident,
                    "mapped" => Weights::Mapped,
                    other => {
                        let what = format!("--weights {other}: resident or mapped");
                        return Err(UsageError::Wrong(what));
                    }
                }
            }
            "machine" => self.machine = Some(PathBuf::from(parser.value()?)),
            "memory-first" => self.prefer(Preference::MemoryFirst)?,
            "latency-first" => self.prefer(Preference::LatencyFirst)?,
            "activations" => {
                self.float_activations = match text(parser, name)?.as_str() {
                    "q8" => false,
                    "f32" => true,
                    other => {
                        return Err(UsageError::Wrong(format!("--activations {other}: q8 or f32")));
                    }
                }
            }
            "mmproj" => self.vision = Some(PathBuf::from(parser.value()?)),
            "mode" => self.mode = Some(mode(&text(parser, name)?)?),
            "max-images" => self.max_images = Some(within(count(parser, name)?, name, 1, 64)?),
            "max-image-size" => self.max_image_size = Some(pixels(parser, name)?),
            "max-source-size" => {
                self.max_source_size = Some(pixels(parser, name)?);
            }
            "family" => self.family = Some(within(count(parser, name)?, name, 1, FAMILY_MAX)?),
            "oversize" => {
                self.oversize = match text(parser, name)?.as_str() {
                    "refuse" => Some(Larger::Refused),
                    "resize" => Some(Larger::Resized),
                    other => {
                        let what = format!("--oversize {other}: refuse or resize");
                        return Err(UsageError::Wrong(what));
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A text value.
///
/// # Errors
/// A missing value, or one that is not UTF-8.
pub fn text(parser: &mut lexopt::Parser, name: &str) -> Result<String, UsageError> {
    parser
        .value()?
        .string()
        .map_err(|_| UsageError::Wrong(format!("{}: the value is not UTF-8", written(name))))
}

/// A whole number.
///
/// # Errors
/// A missing value, or no whole number.
pub fn count(parser: &mut lexopt::Parser, name: &str) -> Result<u64, UsageError> {
    let value = text(parser, name)?;
    value.parse().map_err(|_| {
        UsageError::Wrong(format!("{} {value}: a whole number is expected", written(name)))
    })
}

/// A number of tokens: at least one, and no more than any model's positions.
///
/// # Errors
/// A missing value, no whole number, or one out of range.
pub fn tokens(parser: &mut lexopt::Parser, name: &str) -> Result<u64, UsageError> {
    within(count(parser, name)?, name, 1, TOKENS_MAX)
}

/// Most positions that a bound may ask for; no model is trained for a hundredth of them.
const TOKENS_MAX: u64 = 1 << 30;

/// A finite number within bounds.
///
/// # Errors
/// A missing value, no number, or one out of range.
pub fn number(
    parser: &mut lexopt::Parser,
    name: &str,
    min: f32,
    max: f32,
) -> Result<f32, UsageError> {
    let value = text(parser, name)?;
    match value.parse::<f32>() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err(UsageError::Wrong(format!(
            "--{name} {value}: a number from {min} to {max} is expected"
        ))),
    }
}

/// Bytes: a whole number, or one with a unit (K, M, G, T: powers of 1024; KB and so on: of 1000).
///
/// # Errors
/// A missing value, or no size.
pub fn bytes(parser: &mut lexopt::Parser, name: &str) -> Result<u64, UsageError> {
    let value = text(parser, name)?;
    parse_bytes(&value).ok_or_else(|| {
        UsageError::Wrong(format!(
            "--{name} {value}: bytes are expected, e.g. 157000000, 512M or 2GB"
        ))
    })
}

fn parse_bytes(value: &str) -> Option<u64> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let factor = match value[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    value[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

/// A size in pixels: `WIDTHxHEIGHT`, or one number for a square.
///
/// # Errors
/// A missing value, no size, or an edge out of range.
fn pixels(parser: &mut lexopt::Parser, name: &str) -> Result<(u32, u32), UsageError> {
    let value = text(parser, name)?;
    let (width, height) = value.split_once('x').unwrap_or((&value, &value));
    let edge =
        |edge: &str| edge.parse::<u32>().ok().filter(|edge| (1..=IMAGE_EDGE_MAX).contains(edge));
    match (edge(width), edge(height)) {
        (Some(width), Some(height)) => Ok((width, height)),
        _ => Err(UsageError::Wrong(format!(
            "--{name} {value}: pixels are expected, e.g. 1024 or 1920x1080, 1 to {IMAGE_EDGE_MAX} \
             an edge"
        ))),
    }
}

/// Most sizes of pictures with a plan of their own.
const FAMILY_MAX: u64 = dctms_engine::eyes::FAMILY_MAX as u64;

/// Longest edge of a picture that may be allowed, pixels.
const IMAGE_EDGE_MAX: u32 = dctms_engine::eyes::IMAGE_EDGE_MAX;

/// An option as it is written: one letter has one dash.
fn written(name: &str) -> String {
    let dashes = if name.len() == 1 { "-" } else { "--" };
    format!("{dashes}{name}")
}

/// A number within bounds.
///
/// # Errors
/// Names both bounds.
pub fn within(value: u64, name: &str, min: u64, max: u64) -> Result<u64, UsageError> {
    if value < min || value > max {
        let name = written(name);
        return Err(UsageError::Wrong(format!("{name} {value}: {min} to {max}")));
    }
    Ok(value)
}

fn kv_type(value: &str) -> Result<Dtype, UsageError> {
    match value {
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        "q8_0" => Ok(Dtype::Q8_0),
        other => Err(UsageError::Wrong(format!("--kv-type {other}: f16, f32 or q8_0"))),
    }
}

fn mode(value: &str) -> Result<VisionMode, UsageError> {
    let known = VisionMode::ALL.into_iter().find(|mode| mode.name() == value);
    known.ok_or_else(|| {
        UsageError::Wrong(format!("--mode {value}: serial, overlapped or phase-resident"))
    })
}

fn isa(value: &str) -> Result<String, UsageError> {
    match value {
        "scalar" | "avx2" | "avx512" | "amx" => Ok(value.to_string()),
        other => Err(UsageError::Wrong(format!("--isa {other}: scalar, avx2, avx512 or amx"))),
    }
}

/// An option that the command does not know: every command knows `--help`.
#[must_use]
pub fn unknown(argument: &lexopt::Arg<'_>) -> UsageError {
    match argument {
        Short('h') | Long("help") => UsageError::HelpAsked,
        Short(letter) => UsageError::Wrong(format!("unknown option -{letter}")),
        Long(name) => UsageError::Wrong(format!("unknown option --{name}")),
        Value(value) => {
            UsageError::Wrong(format!("unexpected argument {}", value.to_string_lossy()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_bounds() {
        assert_eq!(parse_bytes("157000000"), Some(157_000_000));
        assert_eq!(parse_bytes("512M"), Some(512 << 20));
        assert_eq!(parse_bytes("2GB"), Some(2_000_000_000));
        assert_eq!(parse_bytes("1KiB"), Some(1024));
        for wrong in ["", "M", "1.5G", "-1", "12X", "99999999999999999999"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!(parse_bytes("18446744073709551615K"), None);
    }
}
