//! One file a model family: a checkpoint's metadata and tensor table in, a logical program out.
//!
//! Believes nothing of the file: every number is checked for range, every tensor for presence,
//! shape and type. It must not know planning, kernels or how bytes are read.

#![forbid(unsafe_code)]

pub mod builder;
pub mod clip;
pub mod config;
pub mod decoder;
pub mod encoder;
pub mod error;
pub mod file;
pub mod gemma3;
pub mod idefics3;
pub mod lfm2;
pub mod llama;
pub mod options;
pub mod qwen2;
pub mod qwen25vl;
pub mod qwen3;

pub use clip::{VisionConfig, read_vision_config};
pub use config::DecoderConfig;
pub use decoder::{names, phases};
pub use encoder::{VisionMode, VisionPart};
pub use error::ModelError;
pub use file::{FileTensor, Lookup, ModelFile};
pub use options::BuildOptions;

use dctms_ir::Program;

/// Supported values of `general.architecture`.
pub const ARCHITECTURES: [&str; 5] = ["llama", "qwen2", "qwen2vl", "qwen3", "gemma3"];

/// Reads the configuration of a model file.
///
/// # Errors
/// An unknown architecture, or metadata that is missing or out of range.
pub fn read_config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    let name = file.text("general.architecture")?.ok_or_else(|| ModelError::Metadata {
        message: "metadata general.architecture is missing".to_string(),
    })?;
    match name.as_str() {
        "llama" => llama::config(file),
        "qwen2" => qwen2::config(file),
        "qwen2vl" => qwen2::vision_config(file),
        "qwen3" => qwen3::config(file),
        "gemma3" => gemma3::config(file),
        _ => Err(ModelError::UnknownArchitecture { name }),
    }
}

/// Builds the program of a model file. The caller fills in `Program::models`.
///
/// # Errors
/// Any defect or unsupported feature of the model, or bounds that make no sense.
pub fn build_program(
    file: &dyn ModelFile,
    config: &DecoderConfig,
    options: &BuildOptions,
) -> Result<Program, ModelError> {
    build_program_with_vision(file, config, options, None)
}

/// Builds the program of a model file and, where there is one, of its vision file: one program, so
/// that one plan holds for both. The caller fills in `Program::models`, the decoder's first.
///
/// # Errors
/// Any defect or unsupported feature of either file, files that do not fit together, or bounds
/// that make no sense.
pub fn build_program_with_vision(
    file: &dyn ModelFile,
    config: &DecoderConfig,
    options: &BuildOptions,
    vision: Option<&VisionPart<'_>>,
) -> Result<Program, ModelError> {
    let mut lookup = Lookup::new(file);
    let program = decoder::build(config, &mut lookup, options, vision)?;
    lookup.finish(config.architecture)?;
    Ok(program)
}
