//! The numbers of a decoder, read once from metadata and checked against each other.

use dctms_ir::op::{Activation, RopeScaling, RopeStyle};

use crate::error::ModelError;
use crate::file::ModelFile;

/// Rotary embedding of a group of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base θ.
    pub base: f32,
    /// Rotated features of a head.
    pub rotary_dim: u32,
    /// Pairing.
    pub style: RopeStyle,
    /// Long-context change.
    pub scaling: RopeScaling,
    /// Factor on cosines and sines.
    pub magnitude: f32,
    /// Whether the file's `rope_freqs.weight` divides the frequencies.
    pub file_factors: bool,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Name in the file.
    pub architecture: &'static str,
    /// Layers, L.
    pub layers: u32,
    /// Width, d.
    pub hidden: u64,
    /// Query heads, H.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Features of a head.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub feed_forward: u64,
    /// Rows of the embedding.
    pub vocabulary: u64,
    /// Context that the model was trained for, positions.
    pub context: u64,
    /// Norm epsilon.
    pub epsilon: f32,
    /// Rotary embedding of global layers.
    pub rope: RopeConfig,
    /// Where a token in a picture has three positions: frequencies that time, row and column turn.
    pub rope_sections: Option<[u32; 3]>,
    /// Rotary embedding of local layers, when they have their own.
    pub local_rope: Option<RopeConfig>,
    /// For each layer its window (0: all positions).
    pub windows: Vec<u32>,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// Gate function.
    pub activation: Activation,
    /// Norms of queries and keys inside heads.
    pub head_norms: bool,
    /// Norms of both residual branches before they are added.
    pub post_norms: bool,
    /// Biases of q, k and v may be in the file.
    pub biases: bool,
}

/// Greatest value accepted for a structural number: far above any model, far below overflow.
const STRUCTURE_MAX: u64 = 1 << 24;

/// An integer that must be there and within 1 and `max`.
///
/// # Errors
/// Missing, of another type, or out of range.
pub fn required(file: &dyn ModelFile, key: &str, max: u64) -> Result<u64, ModelError> {
    let value = file
        .integer(key)?
        .ok_or_else(|| ModelError::Metadata { message: format!("metadata {key} is missing") })?;
    in_range(key, value, max)
}

fn in_range(key: &str, value: u64, max: u64) -> Result<u64, ModelError> {
    if value == 0 || value > max {
        return Err(ModelError::BadValue {
            key: key.to_string(),
            value: value.to_string(),
            expected: format!("1 to {max}"),
        });
    }
    Ok(value)
}

/// A float that, when there, must be finite and above zero.
///
/// # Errors
/// Of another type, or out of range.
pub fn positive(file: &dyn ModelFile, key: &str) -> Result<Option<f32>, ModelError> {
    match file.float(key)? {
        Some(value) if !(value.is_finite() && value > 0.0) => Err(ModelError::BadValue {
            key: key.to_string(),
            value: value.to_string(),
            expected: "a finite number above 0".to_string(),
        }),
        other => Ok(other),
    }
}

/// The numbers that every family shares, with the plainest choice for the rest.
///
/// # Errors
/// Missing or inconsistent metadata.
pub fn common(
    file: &dyn ModelFile,
    architecture: &'static str,
    style: RopeStyle,
) -> Result<DecoderConfig, ModelError> {
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = required(file, &key("block_count"), 1024)? as u32;
    let hidden = required(file, &key("embedding_length"), STRUCTURE_MAX)?;
    let heads = required(file, &key("attention.head_count"), 1024)? as u32;
    let kv_heads = match file.integer(&key("attention.head_count_kv"))? {
        Some(value) => in_range(&key("attention.head_count_kv"), value, 1024)? as u32,
        None => heads,
    };
    let head_dim = match file.integer(&key("attention.key_length"))? {
        Some(value) => in_range(&key("attention.key_length"), value, 1024)? as u32,
        None => (hidden / u64::from(heads)) as u32,
    };
    let value_dim = file.integer(&key("attention.value_length"))?.unwrap_or(u64::from(head_dim));
    let feed_forward = required(file, &key("feed_forward_length"), STRUCTURE_MAX)?;
    let vocabulary = vocabulary(file, architecture)?;
    let context = required(file, &key("context_length"), 1 << 30)?;
    let epsilon = positive(file, &key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-5);
    check_structure(&key, hidden, feed_forward, (heads, kv_heads), (head_dim, value_dim))?;
    let rope = rope(file, architecture, style, head_dim)?;
    Ok(DecoderConfig {
        architecture,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        vocabulary,
        context,
        epsilon,
        rope,
        rope_sections: None,
        local_rope: None,
        windows: vec![0; layers as usize],
        embedding_scale: 1.0,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        activation: Activation::Silu,
        head_norms: false,
        post_norms: false,
        biases: false,
    })
}

