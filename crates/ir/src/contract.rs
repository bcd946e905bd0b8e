//! What each operation touches. Planner and verifier both call these functions; kernels assert
//! the same slices at entry. They are the trusted base of the proof: everything else is derived.
//!
//! Every operation shards along the leading axis of its tensors, so that a shard's slice is
//! contiguous: shard `s` of `n` takes units ⌊sU/n⌋ up to ⌊(s+1)U/n⌋ of that axis, `U` being its
//! *current* extent in units. Reads that need everything (a norm's row, a product's activations)
//! are whole, or of a copy of which each shard has its own: the leading axis is then the copies one
//! after the other, and a unit is a copy.

use crate::ids::TensorId;
use crate::limits::{BLOCK, SEGMENT, TILE};
use crate::op::{Copies, Epilogue, Op, OpKind, Source};
use crate::program::Program;
use crate::size::Size;
use crate::tensor::Dtype;
use crate::vision::VisionOp;

/// Whether an access reads, writes, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reads only.
    Read,
    /// Writes every byte of its slice before anything of it is read.
    Write,
    /// Reads and changes.
    ReadWrite,
}

impl Mode {
    /// Whether the access changes bytes.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Mode::Read => false,
            Mode::Write | Mode::ReadWrite => true,
        }
    }

    /// Whether the access depends on earlier bytes.
    #[must_use]
    pub fn reads(self) -> bool {
        match self {
            Mode::Write => false,
            Mode::Read | Mode::ReadWrite => true,
        }
    }

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::ReadWrite => "readwrite",
        }
    }
}

/// The part of a tensor that a shard touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All of it.
    Whole,
    /// Even slices of an axis in units of elements.
    Even {
        /// The axis; always the leading one today.
        axis: u32,
        /// Elements of a unit.
        unit: u64,
    },
}

/// One access of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The tensor.
    pub tensor: TensorId,
    /// Read or write.
    pub mode: Mode,
    /// Slice of each shard.
    pub split: Split,
}

/// Two accesses of one tensor by shards `a` of `a_shards` and `b` of `b_shards` touch no common
/// byte only if both are even on the same axis and unit, in as many shards, and the shards differ.
#[must_use]
pub fn slices_disjoint(a: Split, a_shard: (u32, u32), b: Split, b_shard: (u32, u32)) -> bool {
    match (a, b) {
        (Split::Even { axis, unit }, Split::Even { axis: b_axis, unit: b_unit }) => {
            axis == b_axis && unit == b_unit && a_shard.1 == b_shard.1 && a_shard.0 != b_shard.0
        }
        (Split::Whole, _) | (_, Split::Whole) => false,
    }
}

/// A contract that an operation's operands break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The operation.
    pub op: String,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "operation {}: {}", self.op, self.what)
    }
}

impl std::error::Error for Malformed {}

/// Number of (inputs, outputs, workspaces) of a kind.
#[must_use]
pub fn arity(kind: &OpKind) -> (usize, usize, usize) {
    match kind {
        OpKind::LoadMatrix(_) | OpKind::LoadVector(_) | OpKind::LoadTokenizer { .. } => (0, 1, 1),
        OpKind::LoadRopeFrequencies { factors, .. } => (0, 1, usize::from(factors.is_some())),
        OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::HeadNorm { .. }
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::Rope { .. }
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::SelectRows => (2, 1, 0),
        OpKind::RmsNormAdd { .. }
        | OpKind::AttentionDecodeMerge(_)
        | OpKind::AttentionDecodeMergeQuantise { .. } => (3, 1, 0),
        OpKind::Quantise => (1, 1, 0),
        OpKind::MatMul { epilogue: Epilogue::Store, .. } => (2, 1, 0),
        OpKind::MatMul { epilogue: Epilogue::Add, .. } => (3, 1, 0),
        OpKind::KvAppend(_) => (4, 2, 0),
        OpKind::Attention(_) => (5, 1, 0),
        OpKind::AttentionPrefill(_) | OpKind::AttentionDecodePartial(_) => (5, 1, 1),
        OpKind::GatedMatMul { .. } => (3, 1, 1),
        OpKind::Sample { .. } => (3, 2, 1),
        OpKind::Vision(op) => op.arity(),
    }
}

