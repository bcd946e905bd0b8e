//! One task: its places made into slices, and the kernel called.
//!
//! **Safety of the whole file.** Every slice is made for one task and dropped before the task
//! signals. The places are those of the operation's contract for this shard; the certificate of
//! the linked plan proves that tasks touching common bytes, one of them writing, are ordered
//! (C3, C4), that a read finds what it wants (C5), and that a tensor replaces another in place
//! only where allowed (C6). Dims are within bounds, so no place ends past its tensor (C2).

mod vision;

use std::sync::Mutex;

use dctms_ir::op::{Activation, AttentionShape, Epilogue, RopeStyle};
use dctms_kernels::attention::{
    Attention, Tokens, Visibility, attention_decode_merge, attention_decode_merge_quantise,
    attention_decode_partial, attention_partial_len, attention_prefill,
};
use dctms_kernels::elementwise::{Gate, add, bias_add, gated_mul, gated_mul_quantise};
use dctms_kernels::gather::gather;
use dctms_kernels::isa::Isa;
use dctms_kernels::kv::{KvPlaces, KvShape, KvType, kv_append_keys, kv_append_values};
use dctms_kernels::matmul::{Epilogue as KernelEpilogue, matmul, matmul_float};
use dctms_kernels::norm::{NormInput, head_norm, rms_norm, rms_norm_add, rms_norm_quantise};
use dctms_kernels::packed::PackedTiles;
use dctms_kernels::quantise::quantise;
use dctms_kernels::rope::{Rope, RopeStyle as KernelRopeStyle, rope, rope_table};
use dctms_kernels::simd::Operand;

use crate::command::{BLOCK_BYTES, Body, Dtype, Extent, Positions, Slice, TILE_BYTES};
use crate::error::ExecError;
use crate::load::{self, Constant, LoadHost, packed_kind};
use crate::memory::{Memory, Place};
use crate::sample::{SampleRows, sample_rows};

/// What every task of a run shares.
pub struct Context<'a> {
    /// The arena.
    pub memory: Memory,
    /// Instruction set.
    pub isa: Isa,
    /// Current dims.
    pub dims: &'a [u64],
    /// First bytes of the arena that are pages of a file, and not to be written: constants there
    /// are loaded already.
    pub mapped_bytes: usize,
    /// The host, while loading.
    pub host: Option<&'a dyn LoadHost>,
    /// First failure of loading.
    pub failure: &'a Mutex<Option<ExecError>>,
}

/// Runs a task for `tokens` tokens.
pub fn execute(body: &Body, tokens: usize, context: &Context<'_>) {
    match body {
        Body::LoadMatrix { .. }
        | Body::LoadVector { .. }
        | Body::LoadRopeFrequencies { .. }
        | Body::LoadTokenizer { .. } => execute_load(body, context),
        Body::KvAppend { .. }
        | Body::AttentionPrefill { .. }
        | Body::AttentionDecodePartial { .. }
        | Body::AttentionDecodeMerge { .. } => execute_attention(body, tokens, context),
        Body::RmsNorm { .. }
        | Body::RmsNormQuantise { .. }
        | Body::RmsNormAdd { .. }
        | Body::HeadNorm { .. } => execute_norm(body, tokens, context),
        Body::RopeTable { .. }
        | Body::EmbedRows { .. }
        | Body::Quantise { .. }
        | Body::MatMul { .. }
        | Body::BiasAdd { .. }
        | Body::Add { .. }
        | Body::Rope { .. }
        | Body::GatedMul { .. }
        | Body::GatedMulQuantise { .. }
        | Body::GatedMatMul { .. }
        | Body::SelectRows { .. }
        | Body::Sample { .. } => execute_plain(body, tokens, context),
        Body::Vision(body) => vision::execute(body, tokens, context),
    }
}

