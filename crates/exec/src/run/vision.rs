//! The tasks of an image encoder: places made into slices, and the kernel called. What makes the
//! slices safe stands in the note of the parent file.

use dctms_ir::vision::{
    FullAttentionShape, GATED_BLOCK_ROWS, PatchOrder, full_attention_rows_bytes,
};
use dctms_kernels::attention::{
    FullWorkspace, attention_full, attention_full_head_bytes, attention_windows,
};
use dctms_kernels::elementwise::{activate, bias_add, feature_scale, gated_mul};
use dctms_kernels::matmul::{Epilogue, matmul, matmul_float};
use dctms_kernels::norm::{NormInput, layer_norm};
use dctms_kernels::packed::PackedTiles;
use dctms_kernels::rope::{rope_table_grid, rope_table_sectioned};
use dctms_kernels::simd::Operand;
use dctms_kernels::vision::{
    Grid, PatchOrder as KernelOrder, Patches, add_positions, merge_patches, patchify, place_rows,
    splice_rows,
};

use super::{Context, floats_mut, gate_of, operand};
use crate::command::{BLOCK_BYTES, Rows, TILE_BYTES, VisionBody};
use crate::load::packed_kind;
use crate::memory::{Memory, Place};

/// Runs a task for `tokens` tokens.
pub(super) fn execute(body: &VisionBody, tokens: usize, context: &Context<'_>) {
    let (memory, isa) = (context.memory, context.isa);
    // SAFETY: places of this task's own operands: see the parent file's note.
    unsafe {
        match body {
            VisionBody::LayerNorm { epsilon, x, weight, bias, out } => {
                let weight = memory.floats(*weight);
                let x = memory.floats(x.part(0, weight.len() * tokens * 4));
                let tiles = out.start..out.end;
                let input = NormInput { x, weight, epsilon: *epsilon, tokens, tiles };
                layer_norm(isa, input, memory.floats(*bias), floats_mut(memory, out, tokens));
            }
            VisionBody::Activate { activation, x, out } => {
                let x = operand(memory, x, out, tokens);
                activate(isa, gate_of(*activation), x, floats_mut(memory, out, tokens));
            }
            VisionBody::FeatureScale { x, factors, out } => {
                let x = operand(memory, x, out, tokens);
                let factors = memory.floats(*factors);
                feature_scale(isa, x, factors, tokens, floats_mut(memory, out, tokens));
            }
            VisionBody::AddPositions { side, x, table, grid, out } => {
                let grid = grid_of(memory, *grid, tokens);
                let bytes = memory.bytes(table.place);
                let table = PackedTiles::new(packed_kind(table.kind), table.cols, bytes);
                let x = operand(memory, x, out, tokens);
                let tiles = out.start..out.end;
                add_positions(x, table, *side, grid, tiles, floats_mut(memory, out, tokens));
            }
            VisionBody::Patchify { .. }
            | VisionBody::MergePatches { .. }
            | VisionBody::PlaceRows { .. }
            | VisionBody::SpliceRows { .. } => rearrange(body, tokens, context),
            VisionBody::PatchRopeTable { .. } | VisionBody::SectionedRopeTable { .. } => {
                turns(body, tokens, context);
            }
            VisionBody::GatedProducts { .. } => gated_products(body, tokens, context),
            VisionBody::FullAttention { shape, q, k, v, out, workspace } => {
                let workspace = full_workspace(memory, *workspace, shape, tokens);
                let [k, v] = [k, v].map(|x| memory.floats(x.at(tokens, TILE_BYTES)));
                let q = operand(memory, q, out, tokens);
                let out = floats_mut(memory, out, tokens);
                let shape = (shape.head_dim as usize, shape.scale);
                attention_full(isa, shape, tokens, q, k, v, workspace, out);
            }
            VisionBody::WindowAttention { shape, order, q, k, v, grid, out, workspace } => {
                let windows = order_of(*order).windows(grid_of(memory, *grid, tokens));
                let positions = shape.positions as usize;
                let workspace = full_workspace(memory, *workspace, shape, positions);
                let [k, v] = [k, v].map(|x| memory.floats(x.at(tokens, TILE_BYTES)));
                let q = operand(memory, q, out, tokens);
                let out = floats_mut(memory, out, tokens);
                let shape = (shape.head_dim as usize, shape.scale);
                attention_windows(isa, shape, (tokens, windows), q, k, v, workspace, out);
            }
        }
    }
}