/// How an operation's shards split a tile-major activation (`Even` in tiles), quantised blocks,
/// packed rows or whole heads, all holding the same features.
fn features(grain: u64, elements: u64) -> Split {
    Split::Even { axis: 0, unit: (grain / elements).max(1) }
}

/// The slices of quantised activations: `shared`, or to each shard its own copy.
fn copied(copies: Copies, shared: Split) -> Split {
    match copies {
        Copies::Shared => shared,
        Copies::Own { blocks } => Split::Even { axis: 0, unit: blocks.max(1) },
    }
}

/// Every access of an operation, operands first in order (inputs, outputs, workspace).
///
/// # Errors
/// When the operand count is not the kind's or the grain does not divide into its pieces.
pub fn accesses(op: &Op) -> Result<Vec<Access>, Malformed> {
    let bad = |what: String| Malformed { op: op.name.clone(), what };
    let (inputs, outputs, workspaces) = arity(&op.kind);
    if (op.inputs.len(), op.outputs.len(), op.workspace.len()) != (inputs, outputs, workspaces) {
        return Err(bad(format!(
            "{} takes {inputs} inputs, {outputs} outputs and {workspaces} workspaces, has {}, {}, {}",
            op.kind.name(),
            op.inputs.len(),
            op.outputs.len(),
            op.workspace.len()
        )));
    }
    let piece = grain_piece(&op.kind);
    if op.grain == 0 || !op.grain.is_multiple_of(piece) {
        return Err(bad(format!("grain {} is not a multiple of {piece}", op.grain)));
    }
    let splits = splits(op);
    let read = op.inputs.iter().map(|tensor| (*tensor, Mode::Read));
    let written = op.outputs.iter().enumerate().map(|(i, id)| (*id, output_mode(&op.kind, i)));
    let scratch = op.workspace.iter().map(|tensor| (*tensor, Mode::Write));
    let listed = read
        .chain(written)
        .chain(scratch)
        .zip(splits)
        .map(|((tensor, mode), split)| Access { tensor, mode, split })
        .collect();
    merge_updates(op, listed)
}

/// An output that is the very tensor of an input is an update: one access that reads and writes.
/// Only pairs that the kind allows in place may be so, and both sides must have one slice.
fn merge_updates(op: &Op, mut listed: Vec<Access>) -> Result<Vec<Access>, Malformed> {
    let bad = |what: &str| Malformed { op: op.name.clone(), what: what.to_string() };
    let mut updated = Vec::new();
    for (output, tensor) in op.outputs.iter().enumerate() {
        for (input, other) in op.inputs.iter().enumerate() {
            if tensor != other {
                continue;
            }
            if !may_in_place(&op.kind).contains(&(output as u32, input as u32)) {
                return Err(bad("an output is also an input that it may not replace"));
            }
            if listed[input].split != listed[op.inputs.len() + output].split {
                return Err(bad("an update reads and writes different slices"));
            }
            listed[op.inputs.len() + output].mode = Mode::ReadWrite;
            updated.push(input);
        }
    }
    let mut position = 0;
    listed.retain(|_| {
        position += 1;
        !updated.contains(&(position - 1))
    });
    Ok(listed)
}

fn output_mode(kind: &OpKind, output: usize) -> Mode {
    match kind {
        // Both caches keep what they held; a sampler advances its random state.
        OpKind::KvAppend(_) => Mode::ReadWrite,
        OpKind::Sample { .. } if output == 1 => Mode::ReadWrite,
        // Rows of other images stay.
        OpKind::Vision(VisionOp::PlaceRows) => Mode::ReadWrite,
        _ => Mode::Write,
    }
}

/// Features that a grain must be a multiple of.
#[must_use]
pub fn grain_piece(kind: &OpKind) -> u64 {
    match kind {
        OpKind::RmsNormQuantise { .. }
        | OpKind::Quantise
        | OpKind::GatedMulQuantise(_)
        | OpKind::GatedMatMul { .. } => BLOCK,
        OpKind::HeadNorm { head_dim, .. } | OpKind::Rope { head_dim, .. } => u64::from(*head_dim),
        OpKind::Attention(shape)
        | OpKind::AttentionPrefill(shape)
        | OpKind::AttentionDecodeMerge(shape)
        | OpKind::AttentionDecodeMergeQuantise { shape, .. }
        | OpKind::KvAppend(shape) => u64::from(shape.head_dim),
        OpKind::Vision(op) => op.grain_piece(),
        OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::MatMul { .. }
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::GatedMul(_)
        | OpKind::SelectRows => TILE,
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::AttentionDecodePartial(_)
        | OpKind::Sample { .. } => 1,
    }
}

