//! The qwen2 family: biases on q, k and v; rotary pairs half a head apart. The decoder of Qwen2-VL
//! and Qwen2.5-VL (`qwen2vl`) is the same, but that a token in a picture has three positions.

use dctms_ir::op::RopeStyle;

use crate::config::{DecoderConfig, common};
use crate::error::ModelError;
use crate::file::ModelFile;

/// Reads the configuration.
///
/// # Errors
/// Missing or inconsistent metadata.
pub fn config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    let mut config = common(file, "qwen2", RopeStyle::Halves)?;
    config.biases = true;
    Ok(config)
}

/// Reads the configuration of a decoder that was trained with pictures.
///
/// # Errors
/// Missing or inconsistent metadata.
pub fn vision_config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    let mut config = common(file, "qwen2vl", RopeStyle::Halves)?;
    config.biases = true;
    config.rope_sections = Some(sections(file, config.rope.rotary_dim / 2)?);
    Ok(config)
}

/// How many of the frequencies time, row and column turn.
fn sections(file: &dyn ModelFile, frequencies: u32) -> Result<[u32; 3], ModelError> {
    let key = "qwen2vl.rope.dimension_sections";
    let sections = file
        .integers(key)?
        .ok_or_else(|| ModelError::Metadata { message: format!("metadata {key} is missing") })?;
    let sum = sections.iter().map(|section| u64::from(*section)).sum::<u64>();
    match *sections.as_slice() {
        [time, row, column] | [time, row, column, 0] if sum == u64::from(frequencies) => {
            Ok([time, row, column])
        }
        _ => Err(ModelError::BadValue {
            key: key.to_string(),
            value: format!("{sections:?}"),
            expected: format!("three sections of {frequencies} frequencies"),
        }),
    }
}