fn execute_load(body: &Body, context: &Context<'_>) {
    let memory = context.memory;
    let Some(host) = context.host else {
        return fail(context, "phase", "a loading phase needs a host".to_string());
    };
    let out = match body {
        Body::LoadMatrix { out, .. }
        | Body::LoadVector { out, .. }
        | Body::LoadRopeFrequencies { out, .. }
        | Body::LoadTokenizer { out, .. } => *out,
        other => unreachable!("{other:?} does not load"),
    };
    let mapped = context.mapped_bytes.saturating_sub(out.offset).min(out.len);
    let rest = out.part(mapped, out.len - mapped);
    if rest.len == 0 {
        return host.loaded(out.len as u64);
    }
    // SAFETY: the place of this task's own output: see the file's note.
    match unsafe { host.constant(rest.offset, memory.bytes_mut(rest)) } {
        Ok(Constant::Filled) => return host.loaded(out.len as u64),
        // What is made from the model's files is written as a whole, and a file's pages cannot be.
        Ok(Constant::Elsewhere) if mapped > 0 => {
            let what = format!("{mapped} of its {} bytes are mapped, the rest is not", out.len);
            return fail(context, "a constant", what);
        }
        Ok(Constant::Elsewhere) => {}
        Err(message) => return fail(context, "a constant", message),
    }
    // SAFETY: places of this task's own operands: see the file's note.
    let (what, result) = unsafe {
        match body {
            Body::LoadMatrix { source, out, staging } => {
                let (out, staging) = (memory.bytes_mut(*out), memory.bytes_mut(*staging));
                (source.tensor.as_str(), load::matrix(host, source, out, staging))
            }
            Body::LoadVector { source, out, staging } => {
                let (out, staging) = (memory.floats_mut(*out), memory.bytes_mut(*staging));
                (source.tensor.as_str(), load::vector(host, source, out, staging))
            }
            Body::LoadRopeFrequencies { base, rotary_dim, scaling, factors, out } => {
                let out = memory.floats_mut(*out);
                load::rope_frequencies(*base, *rotary_dim, scaling, out);
                let divided = match factors {
                    Some((source, staging)) => {
                        load::divide(host, source, out, memory.bytes_mut(*staging))
                    }
                    None => Ok(()),
                };
                ("rope frequencies", divided)
            }
            Body::LoadTokenizer { offset, out, staging } => {
                let (out, staging) = (memory.bytes_mut(*out), memory.bytes_mut(*staging));
                let read = host.read(0, *offset, staging);
                ("tokenizer", read.and_then(|()| host.build_tokenizer(*offset, staging, out)))
            }
            other => unreachable!("{other:?} does not load"),
        }
    };
    if let Err(message) = result {
        fail(context, what, message);
    }
}

fn fail(context: &Context<'_>, what: &str, message: String) {
    if let Ok(mut first) = context.failure.lock() {
        first.get_or_insert(ExecError::Load { what: what.to_string(), message });
    }
}

fn execute_norm(body: &Body, tokens: usize, context: &Context<'_>) {
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: places of this task's own operands: see the file's note.
    unsafe {
        let input = |x: &Place, weight: &Place, epsilon: f32, tiles| {
            let weight = memory.floats(*weight);
            let x = memory.floats(x.part(0, weight.len() * tokens * 4));
            NormInput { x, weight, epsilon, tokens, tiles }
        };
        match body {
            Body::RmsNorm { epsilon, x, weight, out } => {
                let input = input(x, weight, *epsilon, out.start..out.end);
                rms_norm(isa, input, floats_mut(memory, out, tokens));
            }
            Body::RmsNormQuantise { epsilon, x, weight, tiles, out } => {
                let input = input(x, weight, *epsilon, tiles.0..tiles.1);
                rms_norm_quantise(isa, input, memory.blocks_mut(out.at(tokens, BLOCK_BYTES)));
            }
            Body::RmsNormAdd { epsilon, x, weight, residual, out } => {
                let input = input(x, weight, *epsilon, out.start..out.end);
                let residual = operand(memory, residual, out, tokens);
                rms_norm_add(isa, input, residual, floats_mut(memory, out, tokens));
            }
            Body::HeadNorm { epsilon, x, weight, out } => {
                let x = operand(memory, x, out, tokens);
                let weight = memory.floats(*weight);
                head_norm(isa, x, weight, *epsilon, tokens, floats_mut(memory, out, tokens));
            }
            other => unreachable!("{other:?} is no norm"),
        }
    }
}

