//! The attributes of each operation kind: printing and reading side by side, so that what one
//! does the other undoes.

use super::JsonError;
use super::parse::Node;
use super::write::{Object, object};
use crate::op::{
    Activation, AttentionShape, Copies, Epilogue, OpKind, RopeScaling, RopeStyle, Source,
};
use crate::tensor::Dtype;
use crate::vision::{FullAttentionShape, PatchOrder, PatchShape, VisionOp};

/// Everything that a kind holds beside its name.
pub(super) fn write_attributes(out: &mut String, kind: &OpKind) {
    object(out, |o| match kind {
        OpKind::LoadMatrix(source) | OpKind::LoadVector(source) => write_source(o, source),
        OpKind::LoadRopeFrequencies { base, rotary_dim, scaling, factors } => {
            o.float("base", *base);
            o.number("rotary_dim", u64::from(*rotary_dim));
            o.with("scaling", |out| object(out, |o| write_scaling(o, scaling)));
            o.with("factors", |out| match factors {
                Some(source) => object(out, |o| write_source(o, source)),
                None => out.push_str("null"),
            });
        }
        OpKind::RopeTable { magnitude } => o.float("magnitude", *magnitude),
        OpKind::EmbedRows { scale } => o.float("scale", *scale),
        OpKind::RmsNorm { epsilon } | OpKind::RmsNormAdd { epsilon } => {
            o.float("epsilon", *epsilon);
        }
        OpKind::RmsNormQuantise { epsilon, copies } => {
            o.float("epsilon", *epsilon);
            write_copies(o, *copies);
        }
        OpKind::HeadNorm { epsilon, head_dim } => {
            o.float("epsilon", *epsilon);
            o.number("head_dim", u64::from(*head_dim));
        }
        OpKind::MatMul { rows, cols, epilogue, copies } => {
            o.number("rows", *rows);
            o.number("cols", *cols);
            o.text("epilogue", epilogue_name(*epilogue));
            write_copies(o, *copies);
        }
        OpKind::Rope { style, head_dim, rotary_dim } => {
            o.text("style", style_name(*style));
            o.number("head_dim", u64::from(*head_dim));
            o.number("rotary_dim", u64::from(*rotary_dim));
        }
        OpKind::KvAppend(shape)
        | OpKind::Attention(shape)
        | OpKind::AttentionPrefill(shape)
        | OpKind::AttentionDecodePartial(shape)
        | OpKind::AttentionDecodeMerge(shape) => write_shape(o, shape),
        OpKind::AttentionDecodeMergeQuantise { shape, copies } => {
            write_shape(o, shape);
            write_copies(o, *copies);
        }
        OpKind::GatedMul(activation) | OpKind::GatedMulQuantise(activation) => {
            o.text("activation", activation.name());
        }
        OpKind::GatedMatMul { rows, cols, activation, block_rows, copies } => {
            o.number("rows", *rows);
            o.number("cols", *cols);
            o.text("activation", activation.name());
            o.number("block_rows", *block_rows);
            write_copies(o, *copies);
        }
        OpKind::Sample { vocabulary } => o.number("vocabulary", *vocabulary),
        OpKind::LoadTokenizer { offset, bytes } => {
            o.number("offset", *offset);
            o.number("bytes", *bytes);
        }
        OpKind::Vision(op) => write_vision(o, op),
        OpKind::Quantise | OpKind::BiasAdd | OpKind::Add | OpKind::SelectRows => {}
    });
}

