//! Runs a list of operations with memory of the moment: allocate the output, compute, free what
//! has had its last reader.
//!
//! Each operation is one parallel region (none for small ones); products that do not depend on
//! each other share one. How work is cut cannot change a bit of the result, since lanes run over
//! outputs. Operations of loading and of image encoders do not occur.

use std::ops::Range;

use dctms_ir::op::{AttentionShape, Epilogue, Op, OpKind, RopeStyle};
use dctms_ir::{Dtype, Program, Residence, TensorId};
use dctms_kernels::attention::{
    attention_decode_items, attention_decode_merge, attention_decode_merge_quantise,
    attention_decode_partial, attention_partial_len, attention_prefill, attention_workspace_len,
};
use dctms_kernels::elementwise::{add, bias_add, gated_mul, gated_mul_quantise};
use dctms_kernels::gather::gather;
use dctms_kernels::isa::Isa;
use dctms_kernels::kv::{kv_append_keys, kv_append_values};
use dctms_kernels::matmul::{Epilogue as KernelEpilogue, matmul, matmul_float};
use dctms_kernels::norm::{NormInput, head_norm, rms_norm, rms_norm_add, rms_norm_quantise};
use dctms_kernels::packed::PackedTiles;
use dctms_kernels::quantise::{ActBlock, quantise};
use dctms_kernels::rope::{Rope, RopeStyle as KernelRopeStyle, rope, rope_table, rope_table_len};
use dctms_kernels::simd::Operand;

use crate::cache::Cache;
use crate::memory::Block;
use crate::operands::{Inputs, Values, attention, bytes_now, gate_of, kv_shape, seen, tokens_now};
use crate::pool::{Pool, cut, shares};
use crate::weights::Weights;

/// The operations of a phase, and what dies behind each.
pub struct Steps {
    ops: Vec<Op>,
    dies: Vec<Vec<TensorId>>,
}

impl Steps {
    /// The steps of a phase.
    pub fn of(program: &Program, name: &str) -> Steps {
        let phase = program.phase_named(name).expect("a decoder's phase");
        let ops = program.phases[phase.index()].ops.clone();
        let mut dies = vec![Vec::new(); ops.len()];
        let mut seen = vec![false; program.tensors.len()];
        for (index, op) in ops.iter().enumerate().rev() {
            for id in op.inputs.iter().chain(&op.outputs) {
                let transient = program.tensor(*id).residence == Residence::Transient;
                if transient && !std::mem::replace(&mut seen[id.index()], true) {
                    dies[index].push(*id);
                }
            }
        }
        Steps { ops, dies }
    }
}

/// What a step works with.
pub struct Machine<'a> {
    pub program: &'a Program,
    pub weights: &'a Weights,
    pub isa: Isa,
    pub dims: &'a [u64],
    pub pool: &'a mut Pool,
    pub values: &'a mut Values,
    /// By layer, under the tensor of its keys.
    pub caches: &'a mut Vec<(TensorId, Cache)>,
}

