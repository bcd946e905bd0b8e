//! What an operation's operands are just now: constants, live values, sizes at the current dims.

use dctms_ir::op::{Activation, AttentionShape, Op};
use dctms_ir::{Dtype, Program, Size, TensorId};
use dctms_kernels::attention::{Attention, Tokens, Visibility};
use dctms_kernels::elementwise::Gate;
use dctms_kernels::kv::{KvPlaces, KvShape, KvType};
use dctms_kernels::packed::PackedTiles;

use dctms_exec::load::packed_kind;

use crate::memory::{Block, Plain, elements};
use crate::weights::Weights;

/// Values that live just now, by tensor.
#[derive(Debug, Default)]
pub struct Values {
    blocks: Vec<Option<Block>>,
}

impl Values {
    pub fn new(tensors: usize) -> Values {
        Values { blocks: (0..tensors).map(|_| None).collect() }
    }

    pub fn put(&mut self, id: TensorId, block: Block) {
        self.blocks[id.index()] = Some(block);
    }

    pub fn take(&mut self, id: TensorId) -> Option<Block> {
        self.blocks[id.index()].take()
    }

    pub fn get(&self, id: TensorId) -> Option<&Block> {
        self.blocks[id.index()].as_ref()
    }

    /// Integers that the host gives to a step.
    pub fn put_integers(&mut self, id: TensorId, integers: &[u32]) {
        let mut block = Block::new(integers.len() * 4);
        block.of_mut::<u32>().copy_from_slice(integers);
        self.put(id, block);
    }
}

/// What may be read during an operation.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub program: &'a Program,
    pub weights: &'a Weights,
    pub values: &'a Values,
}

impl<'a> Inputs<'a> {
    pub fn of<T: Plain>(self, id: TensorId) -> &'a [T] {
        if let Some(bytes) = self.weights.bytes(id) {
            return elements(bytes);
        }
        let block = self.values.get(id);
        let name = &self.program.tensor(id).name;
        block.unwrap_or_else(|| panic!("{name} is read and is not alive")).of()
    }

    /// Constant extent of an axis.
    pub fn extent(self, id: TensorId, axis: usize) -> usize {
        match self.program.tensor(id).shape.get(axis) {
            Some(Size::Const(value)) => *value as usize,
            other => unreachable!("{} has {other:?}", self.program.tensor(id).name),
        }
    }

    /// Columns of a matrix.
    pub fn cols(self, id: TensorId) -> usize {
        self.extent(id, 1)
    }

    /// Tiles `range` of a packed matrix.
    pub fn tiles(self, id: TensorId, range: std::ops::Range<usize>) -> PackedTiles<'a> {
        let bytes: &[u8] = self.of(id);
        let tile_bytes = bytes.len() / (self.extent(id, 0) / 16);
        let part = &bytes[range.start * tile_bytes..range.end * tile_bytes];
        PackedTiles::new(packed_kind(self.program.tensor(id).dtype), self.cols(id), part)
    }

    /// Positions and slots, at inputs `first` and the next.
    pub fn places(self, op: &Op, first: usize, tokens: usize) -> KvPlaces<'a> {
        let integers = |index: usize| &self.of::<u32>(op.inputs[index])[..tokens];
        KvPlaces { positions: integers(first), slots: integers(first + 1) }
    }
}

/// Bytes of a tensor at the current dims.
pub fn bytes_now(program: &Program, id: TensorId, dims: &[u64]) -> usize {
    let tensor = program.tensor(id);
    let bytes = tensor.size.value(dims);
    bytes.unwrap_or_else(|| panic!("{} has a size", tensor.name)) as usize
}

/// Tokens that an operation works on: the second axis of the activation that it makes or reads.
pub fn tokens_now(program: &Program, op: &Op, dims: &[u64]) -> usize {
    let axis = |id: &TensorId| {
        let shape = &program.tensor(*id).shape;
        (shape.len() == 3).then(|| &shape[1])
    };
    let axes: Vec<&Size> = op.inputs.iter().chain(&op.outputs).filter_map(axis).collect();
    let of_dim = axes.iter().rev().find(|size| matches!(size, Size::Dim(_)));
    let size = of_dim.or(axes.first());
    size.and_then(|size| size.value(dims)).unwrap_or(1) as usize
}

/// The sizes of a layer's caches at the bound.
pub fn kv_shape(shape: &AttentionShape) -> KvShape {
    let kind = match shape.kv {
        Dtype::F32 => KvType::F32,
        Dtype::Q8_0 => KvType::Q8_0,
        _ => KvType::F16,
    };
    KvShape {
        kind,
        heads: shape.kv_heads as usize,
        slots: 1,
        capacity: shape.capacity as usize,
        head_dim: shape.head_dim as usize,
    }
}

pub fn attention(shape: &AttentionShape, kv: KvShape) -> Attention {
    Attention { kv, heads: shape.heads as usize, scale: shape.scale, soft_cap: None }
}

pub fn seen<'a>(shape: &AttentionShape, places: KvPlaces<'a>) -> Tokens<'a> {
    let visibility = match shape.window {
        0 => Visibility::Causal,
        window => Visibility::Window(window),
    };
    Tokens { places, visibility }
}

pub fn gate_of(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        Activation::GeluTanh => Gate::GeluTanh,
        Activation::GeluErf => Gate::GeluErf,
        Activation::GeluQuick => Gate::GeluQuick,
    }
}