/// The kind of a name, from its attributes.
pub(super) fn read_kind(name: &Node<'_, '_>, a: &Node<'_, '_>) -> Result<OpKind, JsonError> {
    let epsilon = || a.get("epsilon")?.float();
    Ok(match name.text()? {
        "LoadMatrix" => OpKind::LoadMatrix(read_source(a)?),
        "LoadVector" => OpKind::LoadVector(read_source(a)?),
        "LoadRopeFrequencies" => {
            let factors = a.get("factors")?;
            OpKind::LoadRopeFrequencies {
                base: a.get("base")?.float()?,
                rotary_dim: a.get("rotary_dim")?.small()?,
                scaling: read_scaling(&a.get("scaling")?)?,
                factors: if factors.is_null() { None } else { Some(read_source(&factors)?) },
            }
        }
        "LoadTokenizer" => OpKind::LoadTokenizer {
            offset: a.get("offset")?.number()?,
            bytes: a.get("bytes")?.number()?,
        },
        "RopeTable" => OpKind::RopeTable { magnitude: a.get("magnitude")?.float()? },
        "EmbedRows" => OpKind::EmbedRows { scale: a.get("scale")?.float()? },
        "RmsNorm" => OpKind::RmsNorm { epsilon: epsilon()? },
        "RmsNormQuantise" => {
            OpKind::RmsNormQuantise { epsilon: epsilon()?, copies: read_copies(a)? }
        }
        "RmsNormAdd" => OpKind::RmsNormAdd { epsilon: epsilon()? },
        "HeadNorm" => {
            OpKind::HeadNorm { epsilon: epsilon()?, head_dim: a.get("head_dim")?.small()? }
        }
        "Quantise" => OpKind::Quantise,
        "MatMul" => OpKind::MatMul {
            rows: a.get("rows")?.number()?,
            cols: a.get("cols")?.number()?,
            epilogue: pick(&a.get("epilogue")?, &[Epilogue::Store, Epilogue::Add], epilogue_name)?,
            copies: read_copies(a)?,
        },
        "BiasAdd" => OpKind::BiasAdd,
        "Add" => OpKind::Add,
        "Rope" => OpKind::Rope {
            style: pick(
                &a.get("style")?,
                &[RopeStyle::Interleaved, RopeStyle::Halves],
                style_name,
            )?,
            head_dim: a.get("head_dim")?.small()?,
            rotary_dim: a.get("rotary_dim")?.small()?,
        },
        "KvAppend" => OpKind::KvAppend(read_shape(a)?),
        "Attention" => OpKind::Attention(read_shape(a)?),
        "AttentionPrefill" => OpKind::AttentionPrefill(read_shape(a)?),
        "AttentionDecodePartial" => OpKind::AttentionDecodePartial(read_shape(a)?),
        "AttentionDecodeMerge" => OpKind::AttentionDecodeMerge(read_shape(a)?),
        "AttentionDecodeMergeQuantise" => {
            OpKind::AttentionDecodeMergeQuantise { shape: read_shape(a)?, copies: read_copies(a)? }
        }
        "GatedMul" => OpKind::GatedMul(read_activation(a)?),
        "GatedMulQuantise" => OpKind::GatedMulQuantise(read_activation(a)?),
        "GatedMatMul" => OpKind::GatedMatMul {
            rows: a.get("rows")?.number()?,
            cols: a.get("cols")?.number()?,
            activation: read_activation(a)?,
            block_rows: a.get("block_rows")?.number()?,
            copies: read_copies(a)?,
        },
        "SelectRows" => OpKind::SelectRows,
        "Sample" => OpKind::Sample { vocabulary: a.get("vocabulary")?.number()? },
        other => match read_vision(other, a)? {
            Some(op) => OpKind::Vision(op),
            None => return Err(name.error(format!("unknown operation kind {other:?}"))),
        },
    })
}

/// The member of a closed set that has the text's name.
pub(super) fn pick<T: Copy>(
    node: &Node<'_, '_>,
    set: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, JsonError> {
    let text = node.text()?;
    set.iter().copied().find(|member| name(*member) == text).ok_or_else(|| {
        let names: Vec<&str> = set.iter().map(|member| name(*member)).collect();
        node.error(format!("{text:?} is none of {}", names.join(", ")))
    })
}

fn write_source(o: &mut Object<'_>, source: &Source) {
    o.text("tensor", &source.tensor);
    o.number("file", u64::from(source.file));
    o.number("offset", source.offset);
    o.number("bytes", source.bytes);
    o.text("dtype", source.dtype.name());
    o.number("rows", source.rows);
    o.number("cols", source.cols);
}

fn read_source(a: &Node<'_, '_>) -> Result<Source, JsonError> {
    Ok(Source {
        tensor: a.get("tensor")?.text()?.to_string(),
        file: a.get("file")?.small()?,
        offset: a.get("offset")?.number()?,
        bytes: a.get("bytes")?.number()?,
        dtype: pick(&a.get("dtype")?, &Dtype::ALL, Dtype::name)?,
        rows: a.get("rows")?.number()?,
        cols: a.get("cols")?.number()?,
    })
}

fn write_scaling(o: &mut Object<'_>, scaling: &RopeScaling) {
    match scaling {
        RopeScaling::None => o.text("type", "none"),
        RopeScaling::Linear { factor } => {
            o.text("type", "linear");
            o.float("factor", *factor);
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow } => {
            o.text("type", "yarn");
            o.float("factor", *factor);
            o.number("original_context", u64::from(*original_context));
            o.float("beta_fast", *beta_fast);
            o.float("beta_slow", *beta_slow);
        }
        RopeScaling::Llama3 {
            factor,
            low_frequency_factor,
            high_frequency_factor,
            original_context,
        } => {
            o.text("type", "llama3");
            o.float("factor", *factor);
            o.float("low_frequency_factor", *low_frequency_factor);
            o.float("high_frequency_factor", *high_frequency_factor);
            o.number("original_context", u64::from(*original_context));
        }
    }
}

fn read_scaling(a: &Node<'_, '_>) -> Result<RopeScaling, JsonError> {
    let float = |key| a.get(key)?.float();
    let context = || a.get("original_context")?.small();
    let name = a.get("type")?;
    Ok(match name.text()? {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: float("factor")? },
        "yarn" => RopeScaling::Yarn {
            factor: float("factor")?,
            original_context: context()?,
            beta_fast: float("beta_fast")?,
            beta_slow: float("beta_slow")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: float("factor")?,
            low_frequency_factor: float("low_frequency_factor")?,
            high_frequency_factor: float("high_frequency_factor")?,
            original_context: context()?,
        },
        unknown => return Err(name.error(format!("unknown scaling {unknown:?}"))),
    })
}