fn execute_plain(body: &Body, tokens: usize, context: &Context<'_>) {
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: places of this task's own operands: see the file's note.
    unsafe {
        match body {
            Body::RopeTable { magnitude, positions, frequencies, out } => {
                let frequencies = memory.floats(*frequencies);
                let table = table_place(*out, 2 * frequencies.len(), tokens);
                let positions = memory.integers(positions.part(0, tokens * 4));
                rope_table(positions, frequencies, *magnitude, memory.floats_mut(table));
            }
            Body::EmbedRows { scale, ids, kind, cols, table, out } => {
                let table = PackedTiles::new(packed_kind(*kind), *cols, memory.bytes(*table));
                let ids = memory.integers(ids.part(0, tokens * 4));
                let features = out.start * 16..(out.end * 16).min(*cols);
                gather(table, ids, *scale, features, floats_mut(memory, out, tokens));
            }
            Body::Quantise { x, out } => {
                let x = memory.floats(x.at(tokens, TILE_BYTES));
                quantise(isa, x, tokens, memory.blocks_mut(out.at(tokens, BLOCK_BYTES)));
            }
            Body::MatMul { .. } => product(body, tokens, context),
            Body::BiasAdd { x, bias, out } => {
                let x = operand(memory, x, out, tokens);
                bias_add(isa, x, memory.floats(*bias), tokens, floats_mut(memory, out, tokens));
            }
            Body::Add { a, b, out } => {
                // One side may be the output's bytes; the sum commutes bit for bit.
                let (first, second) = if same(b, out, tokens) { (b, a) } else { (a, b) };
                let other = memory.floats(second.at(tokens, TILE_BYTES));
                let first = operand(memory, first, out, tokens);
                add(isa, first, other, floats_mut(memory, out, tokens));
            }
            Body::Rope { style, head_dim, rotary_dim, table, x, out } => {
                let table = table_place(*table, *rotary_dim, tokens);
                let style = match style {
                    RopeStyle::Halves => KernelRopeStyle::Halves,
                    RopeStyle::Interleaved => KernelRopeStyle::Interleaved,
                };
                let (head_dim, rotary_dim) = (*head_dim, *rotary_dim);
                let how = Rope { style, head_dim, rotary_dim, table: memory.floats(table) };
                let x = operand(memory, x, out, tokens);
                rope(isa, how, x, tokens, floats_mut(memory, out, tokens));
            }
            Body::GatedMul { activation, gate, up, out } => {
                let up = memory.floats(up.at(tokens, TILE_BYTES));
                let gate = operand(memory, gate, out, tokens);
                gated_mul(isa, gate_of(*activation), gate, up, floats_mut(memory, out, tokens));
            }
            Body::GatedMulQuantise { activation, gate, up, out } => {
                let x = |slice: &Slice| memory.floats(slice.at(tokens, TILE_BYTES));
                let blocks = memory.blocks_mut(out.at(tokens, BLOCK_BYTES));
                gated_mul_quantise(isa, gate_of(*activation), x(gate), x(up), tokens, blocks);
            }
            Body::GatedMatMul { .. } => gated_products(body, tokens, context),
            Body::SelectRows { x, from, rows, out } => {
                let all = from.of(context.dims);
                let x = memory.floats(x.at(all, TILE_BYTES));
                let rows = memory.integers(rows.part(0, tokens * 4));
                select_rows(x, all, rows, floats_mut(memory, out, tokens));
            }
            Body::Sample { .. } => sample(body, tokens, context),
            other => unreachable!("{other:?} is not plain"),
        }
    }
}