/// The scratch of an attention over at most `positions` positions.
///
/// # Safety
/// As the parent file's note: `workspace` is this shard's own.
unsafe fn full_workspace<'a>(
    memory: Memory,
    workspace: Place,
    shape: &FullAttentionShape,
    positions: usize,
) -> FullWorkspace<'a> {
    let rows = full_attention_rows_bytes(*shape) as usize;
    let bytes = attention_full_head_bytes(shape.head_dim as usize, positions);
    // SAFETY: the caller's promise; the three parts are apart.
    unsafe {
        FullWorkspace {
            rows: memory.floats_mut(workspace.part(0, rows)),
            keys: memory.bytes_mut(workspace.part(rows, bytes)),
            values: memory.bytes_mut(workspace.part(rows + bytes, bytes)),
        }
    }
}

/// Cosines and sines: tiles of pairs, each cosines and sines for every token.
///
/// # Safety
/// As the parent file's note: `body` is this task's.
unsafe fn turns(body: &VisionBody, tokens: usize, context: &Context<'_>) {
    let memory = context.memory;
    // SAFETY: the caller's promise.
    unsafe {
        match body {
            VisionBody::PatchRopeTable { order, grid, frequencies, out } => {
                let places = order_of(*order).patches(grid_of(memory, *grid, tokens));
                let table = memory.floats_mut(out.at(tokens, 2 * TILE_BYTES));
                rope_table_grid(places, tokens, memory.floats(*frequencies), out.start, table);
            }
            VisionBody::SectionedRopeTable { sections, magnitude, positions, frequencies, out } => {
                let positions = memory.integers(positions.part(0, 3 * tokens * 4));
                let table = memory.floats_mut(out.at(tokens, 2 * TILE_BYTES));
                let frequencies = memory.floats(*frequencies);
                let how = (*sections, *magnitude);
                rope_table_sectioned(positions, frequencies, how, out.start, table);
            }
            other => unreachable!("{other:?} is no table"),
        }
    }
}

/// Both products of a block of rows: the gate's where the answer goes, the other's in the scratch.
/// Each element is what whole products would give: rows do not meet.
///
/// # Safety
/// As the parent file's note: `body` is this task's.
unsafe fn gated_products(body: &VisionBody, tokens: usize, context: &Context<'_>) {
    let VisionBody::GatedProducts { cols, activation, quantised, x, gate, up, out, workspace } =
        body
    else {
        unreachable!("{body:?} is no pair of gated products")
    };
    let (memory, isa, function) = (context.memory, context.isa, gate_of(*activation));
    const BLOCK_TILES: usize = GATED_BLOCK_ROWS as usize / 16;
    let product = |rows: &Rows, first: usize, tiles: usize, y: &mut [f32]| {
        let bytes = rows.tiles.len / out.len();
        // SAFETY: the caller's promise; the rows are this shard's.
        unsafe {
            let part = memory.bytes(rows.tiles.part(first * bytes, tiles * bytes));
            let weights = PackedTiles::new(packed_kind(rows.kind), *cols, part);
            if *quantised {
                let x = memory.blocks(x.part(0, cols / 32 * tokens * BLOCK_BYTES));
                matmul(isa, weights, x, tokens, Epilogue::Store, y);
            } else {
                let x = memory.floats(x.part(0, cols.div_ceil(16) * tokens * TILE_BYTES));
                matmul_float(isa, weights, x, tokens, Epilogue::Store, y);
            }
            let bias = memory.floats(rows.bias.part(first * TILE_BYTES, tiles * TILE_BYTES));
            bias_add(isa, Operand::InPlace, bias, tokens, y);
        }
    };
    // SAFETY: the caller's promise; the workspace is this shard's own (C6).
    let (scratch, y) = unsafe {
        let scratch = workspace.part(0, BLOCK_TILES * tokens * TILE_BYTES);
        (memory.floats_mut(scratch), floats_mut(memory, out, tokens))
    };
    for (index, y) in y.chunks_mut(BLOCK_TILES * 16 * tokens).enumerate() {
        let (first, tiles) = (index * BLOCK_TILES, y.len() / (16 * tokens));
        let other = &mut scratch[..y.len()];
        product(gate, first, tiles, y);
        product(up, first, tiles, other);
        gated_mul(isa, function, Operand::InPlace, other, y);
    }
}

