//! Parts of an encoder that only some families have: two kernels of a patch, heads that are rotated
//! by row and column, attention in windows, a gated feed-forward layer.

use super::*;
use dctms_ir::op::{RopeScaling, RopeStyle};

impl Encoder<'_, '_> {
    /// Which patch is which token: where attention sees windows, those of a window together.
    pub(super) fn order(&self) -> PatchOrder {
        match self.config.windows {
            None => PatchOrder::Rows,
            Some(windows) => PatchOrder::Windows {
                square: self.config.merge as u32,
                window: windows.side as u32,
            },
        }
    }

    /// Patches times the kernel of a convolution; times both, where the file's has two frames, for
    /// a still picture is both.
    pub(super) fn patch_product(
        &mut self,
        x: TensorId,
        inputs: u64,
    ) -> Result<TensorId, ModelError> {
        let first = self.kernel("patch_embd", "v.patch_embd.weight", (x, inputs))?;
        let second = "v.patch_embd.weight.1";
        if !self.has(second) {
            return Ok(first);
        }
        let second = self.kernel("patch_embd_1", second, (x, inputs))?;
        Ok(self.sum("patch_sum", first, second))
    }

    fn kernel(
        &mut self,
        name: &str,
        tensor: &str,
        (x, inputs): (TensorId, u64),
    ) -> Result<TensorId, ModelError> {
        let (hidden, patch, patches) =
            (self.config.hidden, self.config.patch, self.patches.clone());
        let dims = [patch, patch, 3, hidden];
        let source = self.lookup.matrix_of(tensor, &dims, hidden, inputs)?;
        let weight = self.load_matrix(source);
        Ok(self.product(name, (x, weight), (hidden, inputs), &patches))
    }

    fn sum(&mut self, name: &str, a: TensorId, b: TensorId) -> TensorId {
        let (hidden, patches) = (self.config.hidden, self.patches.clone());
        let output = self.builder.activation(self.phase, name, hidden, &patches);
        self.builder.op(self.phase, name, OpKind::Add, &[a, b], &[output]);
        output
    }

    /// Cosines and sines of every patch: a quarter of a head's features are frequencies, which the
    /// row turns for the first half of the pairs and the column for the second.
    pub(super) fn rope_table(&mut self, base: f32, grid: TensorId) -> TensorId {
        let pairs = u64::from(self.config.head_dim / 2);
        let kind = OpKind::LoadRopeFrequencies {
            base,
            rotary_dim: self.config.head_dim / 2,
            scaling: RopeScaling::None,
            factors: None,
        };
        let name = names::VISION_FREQUENCIES;
        let frequencies = self.builder.table(name, (Dtype::F32, pairs / 2), pairs / 2 * 4, kind);
        let (tiles, patches) = (pairs.div_ceil(TILE), self.patches.clone());
        let table = self.builder.program.add_tensor(dctms_ir::Tensor {
            name: "vision.rope".to_string(),
            model: self.builder.model,
            dtype: Dtype::F32,
            shape: vec![Size::Const(tiles), patches.clone(), Size::Const(2 * TILE)],
            size: Size::product(&[patches, Size::Const(tiles * 2 * TILE * 4)]),
            residence: Residence::Transient,
            term: Term::Intermediate,
            phase: Some(self.phase),
            state: None,
        });
        let kind = OpKind::Vision(VisionOp::PatchRopeTable { order: self.order() });
        self.builder.op(self.phase, "rope", kind, &[grid, frequencies], &[table]);
        table
    }

    pub(super) fn rotate(&mut self, name: &str, x: TensorId, table: TensorId) -> TensorId {
        let (head_dim, hidden) = (self.config.head_dim, self.config.hidden);
        let patches = self.patches.clone();
        let output = self.builder.activation(self.phase, name, hidden, &patches);
        let kind = OpKind::Rope { style: RopeStyle::Halves, head_dim, rotary_dim: head_dim };
        self.builder.op(self.phase, name, kind, &[x, table], &[output]);
        output
    }

    /// The attention of a layer that sees windows; nothing for one that sees everything.
    pub(super) fn window_attention(
        &self,
        layer: u32,
        shape: FullAttentionShape,
    ) -> Option<VisionOp> {
        let windows = self.config.windows?;
        if (layer + 1).is_multiple_of(windows.pattern) {
            return None;
        }
        let (square, window) = (self.config.merge as u32, windows.side as u32);
        let positions = (square * window).pow(2).min(shape.positions);
        let shape = FullAttentionShape { positions, ..shape };
        Some(VisionOp::WindowAttention { shape, square, window })
    }

    /// activation(gate)·up, both products with biases; `(gate, up)` are their tensors.
    pub(super) fn gated(
        &mut self,
        name: &str,
        (gate, up): (&str, &str),
        x: TensorId,
    ) -> Result<TensorId, ModelError> {
        let (hidden, ff) = (self.config.hidden, self.config.feed_forward);
        let mut inputs = vec![x];
        for tensor in [gate, up] {
            inputs.push(self.matrix(&format!("{tensor}.weight"), ff, hidden)?);
            inputs.push(self.vector(&format!("{tensor}.bias"), ff)?);
        }
        let activation = self.config.activation;
        let kind = VisionOp::GatedProducts { rows: ff, cols: hidden, activation };
        let patches = self.patches.clone();
        Ok(self.step(name, kind, &inputs, ff, &patches))
    }
}