/// # Safety
/// As the file's note: `body` is this task's.
unsafe fn product(body: &Body, tokens: usize, context: &Context<'_>) {
    let Body::MatMul { kind, cols, quantised, x, weights, epilogue, residual, out } = body else {
        unreachable!("{body:?} is no product")
    };
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: the caller's promise.
    unsafe {
        let y = floats_mut(memory, out, tokens);
        let epilogue = match (epilogue, residual) {
            (Epilogue::Store, _) | (Epilogue::Add, None) => KernelEpilogue::Store,
            (Epilogue::Add, Some(residual)) => {
                if !same(residual, out, tokens) {
                    y.copy_from_slice(memory.floats(residual.at(tokens, TILE_BYTES)));
                }
                KernelEpilogue::AddTo
            }
        };
        let weights = PackedTiles::new(packed_kind(*kind), *cols, memory.bytes(*weights));
        match quantised {
            true => {
                let x = memory.blocks(x.at(tokens, BLOCK_BYTES));
                matmul(isa, weights, x, tokens, epilogue, y);
            }
            false => {
                let x = memory.floats(x.at(tokens, TILE_BYTES));
                matmul_float(isa, weights, x, tokens, epilogue, y);
            }
        }
    }
}

/// Both products of a block of rows, then their blocks of the output, while the products are still
/// in a cache. Each element is what whole products would give: rows do not meet.
///
/// # Safety
/// As the file's note: `body` is this task's.
unsafe fn gated_products(body: &Body, tokens: usize, context: &Context<'_>) {
    let Body::GatedMatMul { kinds, cols, activation, block_rows, x, gate, up, out, workspace } =
        body
    else {
        unreachable!("{body:?} is no pair of gated products")
    };
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: the caller's promise; the workspace is this shard's own (C6).
    unsafe {
        let x = memory.blocks(x.at(tokens, BLOCK_BYTES));
        let tile_bytes = |place: &Place| place.len / (2 * out.len());
        let matrix = |kind, place: &Place, tiles: &std::ops::Range<usize>| {
            let bytes = tile_bytes(place);
            let part = place.part(tiles.start * bytes, tiles.len() * bytes);
            PackedTiles::new(packed_kind(kind), *cols, memory.bytes(part))
        };
        let scratch = memory.floats_mut(workspace.part(0, 2 * block_rows * tokens * 4));
        let blocks = memory.blocks_mut(out.at(tokens, BLOCK_BYTES));
        for (index, out) in blocks.chunks_mut(block_rows / 32 * tokens).enumerate() {
            let first = index * block_rows / 16;
            let tiles = first..first + 2 * (out.len() / tokens);
            let len = tiles.len() * 16 * tokens;
            let (gated, upped) = scratch[..2 * len].split_at_mut(len);
            let store = KernelEpilogue::Store;
            matmul(isa, matrix(kinds[0], gate, &tiles), x, tokens, store, gated);
            matmul(isa, matrix(kinds[1], up, &tiles), x, tokens, store, upped);
            gated_mul_quantise(isa, gate_of(*activation), gated, upped, tokens, out);
        }
    }
}

/// # Safety
/// As the file's note: `body` is this task's.
unsafe fn sample(body: &Body, rows: usize, context: &Context<'_>) {
    let Body::Sample { vocabulary, logits, parameters, history, sampled, random, workspace } = body
    else {
        unreachable!("{body:?} does not sample")
    };
    let (memory, isa) = (context.memory, context.isa);
    let tiles = vocabulary.div_ceil(16);
    // SAFETY: the caller's promise.
    unsafe {
        sample_rows(
            isa,
            SampleRows {
                vocabulary: *vocabulary,
                rows,
                logits: memory.floats(logits.part(0, tiles * rows * TILE_BYTES)),
                parameters: memory.bytes(*parameters),
                history: memory.integers(*history),
                sampled: memory.integers_mut(*sampled),
                random: memory.words_mut(*random),
                workspace: memory.candidates_mut(workspace.part(0, vocabulary * 8)),
            },
        );
    }
}

