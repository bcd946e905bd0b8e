//! What a lane interprets: the plan's tasks with every name resolved to bytes of the arena.
//!
//! A command holds numbers only. Sizes that depend on a run's dims are completed at run time from
//! an [`Extent`]; everything else is fixed when linking. It must not know kernels.

use dctms_ir::op::{Activation, AttentionShape, Epilogue, RopeScaling, RopeStyle, Source};
use dctms_ir::vision::{FullAttentionShape, PatchOrder, PatchShape};

use crate::memory::Place;

/// A count that a run may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always the same.
    Fixed(usize),
    /// The current value of a dim.
    Dim(usize),
}

impl Extent {
    /// The value of a run.
    #[must_use]
    pub fn of(self, dims: &[u64]) -> usize {
        match self {
            Extent::Fixed(value) => value,
            Extent::Dim(dim) => dims[dim] as usize,
        }
    }
}

/// Tiles (of 16 features) of a tile-major activation, or blocks (of 32) of a quantised one: a
/// shard's slice `[start, end)` of the leading axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The whole tensor at its maximum.
    pub place: Place,
    /// First unit.
    pub start: usize,
    /// One past the last unit.
    pub end: usize,
}

/// Bytes of a unit for one token.
pub const TILE_BYTES: usize = 64;
/// Bytes of a quantised block for one token.
pub const BLOCK_BYTES: usize = dctms_ir::limits::ACTIVATION_BLOCK_BYTES as usize;

impl Slice {
    /// The shard's bytes for `tokens` tokens, units being `unit_bytes` each a token.
    #[must_use]
    pub fn at(&self, tokens: usize, unit_bytes: usize) -> Place {
        let stride = tokens * unit_bytes;
        self.place.part(self.start * stride, (self.end - self.start) * stride)
    }

    /// Units of the slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the shard has nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Element kinds of packed weights, as the plan's dtype names them.
pub use dctms_ir::Dtype;

/// The work of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Read and pack a matrix.
    LoadMatrix { source: Source, out: Place, staging: Place },
    /// Read a vector as f32.
    LoadVector { source: Source, out: Place, staging: Place },
    /// Compute rotary frequencies.
    LoadRopeFrequencies {
        base: f32,
        rotary_dim: u32,
        scaling: RopeScaling,
        factors: Option<(Source, Place)>,
        out: Place,
    },
    /// Build the tokeniser's tables.
    LoadTokenizer { offset: u64, out: Place, staging: Place },
    /// Cosines and sines.
    RopeTable { magnitude: f32, positions: Place, frequencies: Place, out: Place },
    /// Embedding rows.
    EmbedRows { scale: f32, ids: Place, kind: Dtype, cols: usize, table: Place, out: Slice },
    /// Norm, to floats or blocks.
    RmsNorm { epsilon: f32, x: Place, weight: Place, out: Slice },
    /// Norm to blocks.
    RmsNormQuantise { epsilon: f32, x: Place, weight: Place, tiles: (usize, usize), out: Slice },
    /// Residual plus norm.
    RmsNormAdd { epsilon: f32, x: Place, weight: Place, residual: Slice, out: Slice },
    /// Norm within heads.
    HeadNorm { epsilon: f32, x: Slice, weight: Place, out: Slice },
    /// Floats to blocks.
    Quantise { x: Slice, out: Slice },
    /// Matrix product.
    MatMul {
        kind: Dtype,
        cols: usize,
        quantised: bool,
        x: Slice,
        weights: Place,
        epilogue: Epilogue,
        residual: Option<Slice>,
        out: Slice,
    },
    /// Adds a vector.
    BiasAdd { x: Slice, bias: Place, out: Slice },
    /// Sum.
    Add { a: Slice, b: Slice, out: Slice },
    /// Rotation.
    Rope {
        style: RopeStyle,
        head_dim: usize,
        rotary_dim: usize,
        table: Place,
        x: Slice,
        out: Slice,
    },
    /// Append to a cache: heads `heads` of it.
    KvAppend {
        shape: AttentionShape,
        slots: usize,
        heads: (usize, usize),
        k: Slice,
        v: Slice,
        at: Positions,
        keys: Place,
        values: Place,
    },
    /// Attention of many tokens of one slot, query heads `heads`.
    AttentionPrefill {
        shape: AttentionShape,
        slots: usize,
        heads: (usize, usize),
        q: Slice,
        keys: Place,
        values: Place,
        at: Positions,
        out: Slice,
        workspace: Place,
    },
    /// Attention partials; which items, a formula says at run time.
    AttentionDecodePartial {
        shape: AttentionShape,
        slots: usize,
        shard: (usize, usize),
        items: Extent,
        q: Place,
        keys: Place,
        values: Place,
        at: Positions,
        partials: Place,
        workspace: Place,
    },
    /// Merge of partials, query heads `heads`; to blocks if `quantised`.
    AttentionDecodeMerge {
        shape: AttentionShape,
        quantised: bool,
        heads: (usize, usize),
        items: Extent,
        partials: Place,
        at: Positions,
        slots: usize,
        out: Slice,
    },
    /// activation(gate)·up.
    GatedMul { activation: Activation, gate: Slice, up: Slice, out: Slice },
    /// activation(gate)·up to blocks.
    GatedMulQuantise { activation: Activation, gate: Slice, up: Slice, out: Slice },
    /// Gate and up products by blocks of rows, activation(gate)·up to blocks.
    GatedMatMul {
        kinds: [Dtype; 2],
        cols: usize,
        activation: Activation,
        block_rows: usize,
        x: Slice,
        gate: Place,
        up: Place,
        out: Slice,
        workspace: Place,
    },
    /// Rows of a step.
    SelectRows { x: Slice, from: Extent, rows: Place, out: Slice },
    /// Next tokens.
    Sample {
        vocabulary: usize,
        logits: Place,
        parameters: Place,
        history: Place,
        sampled: Place,
        random: Place,
        workspace: Place,
    },
    /// A step of an image encoder.
    Vision(VisionBody),
}

