//! The llama family: rotary pairs interleaved (the file's query and key rows are permuted so),
//! Llama 3's long-context factors in `rope_freqs.weight`.

use dctms_ir::op::RopeStyle;

use crate::config::{DecoderConfig, common};
use crate::error::ModelError;
use crate::file::ModelFile;

/// Reads the configuration.
///
/// # Errors
/// Missing or inconsistent metadata; mixtures of experts.
pub fn config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    if file.integer("llama.expert_count")?.unwrap_or(0) > 0 {
        return Err(ModelError::Unsupported { what: "mixture of experts (llama)".to_string() });
    }
    let mut config = common(file, "llama", RopeStyle::Interleaved)?;
    config.biases = true;
    Ok(config)
}
