//! One layer of one pass: attention and feed-forward, as logical operations.
//!
//! Believes the configuration and the weights of [`super`]. It must not know phases: whether
//! tokens are a prompt's or one of each sequence is the caller's business.

use dctms_ir::Size;
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::op::{Copies, Epilogue, OpKind};

use super::{HostBuffers, LayerWeights, attention_features};
use crate::builder::Builder;
use crate::config::DecoderConfig;

/// One layer of one pass.
pub(super) struct Pass<'a> {
    pub builder: &'a mut Builder,
    pub config: &'a DecoderConfig,
    pub host: &'a HostBuffers,
    pub phase: PhaseId,
    pub tokens: &'a Size,
    pub prefix: String,
}

impl Pass<'_> {
    fn step(&mut self, part: &str, kind: OpKind, inputs: &[TensorId], features: u64) -> TensorId {
        let name = format!("{}.{part}", self.prefix);
        let output = self.builder.activation(self.phase, &name, features, self.tokens);
        self.builder.op(self.phase, &name, kind, inputs, &[output]);
        output
    }

    fn norm(&mut self, part: &str, x: TensorId, weight: TensorId) -> TensorId {
        let kind = OpKind::RmsNorm { epsilon: self.config.epsilon };
        self.step(part, kind, &[x, weight], self.config.hidden)
    }

    fn matmul(&mut self, part: &str, x: TensorId, w: TensorId, rows: u64, cols: u64) -> TensorId {
        let kind = OpKind::MatMul { rows, cols, epilogue: Epilogue::Store, copies: Copies::Shared };
        self.step(part, kind, &[x, w], rows)
    }

    /// Bias, head norm and rotation of projected queries or keys.
    fn heads(
        &mut self,
        part: &str,
        mut value: TensorId,
        (bias, norm): (Option<TensorId>, Option<TensorId>),
        table: TensorId,
        heads: u32,
    ) -> TensorId {
        let head_dim = self.config.head_dim;
        let features = u64::from(heads) * u64::from(head_dim);
        if let Some(bias) = bias {
            value = self.step(&format!("{part}_bias"), OpKind::BiasAdd, &[value, bias], features);
        }
        if let Some(norm) = norm {
            let kind = OpKind::HeadNorm { epsilon: self.config.epsilon, head_dim };
            value = self.step(&format!("{part}_norm"), kind, &[value, norm], features);
        }
        let rope = &self.config.rope;
        let kind = OpKind::Rope { style: rope.style, head_dim, rotary_dim: rope.rotary_dim };
        self.step(&format!("{part}_rope"), kind, &[value, table], features)
    }

    /// The tokens of `x` whose logits are wanted.
    pub fn select(&mut self, part: &str, x: TensorId, features: u64) -> TensorId {
        self.step(part, OpKind::SelectRows, &[x, self.host.rows], features)
    }

    /// What attention mixes for each head.
    pub fn attention(&mut self, layer: &LayerWeights, x: TensorId, table: TensorId) -> TensorId {
        let config = self.config;
        let [q_bias, k_bias, v_bias] = match layer.biases {
            Some(biases) => biases.map(Some),
            None => [None; 3],
        };
        let normed = self.norm("attn_norm", x, layer.attn_norm);
        let kv_features = u64::from(config.kv_heads) * u64::from(config.head_dim);
        let q_features = attention_features(config);
        // The three products stand together and what works on their heads follows, so that one
        // synchronisation point serves all three where heads and tiles are cut differently.
        let q = self.matmul("attn_q", normed, layer.q, q_features, config.hidden);
        let k = self.matmul("attn_k", normed, layer.k, kv_features, config.hidden);
        let mut v = self.matmul("attn_v", normed, layer.v, kv_features, config.hidden);
        let q = self.heads("attn_q", q, (q_bias, layer.q_norm), table, config.heads);
        let k = self.heads("attn_k", k, (k_bias, layer.k_norm), table, config.kv_heads);
        if let Some(bias) = v_bias {
            v = self.step("attn_v_bias", OpKind::BiasAdd, &[v, bias], kv_features);
        }
        let (positions, slots) = (self.host.positions, self.host.slots);
        let name = format!("{}.kv_append", self.prefix);
        self.builder.op(
            self.phase,
            &name,
            OpKind::KvAppend(layer.shape),
            &[k, v, positions, slots],
            &[layer.keys, layer.values],
        );
        let operands = [q, layer.keys, layer.values, positions, slots];
        self.step("attn", OpKind::Attention(layer.shape), &operands, q_features)
    }

    /// The heads' answers projected and added to `x`.
    pub fn attention_residual(
        &mut self,
        layer: &LayerWeights,
        x: TensorId,
        mixed: TensorId,
    ) -> TensorId {
        let (hidden, features) = (self.config.hidden, attention_features(self.config));
        let out = self.matmul("attn_output", mixed, layer.attn_output, hidden, features);
        self.residual("attn_residual", x, out, layer.post_attention_norm)
    }

    pub fn feed_forward(&mut self, layer: &LayerWeights, x: TensorId) -> TensorId {
        let config = self.config;
        let (hidden, ff) = (config.hidden, config.feed_forward);
        let normed = self.norm("ffn_norm", x, layer.ffn_norm);
        let gate = self.matmul("ffn_gate", normed, layer.gate, ff, hidden);
        let up = self.matmul("ffn_up", normed, layer.up, ff, hidden);
        let kind = OpKind::GatedMul(config.activation);
        let gated = self.step("ffn_act", kind, &[gate, up], ff);
        let out = self.matmul("ffn_down", gated, layer.down, hidden, ff);
        self.residual("ffn_residual", x, out, layer.post_ffn_norm)
    }

    fn residual(
        &mut self,
        part: &str,
        x: TensorId,
        branch: TensorId,
        post_norm: Option<TensorId>,
    ) -> TensorId {
        let branch = match post_norm {
            Some(weight) => self.norm(&format!("{part}_norm"), branch, weight),
            None => branch,
        };
        self.step(part, OpKind::Add, &[x, branch], self.config.hidden)
    }
}