/// The work of a task of an image encoder.
#[derive(Clone, Debug, PartialEq)]
pub enum VisionBody {
    /// Norm about the mean.
    LayerNorm { epsilon: f32, x: Place, weight: Place, bias: Place, out: Slice },
    /// A function of each element.
    Activate { activation: Activation, x: Slice, out: Slice },
    /// Multiplies by a vector.
    FeatureScale { x: Slice, factors: Place, out: Slice },
    /// Pixels to patches.
    Patchify { shape: PatchShape, pixels: Place, grid: Place, out: Slice },
    /// Adds positions.
    AddPositions { side: usize, x: Slice, table: Matrix, grid: Place, out: Slice },
    /// Attention of all over all, whole heads.
    FullAttention {
        shape: FullAttentionShape,
        q: Slice,
        k: Slice,
        v: Slice,
        out: Slice,
        workspace: Place,
    },
    /// Attention of windows, whole heads.
    WindowAttention {
        shape: FullAttentionShape,
        order: PatchOrder,
        q: Slice,
        k: Slice,
        v: Slice,
        grid: Place,
        out: Slice,
        workspace: Place,
    },
    /// Cosines and sines of rows and columns.
    PatchRopeTable { order: PatchOrder, grid: Place, frequencies: Place, out: Slice },
    /// Cosines and sines of three positions a token.
    SectionedRopeTable {
        sections: [usize; 3],
        magnitude: f32,
        positions: Place,
        frequencies: Place,
        out: Slice,
    },
    /// Gate and up products with biases by blocks of rows, activation(gate)·up.
    GatedProducts {
        cols: usize,
        activation: Activation,
        quantised: bool,
        x: Place,
        gate: Rows,
        up: Rows,
        out: Slice,
        workspace: Place,
    },
    /// Squares of patches.
    MergePatches {
        factor: usize,
        width: usize,
        order: PatchOrder,
        x: Place,
        from: Extent,
        grid: Place,
        out: Slice,
    },
    /// Tokens into the embeddings.
    PlaceRows { x: Slice, first: Place, capacity: usize, rows: Slice },
    /// Embeddings into tokens.
    SpliceRows { x: Slice, rows: Slice, capacity: usize, indices: Place, out: Slice },
}

impl VisionBody {
    /// What the shard writes.
    #[must_use]
    pub fn written(&self) -> &Slice {
        match self {
            VisionBody::LayerNorm { out, .. }
            | VisionBody::Activate { out, .. }
            | VisionBody::FeatureScale { out, .. }
            | VisionBody::Patchify { out, .. }
            | VisionBody::AddPositions { out, .. }
            | VisionBody::FullAttention { out, .. }
            | VisionBody::WindowAttention { out, .. }
            | VisionBody::PatchRopeTable { out, .. }
            | VisionBody::SectionedRopeTable { out, .. }
            | VisionBody::GatedProducts { out, .. }
            | VisionBody::MergePatches { out, .. }
            | VisionBody::SpliceRows { out, .. } => out,
            VisionBody::PlaceRows { rows, .. } => rows,
        }
    }
}

impl Body {
    /// The weights that a product reads, in the order of their reading.
    #[must_use]
    pub fn weights(&self) -> [Option<Place>; 2] {
        match self {
            Body::MatMul { weights, .. } => [Some(*weights), None],
            Body::GatedMatMul { gate, up, .. } => [Some(*gate), Some(*up)],
            Body::LoadMatrix { .. }
            | Body::LoadVector { .. }
            | Body::LoadRopeFrequencies { .. }
            | Body::LoadTokenizer { .. }
            | Body::RopeTable { .. }
            | Body::EmbedRows { .. }
            | Body::RmsNorm { .. }
            | Body::RmsNormQuantise { .. }
            | Body::RmsNormAdd { .. }
            | Body::HeadNorm { .. }
            | Body::Quantise { .. }
            | Body::BiasAdd { .. }
            | Body::Add { .. }
            | Body::Rope { .. }
            | Body::KvAppend { .. }
            | Body::AttentionPrefill { .. }
            | Body::AttentionDecodePartial { .. }
            | Body::AttentionDecodeMerge { .. }
            | Body::GatedMul { .. }
            | Body::GatedMulQuantise { .. }
            | Body::SelectRows { .. }
            | Body::Sample { .. }
            | Body::Vision(_) => [None, None],
        }
    }
}

/// A shard's rows of a packed matrix, with their biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Element kind.
    pub kind: Dtype,
    /// The rows' tiles.
    pub tiles: Place,
    /// A float for each row.
    pub bias: Place,
}

/// A packed matrix, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Element kind.
    pub kind: Dtype,
    /// Columns.
    pub cols: usize,
    /// Its bytes.
    pub place: Place,
}

/// Positions and slots of a step's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// i32 positions.
    pub positions: Place,
    /// i32 slots.
    pub slots: Place,
}

/// A task, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Events to wait for: range of the phase's wait list.
    pub waits: (u32, u32),
    /// Event to signal.
    pub signals: Option<u32>,
    /// Tokens of the operation.
    pub tokens: Extent,
    /// The work; `None` for a shard that has nothing to do (it still waits and signals).
    pub body: Option<Body>,
}
