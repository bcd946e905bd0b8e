//! The closed set of operations. What each one touches stands in [`crate::contract`].
//!
//! Two levels share the set. A **logical** program (from a model) uses only operations that a
//! paper would write; **legalising** it (planner) replaces some by fused ones that exist in
//! kernels and makes workspace explicit. The operand order of each kind is part of its meaning and
//! is written beside it; `x` is tile-major f32, `xq` is quantised blocks.

use crate::ids::TensorId;
use crate::tensor::Dtype;
use crate::vision::VisionOp;

/// Where a tensor's bytes stand in the model files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The tensor's name in the file.
    pub tensor: String,
    /// Index of the file (shard) that holds it.
    pub file: u32,
    /// Absolute byte offset in that file.
    pub offset: u64,
    /// Bytes in the file.
    pub bytes: u64,
    /// Element type in the file.
    pub dtype: Dtype,
    /// Rows (outputs).
    pub rows: u64,
    /// Columns (inputs), contiguous in the file.
    pub cols: u64,
}

/// How rotary frequencies are changed for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Unchanged.
    None,
    /// Every frequency divided by the factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// YaRN: a blend of interpolated and unchanged frequencies by wavelength.
    Yarn {
        /// Context growth.
        factor: f32,
        /// Context that the model was trained at, positions.
        original_context: u32,
        /// Rotations above which a frequency is unchanged.
        beta_fast: f32,
        /// Rotations below which a frequency is interpolated.
        beta_slow: f32,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The factor.
        factor: f32,
        /// Low-frequency bound.
        low_frequency_factor: f32,
        /// High-frequency bound.
        high_frequency_factor: f32,
        /// Context that the model was trained at, positions.
        original_context: u32,
    },
}

/// Which two features a rotation mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Features 2i and 2i+1.
    Interleaved,
    /// Features i and i + rotary/2.
    Halves,
}

/// An elementwise function: of the gate of a gated unit, or of a layer's middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x·sigmoid(x).
    Silu,
    /// The tanh form of the Gaussian error unit.
    GeluTanh,
    /// The Gaussian error unit.
    GeluErf,
    /// x·sigmoid(1.702 x).
    GeluQuick,
}

impl Activation {
    /// Every function.
    pub const ALL: [Activation; 4] =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::GeluQuick];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluErf => "gelu_erf",
            Activation::GeluQuick => "gelu_quick",
        }
    }
}

/// What a matrix product does with its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// y = Wx.
    Store,
    /// y = residual + Wx.
    Add,
}

/// How the shards of an operation have the quantised activations that one makes and products read.
/// Making all of few features again takes a lane less than waiting for the others' share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Once: each shard makes its part, and reads all.
    Shared,
    /// Once for each shard, which makes and reads all of its own.
    Own {
        /// Blocks of a copy: the leading axis of the tensor is as many for each shard.
        blocks: u64,
    },
}

/// Constants of an attention operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub kv_heads: u32,
    /// Features of a head.
    pub head_dim: u32,
    /// Positions that a slot of the cache holds (a ring).
    pub capacity: u32,
    /// Visible positions, the token's own included; 0 for all.
    pub window: u32,
    /// Factor on each score.
    pub scale: f32,
    /// Element type of the cache.
    pub kv: Dtype,
}