/// Whether an operation can be cut into shards at all.
#[must_use]
pub fn shardable(kind: &OpKind) -> bool {
    match kind {
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::Sample { .. } => false,
        OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::HeadNorm { .. }
        | OpKind::Quantise
        | OpKind::MatMul { .. }
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::Rope { .. }
        | OpKind::KvAppend(_)
        | OpKind::Attention(_)
        | OpKind::AttentionPrefill(_)
        | OpKind::AttentionDecodePartial(_)
        | OpKind::AttentionDecodeMerge(_)
        | OpKind::AttentionDecodeMergeQuantise { .. }
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::GatedMatMul { .. }
        | OpKind::SelectRows
        | OpKind::Vision(_) => true,
    }
}

/// The split of each operand, in the order of [`accesses`].
fn splits(op: &Op) -> Vec<Split> {
    use Split::Whole;
    let tiles = features(op.grain, TILE);
    let blocks = features(op.grain, BLOCK);
    let values = features(op.grain, 1);
    let scratch = Split::Even { axis: 0, unit: 1 };
    let heads = |head_dim: u32| features(op.grain, u64::from(head_dim));
    match &op.kind {
        OpKind::LoadMatrix(_) | OpKind::LoadVector(_) | OpKind::LoadTokenizer { .. } => {
            vec![Whole, Whole]
        }
        OpKind::LoadRopeFrequencies { .. } => vec![Whole, Whole],
        OpKind::RopeTable { .. } => vec![Whole, Whole, Whole],
        OpKind::EmbedRows { .. } => vec![Whole, Whole, tiles],
        OpKind::RmsNorm { .. } => vec![Whole, Whole, tiles],
        OpKind::RmsNormQuantise { copies, .. } => vec![Whole, Whole, copied(*copies, blocks)],
        OpKind::RmsNormAdd { .. } => vec![Whole, Whole, tiles, tiles],
        OpKind::HeadNorm { .. } => vec![tiles, Whole, tiles],
        OpKind::Quantise => vec![tiles, blocks],
        OpKind::MatMul { epilogue, copies, .. } => {
            let x = copied(*copies, Whole);
            match epilogue {
                Epilogue::Store => vec![x, values, tiles],
                Epilogue::Add => vec![x, values, tiles, tiles],
            }
        }
        OpKind::BiasAdd => vec![tiles, values, tiles],
        OpKind::Add => vec![tiles, tiles, tiles],
        OpKind::Rope { .. } => vec![tiles, Whole, tiles],
        OpKind::KvAppend(shape) => {
            let heads = heads(shape.head_dim);
            vec![tiles, tiles, Whole, Whole, heads, heads]
        }
        OpKind::Attention(_) => vec![tiles, Whole, Whole, Whole, Whole, tiles],
        OpKind::AttentionPrefill(shape) => {
            // A shard of whole groups reads only the caches of its own key/value heads.
            let group = u64::from(shape.head_dim) * u64::from(shape.heads / shape.kv_heads.max(1));
            let cache = match op.grain == group {
                true => Split::Even { axis: 0, unit: 1 },
                false => Whole,
            };
            vec![tiles, cache, cache, Whole, Whole, tiles, scratch]
        }
        OpKind::AttentionDecodePartial(_) => {
            vec![Whole, Whole, Whole, Whole, Whole, scratch, scratch]
        }
        OpKind::AttentionDecodeMerge(_) => vec![Whole, Whole, Whole, tiles],
        OpKind::AttentionDecodeMergeQuantise { copies, .. } => {
            vec![Whole, Whole, Whole, copied(*copies, blocks)]
        }
        OpKind::GatedMul(_) => vec![tiles, tiles, tiles],
        OpKind::GatedMulQuantise(_) => vec![tiles, tiles, blocks],
        OpKind::GatedMatMul { copies, .. } => {
            vec![copied(*copies, Whole), values, values, blocks, scratch]
        }
        OpKind::SelectRows => vec![tiles, Whole, tiles],
        OpKind::Sample { .. } => vec![Whole; 6],
        OpKind::Vision(op) => op.splits(tiles, values),
    }
}

