//! Image encoders from `clip` files (the container that vision files for llama.cpp come in): a
//! vision transformer and the projector that ends in the decoder's width.
//!
//! Believes nothing of the file. One file a projector: [`crate::idefics3`], [`crate::lfm2`] and
//! [`crate::qwen25vl`] say what is theirs; [`crate::encoder`] writes the program for all. It must
//! not know pixels: how a picture is resized and cut is said in numbers here and done elsewhere.

use dctms_ir::op::Activation;

use crate::config::{positive, required};
use crate::error::ModelError;
use crate::file::ModelFile;

/// Supported values of `clip.projector_type`.
pub const PROJECTORS: [&str; 3] = ["idefics3", "lfm2", "qwen2.5vl_merger"];

/// What joins the vision transformer to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projector {
    /// One product without bias (SmolVLM).
    Idefics3,
    /// An optional norm and two products with a Gaussian error unit between (LFM2-VL).
    Lfm2,
    /// Two products with a Gaussian error unit between (Qwen2.5-VL).
    Qwen25Vl,
}

/// How a layer's input is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// About the mean, with a bias.
    Mean,
    /// By the root of the mean square.
    RootMeanSquare,
}

/// Attention that sees windows of the picture in most layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens (squares of patches) of a side of a window.
    pub side: u64,
    /// Every so-manieth layer sees the whole picture.
    pub pattern: u32,
}

/// How many patches a tile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileGrid {
    /// Always `image_size` a side.
    Fixed,
    /// Any whole squares of patches up to a number of tokens.
    Variable {
        /// Tokens of a picture at least, where it can be enlarged to them.
        tokens_min: u64,
        /// Tokens of a tile at most.
        tokens_max: u64,
    },
    /// The whole picture, of any whole squares of patches.
    Whole {
        /// Pixels at least, to which it is enlarged.
        pixels_min: u64,
        /// Pixels at most, to which it is made smaller.
        pixels_max: u64,
    },
}

/// An image encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// The projector.
    pub projector: Projector,
    /// Side of a tile (or of the picture that the positions were learned on), pixels.
    pub image_size: u64,
    /// Side of a patch, pixels.
    pub patch: u64,
    /// Width, d.
    pub hidden: u64,
    /// Width of the feed-forward layer.
    pub feed_forward: u64,
    /// Layers.
    pub layers: u32,
    /// Heads.
    pub heads: u32,
    /// Features of a head.
    pub head_dim: u32,
    /// Norm epsilon.
    pub epsilon: f32,
    /// Function of the feed-forward layer.
    pub activation: Activation,
    /// Mean of each channel of pixels in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
    /// Patches of a side of the square that becomes one token.
    pub merge: u64,
    /// Width of the decoder that it was made for.
    pub text_width: u64,
    /// Rows and columns of the learned positions; 0 where there are none.
    pub positions_side: u64,
    /// Norm of layers.
    pub norm: Norm,
    /// Base of the frequencies that a patch's row and column turn, where its heads are rotated.
    pub rope_base: Option<f32>,
    /// Where attention sees windows.
    pub windows: Option<Windows>,
    /// Patches of a tile.
    pub grid: TileGrid,
    /// Longest edge that a picture is resized to before it is cut, pixels.
    pub longest_edge: Option<u64>,
}

impl VisionConfig {
    /// Patches of the largest tile.
    #[must_use]
    pub fn patches_max(&self) -> u64 {
        let side = self.image_size / self.patch;
        match self.grid {
            TileGrid::Fixed => side * side,
            TileGrid::Variable { tokens_max, .. } => tokens_max * self.merge * self.merge,
            TileGrid::Whole { pixels_max, .. } => {
                let square = self.merge * self.merge;
                pixels_max / (self.patch * self.patch * square) * square
            }
        }
    }

    /// Tokens that a tile of some patches becomes.
    #[must_use]
    pub fn tokens(&self, patches: u64) -> u64 {
        patches / (self.merge * self.merge)
    }
}

