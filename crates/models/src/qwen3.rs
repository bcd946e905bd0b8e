//! The qwen3 family: norms of queries and keys inside heads, no biases.

use dctms_ir::op::RopeStyle;

use crate::config::{DecoderConfig, common};
use crate::error::ModelError;
use crate::file::ModelFile;

/// Reads the configuration.
///
/// # Errors
/// Missing or inconsistent metadata.
pub fn config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    let mut config = common(file, "qwen3", RopeStyle::Halves)?;
    config.head_norms = true;
    Ok(config)
}
