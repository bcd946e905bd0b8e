//! The qwen2 family: biases on q, k and v; rotary pairs half a head apart.

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
