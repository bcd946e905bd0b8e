//! The rates of the kernels that run models, measured by calling them.
//!
//! Products are timed with weights that a cache holds, at several numbers of tokens, and with one
//! token over weights that no cache holds. All other work is timed in caches, with sizes of a
//! small model's layer. The bytes of weights are a pattern: arithmetic takes the same time for
//! all of them but denormals, and the pattern has none.

use dctms_engine::EngineError;
use dctms_exec::load::packed_kind;
use dctms_ir::Dtype;
use dctms_kernels::attention::{
    Attention, FullWorkspace, Tokens, Visibility, attention_decode_items, attention_decode_merge,
    attention_decode_partial, attention_full, attention_full_head_bytes,
    attention_full_workspace_len, attention_partial_len, attention_prefill,
    attention_workspace_len,
};
use dctms_kernels::elementwise::{Gate, activate, add, gated_mul_quantise};
use dctms_kernels::gather::gather;
use dctms_kernels::isa::Isa;
use dctms_kernels::kv::{KvPlaces, KvShape, KvType, kv_append_keys, kv_append_values};
use dctms_kernels::matmul::{Epilogue, matmul, matmul_float};
use dctms_kernels::norm::{NormInput, head_norm, layer_norm, rms_norm_quantise};
use dctms_kernels::packed::PackedTiles;
use dctms_kernels::quantise::{ActBlock, quantise};
use dctms_kernels::rope::{Rope, RopeStyle, rope, rope_table, rope_table_len};
use dctms_kernels::sample::{LogitsRow, argmax};
use dctms_kernels::simd::Operand;
use dctms_kernels::vision::{Grid, PatchOrder, Patches, merge_patches, patchify};
use dctms_planner::Balance;
use dctms_planner::rates::{Element, MEETING_PS, ProductRates, TOKEN_POINTS};

use super::clock::Clock;
use crate::profile::is_weight;

/// Columns of the measured products: whole super-blocks.
const COLS: usize = 1536;
/// Bytes of weights of a product in a cache.
const CACHED_BYTES: usize = 256 << 10;
/// Bytes of weights of a product with many tokens, and how many are many.
const MANY_BYTES: usize = 1 << 20;
const MANY_TOKENS: u64 = 64;
/// Weights times tokens of a pass, so that a clock can see it.
const PASS_WORK: usize = 24 << 20;
/// Tokens of a product with f32 activations; beyond, time grows in proportion.
const FLOAT_TOKENS_MAX: u64 = 16;
/// Bytes of a matrix's shard that streams from memory.
const STREAM_BYTES: usize = 2 << 20;

const TOKENS: usize = 64;
const FEATURES: usize = 1024;
const HEAD_DIM: usize = 64;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const CAPACITY: usize = 1024;
const PAIRS: usize = HEAD_DIM / 2;
/// Patches of a head that all see each other; and pixels of a side of a patch, patches of a side.
const PATCHES: usize = 256;
const PATCH_SIDE: usize = 16;
const GRID_SIDE: usize = 8;
const PATCH_FEATURES: usize = 3 * PATCH_SIDE * PATCH_SIDE;

const ATTENTION: Attention = Attention {
    kv: KvShape {
        kind: KvType::F16,
        heads: KV_HEADS,
        slots: 1,
        capacity: CAPACITY,
        head_dim: HEAD_DIM,
    },
    heads: HEADS,
    scale: 0.125,
    soft_cap: None,
};

/// A lane's operands.
pub struct Room<'a> {
    isa: Isa,
    /// Packed weights, far more than a cache holds.
    weights: &'a [u8],
    floats: Vec<f32>,
    blocks: Vec<ActBlock>,
    out: Vec<f32>,
    out_blocks: Vec<ActBlock>,
    keys: Vec<u8>,
    values: Vec<u8>,
    table: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    workspace: Vec<f32>,
    partials: Vec<f32>,
    /// Which of its weights are next.
    turn: usize,
    full_rows: Vec<f32>,
    full_heads: [Vec<u8>; 2],
}