/// What an operation computes.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// Reads a matrix from a file and packs it. `[] → [matrix]`.
    LoadMatrix(Source),
    /// Reads a vector from a file as f32, padded with zeros to whole tiles. `[] → [vector]`.
    LoadVector(Source),
    /// Computes rotary frequencies. `[] → [frequencies]`. With factors: divides by a file's vector.
    LoadRopeFrequencies {
        /// Base θ.
        base: f32,
        /// Rotated features of a head.
        rotary_dim: u32,
        /// Change for long contexts.
        scaling: RopeScaling,
        /// A vector in the file that divides the frequencies.
        factors: Option<Source>,
    },
    /// Builds the tokeniser's tables from a range of the first file's header, which is staged
    /// whole. `[] → [tables]`.
    LoadTokenizer {
        /// First byte of the vocabulary in the file.
        offset: u64,
        /// Bytes of the vocabulary in the file.
        bytes: u64,
    },
    /// Cosines and sines of the step's positions. `[positions, frequencies] → [table]`.
    RopeTable {
        /// Factor on both (YaRN's attention factor).
        magnitude: f32,
    },
    /// Rows of an embedding matrix. `[token ids, matrix] → [x]`.
    EmbedRows {
        /// Factor on each value.
        scale: f32,
    },
    /// Root-mean-square norm. `[x, weight] → [x]`.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Norm, then quantise. `[x, weight] → [xq]`.
    RmsNormQuantise {
        /// Added to the mean square.
        epsilon: f32,
        /// How the shards have xq.
        copies: Copies,
    },
    /// Residual plus norm. `[x, weight, residual] → [x]`.
    RmsNormAdd {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Norm within each head. `[x, weight] → [x]`.
    HeadNorm {
        /// Added to the mean square.
        epsilon: f32,
        /// Features of a head.
        head_dim: u32,
    },
    /// Activations to blocks. `[x] → [xq]`.
    Quantise,
    /// Matrix product. `[x or xq, matrix] → [x]`, `[.., residual]` with [`Epilogue::Add`].
    MatMul {
        /// Outputs.
        rows: u64,
        /// Inputs.
        cols: u64,
        /// What happens to the destination.
        epilogue: Epilogue,
        /// How the shards have xq.
        copies: Copies,
    },
    /// Adds a vector to every token. `[x, bias] → [x]`.
    BiasAdd,
    /// Elementwise sum. `[x, x] → [x]`.
    Add,
    /// Rotates each head. `[x, table] → [x]`.
    Rope {
        /// Pairing.
        style: RopeStyle,
        /// Features of a head.
        head_dim: u32,
        /// Rotated features of a head, the first ones.
        rotary_dim: u32,
    },
    /// Writes keys and values of the step's tokens. `[k, v, positions, slots] → [keys, values]`,
    /// both updated in place.
    KvAppend(AttentionShape),
    /// Attention, logical. `[q, keys, values, positions, slots] → [x]`.
    Attention(AttentionShape),
    /// Attention by whole heads: for many tokens of one slot, or for one token of each sequence.
    /// Operands as [`OpKind::Attention`].
    AttentionPrefill(AttentionShape),
    /// Attention of one token for each sequence, by segments.
    /// `[q, keys, values, positions, slots] → [partials]`.
    AttentionDecodePartial(AttentionShape),
    /// Merges segments. `[partials, positions, slots] → [x]`.
    AttentionDecodeMerge(AttentionShape),
    /// Merges segments, then quantises. `[partials, positions, slots] → [xq]`. Heads are whole
    /// blocks.
    AttentionDecodeMergeQuantise {
        /// Of the attention.
        shape: AttentionShape,
        /// How the shards have xq.
        copies: Copies,
    },
    /// activation(gate)·up. `[gate, up] → [x]`.
    GatedMul(Activation),
    /// activation(gate)·up, quantised. `[gate, up] → [xq]`.
    GatedMulQuantise(Activation),
    /// Gate and up products, activation(gate)·up and quantising in one, by blocks of rows that stay
    /// in a cache: neither product is ever whole. `[xq, gate matrix, up matrix] → [xq]`.
    GatedMatMul {
        /// Outputs of each matrix.
        rows: u64,
        /// Inputs.
        cols: u64,
        /// The function of the gate.
        activation: Activation,
        /// Rows of a block, a multiple of 32.
        block_rows: u64,
        /// How the shards have the first operand.
        copies: Copies,
    },
    /// Picks tokens. `[x, row indices] → [x]`.
    SelectRows,
    /// Picks the next token of each row. `[logits, parameters, history] → [tokens, random state]`.
    Sample {
        /// Vocabulary size.
        vocabulary: u64,
    },
    /// A step of an image encoder.
    Vision(VisionOp),
}

impl OpKind {
    /// The kind's name in text forms.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::LoadMatrix(_) => "LoadMatrix",
            OpKind::LoadVector(_) => "LoadVector",
            OpKind::LoadRopeFrequencies { .. } => "LoadRopeFrequencies",
            OpKind::LoadTokenizer { .. } => "LoadTokenizer",
            OpKind::RopeTable { .. } => "RopeTable",
            OpKind::EmbedRows { .. } => "EmbedRows",
            OpKind::RmsNorm { .. } => "RmsNorm",
            OpKind::RmsNormQuantise { .. } => "RmsNormQuantise",
            OpKind::RmsNormAdd { .. } => "RmsNormAdd",
            OpKind::HeadNorm { .. } => "HeadNorm",
            OpKind::Quantise => "Quantise",
            OpKind::MatMul { .. } => "MatMul",
            OpKind::BiasAdd => "BiasAdd",
            OpKind::Add => "Add",
            OpKind::Rope { .. } => "Rope",
            OpKind::KvAppend(_) => "KvAppend",
            OpKind::Attention(_) => "Attention",
            OpKind::AttentionPrefill(_) => "AttentionPrefill",
            OpKind::AttentionDecodePartial(_) => "AttentionDecodePartial",
            OpKind::AttentionDecodeMerge(_) => "AttentionDecodeMerge",
            OpKind::AttentionDecodeMergeQuantise { .. } => "AttentionDecodeMergeQuantise",
            OpKind::GatedMul(_) => "GatedMul",
            OpKind::GatedMulQuantise(_) => "GatedMulQuantise",
            OpKind::GatedMatMul { .. } => "GatedMatMul",
            OpKind::SelectRows => "SelectRows",
            OpKind::Sample { .. } => "Sample",
            OpKind::Vision(op) => op.name(),
        }
    }
}

/// An operation of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// A name, unique in its phase, e.g. `blk.0.attn_q`.
    pub name: String,
    /// What it computes.
    pub kind: OpKind,
    /// Tensors read, in the kind's order.
    pub inputs: Vec<TensorId>,
    /// Tensors written, in the kind's order.
    pub outputs: Vec<TensorId>,
    /// Scratch, one slice a shard.
    pub workspace: Vec<TensorId>,
    /// Features of the smallest piece that a shard may take.
    pub grain: u64,
    /// Used in-place pairs (output index, input index).
    pub in_place: Vec<(u32, u32)>,
}