fn order_of(order: PatchOrder) -> KernelOrder {
    match order {
        PatchOrder::Rows => KernelOrder::Rows,
        PatchOrder::Windows { square, window } => {
            KernelOrder::Windows { square: square as usize, window: window as usize }
        }
    }
}

/// The tasks that compute nothing but where values go.
///
/// # Safety
/// As the parent file's note: `body` is this task's.
unsafe fn rearrange(body: &VisionBody, tokens: usize, context: &Context<'_>) {
    let memory = context.memory;
    // SAFETY: the caller's promise.
    unsafe {
        match body {
            VisionBody::Patchify { shape, pixels, grid, out } => {
                let grid = grid_of(memory, *grid, tokens);
                let (side, mean, deviation) = (shape.side as usize, shape.mean, shape.deviation);
                let order = order_of(shape.order);
                let patches = Patches { grid, order, side, mean, deviation };
                let pixels = memory.bytes(pixels.part(0, patches.pixel_bytes()));
                let tiles = out.start..out.end;
                patchify(pixels, &patches, tiles, floats_mut(memory, out, tokens));
            }
            VisionBody::MergePatches { factor, width, order, x, from, grid, out } => {
                let patches = from.of(context.dims);
                let grid = grid_of(memory, *grid, patches);
                let x = memory.floats(x.part(0, width * patches * 4));
                let tiles = out.start..out.end;
                let (grid, out) = ((grid, order_of(*order)), floats_mut(memory, out, tokens));
                merge_patches(x, grid, *factor, tiles, out);
            }
            VisionBody::PlaceRows { x, first, capacity, rows } => {
                let x = memory.floats(x.at(tokens, TILE_BYTES));
                let first = memory.integers(*first)[0] as usize;
                let rows = memory.floats_mut(rows.at(*capacity, TILE_BYTES));
                place_rows(x, tokens, first, *capacity, rows);
            }
            VisionBody::SpliceRows { x, rows, capacity, indices, out } => {
                let rows = memory.floats(rows.at(*capacity, TILE_BYTES));
                let indices = memory.integers(indices.part(0, tokens * 4));
                let y = floats_mut(memory, out, tokens);
                if !super::same(x, out, tokens) {
                    y.copy_from_slice(memory.floats(x.at(tokens, TILE_BYTES)));
                }
                splice_rows(rows, *capacity, indices, y);
            }
            other => unreachable!("{other:?} computes"),
        }
    }
}

/// The image's grid, of `patches` patches in all.
///
/// # Safety
/// As the parent file's note: `place` is an operand of this task.
unsafe fn grid_of(memory: Memory, place: Place, patches: usize) -> Grid {
    // SAFETY: the caller's promise.
    let grid = unsafe { memory.integers(place) };
    let grid = Grid { rows: grid[0] as usize, columns: grid[1] as usize };
    let is_whole = grid.rows.checked_mul(grid.columns) == Some(patches);
    assert!(is_whole, "a grid of {} by {}, not {patches} patches", grid.rows, grid.columns);
    grid
}
