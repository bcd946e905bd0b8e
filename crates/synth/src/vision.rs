//! An image encoder, as llama.cpp's converter stores Qwen2.5-VL's: q, k and v apart, the
//! convolution over two frames as two kernels.

use dctms_format::ValueType;
use dctms_format::write::{MetadataValue, Writer};

use crate::shape::{Mix, VisionShape};
use crate::tensors::To;

/// Writes header and tensors.
pub fn write(shape: &VisionShape, mix: Mix, seed: u64) -> Writer<'static> {
    let mut to = To { writer: parameters(shape, mix), seed };
    let (hidden, base) = (shape.hidden, mix.base());
    let patch = u64::from(shape.patch);
    let dims = [patch, patch, 3, u64::from(hidden)];
    for name in ["v.patch_embd.weight", "v.patch_embd.weight.1"] {
        to.tensor(name, (hidden, 3 * shape.patch * shape.patch), &dims, Mix::F16.base());
    }
    for layer in 0..shape.layers {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let mut linear = |part: &str, rows, columns| {
            to.matrix(&name(&format!("{part}.weight")), rows, columns, base);
            to.vector(&name(&format!("{part}.bias")), rows, 0.0, 0.2);
        };
        for part in ["attn_q", "attn_k", "attn_v", "attn_out"] {
            linear(part, hidden, hidden);
        }
        linear("ffn_gate", shape.feed_forward, hidden);
        linear("ffn_up", shape.feed_forward, hidden);
        linear("ffn_down", hidden, shape.feed_forward);
        to.vector(&name("ln1.weight"), hidden, 1.0, 0.1);
        to.vector(&name("ln2.weight"), hidden, 1.0, 0.1);
    }
    to.vector("v.post_ln.weight", hidden, 1.0, 0.1);
    let merged = hidden * shape.merge * shape.merge;
    for (name, rows) in [("mm.0", merged), ("mm.2", shape.text_hidden)] {
        to.matrix(&format!("{name}.weight"), rows, merged, base);
        to.vector(&format!("{name}.bias"), rows, 0.0, 0.2);
    }
    to.writer
}

fn parameters(shape: &VisionShape, mix: Mix) -> Writer<'static> {
    let writer = Writer::new()
        .metadata("general.architecture", "clip")
        .metadata("general.name", format!("Random {}", shape.name).as_str())
        .metadata("general.file_type", mix.file_type())
        .metadata("general.quantization_version", 2u32)
        .metadata("clip.has_vision_encoder", true)
        .metadata("clip.projector_type", "qwen2.5vl_merger")
        .metadata("clip.use_silu", true);
    let channels = |values: [f32; 3]| {
        MetadataValue::Array(ValueType::F32, values.map(MetadataValue::F32).to_vec())
    };
    let numbers: [(&str, MetadataValue); 11] = [
        ("image_size", (20 * shape.patch * shape.merge).into()),
        ("patch_size", shape.patch.into()),
        ("embedding_length", shape.hidden.into()),
        ("feed_forward_length", shape.feed_forward.into()),
        ("projection_dim", shape.text_hidden.into()),
        ("block_count", shape.layers.into()),
        ("attention.head_count", shape.heads.into()),
        ("attention.layer_norm_epsilon", shape.epsilon.into()),
        ("n_wa_pattern", shape.pattern.into()),
        ("image_mean", channels(shape.mean)),
        ("image_std", channels(shape.deviation)),
    ];
    numbers
        .into_iter()
        .fold(writer, |writer, (key, value)| writer.metadata(&format!("clip.vision.{key}"), value))
}