/// Greatest value accepted for a structural number.
const STRUCTURE_MAX: u64 = 1 << 20;
/// Greatest side of a tile, pixels.
const SIDE_MAX: u64 = 1 << 13;
/// Most patches that a tile may have.
const PATCHES_MAX: u64 = 1 << 16;

/// Whether a file is an image encoder.
///
/// # Errors
/// `general.architecture` of another type.
pub fn is_vision_file(file: &dyn ModelFile) -> Result<bool, ModelError> {
    Ok(file.text("general.architecture")?.as_deref() == Some("clip"))
}

/// Reads the configuration of a vision file.
///
/// # Errors
/// Another architecture, a projector that is not built here, or metadata that is missing or out
/// of range.
pub fn read_vision_config(file: &dyn ModelFile) -> Result<VisionConfig, ModelError> {
    if !is_vision_file(file)? {
        let name = file.text("general.architecture")?.unwrap_or_default();
        let what = format!("{name:?} (general.architecture) as a vision file: clip");
        return Err(ModelError::Unsupported { what });
    }
    if file.flag("clip.has_audio_encoder")? == Some(true) {
        return Err(ModelError::Unsupported { what: "clip.has_audio_encoder (sound)".to_string() });
    }
    if file.flag("clip.has_vision_encoder")? == Some(false) {
        let what = "a vision file without an encoder (clip.has_vision_encoder)".to_string();
        return Err(ModelError::Unsupported { what });
    }
    let projector = projector(file)?;
    let patch = required(file, "clip.vision.patch_size", 64)?;
    let image_size = required(file, "clip.vision.image_size", SIDE_MAX)?;
    let hidden = required(file, "clip.vision.embedding_length", STRUCTURE_MAX)?;
    let heads = required(file, "clip.vision.attention.head_count", 1024)?;
    let feed_forward = required(file, "clip.vision.feed_forward_length", STRUCTURE_MAX)?;
    let merge = match file.integer("clip.vision.projector.scale_factor")? {
        Some(_) => required(file, "clip.vision.projector.scale_factor", 16)?,
        None => projector.merge_default(),
    };
    let mut config = VisionConfig {
        projector,
        image_size,
        patch,
        hidden,
        feed_forward,
        layers: required(file, "clip.vision.block_count", 1024)? as u32,
        heads: heads as u32,
        head_dim: (hidden / heads) as u32,
        epsilon: positive(file, "clip.vision.attention.layer_norm_epsilon")?.unwrap_or(1e-6),
        activation: activation(file)?,
        mean: channels(file, "clip.vision.image_mean")?,
        deviation: channels(file, "clip.vision.image_std")?,
        merge,
        text_width: required(file, "clip.vision.projection_dim", STRUCTURE_MAX)?,
        positions_side: match projector {
            Projector::Idefics3 | Projector::Lfm2 => positions_side(file, hidden)?,
            Projector::Qwen25Vl => 0,
        },
        norm: Norm::Mean,
        rope_base: None,
        windows: None,
        grid: TileGrid::Fixed,
        longest_edge: None,
    };
    match projector {
        Projector::Idefics3 => crate::idefics3::configure(file, &mut config)?,
        Projector::Lfm2 => crate::lfm2::configure(file, &mut config)?,
        Projector::Qwen25Vl => crate::qwen25vl::configure(file, &mut config)?,
    }
    check(&config)?;
    Ok(config)
}

fn projector(file: &dyn ModelFile) -> Result<Projector, ModelError> {
    let key = "clip.projector_type";
    let name = match file.text(key)? {
        Some(name) => name,
        None => file.text("clip.vision.projector_type")?.ok_or_else(|| ModelError::Metadata {
            message: format!("metadata {key} is missing"),
        })?,
    };
    match name.as_str() {
        "idefics3" => Ok(Projector::Idefics3),
        "lfm2" => Ok(Projector::Lfm2),
        "qwen2.5vl_merger" => Ok(Projector::Qwen25Vl),
        _ => Err(ModelError::BadValue {
            key: key.to_string(),
            value: name,
            expected: PROJECTORS.join(" or "),
        }),
    }
}

