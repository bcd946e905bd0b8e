//! The operations of image encoders in random programs: what only they touch (pixels, a grid, the
//! embeddings that one phase writes and another reads), and a step of each kind.

use dctms_ir::op::{Activation, OpKind};
use dctms_ir::vision::{FullAttentionShape, PatchOrder, PatchShape, VisionOp};
use dctms_ir::{Dtype, PhaseId, Residence, Size, TensorId};

use super::{FEATURES, HEAD_DIM, Level, Maker, Pool, SHAPE};

/// Kinds of steps here. What two phases share (embeddings) is drawn as often as four others: else
/// few regions would have an order between their streams that is about them.
pub(super) const KINDS: usize = 19;
/// Rows of the embeddings.
const ROWS: u64 = 8;
/// Features of a table of rotations: one tile, so that it is written by one shard.
pub(super) const TABLE_FEATURES: u64 = 16;

/// What lasts beside the phases of an encoder.
#[derive(Clone, Copy)]
pub(super) struct Lasting {
    pixels: TensorId,
    grid: TensorId,
    first_row: TensorId,
    images: TensorId,
}

impl Lasting {
    /// Nothing yet.
    pub const NONE: Lasting = Lasting {
        pixels: TensorId(0),
        grid: TensorId(0),
        first_row: TensorId(0),
        images: TensorId(0),
    };

    /// Those of a program.
    pub fn of(maker: &mut Maker<'_>) -> Lasting {
        let pixels = maker.lasting("pixels", Residence::External, &[96], 4);
        let grid = maker.lasting("grid", Residence::External, &[2], 4);
        let first_row = maker.lasting("first_row", Residence::External, &[1], 4);
        let images = maker.lasting("images", Residence::State, &[FEATURES / 16, ROWS, 16], 4);
        Lasting { pixels, grid, first_row, images }
    }
}

/// Either order of patches.
fn order(maker: &mut Maker<'_>) -> PatchOrder {
    match maker.random.once_in(2) {
        true => PatchOrder::Rows,
        false => PatchOrder::Windows { square: 2, window: 2 },
    }
}

impl Maker<'_> {
    /// A step of an encoder, `kind` of [`KINDS`].
    pub(super) fn vision_step(
        &mut self,
        (phase, kind): (PhaseId, usize),
        pool: &mut Pool,
        vectors: [TensorId; 2],
    ) {
        let Lasting { pixels, grid, first_row, images } = self.vision;
        let [vector, own] = vectors;
        let x = self.wide(phase, pool);
        let shape = FullAttentionShape {
            heads: SHAPE.heads,
            head_dim: HEAD_DIM,
            positions: 64,
            scale: SHAPE.scale,
        };
        let mut push = |maker: &mut Self, name: &str, op: VisionOp, inputs: &[TensorId]| {
            maker.push_wide(phase, pool, name, OpKind::Vision(op), inputs);
        };
        match kind {
            0 => push(self, "layer_norm", VisionOp::LayerNorm { epsilon: 1e-5 }, &[x, vector, own]),
            1 => push(self, "activate", VisionOp::Activate(Activation::GeluErf), &[x]),
            2 => push(self, "feature_scale", VisionOp::FeatureScale, &[x, vector]),
            3 => {
                let order = order(self);
                let (mean, deviation) = ([0.5; 3], [0.5; 3]);
                let kind = VisionOp::Patchify(PatchShape { side: 4, order, mean, deviation });
                push(self, "patches", kind, &[pixels, grid]);
            }
            4 => {
                let kind = VisionOp::AddPositions { side: 4 };
                push(self, "positions", kind, &[x, self.matrix, grid]);
            }
            5 | 6 => {
                let [y, z] = [self.wide(phase, pool), self.wide(phase, pool)];
                let mut push = |name: &str, op: VisionOp, inputs: &[TensorId]| {
                    self.push_wide(phase, pool, name, OpKind::Vision(op), inputs);
                };
                match kind {
                    5 => push("full_attention", VisionOp::FullAttention(shape), &[x, y, z]),
                    _ => {
                        let kind = VisionOp::WindowAttention { shape, square: 2, window: 2 };
                        push("window_attention", kind, &[x, y, z, grid]);
                    }
                }
            }
            7 => {
                let kind = VisionOp::PatchRopeTable { order: order(self) };
                self.table(phase, pool, (kind, grid));
            }
            8 => {
                let sections = [4, 6, 6];
                let kind = VisionOp::SectionedRopeTable { sections, magnitude: 1.0 };
                self.table(phase, pool, (kind, self.integers));
            }
            9 => {
                let a = match self.level {
                    Level::Legal => self.quantised_or_wide(phase, pool),
                    Level::Logical => x,
                };
                let (rows, cols, activation) = (FEATURES, FEATURES, Activation::Silu);
                let kind = OpKind::Vision(VisionOp::GatedProducts { rows, cols, activation });
                let inputs = [a, self.matrix, vector, self.matrix, own];
                self.push_wide(phase, pool, "gated_pair", kind, &inputs);
            }
            10 => {
                let order = order(self);
                let kind = VisionOp::MergePatches { factor: 1, width: FEATURES, order };
                push(self, "merge_patches", kind, &[x, grid]);
            }
            11..15 => {
                let kind = OpKind::Vision(VisionOp::PlaceRows);
                self.op(phase, "place", kind, &[x, first_row], &[images]);
            }
            _ => push(self, "splice", VisionOp::SpliceRows, &[x, images, self.integers]),
        }
    }

    /// A table of rotations.
    fn table(&mut self, phase: PhaseId, pool: &mut Pool, (kind, positions): (VisionOp, TensorId)) {
        let tiles = Size::Const(TABLE_FEATURES / 16);
        let shape = vec![tiles, self.tokens.clone(), Size::Const(32)];
        let id = self.transient(phase, Dtype::F32, shape, 4);
        let inputs = [positions, self.frequencies];
        self.op(phase, "patch_table", OpKind::Vision(kind), &inputs, &[id]);
        pool.tables.push(id);
    }
}