impl<'a> Room<'a> {
    /// Room of a lane that reads `weights`.
    #[must_use]
    pub fn new(isa: Isa, weights: &'a [u8]) -> Room<'a> {
        let tokens = TOKEN_POINTS[TOKEN_POINTS.len() - 1] as usize;
        let floats: Vec<f32> =
            (0..COLS * tokens).map(|i| ((i * 7919) % 513) as f32 / 256.0 - 1.0).collect();
        let empty = ActBlock { d: 0.0, s: [0; 2], q: [0; 32] };
        let mut blocks = vec![empty; COLS / 32 * tokens];
        quantise(isa, &floats, tokens, &mut blocks);
        let rows = MANY_BYTES * 4 / COLS;
        let last = CAPACITY as u32 - 1;
        let positions: Vec<u32> =
            (0..TOKENS as u32).map(|i| last + 1 + i - TOKENS as u32).collect();
        let slots = vec![0; TOKENS];
        let places = KvPlaces { positions: &positions[TOKENS - 1..], slots: &slots[..1] };
        let step = Tokens { places, visibility: Visibility::Causal };
        let items = attention_decode_items(&ATTENTION, step);
        Room {
            isa,
            weights,
            blocks,
            out: vec![0.0; (rows + 16) * tokens],
            out_blocks: vec![empty; FEATURES.max(COLS) / 32 * TOKENS],
            keys: half_ones(ATTENTION.kv.key_head_bytes() * KV_HEADS),
            values: half_ones(ATTENTION.kv.value_head_bytes() * KV_HEADS),
            table: vec![0.5; rope_table_len(PAIRS, TOKENS)],
            workspace: vec![0.0; attention_workspace_len(HEAD_DIM)],
            partials: vec![0.5; items * attention_partial_len(&ATTENTION)],
            turn: 0,
            full_rows: vec![0.0; attention_full_workspace_len(HEAD_DIM)],
            full_heads: [(); 2].map(|()| vec![0; attention_full_head_bytes(HEAD_DIM, PATCHES)]),
            positions,
            slots,
            floats,
        }
    }
}

/// Half floats of value one.
fn half_ones(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| if i % 2 == 0 { 0x00 } else { 0x3c }).collect()
}

/// Products of every type, quantised activations or f32 ones.
///
/// # Errors
/// A lane that panicked.
pub fn products(
    clock: &mut Clock<Room<'_>>,
    (lanes, lane_bytes, slowness): (usize, usize, usize),
    table: &mut [ProductRates; Dtype::ALL.len()],
    quantised: bool,
) -> Result<(), EngineError> {
    for (dtype, rates) in Dtype::ALL.into_iter().zip(table) {
        if !is_weight(dtype, quantised) {
            continue;
        }
        let kind = packed_kind(dtype);
        let tile_bytes = kind.tile_bytes(COLS).expect("whole super-blocks");
        let some = |bytes: usize| (bytes / slowness / tile_bytes).max(1) * tile_bytes;
        let mut last = 0.0;
        for (point, tokens) in TOKEN_POINTS.into_iter().enumerate() {
            if !quantised && tokens > FLOAT_TOKENS_MAX {
                rates.weight_ps[point] = last * tokens as f64 / FLOAT_TOKENS_MAX as f64;
                continue;
            }
            // Weights of few tokens from a near cache, of many from a far one: as in a model.
            let bytes = some(if tokens >= MANY_TOKENS { MANY_BYTES } else { CACHED_BYTES });
            let weights = bytes / tile_bytes * 16 * COLS;
            let times = (PASS_WORK / slowness / (weights * tokens as usize)).max(1);
            let seconds = clock.seconds(&|room| {
                for _ in 0..times {
                    product(room, kind, &room.weights[..bytes], tokens as usize, quantised);
                }
            })?;
            last = seconds / (times * weights) as f64 * 1e12;
            rates.weight_ps[point] = last;
        }
        // Quantised weights for f32 activations take longer to unpack than to read.
        let unpacks = !quantised && is_weight(dtype, true);
        let whole = if unpacks { lane_bytes / 8 } else { lane_bytes } / slowness;
        let whole = whole / tile_bytes * tile_bytes;
        let part = some(STREAM_BYTES);
        let seconds = clock.seconds(&|room| {
            for part in room.weights[..whole].chunks(part) {
                product(room, kind, part, 1, quantised);
            }
        })?;
        rates.stream_bytes_per_s = (whole * lanes) as f64 / seconds;
        let read = |room: &mut Room<'_>| {
            for part in room.weights[..whole].chunks(part) {
                product(room, kind, part, 1, quantised);
            }
        };
        let (seconds, _) = clock.beside(&read, &|room| multiply(room, slowness))?;
        rates.beside_bytes_per_s = whole as f64 / seconds;
    }
    Ok(())
}

