//! Seeded random-weight GGUF files at the true shapes of published models.
//!
//! Speed and memory depend on shapes, tensor types and the size of the vocabulary, never on what
//! the weights say; so a benchmark or an envelope needs no download. Blocks are drawn in their
//! quantised form, with a scale that gives each matrix the deviation 1/sqrt(k), so that
//! activations neither vanish nor explode. The vocabulary is a byte-pair one of the published
//! size, grown from the 256 bytes by seeded merges: it encodes any text and decodes it again.
//!
//! The same shape, mix and seed give the same bytes everywhere. This crate writes files and
//! knows nothing of how they are read, planned or run.

#![forbid(unsafe_code)]

mod blocks;
mod random;
mod shape;
mod tensors;
mod vision;
mod vocabulary;

use std::io::{self, Write};

use dctms_format::ValueType;
use dctms_format::write::{MetadataValue, Writer};

pub use shape::{Architecture, Mix, SHAPES, Shape, VISION_SHAPES, VisionShape};

/// Writes a model: `shape`'s configuration, tensor types of `mix`, numbers from `seed`.
///
/// # Errors
/// What `out` reports.
pub fn write(shape: &Shape, mix: Mix, seed: u64, out: &mut impl Write) -> io::Result<()> {
    let writer = vocabulary::write(parameters(shape, mix), shape, seed);
    tensors::write(writer, shape, mix, seed).write(out)
}

/// Writes an image encoder, as [`write()`] does a decoder.
///
/// # Errors
/// What `out` reports.
pub fn write_vision(
    shape: &VisionShape,
    mix: Mix,
    seed: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    vision::write(shape, mix, seed).write(out)
}

fn parameters(shape: &Shape, mix: Mix) -> Writer<'static> {
    let architecture = shape.architecture.name();
    let writer = Writer::new()
        .metadata("general.architecture", architecture)
        .metadata("general.name", format!("Random {}", shape.name).as_str())
        .metadata("general.file_type", mix.file_type())
        .metadata("general.quantization_version", 2u32);
    let parameters: [(&str, MetadataValue); 10] = [
        ("context_length", shape.context.into()),
        ("embedding_length", shape.hidden.into()),
        ("block_count", shape.layers.into()),
        ("feed_forward_length", shape.feed_forward.into()),
        ("attention.head_count", shape.heads.into()),
        ("attention.head_count_kv", shape.kv_heads.into()),
        ("attention.key_length", shape.head_dim.into()),
        ("attention.value_length", shape.head_dim.into()),
        ("attention.layer_norm_rms_epsilon", shape.epsilon.into()),
        ("rope.freq_base", shape.rope_base.into()),
    ];
    let writer = parameters.into_iter().fold(writer, |writer, (key, value)| {
        writer.metadata(&format!("{architecture}.{key}"), value)
    });
    match shape.architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => writer,
        Architecture::Qwen2Vl => {
            writer.metadata("qwen2vl.rope.dimension_sections", sections(shape))
        }
    }
}

/// Frequencies that time, row and column turn: a quarter, and three eighths each.
fn sections(shape: &Shape) -> MetadataValue {
    let pairs = shape.head_dim as i32 / 2;
    let turned = (pairs - pairs / 4) / 2;
    let sections = [pairs - 2 * turned, turned, turned, 0];
    MetadataValue::Array(ValueType::I32, sections.map(MetadataValue::I32).to_vec())
}