/// In-place pairs (output index, input index) that a kind allows: the output's slice of a shard
/// may be the same bytes as that input's slice of the same shard.
#[must_use]
pub fn may_in_place(kind: &OpKind) -> &'static [(u32, u32)] {
    match kind {
        OpKind::HeadNorm { .. } | OpKind::BiasAdd | OpKind::Rope { .. } => &[(0, 0)],
        OpKind::RmsNormAdd { .. } | OpKind::MatMul { epilogue: Epilogue::Add, .. } => &[(0, 2)],
        OpKind::Add => &[(0, 0), (0, 1)],
        // The gate only: the kernel takes its own slice for that, and reads `up` through another.
        OpKind::GatedMul(_) => &[(0, 0)],
        OpKind::Vision(op) => op.may_in_place(),
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::Quantise
        | OpKind::MatMul { epilogue: Epilogue::Store, .. }
        | OpKind::KvAppend(_)
        | OpKind::Attention(_)
        | OpKind::AttentionPrefill(_)
        | OpKind::AttentionDecodePartial(_)
        | OpKind::AttentionDecodeMerge(_)
        | OpKind::AttentionDecodeMergeQuantise { .. }
        | OpKind::GatedMulQuantise(_)
        | OpKind::GatedMatMul { .. }
        | OpKind::SelectRows
        | OpKind::Sample { .. } => &[],
    }
}

/// Bytes that loading stages at a time: whole tiles of 16 rows, about [`STAGING_BYTES`].
#[must_use]
pub fn staging_bytes(source: &Source) -> Option<u64> {
    let (elements, _) = source.dtype.packed_block();
    let tile = file_row_bytes(source.dtype, source.cols.max(elements))?.checked_mul(TILE)?;
    let rows = source.rows.div_ceil(TILE);
    tile.checked_mul((STAGING_BYTES / tile.max(1)).clamp(1, rows.max(1)))
}

/// Bytes that loading aims to read at once.
pub const STAGING_BYTES: u64 = 256 * 1024;

/// Bytes of one row in the file format (GGUF specification).
#[must_use]
pub fn file_row_bytes(dtype: Dtype, cols: u64) -> Option<u64> {
    let (elements, bytes) = match dtype {
        Dtype::U8 => (1, 1),
        Dtype::I32 | Dtype::F32 => (1, 4),
        Dtype::F16 | Dtype::Bf16 => (1, 2),
        Dtype::Q8_0 => (32, 34),
        Dtype::Q4_0 => (32, 18),
        Dtype::Q4_1 => (32, 20),
        Dtype::Q5_0 => (32, 22),
        Dtype::Q5_1 => (32, 24),
        Dtype::Q2K => (256, 84),
        Dtype::Q3K => (256, 110),
        Dtype::Q4K => (256, 144),
        Dtype::Q5K => (256, 176),
        Dtype::Q6K => (256, 210),
    };
    if !cols.is_multiple_of(elements) {
        return None;
    }
    (cols / elements).checked_mul(bytes)
}