impl Machine<'_> {
    /// Runs a phase at the current dims.
    pub fn run(&mut self, steps: &Steps) {
        let mut index = 0;
        while index < steps.ops.len() {
            let group = self.independent_products(&steps.ops[index..]);
            match group {
                0 => self.op(&steps.ops[index]),
                _ => self.products(&steps.ops[index..index + group]),
            }
            for done in index..index + group.max(1) {
                for id in &steps.dies[done] {
                    // A value that was overwritten in place has its new name already.
                    drop(self.values.take(*id));
                }
            }
            index += group.max(1);
        }
    }

    /// How many of the first operations are products of which none reads another's output.
    fn independent_products(&self, ops: &[Op]) -> usize {
        let is_product = |op: &&Op| matches!(op.kind, OpKind::MatMul { .. });
        let mut made: Vec<TensorId> = Vec::new();
        let mut count = 0;
        for op in ops.iter().take_while(is_product) {
            if op.inputs.iter().any(|input| made.contains(input)) {
                break;
            }
            made.push(op.outputs[0]);
            count += 1;
        }
        count
    }

    fn op(&mut self, op: &Op) {
        let tokens = tokens_now(self.program, op, self.dims);
        match &op.kind {
            OpKind::RmsNorm { .. }
            | OpKind::RmsNormQuantise { .. }
            | OpKind::RmsNormAdd { .. }
            | OpKind::HeadNorm { .. } => self.norm(op, tokens),
            OpKind::EmbedRows { .. }
            | OpKind::BiasAdd
            | OpKind::Add
            | OpKind::Rope { .. }
            | OpKind::GatedMul(_) => self.tiles(op, tokens),
            OpKind::Quantise | OpKind::GatedMulQuantise(_) => self.blocks(op, tokens),
            OpKind::RopeTable { magnitude } => self.rope_table(op, *magnitude),
            OpKind::SelectRows => self.select_rows(op, tokens),
            OpKind::MatMul { .. } => self.products(std::slice::from_ref(op)),
            OpKind::GatedMatMul { .. } => self.gated_products(op, tokens),
            OpKind::KvAppend(shape) => self.append(op, shape, tokens),
            OpKind::AttentionPrefill(shape) => self.attend(op, shape, tokens),
            OpKind::AttentionDecodePartial(shape) => self.attend_partly(op, shape, tokens),
            OpKind::AttentionDecodeMerge(shape)
            | OpKind::AttentionDecodeMergeQuantise { shape, .. } => self.merge(op, shape, tokens),
            OpKind::LoadMatrix(_)
            | OpKind::LoadVector(_)
            | OpKind::LoadRopeFrequencies { .. }
            | OpKind::LoadTokenizer { .. }
            | OpKind::Attention(_)
            | OpKind::Sample { .. }
            | OpKind::Vision(_) => unreachable!("{} is no step of a decoder", op.name),
        }
    }

    /// The output's block: that of an operand that dies where the kernel may write over it, else
    /// a new one. Says which input is in it.
    fn output(&mut self, op: &Op) -> (Block, Option<usize>) {
        let id = op.outputs[0];
        let replaced = op.inputs.iter().position(|input| *input == id).or_else(|| {
            // The kernel of a gated product overwrites its gate only.
            let only_first = matches!(op.kind, OpKind::GatedMul(_));
            let mut pairs = op.in_place.iter().map(|(_, input)| *input as usize);
            pairs.find(|input| !only_first || *input == 0)
        });
        let reused = replaced.and_then(|index| self.values.take(op.inputs[index]));
        match reused {
            Some(block) => (block, replaced),
            None => (Block::new(bytes_now(self.program, id, self.dims)), None),
        }
    }

    /// Everything that can be read, and the lanes.
    fn parts(&mut self) -> (Inputs<'_>, &mut Pool) {
        let Machine { program, weights, values, pool, .. } = self;
        (Inputs { program, weights, values }, pool)
    }

    fn norm(&mut self, op: &Op, tokens: usize) {
        let (mut out, replaced) = self.output(op);
        let isa = self.isa;
        let (inputs, pool) = self.parts();
        let weight: &[f32] = inputs.of(op.inputs[1]);
        let (per_unit, units) = match &op.kind {
            // Of copies for each lane one is made: an operation is a parallel region of its own.
            OpKind::RmsNormQuantise { .. } => (2, weight.len() / 32),
            _ => (1, inputs.extent(op.outputs[0], 0)),
        };
        let lanes = pool.lanes_for(units * per_unit * 16 * tokens);
        let ranges = shares(units, op.grain as usize / (16 * per_unit), lanes);
        let norm = |epsilon: f32, tiles| {
            let x = &inputs.of::<f32>(op.inputs[0])[..weight.len() * tokens];
            NormInput { x, weight, epsilon, tokens, tiles }
        };
        match &op.kind {
            OpKind::RmsNorm { epsilon } => {
                let parts = cut(out.of_mut(), &ranges, tokens * 16);
                pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                    rms_norm(isa, norm(*epsilon, range.clone()), out);
                });
            }
            OpKind::RmsNormQuantise { epsilon, .. } => {
                let parts = cut(out.of_mut(), &ranges, tokens);
                pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                    rms_norm_quantise(isa, norm(*epsilon, 2 * range.start..2 * range.end), out);
                });
            }
            OpKind::RmsNormAdd { epsilon } => {
                let residual = (replaced != Some(2)).then(|| inputs.of::<f32>(op.inputs[2]));
                let parts = cut(out.of_mut(), &ranges, tokens * 16);
                pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                    let residual = operand(residual, range, tokens);
                    rms_norm_add(isa, norm(*epsilon, range.clone()), residual, out);
                });
            }
            OpKind::HeadNorm { epsilon, .. } => {
                let x = (replaced != Some(0)).then(|| inputs.of::<f32>(op.inputs[0]));
                let parts = cut(out.of_mut(), &ranges, tokens * 16);
                pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                    head_norm(isa, operand(x, range, tokens), weight, *epsilon, tokens, out);
                });
            }
            other => unreachable!("{} is no norm", other.name()),
        }
        self.values.put(op.outputs[0], out);
    }

    /// Operations on single features, in tiles of 16.
    fn tiles(&mut self, op: &Op, tokens: usize) {
        let (mut out, replaced) = self.output(op);
        let isa = self.isa;
        let (inputs, pool) = self.parts();
        let input = |index: usize| -> &[f32] { inputs.of(op.inputs[index]) };
        let first = || (replaced != Some(0)).then(|| input(0));
        let units = inputs.extent(op.outputs[0], 0);
        let lanes = pool.lanes_for(units * 16 * tokens);
        let ranges = shares(units, op.grain as usize / 16, lanes);
        match &op.kind {
            OpKind::EmbedRows { scale } => {
                let table = op.inputs[1];
                let ids = &inputs.of::<u32>(op.inputs[0])[..tokens];
                let (cols, rows) = (inputs.cols(table), inputs.extent(table, 0));
                each_tile(pool, &mut out, &ranges, tokens, &|out, range| {
                    let features = range.start * 16..(range.end * 16).min(cols);
                    gather(inputs.tiles(table, 0..rows / 16), ids, *scale, features, out);
                });
            }
            OpKind::BiasAdd => {
                let (x, bias) = (first(), input(1));
                each_tile(pool, &mut out, &ranges, tokens, &|out, range| {
                    let bias = &bias[range.start * 16..range.end * 16];
                    bias_add(isa, operand(x, range, tokens), bias, tokens, out);
                });
            }
            OpKind::Add => {
                // The sum commutes bit for bit, so either side may be the output's bytes.
                let (a, b) = if replaced == Some(1) { (1, 0) } else { (0, 1) };
                let (a, b) = ((replaced != Some(a)).then(|| input(a)), input(b));
                each_tile(pool, &mut out, &ranges, tokens, &|out, range| {
                    let b = &b[range.start * 16 * tokens..range.end * 16 * tokens];
                    add(isa, operand(a, range, tokens), b, out);
                });
            }
            OpKind::Rope { style, head_dim, rotary_dim } => {
                let style = match style {
                    RopeStyle::Halves => KernelRopeStyle::Halves,
                    RopeStyle::Interleaved => KernelRopeStyle::Interleaved,
                };
                let (head_dim, rotary_dim) = (*head_dim as usize, *rotary_dim as usize);
                let table = &input(1)[..rope_table_len(rotary_dim / 2, tokens)];
                let how = Rope { style, head_dim, rotary_dim, table };
                let x = first();
                each_tile(pool, &mut out, &ranges, tokens, &|out, range| {
                    rope(isa, how, operand(x, range, tokens), tokens, out);
                });
            }
            OpKind::GatedMul(activation) => {
                let (gate, up) = (first(), input(1));
                each_tile(pool, &mut out, &ranges, tokens, &|out, range| {
                    let up = &up[range.start * 16 * tokens..range.end * 16 * tokens];
                    gated_mul(isa, gate_of(*activation), operand(gate, range, tokens), up, out);
                });
            }
            other => unreachable!("{} is no operation on features", other.name()),
        }
        self.values.put(op.outputs[0], out);
    }

    /// Operations that quantise, in blocks of 32 features.
    fn blocks(&mut self, op: &Op, tokens: usize) {
        let (mut out, _) = self.output(op);
        let isa = self.isa;
        let (inputs, pool) = self.parts();
        let input = |index: usize, range: &Range<usize>| -> &[f32] {
            &inputs.of::<f32>(op.inputs[index])[range.start * 32 * tokens..range.end * 32 * tokens]
        };
        let units = inputs.extent(op.outputs[0], 0);
        let lanes = pool.lanes_for(units * 32 * tokens);
        let ranges = shares(units, op.grain as usize / 32, lanes);
        let parts = cut(out.of_mut::<ActBlock>(), &ranges, tokens);
        let parts = parts.into_iter().zip(&ranges).collect();
        match &op.kind {
            OpKind::Quantise => pool.each(parts, &|(out, range)| {
                quantise(isa, input(0, range), tokens, out);
            }),
            OpKind::GatedMulQuantise(activation) => pool.each(parts, &|(out, range)| {
                let (gate, up) = (input(0, range), input(1, range));
                gated_mul_quantise(isa, gate_of(*activation), gate, up, tokens, out);
            }),
            other => unreachable!("{} does not quantise", other.name()),
        }
        self.values.put(op.outputs[0], out);
    }

    fn rope_table(&mut self, op: &Op, magnitude: f32) {
        let (mut out, _) = self.output(op);
        let dims = self.dims;
        let (inputs, _) = self.parts();
        let frequencies: &[f32] = inputs.of(op.inputs[1]);
        let positions = &inputs.of::<u32>(op.inputs[0])[..tokens_of_table(op, &inputs, dims)];
        let len = rope_table_len(frequencies.len(), positions.len());
        rope_table(positions, frequencies, magnitude, &mut out.of_mut()[..len]);
        self.values.put(op.outputs[0], out);
    }

    fn select_rows(&mut self, op: &Op, tokens: usize) {
        let (mut out, _) = self.output(op);
        let (inputs, _) = self.parts();
        let x: &[f32] = inputs.of(op.inputs[0]);
        let all = x.len() / (inputs.extent(op.outputs[0], 0) * 16);
        let rows = &inputs.of::<u32>(op.inputs[1])[..tokens];
        let outs = out.of_mut::<f32>().chunks_exact_mut(tokens * 16);
        for (from, to) in x.chunks_exact(all * 16).zip(outs) {
            for (row, to) in rows.iter().zip(to.chunks_exact_mut(16)) {
                to.copy_from_slice(&from[*row as usize * 16..][..16]);
            }
        }
        self.values.put(op.outputs[0], out);
    }

    /// Products of which none depends on another, in one region: each lane its rows of each.
    fn products(&mut self, ops: &[Op]) {
        let mut outs: Vec<(Block, Option<usize>)> = ops.iter().map(|op| self.output(op)).collect();
        let isa = self.isa;
        let dims = self.dims;
        let (inputs, pool) = self.parts();
        let lanes = pool.lanes();
        let mut parts: Vec<Vec<Product<'_>>> = (0..lanes).map(|_| Vec::new()).collect();
        for (op, (out, replaced)) in ops.iter().zip(&mut outs) {
            let OpKind::MatMul { epilogue, .. } = &op.kind else { unreachable!("{}", op.name) };
            let tokens = tokens_now(inputs.program, op, dims);
            let units = inputs.extent(op.outputs[0], 0);
            let ranges = shares(units, op.grain as usize / 16, lanes);
            let epilogue = match (epilogue, op.inputs.get(2)) {
                (Epilogue::Store, _) | (Epilogue::Add, None) => KernelEpilogue::Store,
                (Epilogue::Add, Some(residual)) => {
                    if *replaced != Some(2) {
                        let len = out.len() / 4;
                        out.of_mut().copy_from_slice(&inputs.of::<f32>(*residual)[..len]);
                    }
                    KernelEpilogue::AddTo
                }
            };
            let ys = cut(out.of_mut(), &ranges, tokens * 16);
            for ((lane, y), range) in parts.iter_mut().zip(ys).zip(&ranges) {
                let weights = inputs.tiles(op.inputs[1], range.clone());
                let x = match inputs.program.tensor(op.inputs[0]).dtype {
                    Dtype::U8 => Factor::Quantised(inputs.of(op.inputs[0])),
                    _ => Factor::Floats(inputs.of(op.inputs[0])),
                };
                lane.push(Product { weights, x, tokens, epilogue, y });
            }
        }
        parts.retain(|part| !part.is_empty());
        pool.each(parts, &|part: Vec<Product<'_>>| {
            for Product { weights, x, tokens, epilogue, y } in part {
                let cols = weights.cols();
                match x {
                    Factor::Quantised(x) => {
                        let x = &x[..cols / 32 * tokens];
                        matmul(isa, weights, x, tokens, epilogue, y);
                    }
                    Factor::Floats(x) => {
                        let x = &x[..cols.div_ceil(16) * tokens * 16];
                        matmul_float(isa, weights, x, tokens, epilogue, y);
                    }
                }
            }
        });
        for (op, (out, _)) in ops.iter().zip(outs) {
            self.values.put(op.outputs[0], out);
        }
    }

    fn gated_products(&mut self, op: &Op, tokens: usize) {
        let OpKind::GatedMatMul { activation, block_rows, .. } = &op.kind else {
            unreachable!("{} is no pair of gated products", op.name)
        };
        let (mut out, _) = self.output(op);
        let isa = self.isa;
        let (inputs, pool) = self.parts();
        let units = inputs.extent(op.outputs[0], 0);
        let ranges = shares(units, op.grain as usize / 32, pool.lanes());
        let cols = inputs.cols(op.inputs[1]);
        let x = &inputs.of::<ActBlock>(op.inputs[0])[..cols / 32 * tokens];
        let block_rows = *block_rows as usize;
        let scratch_len = 2 * block_rows * tokens;
        let mut scratch = Block::new(ranges.len() * scratch_len * 4);
        let scratches = scratch.of_mut::<f32>().chunks_exact_mut(scratch_len);
        let parts = cut(out.of_mut::<ActBlock>(), &ranges, tokens);
        let parts = parts.into_iter().zip(&ranges).zip(scratches).collect();
        pool.each(parts, &|((out, range), scratch)| {
            for (index, out) in out.chunks_mut(block_rows / 32 * tokens).enumerate() {
                let first = 2 * range.start + index * block_rows / 16;
                let tiles = first..first + 2 * (out.len() / tokens);
                let len = tiles.len() * 16 * tokens;
                let (gate, up) = scratch[..2 * len].split_at_mut(len);
                let store = KernelEpilogue::Store;
                let matrix = |index: usize| inputs.tiles(op.inputs[index], tiles.clone());
                matmul(isa, matrix(1), x, tokens, store, gate);
                matmul(isa, matrix(2), x, tokens, store, up);
                gated_mul_quantise(isa, gate_of(*activation), gate, up, tokens, out);
            }
        });
        drop(scratch);
        self.values.put(op.outputs[0], out);
    }

    fn append(&mut self, op: &Op, shape: &AttentionShape, tokens: usize) {
        let isa = self.isa;
        let Machine { program, weights, values, pool, caches, .. } = self;
        let inputs = Inputs { program, weights, values };
        let places = inputs.places(op, 2, tokens);
        let cache = cache_of(caches, op.outputs[0]);
        let end = places.positions.iter().max().map_or(0, |position| *position as usize + 1);
        let ring = (shape.window > 0).then_some(shape.capacity as usize);
        cache.reserve(end, ring);
        let Cache { shape: kv, keys, values: rows } = cache;
        let kv = *kv;
        let head = shape.head_dim as usize;
        let lanes = pool.lanes_for(kv.heads * head * tokens);
        let ranges = shares(kv.heads, op.grain as usize / head, lanes);
        let keys = cut(keys.of_mut::<u8>(), &ranges, kv.key_head_bytes());
        let rows = cut(rows.of_mut::<u8>(), &ranges, kv.value_head_bytes());
        let (k, v): (&[f32], &[f32]) = (inputs.of(op.inputs[0]), inputs.of(op.inputs[1]));
        let parts = keys.into_iter().zip(rows).zip(&ranges).collect();
        pool.each(parts, &|((keys, rows), range)| {
            let own = dctms_kernels::kv::KvShape { heads: range.len(), ..kv };
            let part = range.start * head * tokens..range.end * head * tokens;
            kv_append_keys(isa, &own, places, &k[part.clone()], keys);
            kv_append_values(isa, &own, places, &v[part], rows);
        });
    }

    fn attend(&mut self, op: &Op, shape: &AttentionShape, tokens: usize) {
        let (mut out, _) = self.output(op);
        let isa = self.isa;
        let Machine { program, weights, values, pool, caches, .. } = self;
        let inputs = Inputs { program, weights, values };
        let cache = cache_of(caches, op.inputs[1]);
        let of = attention(shape, cache.shape);
        let seen = seen(shape, inputs.places(op, 3, tokens));
        let head = shape.head_dim as usize;
        let ranges = shares(of.heads, op.grain as usize / head, pool.lanes());
        let workspace_len = attention_workspace_len(head);
        let mut workspace = Block::new(ranges.len() * workspace_len * 4);
        let workspaces = workspace.of_mut::<f32>().chunks_exact_mut(workspace_len);
        let q: &[f32] = inputs.of(op.inputs[0]);
        let parts = cut(out.of_mut::<f32>(), &ranges, head * tokens);
        let parts = parts.into_iter().zip(&ranges).zip(workspaces).collect();
        pool.each(parts, &|((out, range), workspace)| {
            let q = &q[range.start * head * tokens..range.end * head * tokens];
            let (keys, values) = (cache.keys.of(), cache.values.of());
            attention_prefill(isa, &of, seen, range.clone(), q, keys, values, workspace, out);
        });
        drop(workspace);
        self.values.put(op.outputs[0], out);
    }

    fn attend_partly(&mut self, op: &Op, shape: &AttentionShape, tokens: usize) {
        let isa = self.isa;
        let Machine { program, weights, values, pool, caches, .. } = self;
        let inputs = Inputs { program, weights, values };
        let cache = cache_of(caches, op.inputs[1]);
        let of = attention(shape, cache.shape);
        let seen = seen(shape, inputs.places(op, 3, tokens));
        let items = attention_decode_items(&of, seen);
        let record = attention_partial_len(&of);
        let ranges = shares(items, 1, pool.lanes());
        let workspace_len = attention_workspace_len(shape.head_dim as usize);
        let mut workspace = Block::new(ranges.len() * workspace_len * 4);
        let workspaces = workspace.of_mut::<f32>().chunks_exact_mut(workspace_len);
        let mut partials = Block::new(items * record * 4);
        let q = &inputs.of::<f32>(op.inputs[0])[..of.heads * of.kv.head_dim * tokens];
        let parts = cut(partials.of_mut::<f32>(), &ranges, record);
        let parts = parts.into_iter().zip(&ranges).zip(workspaces).collect();
        pool.each(parts, &|((out, range), workspace)| {
            let (keys, values) = (cache.keys.of(), cache.values.of());
            attention_decode_partial(
                isa,
                &of,
                seen,
                range.clone(),
                q,
                keys,
                values,
                workspace,
                out,
            );
        });
        drop(workspace);
        self.values.put(op.outputs[0], partials);
    }

    fn merge(&mut self, op: &Op, shape: &AttentionShape, tokens: usize) {
        let (mut out, _) = self.output(op);
        let isa = self.isa;
        let (inputs, pool) = self.parts();
        let of = attention(shape, kv_shape(shape));
        let seen = seen(shape, inputs.places(op, 1, tokens));
        let head = shape.head_dim as usize;
        let lanes = pool.lanes_for(of.heads * head * tokens);
        let ranges = shares(of.heads, op.grain as usize / head, lanes);
        let partials: &[f32] = inputs.of(op.inputs[0]);
        if let OpKind::AttentionDecodeMergeQuantise { .. } = op.kind {
            let parts = cut(out.of_mut::<ActBlock>(), &ranges, head / 32 * tokens);
            pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                attention_decode_merge_quantise(isa, &of, seen, range.clone(), partials, out);
            });
        } else {
            let parts = cut(out.of_mut::<f32>(), &ranges, head * tokens);
            pool.each(parts.into_iter().zip(&ranges).collect(), &|(out, range)| {
                attention_decode_merge(isa, &of, seen, range.clone(), partials, out);
            });
        }
        self.values.put(op.outputs[0], out);
    }
}