/// Names of a patch's means and deviations, channel by channel.
const CHANNELS: [[&str; 2]; 3] = [
    ["mean_red", "deviation_red"],
    ["mean_green", "deviation_green"],
    ["mean_blue", "deviation_blue"],
];

fn write_vision(o: &mut Object<'_>, op: &VisionOp) {
    match op {
        VisionOp::LayerNorm { epsilon } => o.float("epsilon", *epsilon),
        VisionOp::Activate(activation) => o.text("activation", activation.name()),
        VisionOp::Patchify(shape) => {
            o.number("side", u64::from(shape.side));
            for (channel, [mean, deviation]) in CHANNELS.iter().enumerate() {
                o.float(mean, shape.mean[channel]);
                o.float(deviation, shape.deviation[channel]);
            }
            write_order(o, shape.order);
        }
        VisionOp::AddPositions { side } => o.number("side", u64::from(*side)),
        VisionOp::FullAttention(shape) => write_full_shape(o, shape),
        VisionOp::WindowAttention { shape, square, window } => {
            write_full_shape(o, shape);
            write_order(o, PatchOrder::Windows { square: *square, window: *window });
        }
        VisionOp::PatchRopeTable { order } => write_order(o, *order),
        VisionOp::SectionedRopeTable { sections, magnitude } => {
            for (name, section) in SECTIONS.iter().zip(sections) {
                o.number(name, u64::from(*section));
            }
            o.float("magnitude", *magnitude);
        }
        VisionOp::GatedProducts { rows, cols, activation } => {
            o.number("rows", *rows);
            o.number("cols", *cols);
            o.text("activation", activation.name());
        }
        VisionOp::MergePatches { factor, width, order } => {
            o.number("factor", u64::from(*factor));
            o.number("width", *width);
            write_order(o, *order);
        }
        VisionOp::FeatureScale | VisionOp::PlaceRows | VisionOp::SpliceRows => {}
    }
}

/// Names of the sections of a token's three positions.
const SECTIONS: [&str; 3] = ["time", "row", "column"];

/// An order that is not the plain one.
fn write_order(o: &mut Object<'_>, order: PatchOrder) {
    match order {
        PatchOrder::Rows => {}
        PatchOrder::Windows { square, window } => {
            o.number("square", u64::from(square));
            o.number("window", u64::from(window));
        }
    }
}

fn read_order(a: &Node<'_, '_>) -> Result<PatchOrder, JsonError> {
    Ok(match a.find("square")? {
        None => PatchOrder::Rows,
        Some(square) => {
            PatchOrder::Windows { square: square.small()?, window: a.get("window")?.small()? }
        }
    })
}

fn write_full_shape(o: &mut Object<'_>, shape: &FullAttentionShape) {
    o.number("heads", u64::from(shape.heads));
    o.number("head_dim", u64::from(shape.head_dim));
    o.number("positions", u64::from(shape.positions));
    o.float("scale", shape.scale);
}

