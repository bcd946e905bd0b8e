//! The operations of an image encoder, and what each touches: the part of [`crate::op`] and
//! [`crate::contract`] that only models with eyes need.
//!
//! Believes what `contract` believes: shards take features (whole heads for attention), so that
//! every slice is contiguous for any number of patches. It must not know models or kernels.

use crate::contract::Split;
use crate::limits::{KV_BLOCK, SEGMENT, TILE};
use crate::op::Activation;

/// How pixels become patches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchShape {
    /// Side of a patch, pixels.
    pub side: u32,
    /// Which patch is which token.
    pub order: PatchOrder,
    /// Mean of each channel of pixels in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
}

/// The order in which an image's patches are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Row by row.
    Rows,
    /// Window by window, in each square by square, in each row by row: what sees each other and
    /// what becomes one token stands together. Windows at the right and lower edge may be smaller.
    Windows {
        /// Patches of a side of a square.
        square: u32,
        /// Squares of a side of a window.
        window: u32,
    },
}

/// Constants of an attention in which everything sees everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullAttentionShape {
    /// Heads.
    pub heads: u32,
    /// Features of a head.
    pub head_dim: u32,
    /// Positions at most: what the workspace is made for.
    pub positions: u32,
    /// Factor on each score.
    pub scale: f32,
}

/// What an operation of an image encoder computes.
#[derive(Clone, Debug, PartialEq)]
pub enum VisionOp {
    /// Norm about the mean. `[x, weight, bias] → [x]`.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// A function of each element. `[x] → [x]`.
    Activate(Activation),
    /// Multiplies every token by a vector. `[x, factors] → [x]`.
    FeatureScale,
    /// Normalised pixels of each patch as features, channel by channel, row by row.
    /// `[pixels, grid] → [x]`: pixels are RGB bytes, the grid is (rows, columns) of patches.
    Patchify(PatchShape),
    /// Adds a learned grid of positions, resized to the image's grid (bilinear with antialias,
    /// corners not aligned). `[x, table, grid] → [x]`.
    AddPositions {
        /// Rows and columns of the learned grid.
        side: u32,
    },
    /// Attention of every patch over all patches. `[q, k, v] → [x]`.
    FullAttention(FullAttentionShape),
    /// Attention of every patch over those of its window. `[q, k, v, grid] → [x]`.
    WindowAttention {
        /// Heads; positions are those of the largest window.
        shape: FullAttentionShape,
        /// Patches of a side of a square.
        square: u32,
        /// Squares of a side of a window.
        window: u32,
    },
    /// Cosines and sines of each patch's row, then of its column, for the same frequencies.
    /// `[grid, frequencies] → [table]`.
    PatchRopeTable {
        /// Which patch is which token.
        order: PatchOrder,
    },
    /// Cosines and sines where a token has three positions (time, row, column), each for its
    /// section of the frequencies. `[positions, frequencies] → [table]`: three positions a token.
    SectionedRopeTable {
        /// Frequencies of each section.
        sections: [u32; 3],
        /// Factor on both (YaRN's attention factor).
        magnitude: f32,
    },
    /// activation(gate)·up of two products with biases, by blocks of rows, so that only their
    /// product is ever whole. `[x or xq, gate matrix, gate bias, up matrix, up bias] → [x]`.
    GatedProducts {
        /// Outputs of each matrix.
        rows: u64,
        /// Inputs.
        cols: u64,
        /// The function of the gate.
        activation: Activation,
    },
    /// Squares of patches as one token, row by row; features ordered (row, column, feature).
    /// `[x, grid] → [x]`.
    MergePatches {
        /// Patches of a side of the square.
        factor: u32,
        /// Features of a patch.
        width: u64,
        /// Which patch is which token.
        order: PatchOrder,
    },
    /// Writes tokens among the image embeddings from a row on. `[x, first row] → [embeddings]`,
    /// updated in place.
    PlaceRows,
    /// Replaces tokens by image embeddings: where the index is r > 0, by row r − 1.
    /// `[x, embeddings, indices] → [x]`.
    SpliceRows,
}