fn execute_attention(body: &Body, tokens: usize, context: &Context<'_>) {
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: places of this task's own operands: see the file's note.
    unsafe {
        match body {
            Body::KvAppend { shape, slots, heads, k, v, at, keys, values } => {
                let own = KvShape { heads: heads.1 - heads.0, ..kv_shape(shape, *slots) };
                let places = places(memory, at, tokens);
                let (k, v) = (k.at(tokens, TILE_BYTES), v.at(tokens, TILE_BYTES));
                kv_append_keys(isa, &own, places, memory.floats(k), memory.bytes_mut(*keys));
                kv_append_values(isa, &own, places, memory.floats(v), memory.bytes_mut(*values));
            }
            Body::AttentionPrefill { shape, slots, heads, q, keys, values, at, out, workspace } => {
                attention_prefill(
                    isa,
                    &attention(shape, *slots),
                    step_tokens(memory, shape, at, tokens),
                    heads.0..heads.1,
                    memory.floats(q.at(tokens, TILE_BYTES)),
                    memory.bytes(*keys),
                    memory.bytes(*values),
                    workspace_floats(memory, *workspace, shape),
                    floats_mut(memory, out, tokens),
                )
            }
            Body::AttentionDecodePartial { .. } => decode_partial(body, tokens, context),
            Body::AttentionDecodeMerge { .. } => decode_merge(body, tokens, context),
            other => unreachable!("{other:?} is no attention"),
        }
    }
}

/// # Safety
/// As the file's note: `body` is this task's.
unsafe fn decode_partial(body: &Body, tokens: usize, context: &Context<'_>) {
    let Body::AttentionDecodePartial {
        shape,
        slots,
        shard,
        items,
        q,
        keys,
        values,
        at,
        partials,
        workspace,
    } = body
    else {
        unreachable!("{body:?} is no partial attention")
    };
    let (memory, isa) = (context.memory, context.isa);
    let count = item_count(items, shape, context.dims);
    let (start, end) = (shard.0 * count / shard.1, (shard.0 + 1) * count / shard.1);
    if start == end {
        return;
    }
    let attention = attention(shape, *slots);
    let record = attention_partial_len(&attention) * 4;
    let features = (shape.heads * shape.head_dim) as usize;
    // SAFETY: the caller's promise.
    unsafe {
        attention_decode_partial(
            isa,
            &attention,
            step_tokens(memory, shape, at, tokens),
            start..end,
            memory.floats(q.part(0, features * tokens * 4)),
            memory.bytes(*keys),
            memory.bytes(*values),
            workspace_floats(memory, *workspace, shape),
            memory.floats_mut(partials.part(start * record, (end - start) * record)),
        );
    }
}

/// # Safety
/// As the file's note: `body` is this task's.
unsafe fn decode_merge(body: &Body, tokens: usize, context: &Context<'_>) {
    let Body::AttentionDecodeMerge { shape, quantised, heads, items, partials, at, slots, out } =
        body
    else {
        unreachable!("{body:?} merges nothing")
    };
    let (memory, isa) = (context.memory, context.isa);
    let of = attention(shape, *slots);
    let bytes = item_count(items, shape, context.dims) * attention_partial_len(&of) * 4;
    let heads = heads.0..heads.1;
    // SAFETY: the caller's promise.
    unsafe {
        let seen = step_tokens(memory, shape, at, tokens);
        let partials = memory.floats(partials.part(0, bytes));
        match quantised {
            true => {
                let out = memory.blocks_mut(out.at(tokens, BLOCK_BYTES));
                attention_decode_merge_quantise(isa, &of, seen, heads, partials, out);
            }
            false => {
                let out = floats_mut(memory, out, tokens);
                attention_decode_merge(isa, &of, seen, heads, partials, out);
            }
        }
    }
}

fn item_count(segments: &Extent, shape: &AttentionShape, dims: &[u64]) -> usize {
    segments.of(dims) * shape.kv_heads as usize
}

