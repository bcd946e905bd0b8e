//! The tensors of a decoder, each a stream of its own: no more than a piece is in memory.

use dctms_format::GgmlType;
use dctms_format::write::Writer;

use crate::blocks;
use crate::random::Random;
use crate::shape::{Architecture, Mix, Shape};

/// Adds every tensor of `shape`.
pub fn write(writer: Writer<'static>, shape: &Shape, mix: Mix, seed: u64) -> Writer<'static> {
    let embedding = if shape.tied { mix.head() } else { mix.base() };
    let (hidden, vocabulary) = (shape.hidden, shape.vocabulary);
    let mut to = To { writer, seed };
    to.matrix("token_embd.weight", vocabulary, hidden, embedding);
    for layer in 0..shape.layers {
        write_layer(&mut to, shape, mix, layer);
    }
    to.vector("output_norm.weight", hidden, 1.0, 0.1);
    if !shape.tied {
        to.matrix("output.weight", vocabulary, hidden, mix.head());
    }
    to.writer
}

fn write_layer(to: &mut To, shape: &Shape, mix: Mix, layer: u32) {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (base, rich) = (mix.base(), mix.rich(layer, shape.layers));
    let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
    let (width, kv_width) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    to.vector(&name("attn_norm.weight"), hidden, 1.0, 0.1);
    for (letter, rows, kind) in [("q", width, base), ("k", kv_width, base), ("v", kv_width, rich)] {
        to.matrix(&name(&format!("attn_{letter}.weight")), rows, hidden, kind);
        if shape.architecture.has_biases() {
            to.vector(&name(&format!("attn_{letter}.bias")), rows, 0.0, 0.2);
        }
    }
    if shape.architecture == Architecture::Qwen3 {
        to.vector(&name("attn_q_norm.weight"), shape.head_dim, 1.0, 0.1);
        to.vector(&name("attn_k_norm.weight"), shape.head_dim, 1.0, 0.1);
    }
    to.matrix(&name("attn_output.weight"), hidden, width, base);
    to.vector(&name("ffn_norm.weight"), hidden, 1.0, 0.1);
    to.matrix(&name("ffn_gate.weight"), feed_forward, hidden, base);
    to.matrix(&name("ffn_up.weight"), feed_forward, hidden, base);
    to.matrix(&name("ffn_down.weight"), hidden, feed_forward, rich);
}

pub(crate) struct To {
    pub writer: Writer<'static>,
    pub seed: u64,
}

impl To {
    pub fn matrix(&mut self, name: &str, rows: u32, columns: u32, wanted: GgmlType) {
        let dims = [u64::from(columns), u64::from(rows)];
        self.tensor(name, (rows, columns), &dims, wanted);
    }

    /// A matrix whose extents in the file are `dims`.
    pub fn tensor(
        &mut self,
        name: &str,
        (rows, columns): (u32, u32),
        dims: &[u64],
        wanted: GgmlType,
    ) {
        let kind = fall_back(wanted, columns);
        let mut random = Random::named(self.seed, name);
        let stream = Box::new(move |out: &mut dyn std::io::Write| {
            blocks::write(kind, u64::from(rows), u64::from(columns), &mut random, out)
        });
        self.add(|writer| writer.tensor_stream(name, kind, dims, stream));
    }

    pub fn vector(&mut self, name: &str, len: u32, mean: f32, deviation: f32) {
        let mut random = Random::named(self.seed, name);
        let values = (0..len).flat_map(|_| (mean + deviation * random.normal()).to_le_bytes());
        let bytes: Vec<u8> = values.collect();
        self.add(|writer| writer.tensor(name, GgmlType::F32, &[u64::from(len)], bytes));
    }

    fn add(&mut self, with: impl FnOnce(Writer<'static>) -> Writer<'static>) {
        self.writer = with(std::mem::take(&mut self.writer));
    }
}

/// What `llama-quantize` takes for rows that are no whole number of super-blocks, or of blocks.
fn fall_back(kind: GgmlType, columns: u32) -> GgmlType {
    if !columns.is_multiple_of(32) {
        return GgmlType::F16;
    }
    match (kind, columns % 256) {
        (GgmlType::Q4_K, 1..) => GgmlType::Q5_0,
        (GgmlType::Q6_K, 1..) => GgmlType::Q8_0,
        (kind, _) => kind,
    }
}
