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
    let pattern = pattern(file, config.layers)?;
    config.windows = Some(Windows { side: window / token_edge, pattern });
    config.norm = Norm::RootMeanSquare;
    config.rope_base = Some(ROPE_BASE);
    let pixels_max = optional("clip.vision.image_max_pixels", PIXELS.1, PIXELS.1)?;
    let pixels_min = optional("clip.vision.image_min_pixels", PIXELS.0, pixels_max)?;
    config.grid = TileGrid::Whole { pixels_min, pixels_max };
    Ok(())
}

/// Every so-manieth layer sees the whole picture: the file says so, or names these layers one by
/// one, which must come to the same.
fn pattern(file: &dyn ModelFile, layers: u32) -> Result<u32, ModelError> {
    const PATTERN: &str = "clip.vision.n_wa_pattern";
    const LAYERS: &str = "clip.vision.wa_layer_indexes";
    let Some(named) = file.integers(LAYERS)? else {
        return Ok(required(file, PATTERN, 1024)? as u32);
    };
    let pattern = match (file.integer(PATTERN)?, named.first()) {
        (Some(_), _) => required(file, PATTERN, 1024)? as u32,
        (None, Some(first)) => first.saturating_add(1),
        // All layers or none: writers of files disagree, so this is refused below.
        (None, None) => 1,
    };
    let every = (1..=layers).filter(|layer| layer.is_multiple_of(pattern)).map(|layer| layer - 1);
    match every.eq(named.iter().copied()) {
        true => Ok(pattern),
        false => Err(ModelError::Unsupported {
            what: format!(
                "{LAYERS} {named:?}: the layers that see the whole picture are every so-manieth \
                 ({PATTERN})"
            ),
        }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileTensor;

    /// A file that says which layers see the whole picture, and nothing else.
    struct Said(Option<u64>, Option<Vec<u32>>);

    impl ModelFile for Said {
        fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
            Ok(self.0.filter(|_| key.ends_with("n_wa_pattern")))
        }
        fn float(&self, _: &str) -> Result<Option<f32>, ModelError> {
            Ok(None)
        }
        fn text(&self, _: &str) -> Result<Option<String>, ModelError> {
            Ok(None)
        }
        fn array_len(&self, _: &str) -> Result<Option<u64>, ModelError> {
            Ok(None)
        }
        fn flag(&self, _: &str) -> Result<Option<bool>, ModelError> {
            Ok(None)
        }
        fn floats(&self, _: &str) -> Result<Option<Vec<f32>>, ModelError> {
            Ok(None)
        }
        fn integers(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
            Ok(self.1.clone().filter(|_| key.ends_with("wa_layer_indexes")))
        }
        fn tensor(&self, _: &str) -> Option<FileTensor> {
            None
        }
        fn tensor_names(&self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn layers_are_said_by_a_pattern_or_one_by_one() {
        let layers = |named: &[u32]| Some(named.to_vec());
        for (said, want) in [
            (Said(Some(8), None), 8),
            (Said(None, layers(&[7, 15, 23, 31])), 8),
            (Said(Some(8), layers(&[7, 15, 23, 31])), 8),
            (Said(None, layers(&[31])), 32),
        ] {
            assert_eq!(pattern(&said, 32), Ok(want));
        }
        for (said, part) in [
            (Said(None, None), "n_wa_pattern is missing"),
            (Said(Some(0), layers(&[1])), "1 to 1024"),
            // Others than a pattern gives, too few, too many, out of order, no layer.
            (Said(Some(4), layers(&[7, 15, 23, 31])), "wa_layer_indexes [7, 15"),
            (Said(None, layers(&[7, 15, 24, 31])), "every so-manieth"),
            (Said(None, layers(&[7, 15])), "every so-manieth"),
            (Said(None, layers(&[7, 15, 23, 31, 39])), "every so-manieth"),
            (Said(None, layers(&[15, 7, 23, 31])), "every so-manieth"),
            (Said(None, layers(&[u32::MAX])), "every so-manieth"),
            (Said(None, layers(&[])), "every so-manieth"),
        ] {
            let error = pattern(&said, 32).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
