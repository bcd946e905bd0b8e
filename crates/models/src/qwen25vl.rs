//! The Qwen2.5-VL encoder: the whole picture as one tile, attention in windows of it but for every
//! so-manieth layer, heads rotated by row and column; squares of patches become tokens, and two
//! products with bias and a Gaussian error unit (the exact one) between them make these as wide as
//! the decoder.

use crate::clip::{Norm, TileGrid, VisionConfig, Windows};
use crate::config::required;
use crate::encoder::Encoder;
use crate::error::ModelError;
use crate::file::ModelFile;
use dctms_ir::TensorId;
use dctms_ir::op::Activation;

/// Side of a window where the file does not say, pixels.
const WINDOW_PIXELS: u64 = 112;
/// Pixels of a picture at least and at most where the file does not say.
const PIXELS: (u64, u64) = (56 * 56, 28 * 28 * 16_384);
/// Base of the rotary frequencies.
const ROPE_BASE: f32 = 10_000.0;

/// Reads what is this projector's alone.
///
/// # Errors
/// Metadata out of range.
pub fn configure(file: &dyn ModelFile, config: &mut VisionConfig) -> Result<(), ModelError> {
    let optional = |key: &str, default: u64, max: u64| match file.integer(key)? {
        Some(_) => required(file, key, max),
        None => Ok(default),
    };
    config.merge = optional("clip.vision.spatial_merge_size", 2, 16)?;
    let window = optional("clip.vision.window_size", WINDOW_PIXELS, 1 << 13)?;
    let token_edge = config.patch * config.merge;
    if window < token_edge {
        return Err(ModelError::BadValue {
            key: "clip.vision.window_size".to_string(),
            value: window.to_string(),
            expected: format!("at least one token's {token_edge} pixels"),
        });
    }
    let pattern = required(file, "clip.vision.n_wa_pattern", 1024)? as u32;
    config.windows = Some(Windows { side: window / token_edge, pattern });
    config.norm = Norm::RootMeanSquare;
    config.rope_base = Some(ROPE_BASE);
    let pixels_max = optional("clip.vision.image_max_pixels", PIXELS.1, PIXELS.1)?;
    let pixels_min = optional("clip.vision.image_min_pixels", PIXELS.0, pixels_max)?;
    config.grid = TileGrid::Whole { pixels_min, pixels_max };
    Ok(())
}

/// From merged patches to embeddings.
///
/// # Errors
/// A tensor that is missing or of another shape.
pub fn project(encoder: &mut Encoder<'_, '_>, merged: TensorId) -> Result<TensorId, ModelError> {
    let (inputs, outputs) = (encoder.merged_width(), encoder.config.text_width);
    let tokens = encoder.tokens.clone();
    let middle = encoder.rows_of("mm.0.weight")?;
    let x = encoder.linear("projector.0", "mm.0", merged, (middle, inputs), &tokens)?;
    let x = encoder.activate("projector.act", Activation::GeluErf, x, middle, &tokens);
    encoder.linear("projector.2", "mm.2", x, (outputs, middle), &tokens)
}