/// Workspace bytes that **one shard** of an operation of a program needs, whatever the dims.
///
/// # Errors
/// When an operand's size cannot be computed.
pub fn workspace_bytes(program: &Program, op: &Op) -> Result<u64, Malformed> {
    let bad = |what: &str| Malformed { op: op.name.clone(), what: what.to_string() };
    match &op.kind {
        OpKind::LoadMatrix(source) | OpKind::LoadVector(source) => {
            staging_bytes(source).ok_or_else(|| bad("staging overflows"))
        }
        OpKind::LoadTokenizer { bytes, .. } => Ok(*bytes),
        OpKind::Vision(vision) => Ok(vision.workspace_bytes(tokens_max(program, op).unwrap_or(0))),
        OpKind::LoadRopeFrequencies { factors: Some(source), .. } => {
            staging_bytes(source).ok_or_else(|| bad("staging overflows"))
        }
        OpKind::AttentionPrefill(shape) | OpKind::AttentionDecodePartial(shape) => {
            Ok(attention_workspace_bytes(shape.head_dim))
        }
        OpKind::Sample { vocabulary } => {
            vocabulary.checked_mul(8).ok_or_else(|| bad("workspace overflows"))
        }
        OpKind::GatedMatMul { block_rows, .. } => {
            if *block_rows == 0 || !block_rows.is_multiple_of(BLOCK) {
                return Err(bad("rows of a block are not whole blocks"));
            }
            tokens_max(program, op)
                .and_then(|tokens| tokens.checked_mul(*block_rows))
                .and_then(|elements| elements.checked_mul(2 * 4))
                .ok_or_else(|| bad("workspace overflows"))
        }
        OpKind::LoadRopeFrequencies { factors: None, .. }
        | OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::HeadNorm { .. }
        | OpKind::Quantise
        | OpKind::MatMul { .. }
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::Rope { .. }
        | OpKind::KvAppend(_)
        | OpKind::Attention(_)
        | OpKind::AttentionDecodeMerge(_)
        | OpKind::AttentionDecodeMergeQuantise { .. }
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::SelectRows => Ok(0),
    }
}

/// Most tokens of an operation's first operand; `None` where it has no such extent.
fn tokens_max(program: &Program, op: &Op) -> Option<u64> {
    let tensor = program.tensors.get(op.inputs.first()?.index())?;
    tensor.shape.get(1)?.value(&program.dims_max())
}

/// The operand of which each of an operation's `shards` has a copy of its own, if there is one.
///
/// # Errors
/// When its tensor is not a copy of quantised blocks for each shard, or a copy does not hold all
/// features.
pub fn own_copy(program: &Program, op: &Op, shards: u64) -> Result<Option<TensorId>, Malformed> {
    let extent = |id: TensorId| program.tensor(id).shape.first()?.value(&program.dims_max());
    let (id, copies, tiles) = match &op.kind {
        OpKind::RmsNormQuantise { copies, .. } => (op.outputs[0], copies, extent(op.inputs[0])),
        OpKind::AttentionDecodeMergeQuantise { shape, copies } => {
            let features = u64::from(shape.heads) * u64::from(shape.head_dim);
            (op.outputs[0], copies, Some(features.div_ceil(TILE)))
        }
        OpKind::MatMul { cols, copies, .. } | OpKind::GatedMatMul { cols, copies, .. } => {
            (op.inputs[0], copies, Some(cols.div_ceil(TILE)))
        }
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::HeadNorm { .. }
        | OpKind::Quantise
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::Rope { .. }
        | OpKind::KvAppend(_)
        | OpKind::Attention(_)
        | OpKind::AttentionPrefill(_)
        | OpKind::AttentionDecodePartial(_)
        | OpKind::AttentionDecodeMerge(_)
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::SelectRows
        | OpKind::Sample { .. }
        | OpKind::Vision(_) => return Ok(None),
    };
    let Copies::Own { blocks } = *copies else { return Ok(None) };
    let tensor = program.tensor(id);
    let holds = tiles.is_some_and(|tiles| tiles.div_ceil(BLOCK / TILE) <= blocks);
    let one_each = blocks
        .checked_mul(shards)
        .is_some_and(|all| tensor.shape.first() == Some(&Size::Const(all)));
    if holds && one_each && tensor.dtype == Dtype::U8 {
        return Ok(Some(id));
    }
    let name = &tensor.name;
    let what =
        format!("{name} is no copy of {blocks} quantised blocks for each of {shards} shards");
    Err(Malformed { op: op.name.clone(), what })
}

/// Query rows that meet a segment together.
pub const ATTENTION_ROWS: u64 = 6;

/// Workspace of one shard of either form of attention: scores, queries and sums of some rows.
#[must_use]
pub fn attention_workspace_bytes(head_dim: u32) -> u64 {
    ATTENTION_ROWS * (SEGMENT + 3 * u64::from(head_dim)) * 4
}

/// Floats of one partial result: for each query head of a group its maximum and sum (in a tile of
/// their own) and a vector.
#[must_use]
pub fn partial_floats(group: u64, head_dim: u64) -> u64 {
    group * (TILE + head_dim)
}
