//! The operations of an image encoder, resolved.

use dctms_ir::limits::TILE;
use dctms_ir::vision::{PatchOrder, VisionOp};
use dctms_ir::{Dtype, TensorId};

use super::{Resolver, extent};
use crate::command::{Extent, Matrix, Rows, VisionBody};
use crate::memory::Place;

impl Resolver<'_> {
    pub(super) fn vision(&self, op: &VisionOp) -> VisionBody {
        let out = self.tiles_out();
        match op {
            VisionOp::LayerNorm { epsilon } => VisionBody::LayerNorm {
                epsilon: *epsilon,
                x: self.input(0),
                weight: self.input(1),
                bias: self.input(2),
                out,
            },
            VisionOp::Activate(activation) => {
                VisionBody::Activate { activation: *activation, x: self.tiles_in(0), out }
            }
            VisionOp::FeatureScale => VisionBody::FeatureScale {
                x: self.tiles_in(0),
                factors: self.input(1).part(out.start * 64, out.len() * 64),
                out,
            },
            VisionOp::Patchify(shape) => VisionBody::Patchify {
                shape: *shape,
                pixels: self.input(0),
                grid: self.input(1),
                out,
            },
            VisionOp::AddPositions { side } => VisionBody::AddPositions {
                side: *side as usize,
                x: self.tiles_in(0),
                table: self.matrix(self.op.inputs[1]),
                grid: self.input(2),
                out,
            },
            VisionOp::FullAttention(shape) => VisionBody::FullAttention {
                shape: *shape,
                q: self.tiles_in(0),
                k: self.tiles_in(1),
                v: self.tiles_in(2),
                out,
                workspace: self.workspace(),
            },
            VisionOp::WindowAttention { shape, square, window } => VisionBody::WindowAttention {
                shape: *shape,
                order: PatchOrder::Windows { square: *square, window: *window },
                q: self.tiles_in(0),
                k: self.tiles_in(1),
                v: self.tiles_in(2),
                grid: self.input(3),
                out,
                workspace: self.workspace(),
            },
            VisionOp::PatchRopeTable { order } => VisionBody::PatchRopeTable {
                order: *order,
                grid: self.input(0),
                frequencies: self.input(1),
                out,
            },
            VisionOp::SectionedRopeTable { sections, magnitude } => {
                VisionBody::SectionedRopeTable {
                    sections: sections.map(|section| section as usize),
                    magnitude: *magnitude,
                    positions: self.input(0),
                    frequencies: self.input(1),
                    out,
                }
            }
            VisionOp::GatedProducts { cols, activation, .. } => VisionBody::GatedProducts {
                cols: *cols as usize,
                activation: *activation,
                quantised: self.tensor(self.op.inputs[0]).dtype == Dtype::U8,
                x: self.input(0),
                gate: self.rows(1, (out.start, out.end)),
                up: self.rows(3, (out.start, out.end)),
                out,
                workspace: self.workspace(),
            },
            VisionOp::MergePatches { factor, width, order } => VisionBody::MergePatches {
                factor: *factor as usize,
                width: width.next_multiple_of(TILE) as usize,
                order: *order,
                x: self.input(0),
                from: self.extent_of(self.op.inputs[0]),
                grid: self.input(1),
                out,
            },
            VisionOp::PlaceRows => VisionBody::PlaceRows {
                x: self.tiles_in(0),
                first: self.input(1),
                capacity: self.capacity(self.op.outputs[0]),
                rows: out,
            },
            VisionOp::SpliceRows => VisionBody::SpliceRows {
                x: self.tiles_in(0),
                rows: self.tiles_in(1),
                capacity: self.capacity(self.op.inputs[1]),
                indices: self.input(2),
                out,
            },
        }
    }

    /// Tiles of the matrix that is an input, and of the bias after it.
    fn rows(&self, input: usize, (start, end): (usize, usize)) -> Rows {
        let matrix = self.op.inputs[input];
        Rows {
            kind: self.tensor(matrix).dtype,
            tiles: self.matrix_tiles(matrix, start, end),
            bias: self.input(input + 1).part(start * 64, (end - start) * 64),
        }
    }

    fn matrix(&self, id: TensorId) -> Matrix {
        let place: Place = self.place(id);
        Matrix { kind: self.tensor(id).dtype, cols: self.cols(id), place }
    }

    fn extent_of(&self, id: TensorId) -> Extent {
        extent(&self.tensor(id).shape[1]).expect("an activation's tokens are a number or a dim")
    }

    /// Rows of the embeddings, which are made for the most that a request may have.
    fn capacity(&self, id: TensorId) -> usize {
        match self.extent_of(id) {
            Extent::Fixed(rows) => rows,
            Extent::Dim(_) => unreachable!("embeddings have a constant number of rows"),
        }
    }
}