fn product(
    room: &mut Room<'_>,
    kind: dctms_kernels::packed::PackedKind,
    weights: &[u8],
    tokens: usize,
    quantised: bool,
) {
    let weights = PackedTiles::new(kind, COLS, weights);
    let y = &mut room.out[..weights.tile_count() * 16 * tokens];
    match quantised {
        true => {
            let x = &room.blocks[..COLS / 32 * tokens];
            matmul(room.isa, weights, x, tokens, Epilogue::Store, y);
        }
        false => {
            let x = &room.floats[..COLS * tokens];
            matmul_float(room.isa, weights, x, tokens, Epilogue::Store, y);
        }
    }
}

/// Every other kind of work, picoseconds of an element.
///
/// # Errors
/// A lane that panicked.
pub fn elements(
    clock: &mut Clock<Room<'_>>,
    table: &mut [f64; Element::ALL.len()],
) -> Result<(), EngineError> {
    let mut set = |element: Element, ps: f64| table[element as usize] = ps;
    let all = FEATURES * TOKENS;
    let tile = clock.seconds(&|room| norm(room, FEATURES, TOKENS, 2))?;
    let whole = clock.seconds(&|room| norm(room, FEATURES, TOKENS, FEATURES / 16))?;
    set(Element::NormSum, tile * 1e12 / all as f64);
    set(Element::NormWrite, (whole - tile).max(whole / 20.0) * 1e12 / all as f64);
    // The same outputs of few columns and of many: what does not grow with the columns.
    let tile = clock.seconds(&|room| mean_norm(room, 1))?;
    let whole = clock.seconds(&|room| mean_norm(room, FEATURES / 16))?;
    set(Element::LayerNormSum, tile * 1e12 / all as f64);
    set(Element::LayerNormWrite, (whole - tile).max(whole / 20.0) * 1e12 / all as f64);
    let seconds = [FEW_COLS, COLS]
        .map(|cols| clock.seconds(&|room| outputs(room, cols)).map(|seconds| seconds / 16.0));
    let [few, many] = seconds;
    let (few, many) = (few?, many?);
    let slope = (many - few) / (COLS - FEW_COLS) as f64;
    let constant = (few - slope * FEW_COLS as f64).max(few / 100.0);
    set(Element::Output, constant * 1e12 / (OUTPUT_ROWS * TOKENS) as f64);
    for element in Element::ALL {
        let count = match element {
            Element::NormSum
            | Element::NormWrite
            | Element::LayerNormSum
            | Element::LayerNormWrite
            | Element::Output => continue,
            Element::AttentionFull => PATCHES * PATCHES * HEAD_DIM,
            Element::Patchify => GRID_SIDE * GRID_SIDE * PATCH_FEATURES,
            Element::RopeTable => PAIRS * TOKENS,
            Element::AttentionPrefill => {
                let seen: usize = (0..TOKENS).map(|token| CAPACITY + token + 1 - TOKENS).sum();
                seen * HEADS * HEAD_DIM
            }
            Element::AttentionDecode => CAPACITY * HEADS * HEAD_DIM,
            Element::AttentionMerge => CAPACITY / 256 * HEADS * HEAD_DIM,
            Element::HeadNorm
            | Element::Rope
            | Element::Quantise
            | Element::Gated
            | Element::Copy
            | Element::Append
            | Element::Embed
            | Element::Activate
            | Element::Rearrange
            | Element::Sample => all,
        };
        let seconds = clock.seconds(&|room| element_work(room, element))?;
        set(element, seconds * 1e12 / count as f64);
    }
    Ok(())
}

/// Sixteen products of the same outputs.
fn outputs(room: &mut Room<'_>, cols: usize) {
    let kind = dctms_kernels::packed::PackedKind::Q4_0;
    let bytes = OUTPUT_ROWS / 16 * kind.tile_bytes(cols).expect("whole blocks");
    for _ in 0..16 {
        let weights = PackedTiles::new(kind, cols, &room.weights[..bytes]);
        let x = &room.blocks[..cols / 32 * TOKENS];
        let y = &mut room.out[..OUTPUT_ROWS * TOKENS];
        matmul(room.isa, weights, x, TOKENS, Epilogue::Store, y);
    }
}

/// Rows of the products that outputs are timed with, and their fewest columns.
const OUTPUT_ROWS: usize = 256;
const FEW_COLS: usize = 256;