impl VisionOp {
    /// The kind's name in text forms.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            VisionOp::LayerNorm { .. } => "LayerNorm",
            VisionOp::Activate(_) => "Activate",
            VisionOp::FeatureScale => "FeatureScale",
            VisionOp::Patchify(_) => "Patchify",
            VisionOp::AddPositions { .. } => "AddPositions",
            VisionOp::FullAttention(_) => "FullAttention",
            VisionOp::WindowAttention { .. } => "WindowAttention",
            VisionOp::PatchRopeTable { .. } => "PatchRopeTable",
            VisionOp::SectionedRopeTable { .. } => "SectionedRopeTable",
            VisionOp::GatedProducts { .. } => "GatedProducts",
            VisionOp::MergePatches { .. } => "MergePatches",
            VisionOp::PlaceRows => "PlaceRows",
            VisionOp::SpliceRows => "SpliceRows",
        }
    }

    /// Number of (inputs, outputs, workspaces).
    #[must_use]
    pub fn arity(&self) -> (usize, usize, usize) {
        match self {
            VisionOp::LayerNorm { .. } | VisionOp::AddPositions { .. } | VisionOp::SpliceRows => {
                (3, 1, 0)
            }
            VisionOp::Activate(_) => (1, 1, 0),
            VisionOp::FeatureScale
            | VisionOp::Patchify(_)
            | VisionOp::MergePatches { .. }
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::PlaceRows => (2, 1, 0),
            VisionOp::FullAttention(_) => (3, 1, 1),
            VisionOp::WindowAttention { .. } => (4, 1, 1),
            VisionOp::GatedProducts { .. } => (5, 1, 1),
        }
    }

    /// Features that a grain must be a multiple of.
    #[must_use]
    pub fn grain_piece(&self) -> u64 {
        match self {
            VisionOp::FullAttention(shape) | VisionOp::WindowAttention { shape, .. } => {
                whole_heads_and_tiles(*shape)
            }
            VisionOp::LayerNorm { .. }
            | VisionOp::Activate(_)
            | VisionOp::FeatureScale
            | VisionOp::Patchify(_)
            | VisionOp::AddPositions { .. }
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::GatedProducts { .. }
            | VisionOp::MergePatches { .. }
            | VisionOp::PlaceRows
            | VisionOp::SpliceRows => TILE,
        }
    }

    /// Whether readers of the operation's input are cut as it is.
    #[must_use]
    pub fn follows_its_input(&self) -> bool {
        match self {
            VisionOp::Activate(_)
            | VisionOp::FeatureScale
            | VisionOp::AddPositions { .. }
            | VisionOp::FullAttention(_)
            | VisionOp::WindowAttention { .. }
            | VisionOp::PlaceRows
            | VisionOp::SpliceRows => true,
            VisionOp::LayerNorm { .. }
            | VisionOp::Patchify(_)
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::GatedProducts { .. }
            | VisionOp::MergePatches { .. } => false,
        }
    }

    /// Whether the output may be the first input, changed where it stands.
    #[must_use]
    pub fn updates(&self) -> bool {
        match self {
            // A block of queries is copied before its answers are written.
            VisionOp::FullAttention(_)
            | VisionOp::WindowAttention { .. }
            | VisionOp::Activate(_)
            | VisionOp::FeatureScale
            | VisionOp::AddPositions { .. }
            | VisionOp::SpliceRows => true,
            VisionOp::LayerNorm { .. }
            | VisionOp::Patchify(_)
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::GatedProducts { .. }
            | VisionOp::MergePatches { .. }
            | VisionOp::PlaceRows => false,
        }
    }

    /// In-place pairs (output index, input index) that the kind allows.
    #[must_use]
    pub fn may_in_place(&self) -> &'static [(u32, u32)] {
        match self {
            VisionOp::FullAttention(_)
            | VisionOp::WindowAttention { .. }
            | VisionOp::Activate(_)
            | VisionOp::FeatureScale
            | VisionOp::AddPositions { .. }
            | VisionOp::SpliceRows => &[(0, 0)],
            VisionOp::LayerNorm { .. }
            | VisionOp::Patchify(_)
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::GatedProducts { .. }
            | VisionOp::MergePatches { .. }
            | VisionOp::PlaceRows => &[],
        }
    }

    /// The split of each operand, in the order of [`crate::contract::accesses`]; `tiles` and
    /// `values` cut an activation and a vector by the grain.
    pub(crate) fn splits(&self, tiles: Split, values: Split) -> Vec<Split> {
        use Split::Whole;
        let scratch = Split::Even { axis: 0, unit: 1 };
        match self {
            VisionOp::LayerNorm { .. } => vec![Whole, Whole, Whole, tiles],
            VisionOp::Activate(_) => vec![tiles, tiles],
            VisionOp::FeatureScale => vec![tiles, values, tiles],
            VisionOp::Patchify(_) => vec![Whole, Whole, tiles],
            VisionOp::AddPositions { .. } => vec![tiles, Whole, Whole, tiles],
            VisionOp::FullAttention(_) => vec![tiles, tiles, tiles, tiles, scratch],
            VisionOp::WindowAttention { .. } => vec![tiles, tiles, tiles, Whole, tiles, scratch],
            VisionOp::PatchRopeTable { .. } | VisionOp::SectionedRopeTable { .. } => {
                vec![Whole, Whole, tiles]
            }
            VisionOp::GatedProducts { .. } => {
                vec![Whole, values, values, values, values, tiles, scratch]
            }
            VisionOp::MergePatches { .. } => vec![Whole, Whole, tiles],
            VisionOp::PlaceRows => vec![tiles, Whole, tiles],
            VisionOp::SpliceRows => vec![tiles, tiles, Whole, tiles],
        }
    }

    /// Workspace bytes of one shard, for at most so many tokens.
    #[must_use]
    pub fn workspace_bytes(&self, tokens_max: u64) -> u64 {
        match self {
            VisionOp::FullAttention(shape) | VisionOp::WindowAttention { shape, .. } => {
                full_attention_rows_bytes(*shape) + 2 * packed_head_bytes(*shape)
            }
            VisionOp::GatedProducts { .. } => tokens_max.saturating_mul(GATED_BLOCK_ROWS * 4),
            VisionOp::LayerNorm { .. }
            | VisionOp::Activate(_)
            | VisionOp::FeatureScale
            | VisionOp::Patchify(_)
            | VisionOp::AddPositions { .. }
            | VisionOp::PatchRopeTable { .. }
            | VisionOp::SectionedRopeTable { .. }
            | VisionOp::MergePatches { .. }
            | VisionOp::PlaceRows
            | VisionOp::SpliceRows => 0,
        }
    }
}

