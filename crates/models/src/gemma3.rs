//! The gemma3 text family: five layers with a sliding window to one without, each kind with its
//! own rotary base; norms before and after both branches (the file's weights already hold the
//! `1 + w`); embeddings scaled by √d.

use dctms_ir::op::{Activation, RopeScaling, RopeStyle};

use crate::config::{DecoderConfig, RopeConfig, common, positive, required};
use crate::error::ModelError;
use crate::file::ModelFile;

/// Every sixth layer sees all positions.
const PATTERN: u32 = 6;

/// Reads the configuration.
///
/// # Errors
/// Missing or inconsistent metadata.
pub fn config(file: &dyn ModelFile) -> Result<DecoderConfig, ModelError> {
    let mut config = common(file, "gemma3", RopeStyle::Halves)?;
    let window = required(file, "gemma3.attention.sliding_window", 1 << 24)? as u32;
    let pattern = match file.integer("gemma3.attention.sliding_window_pattern")? {
        Some(0) | None => PATTERN,
        Some(value) => value.min(1 << 16) as u32,
    };
    config.windows = (0..config.layers)
        .map(|layer| if (layer + 1).is_multiple_of(pattern) { 0 } else { window })
        .collect();
    if file.float("gemma3.rope.freq_base")?.is_none() {
        config.rope.base = 1_000_000.0;
    }
    config.local_rope = Some(RopeConfig {
        base: positive(file, "gemma3.rope.freq_base_swa")?.unwrap_or(10_000.0),
        scaling: RopeScaling::None,
        magnitude: 1.0,
        file_factors: false,
        ..config.rope.clone()
    });
    for key in ["gemma3.attn_logit_softcapping", "gemma3.final_logit_softcapping"] {
        if file.float(key)?.is_some_and(|cap| cap != 0.0) {
            return Err(ModelError::Unsupported { what: format!("{key} (soft caps)") });
        }
    }
    config.embedding_scale = (config.hidden as f32).sqrt();
    config.activation = Activation::GeluTanh;
    config.head_norms = true;
    config.post_norms = true;
    // The 27B model alone scales by the width of a head of the embedding.
    if config.layers == 62 {
        config.attention_scale = 1.0 / ((config.hidden / u64::from(config.heads)) as f32).sqrt();
    }
    Ok(config)
}
