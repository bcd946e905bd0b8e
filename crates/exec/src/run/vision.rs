//! The tasks of an image encoder: places made into slices, and the kernel called. What makes the
//! slices safe stands in the note of the parent file.

use dctms_ir::vision::full_attention_rows_bytes;
use dctms_kernels::attention::{FullWorkspace, attention_full, attention_full_head_bytes};
use dctms_kernels::elementwise::{activate, feature_scale};
use dctms_kernels::norm::{NormInput, layer_norm};
use dctms_kernels::packed::PackedTiles;
use dctms_kernels::vision::{
    Grid, Patches, add_positions, merge_patches, patchify, place_rows, splice_rows,
};

use super::{Context, floats_mut, gate_of, operand};
use crate::command::{TILE_BYTES, VisionBody};
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
            VisionBody::FullAttention { shape, q, k, v, out, workspace } => {
                let head_dim = shape.head_dim as usize;
                let rows = full_attention_rows_bytes(*shape) as usize;
                let bytes = attention_full_head_bytes(head_dim, tokens);
                let workspace = FullWorkspace {
                    rows: memory.floats_mut(workspace.part(0, rows)),
                    keys: memory.bytes_mut(workspace.part(rows, bytes)),
                    values: memory.bytes_mut(workspace.part(rows + bytes, bytes)),
                };
                let [k, v] = [k, v].map(|x| memory.floats(x.at(tokens, TILE_BYTES)));
                let q = operand(memory, q, out, tokens);
                let out = floats_mut(memory, out, tokens);
                attention_full(isa, (head_dim, shape.scale), tokens, q, k, v, workspace, out);
            }
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
                let patches = Patches { grid, side, mean, deviation };
                let pixels = memory.bytes(pixels.part(0, patches.pixel_bytes()));
                let tiles = out.start..out.end;
                patchify(pixels, &patches, tiles, floats_mut(memory, out, tokens));
            }
            VisionBody::MergePatches { factor, width, x, from, grid, out } => {
                let patches = from.of(context.dims);
                let grid = grid_of(memory, *grid, patches);
                let x = memory.floats(x.part(0, width * patches * 4));
                let tiles = out.start..out.end;
                merge_patches(x, grid, *factor, tiles, floats_mut(memory, out, tokens));
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