/// Features of the fewest heads that are whole tiles: heads stand without padding between them.
fn whole_heads_and_tiles(shape: FullAttentionShape) -> u64 {
    let head_dim = u64::from(shape.head_dim).max(1);
    let heads = (1..=TILE).find(|heads| (heads * head_dim).is_multiple_of(TILE));
    head_dim * heads.unwrap_or(TILE)
}

/// Features of a head in the workspace.
fn padded(shape: FullAttentionShape) -> u64 {
    u64::from(shape.head_dim).next_multiple_of(TILE)
}

/// Rows of a block of gated products: a pair of tiles, as the product takes them.
pub const GATED_BLOCK_ROWS: u64 = 2 * TILE;

/// Tokens that meet a segment together.
pub const FULL_ATTENTION_TOKENS: u64 = 48;

/// Bytes of the queries, scores and sums of the tokens that meet a segment together.
#[must_use]
pub fn full_attention_rows_bytes(shape: FullAttentionShape) -> u64 {
    FULL_ATTENTION_TOKENS * (SEGMENT + 3 * padded(shape)) * 4
}

/// Bytes of the keys, or of the values, of one head as attention reads them: whole blocks of
/// positions in f32, features padded to whole tiles.
#[must_use]
pub fn packed_head_bytes(shape: FullAttentionShape) -> u64 {
    u64::from(shape.positions).next_multiple_of(KV_BLOCK) * padded(shape) * 4
}
