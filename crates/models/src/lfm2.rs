//! The lfm2 projector (LFM2-VL): grids of any shape; squares of patches become tokens; an optional
//! norm, then two products with bias and a Gaussian error unit between them.
//!
//! The unit is in its tanh form, as llama.cpp computes it and as files for it are trained.

use crate::clip::{TileGrid, VisionConfig};
use crate::encoder::Encoder;
use crate::error::ModelError;
use crate::file::ModelFile;
use dctms_ir::TensorId;
use dctms_ir::op::Activation;

/// Tokens of a picture at least, and of a tile at most, where the file does not say.
const TOKENS: (u64, u64) = (64, 256);
/// Epsilon of the projector's norm.
const EPSILON: f32 = 1e-5;

/// Reads what is this projector's alone.
///
/// # Errors
/// Metadata out of range.
pub fn configure(file: &dyn ModelFile, config: &mut VisionConfig) -> Result<(), ModelError> {
    let side = config.patch * config.merge;
    let tokens = |key: &str, default: u64| -> Result<u64, ModelError> {
        let pixels = file.integer(key)?;
        Ok(pixels.map_or(default, |pixels| pixels / (side * side)).clamp(1, 1 << 14))
    };
    let tokens_min = tokens("clip.vision.image_min_pixels", TOKENS.0)?;
    let tokens_max = tokens("clip.vision.image_max_pixels", TOKENS.1)?;
    config.grid = TileGrid::Variable { tokens_min, tokens_max: tokens_max.max(tokens_min) };
    Ok(())
}

/// From merged patches to embeddings.
///
/// # Errors
/// A tensor that is missing or of another shape.
pub fn project(encoder: &mut Encoder<'_, '_>, merged: TensorId) -> Result<TensorId, ModelError> {
    let (inputs, outputs) = (encoder.merged_width(), encoder.config.text_width);
    let tokens = encoder.tokens.clone();
    let mut x = merged;
    if encoder.has("mm.input_norm.weight") {
        x = encoder.norm("projector.norm", "mm.input_norm", x, (inputs, EPSILON), &tokens)?;
    }
    let middle = encoder.rows_of("mm.1.weight")?;
    x = encoder.linear("projector.1", "mm.1", x, (middle, inputs), &tokens)?;
    x = encoder.activate("projector.act", Activation::GeluTanh, x, middle, &tokens);
    encoder.linear("projector.2", "mm.2", x, (outputs, middle), &tokens)
}