fn kv_shape(shape: &AttentionShape, slots: usize) -> KvShape {
    let kind = match shape.kv {
        Dtype::F32 => KvType::F32,
        Dtype::Q8_0 => KvType::Q8_0,
        _ => KvType::F16,
    };
    KvShape {
        kind,
        heads: shape.kv_heads as usize,
        slots,
        capacity: shape.capacity as usize,
        head_dim: shape.head_dim as usize,
    }
}

fn attention(shape: &AttentionShape, slots: usize) -> Attention {
    Attention {
        kv: kv_shape(shape, slots),
        heads: shape.heads as usize,
        scale: shape.scale,
        soft_cap: None,
    }
}

/// # Safety
/// As the file's note: `at` is an operand of this task.
unsafe fn places<'a>(memory: Memory, at: &Positions, tokens: usize) -> KvPlaces<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        KvPlaces {
            positions: memory.integers(at.positions.part(0, tokens * 4)),
            slots: memory.integers(at.slots.part(0, tokens * 4)),
        }
    }
}

/// # Safety
/// As the file's note: `at` is an operand of this task.
unsafe fn step_tokens<'a>(
    memory: Memory,
    shape: &AttentionShape,
    at: &Positions,
    tokens: usize,
) -> Tokens<'a> {
    let visibility = match shape.window {
        0 => Visibility::Causal,
        window => Visibility::Window(window),
    };
    // SAFETY: the caller's promise.
    Tokens { places: unsafe { places(memory, at, tokens) }, visibility }
}

/// # Safety
/// As the file's note: `workspace` is this shard's own.
unsafe fn workspace_floats<'a>(
    memory: Memory,
    workspace: Place,
    shape: &AttentionShape,
) -> &'a mut [f32] {
    let bytes = dctms_ir::contract::attention_workspace_bytes(shape.head_dim) as usize;
    // SAFETY: the caller's promise.
    unsafe { memory.floats_mut(workspace.part(0, bytes)) }
}

/// # Safety
/// As the file's note: `slice` is an output of this task.
unsafe fn floats_mut<'a>(memory: Memory, slice: &Slice, tokens: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { memory.floats_mut(slice.at(tokens, TILE_BYTES)) }
}

/// Whether two slices are the same bytes (C6: then the operation works in place).
fn same(a: &Slice, b: &Slice, tokens: usize) -> bool {
    a.at(tokens, TILE_BYTES) == b.at(tokens, TILE_BYTES)
}

/// # Safety
/// As the file's note: `x` is an input of this task, `out` its output.
unsafe fn operand<'a>(memory: Memory, x: &Slice, out: &Slice, tokens: usize) -> Operand<'a> {
    match same(x, out, tokens) {
        true => Operand::InPlace,
        // SAFETY: the caller's promise.
        false => Operand::At(unsafe { memory.floats(x.at(tokens, TILE_BYTES)) }),
    }
}

/// A rotary table of `rotary_dim / 2` pairs for `tokens` tokens.
fn table_place(table: Place, rotary_dim: usize, tokens: usize) -> Place {
    let pairs = rotary_dim / 2;
    table.part(0, dctms_kernels::rope::rope_table_len(pairs, tokens) * 4)
}

fn gate_of(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        Activation::GeluTanh => Gate::GeluTanh,
        Activation::GeluErf => Gate::GeluErf,
        Activation::GeluQuick => Gate::GeluQuick,
    }
}

/// Copies the picked tokens of each tile.
fn select_rows(x: &[f32], all: usize, rows: &[u32], out: &mut [f32]) {
    let tiles_in = x.chunks_exact(all * 16);
    let tiles_out = out.chunks_exact_mut(rows.len() * 16);
    for (from, to) in tiles_in.zip(tiles_out) {
        for (row, target) in rows.iter().zip(to.chunks_exact_mut(16)) {
            let start = *row as usize * 16;
            target.copy_from_slice(&from[start..start + 16]);
        }
    }
}
