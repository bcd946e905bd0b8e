//! The idefics3 projector (SmolVLM): tiles of one size; squares of patches become tokens, and one
//! product without bias makes them as wide as the decoder.

use crate::clip::{TileGrid, VisionConfig};
use crate::encoder::Encoder;
use crate::error::ModelError;
use crate::file::ModelFile;
use dctms_ir::TensorId;

/// Reads what is this projector's alone.
///
/// # Errors
/// Metadata out of range.
pub fn configure(file: &dyn ModelFile, config: &mut VisionConfig) -> Result<(), ModelError> {
    config.grid = TileGrid::Fixed;
    config.longest_edge = file.integer("clip.vision.preproc_image_size")?;
    let side = config.image_size / config.patch;
    if side != config.positions_side {
        return Err(ModelError::BadValue {
            key: "clip.vision.image_size".to_string(),
            value: config.image_size.to_string(),
            expected: format!("{} patches a side, one for each position", config.positions_side),
        });
    }
    Ok(())
}

/// From merged patches to embeddings.
///
/// # Errors
/// A tensor that is missing or of another shape.
pub fn project(encoder: &mut Encoder<'_, '_>, merged: TensorId) -> Result<TensorId, ModelError> {
    let (inputs, outputs) = (encoder.merged_width(), encoder.config.text_width);
    let weight = encoder.matrix("mm.model.fc.weight", outputs, inputs)?;
    let tokens = encoder.tokens.clone();
    Ok(encoder.product("projector.fc", (merged, weight), (outputs, inputs), &tokens))
}