/// Seconds of the least work that a task can have: what it costs to be a task.
///
/// # Errors
/// A lane that panicked.
pub fn task_seconds(clock: &mut Clock<Room<'_>>) -> Result<f64, EngineError> {
    const TASKS: usize = 1000;
    let seconds = clock.seconds(&|room| {
        for _ in 0..TASKS {
            norm(room, 32, 1, 2);
        }
    })?;
    Ok(seconds / TASKS as f64)
}

fn norm(room: &mut Room<'_>, features: usize, tokens: usize, tiles: usize) {
    let (x, weight) = room.floats[..features * (tokens + 1)].split_at(features * tokens);
    let input = NormInput { x, weight, epsilon: 1e-5, tokens, tiles: 0..tiles };
    rms_norm_quantise(room.isa, input, &mut room.out_blocks[..tiles / 2 * tokens]);
}

fn mean_norm(room: &mut Room<'_>, tiles: usize) {
    let (x, weight) = room.floats[..FEATURES * (TOKENS + 1)].split_at(FEATURES * TOKENS);
    let input = NormInput { x, weight, epsilon: 1e-5, tokens: TOKENS, tiles: 0..tiles };
    layer_norm(room.isa, input, weight, &mut room.out[..tiles * 16 * TOKENS]);
}

/// A product of many tokens: what an encoder's lanes do beside one that runs steps. Weight after
/// weight, as there: they come from memory too, only seldom.
fn multiply(room: &mut Room<'_>, slowness: usize) {
    let kind = dctms_kernels::packed::PackedKind::Q8_0;
    let tile_bytes = kind.tile_bytes(COLS).expect("whole blocks");
    let many = (MANY_BYTES / slowness / tile_bytes).max(1) * tile_bytes;
    let parts = (room.weights.len() / many).max(1);
    room.turn = (room.turn + 1) % parts;
    let weights = &room.weights[room.turn * many..][..many];
    product(room, kind, weights, TOKEN_POINTS[TOKEN_POINTS.len() - 1] as usize, true);
}

/// What lanes do to each other: beside one that reads weights, and where they meet.
///
/// # Errors
/// A lane that panicked.
pub fn together(
    clock: &mut Clock<Room<'_>>,
    slowness: usize,
    balance: &mut Balance,
) -> Result<(), EngineError> {
    let multiply = |room: &mut Room<'_>| multiply(room, slowness);
    let read = |room: &mut Room<'_>| {
        let (floats, _) = room.weights.as_chunks::<4>();
        let sum = |sum: u32, word: &[u8; 4]| sum.wrapping_add(u32::from_le_bytes(*word));
        std::hint::black_box(floats.iter().fold(0, sum));
    };
    let (read_s, beside_s) = clock.beside(&read, &multiply)?;
    let alone_s = clock.seconds(&multiply)?;
    balance.beside_read_bytes_per_s = clock.room_of(0, |room| room.weights.len()) as f64 / read_s;
    balance.beside_products_ratio = beside_s.map_or(1.0, |beside_s| (beside_s / alone_s).max(1.0));
    let meetings = clock.meetings(MEETING_PS / 1e12, &multiply)?;
    balance.wait_ratio = meetings.wait_ratio;
    balance.pause_ps = meetings.pause_s * 1e12;
    Ok(())
}