fn read_full_shape(a: &Node<'_, '_>) -> Result<FullAttentionShape, JsonError> {
    Ok(FullAttentionShape {
        heads: a.get("heads")?.small()?,
        head_dim: a.get("head_dim")?.small()?,
        positions: a.get("positions")?.small()?,
        scale: a.get("scale")?.float()?,
    })
}

/// The operation of an image encoder that has this name, if any.
fn read_vision(name: &str, a: &Node<'_, '_>) -> Result<Option<VisionOp>, JsonError> {
    Ok(Some(match name {
        "LayerNorm" => VisionOp::LayerNorm { epsilon: a.get("epsilon")?.float()? },
        "Activate" => VisionOp::Activate(read_activation(a)?),
        "FeatureScale" => VisionOp::FeatureScale,
        "Patchify" => {
            let (side, order) = (a.get("side")?.small()?, read_order(a)?);
            let mut shape = PatchShape { side, order, mean: [0.0; 3], deviation: [0.0; 3] };
            for (channel, [mean, deviation]) in CHANNELS.into_iter().enumerate() {
                shape.mean[channel] = a.get(mean)?.float()?;
                shape.deviation[channel] = a.get(deviation)?.float()?;
            }
            VisionOp::Patchify(shape)
        }
        "AddPositions" => VisionOp::AddPositions { side: a.get("side")?.small()? },
        "FullAttention" => VisionOp::FullAttention(read_full_shape(a)?),
        "WindowAttention" => VisionOp::WindowAttention {
            shape: read_full_shape(a)?,
            square: a.get("square")?.small()?,
            window: a.get("window")?.small()?,
        },
        "PatchRopeTable" => VisionOp::PatchRopeTable { order: read_order(a)? },
        "SectionedRopeTable" => {
            let mut sections = [0; 3];
            for (section, name) in sections.iter_mut().zip(SECTIONS) {
                *section = a.get(name)?.small()?;
            }
            VisionOp::SectionedRopeTable { sections, magnitude: a.get("magnitude")?.float()? }
        }
        "GatedProducts" => VisionOp::GatedProducts {
            rows: a.get("rows")?.number()?,
            cols: a.get("cols")?.number()?,
            activation: read_activation(a)?,
        },
        "MergePatches" => VisionOp::MergePatches {
            factor: a.get("factor")?.small()?,
            width: a.get("width")?.number()?,
            order: read_order(a)?,
        },
        "PlaceRows" => VisionOp::PlaceRows,
        "SpliceRows" => VisionOp::SpliceRows,
        _ => return Ok(None),
    }))
}

fn write_shape(o: &mut Object<'_>, shape: &AttentionShape) {
    o.number("heads", u64::from(shape.heads));
    o.number("kv_heads", u64::from(shape.kv_heads));
    o.number("head_dim", u64::from(shape.head_dim));
    o.number("capacity", u64::from(shape.capacity));
    o.number("window", u64::from(shape.window));
    o.float("scale", shape.scale);
    o.text("kv", shape.kv.name());
}

fn read_shape(a: &Node<'_, '_>) -> Result<AttentionShape, JsonError> {
    Ok(AttentionShape {
        heads: a.get("heads")?.small()?,
        kv_heads: a.get("kv_heads")?.small()?,
        head_dim: a.get("head_dim")?.small()?,
        capacity: a.get("capacity")?.small()?,
        window: a.get("window")?.small()?,
        scale: a.get("scale")?.float()?,
        kv: pick(&a.get("kv")?, &Dtype::ALL, Dtype::name)?,
    })
}

fn read_activation(a: &Node<'_, '_>) -> Result<Activation, JsonError> {
    pick(&a.get("activation")?, &Activation::ALL, Activation::name)
}

/// Blocks of a copy, where each shard has its own.
fn write_copies(o: &mut Object<'_>, copies: Copies) {
    match copies {
        Copies::Shared => {}
        Copies::Own { blocks } => o.number("copy_blocks", blocks),
    }
}

fn read_copies(a: &Node<'_, '_>) -> Result<Copies, JsonError> {
    Ok(match a.find("copy_blocks")? {
        None => Copies::Shared,
        Some(blocks) => Copies::Own { blocks: blocks.number()? },
    })
}

fn epilogue_name(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::Store => "store",
        Epilogue::Add => "add",
    }
}

fn style_name(style: RopeStyle) -> &'static str {
    match style {
        RopeStyle::Interleaved => "interleaved",
        RopeStyle::Halves => "halves",
    }
}