fn check_structure(
    key: &dyn Fn(&str) -> String,
    hidden: u64,
    feed_forward: u64,
    (heads, kv_heads): (u32, u32),
    (head_dim, value_dim): (u32, u64),
) -> Result<(), ModelError> {
    let bad = |name: &str, value: u64, expected: &str| {
        Err(ModelError::BadValue {
            key: key(name),
            value: value.to_string(),
            expected: expected.to_string(),
        })
    };
    if !heads.is_multiple_of(kv_heads) {
        return bad("attention.head_count_kv", kv_heads.into(), "a divisor of the query heads");
    }
    if head_dim == 0 || !head_dim.is_multiple_of(16) || head_dim > 256 {
        return bad("attention.key_length", head_dim.into(), "a multiple of 16 up to 256");
    }
    if value_dim != u64::from(head_dim) {
        return bad("attention.value_length", value_dim, "the key length");
    }
    if !hidden.is_multiple_of(16) {
        return bad("embedding_length", hidden, "a multiple of 16");
    }
    if !feed_forward.is_multiple_of(16) {
        return bad("feed_forward_length", feed_forward, "a multiple of 16");
    }
    Ok(())
}

/// Rows of the embedding: the tokeniser's list, else the metadata number, else the tensor's rows.
fn vocabulary(file: &dyn ModelFile, architecture: &str) -> Result<u64, ModelError> {
    let rows = file.tensor("token_embd.weight").and_then(|tensor| tensor.dims.get(1).copied());
    if let Some(rows) = rows {
        return in_range("token_embd.weight rows", rows, STRUCTURE_MAX);
    }
    if let Some(count) = file.array_len("tokenizer.ggml.tokens")? {
        return in_range("tokenizer.ggml.tokens", count, STRUCTURE_MAX);
    }
    required(file, &format!("{architecture}.vocab_size"), STRUCTURE_MAX)
}

fn rope(
    file: &dyn ModelFile,
    architecture: &str,
    style: RopeStyle,
    head_dim: u32,
) -> Result<RopeConfig, ModelError> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    let base = positive(file, &key("freq_base"))?.unwrap_or(10_000.0);
    let rotary_dim = match file.integer(&key("dimension_count"))? {
        Some(value) => in_range(&key("dimension_count"), value, u64::from(head_dim))? as u32,
        None => head_dim,
    };
    if !rotary_dim.is_multiple_of(2) {
        return Err(ModelError::BadValue {
            key: key("dimension_count"),
            value: rotary_dim.to_string(),
            expected: "an even number".to_string(),
        });
    }
    let kind = file.text(&key("scaling.type"))?.unwrap_or_else(|| "none".to_string());
    let factor = match positive(file, &key("scaling.factor"))? {
        Some(factor) => Some(factor),
        None => positive(file, &key("scale_linear"))?,
    };
    let original = file.integer(&key("scaling.original_context_length"))?;
    let (scaling, magnitude) = match (kind.as_str(), factor) {
        ("none", None) | ("linear", None) => (RopeScaling::None, 1.0),
        ("none" | "linear", Some(factor)) => (RopeScaling::Linear { factor }, 1.0),
        ("yarn", Some(factor)) => {
            let original_context = match original {
                Some(value) => in_range(&key("scaling.original_context_length"), value, 1 << 30)?,
                None => required(file, &format!("{architecture}.context_length"), 1 << 30)?,
            } as u32;
            let beta_fast = positive(file, &key("scaling.yarn_beta_fast"))?.unwrap_or(32.0);
            let beta_slow = positive(file, &key("scaling.yarn_beta_slow"))?.unwrap_or(1.0);
            // A model that states the factor on cosines and sines means it; the formula is the
            // usual choice for those that do not.
            let magnitude = match positive(file, &key("scaling.yarn_attn_factor"))? {
                Some(magnitude) => magnitude,
                None => {
                    let attention = positive(file, &key("scaling.attn_factor"))?.unwrap_or(1.0);
                    attention * (1.0 + 0.1 * libm_ln(factor))
                }
            };
            (RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow }, magnitude)
        }
        (other, _) => {
            return Err(ModelError::Unsupported {
                what: format!("{} {other:?} (known: none, linear, yarn)", key("scaling.type")),
            });
        }
    };
    let file_factors = file.tensor("rope_freqs.weight").is_some();
    Ok(RopeConfig { base, rotary_dim, style, scaling, magnitude, file_factors })
}

/// Natural logarithm, the same on every machine.
fn libm_ln(value: f32) -> f32 {
    libm::log(f64::from(value)) as f32
}