/// A product of one lane.
struct Product<'a> {
    weights: PackedTiles<'a>,
    x: Factor<'a>,
    tokens: usize,
    epilogue: KernelEpilogue,
    y: &'a mut [f32],
}

/// The activations of a product.
enum Factor<'a> {
    Quantised(&'a [ActBlock]),
    Floats(&'a [f32]),
}

fn cache_of(caches: &mut [(TensorId, Cache)], keys: TensorId) -> &mut Cache {
    let found = caches.iter_mut().find(|(id, _)| *id == keys);
    &mut found.expect("every layer has a cache").1
}

/// Runs `work` on the tiles of an output, one range of them a lane.
fn each_tile(
    pool: &mut Pool,
    out: &mut Block,
    ranges: &[Range<usize>],
    tokens: usize,
    work: &(dyn Fn(&mut [f32], &Range<usize>) + Sync),
) {
    let parts = cut(out.of_mut::<f32>(), ranges, tokens * 16);
    pool.each(parts.into_iter().zip(ranges).collect(), &|(out, range)| work(out, range));
}

/// The part of an operand that belongs to a range of tiles; what is not given is in place.
fn operand<'a>(x: Option<&'a [f32]>, range: &Range<usize>, tokens: usize) -> Operand<'a> {
    match x {
        Some(x) => Operand::At(&x[range.start * 16 * tokens..range.end * 16 * tokens]),
        None => Operand::InPlace,
    }
}

/// Tokens of a rotary table: it is as long as the positions of the step.
fn tokens_of_table(op: &Op, inputs: &Inputs<'_>, dims: &[u64]) -> usize {
    let positions = inputs.of::<u32>(op.inputs[0]).len();
    let now = tokens_now(inputs.program, op, dims);
    if now > 1 { now.min(positions) } else { positions }
}