impl Projector {
    /// Name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Projector::Idefics3 => "idefics3",
            Projector::Lfm2 => "lfm2",
            Projector::Qwen25Vl => "qwen2.5vl_merger",
        }
    }

    fn merge_default(self) -> u64 {
        match self {
            Projector::Idefics3 => 4,
            Projector::Lfm2 | Projector::Qwen25Vl => 2,
        }
    }
}

/// The feed-forward function, by the flags that llama.cpp writes.
fn activation(file: &dyn ModelFile) -> Result<Activation, ModelError> {
    let flag = |key: &str| Ok(file.flag(key)? == Some(true));
    Ok(match (flag("clip.use_gelu")?, flag("clip.use_silu")?) {
        (false, false) => Activation::GeluQuick,
        (true, false) => Activation::GeluTanh,
        (false, true) => Activation::Silu,
        (true, true) => {
            return Err(ModelError::BadValue {
                key: "clip.use_gelu".to_string(),
                value: "true, with clip.use_silu true".to_string(),
                expected: "at most one of the two".to_string(),
            });
        }
    })
}

/// One finite number a channel; a deviation must not be 0, a mean may.
fn channels(file: &dyn ModelFile, key: &str) -> Result<[f32; 3], ModelError> {
    let values = file
        .floats(key)?
        .ok_or_else(|| ModelError::Metadata { message: format!("metadata {key} is missing") })?;
    let bad = || ModelError::BadValue {
        key: key.to_string(),
        value: format!("{values:?}"),
        expected: "three finite numbers, a deviation above 0".to_string(),
    };
    let channels: [f32; 3] = values.as_slice().try_into().map_err(|_| bad())?;
    let least = if key.ends_with("std") { f32::MIN_POSITIVE } else { 0.0 };
    match channels.iter().all(|value| value.is_finite() && *value >= least) {
        true => Ok(channels),
        false => Err(bad()),
    }
}

/// Side of the learned grid of positions, by the table's rows.
fn positions_side(file: &dyn ModelFile, hidden: u64) -> Result<u64, ModelError> {
    let name = "v.position_embd.weight";
    let expected = || vec![hidden, 1];
    let tensor = file.tensor(name).ok_or_else(|| ModelError::MissingTensor {
        name: name.to_string(),
        expected: expected(),
    })?;
    let rows = tensor.dims.get(1).copied().unwrap_or(0);
    let side = rows.isqrt();
    if side == 0 || side * side != rows || side > 128 {
        return Err(ModelError::Unsupported {
            what: format!("{name} of {rows} rows: a square grid of up to 128 a side"),
        });
    }
    Ok(side)
}

fn check(config: &VisionConfig) -> Result<(), ModelError> {
    let bad = |name: &str, value: u64, expected: &str| {
        Err(ModelError::BadValue {
            key: format!("clip.vision.{name}"),
            value: value.to_string(),
            expected: expected.to_string(),
        })
    };
    let head_dim = u64::from(config.head_dim);
    if head_dim * u64::from(config.heads) != config.hidden {
        return bad("attention.head_count", config.heads.into(), "a divisor of embedding_length");
    }
    if !(1..=256).contains(&head_dim) {
        return bad("embedding_length / head_count", head_dim, "1 to 256");
    }
    if config.rope_base.is_some() && !head_dim.is_multiple_of(16) {
        return bad("embedding_length / head_count", head_dim, "a multiple of 16 to be rotated");
    }
    if !config.hidden.is_multiple_of(16) {
        return bad("embedding_length", config.hidden, "a multiple of 16");
    }
    let side = config.image_size / config.patch;
    let is_cut = !matches!(config.grid, TileGrid::Whole { .. });
    if is_cut && (side == 0 || !config.image_size.is_multiple_of(config.patch * config.merge)) {
        let expected = "whole squares of patches (patch_size · scale_factor)";
        return bad("image_size", config.image_size, expected);
    }
    if !(1..=PATCHES_MAX).contains(&config.patches_max()) {
        return bad("image_size", config.image_size, "at most 65536 patches");
    }
    Ok(())
}