/// One pass of an element's work: `FEATURES` features of `TOKENS` tokens where nothing else is
/// said by [`elements`].
fn element_work(room: &mut Room<'_>, element: Element) {
    let (isa, all) = (room.isa, FEATURES * TOKENS);
    let x = &room.floats[..all];
    let out = &mut room.out[..all];
    match element {
        Element::NormSum
        | Element::NormWrite
        | Element::LayerNormSum
        | Element::LayerNormWrite
        | Element::Output => {
            unreachable!("{} is timed in two parts", element.name())
        }
        Element::Activate => activate(isa, Gate::GeluTanh, Operand::At(x), out),
        Element::AttentionFull => {
            let len = PATCHES * HEAD_DIM;
            let [q, k, v] = [0, 1, 2].map(|part| &room.floats[part * len..][..len]);
            let [keys, values] = &mut room.full_heads;
            let workspace = FullWorkspace { rows: &mut room.full_rows, keys, values };
            let (shape, out) = ((HEAD_DIM, 0.125), &mut room.out[..len]);
            attention_full(isa, shape, PATCHES, Operand::At(q), k, v, workspace, out);
        }
        Element::Patchify => {
            let grid = Grid { rows: GRID_SIDE, columns: GRID_SIDE };
            let (mean, deviation) = ([0.5; 3], [0.5; 3]);
            let order = PatchOrder::Rows;
            let patches = Patches { grid, order, side: PATCH_SIDE, mean, deviation };
            let pixels = &room.weights[..patches.pixel_bytes()];
            let out = &mut room.out[..grid.len() * PATCH_FEATURES];
            patchify(pixels, &patches, 0..PATCH_FEATURES / 16, out);
        }
        Element::Rearrange => {
            let grid = Grid { rows: GRID_SIDE, columns: GRID_SIDE };
            const { assert!(GRID_SIDE * GRID_SIDE == TOKENS) };
            merge_patches(x, (grid, PatchOrder::Rows), 2, 0..FEATURES / 4, out);
        }
        Element::HeadNorm => {
            head_norm(isa, Operand::At(x), &x[..HEAD_DIM], 1e-6, TOKENS, out);
        }
        Element::Rope => {
            let (style, head_dim, rotary_dim) = (RopeStyle::Halves, HEAD_DIM, HEAD_DIM);
            let how = Rope { style, head_dim, rotary_dim, table: &room.table };
            rope(isa, how, Operand::InPlace, TOKENS, out);
        }
        Element::Quantise => quantise(isa, x, TOKENS, &mut room.out_blocks[..all / 32]),
        Element::Gated => {
            let up = &room.floats[all..2 * all];
            let blocks = &mut room.out_blocks[..all / 32];
            gated_mul_quantise(isa, Gate::Silu, x, up, TOKENS, blocks);
        }
        Element::Copy => add(isa, Operand::At(x), &room.floats[all..2 * all], out),
        Element::Append => {
            // As many features as there are; the caches are smaller, so in several goes.
            let part = KV_HEADS * HEAD_DIM * TOKENS;
            let places = KvPlaces { positions: &room.positions, slots: &room.slots };
            for part in room.floats[..all].chunks_exact(2 * part) {
                let (k, v) = part.split_at(part.len() / 2);
                kv_append_keys(isa, &ATTENTION.kv, places, k, &mut room.keys);
                kv_append_values(isa, &ATTENTION.kv, places, v, &mut room.values);
            }
        }
        Element::Embed => {
            let kind = dctms_kernels::packed::PackedKind::Q8_0;
            let tile_bytes = kind.tile_bytes(FEATURES).expect("whole blocks");
            let table = PackedTiles::new(kind, FEATURES, &room.weights[..64 * tile_bytes]);
            gather(table, &room.positions, 1.0, 0..FEATURES, out);
        }
        Element::RopeTable => {
            let frequencies = &room.floats[..PAIRS];
            rope_table(&room.positions, frequencies, 1.0, &mut room.table);
        }
        Element::Sample => {
            std::hint::black_box(argmax(isa, LogitsRow::new(x, 1, 0, all)));
        }
        Element::AttentionPrefill => {
            let q = &room.floats[..HEADS * HEAD_DIM * TOKENS];
            let places = KvPlaces { positions: &room.positions, slots: &room.slots };
            let step = Tokens { places, visibility: Visibility::Causal };
            let out = &mut room.out[..HEADS * HEAD_DIM * TOKENS];
            let (keys, values) = (&room.keys, &room.values);
            let workspace = &mut room.workspace;
            attention_prefill(isa, &ATTENTION, step, 0..HEADS, q, keys, values, workspace, out);
        }
        Element::AttentionDecode => {
            let (positions, slots) = (&room.positions[TOKENS - 1..], &room.slots[..1]);
            let places = KvPlaces { positions, slots };
            let step = Tokens { places, visibility: Visibility::Causal };
            let items = 0..attention_decode_items(&ATTENTION, step);
            let q = &room.floats[..HEADS * HEAD_DIM];
            let (keys, values) = (&room.keys, &room.values);
            let (workspace, partials) = (&mut room.workspace, &mut room.partials);
            attention_decode_partial(
                isa, &ATTENTION, step, items, q, keys, values, workspace, partials,
            );
        }
        Element::AttentionMerge => {
            let (positions, slots) = (&room.positions[TOKENS - 1..], &room.slots[..1]);
            let places = KvPlaces { positions, slots };
            let step = Tokens { places, visibility: Visibility::Causal };
            let out = &mut room.out[..HEADS * HEAD_DIM];
            attention_decode_merge(isa, &ATTENTION, step, 0..HEADS, &room.partials, out);
        }
    }
}
