//! Rows of a packed matrix as activations: the embedding look-up.
//!
//! The values are those of ggml's own dequantisation, rounded as it rounds (scale
//! times sub-scale, times integer, then the minimum; nothing fused), times an optional factor
//! (some models scale their embeddings).

use std::ops::Range;

use crate::limits::{BLOCK_COLS, TILE_ROWS};
use crate::packed::PackedTiles;
use crate::unpack;

/// Fills features `features` of each token with the row of `table` that its id names, times
/// `factor` (one rounded product; 1 changes nothing).
///
/// - `table`: all tiles of the matrix, rows = ids;
/// - `features`: multiples of 16 within `cols` (the end may be `cols` itself);
/// - `out`: tile-major, `[⌈features/16⌉][ids][16]`; features past `cols` become 0.
///
/// Panics if a length differs or an id is not below the (padded) number of rows.
pub fn gather(
    table: PackedTiles<'_>,
    ids: &[u32],
    factor: f32,
    features: Range<usize>,
    out: &mut [f32],
) {
    assert!(features.start.is_multiple_of(TILE_ROWS) && features.end <= table.cols());
    assert!(features.end.is_multiple_of(TILE_ROWS) || features.end == table.cols());
    let tile_count = features.len().div_ceil(TILE_ROWS);
    assert_eq!(Some(out.len()), (tile_count * TILE_ROWS).checked_mul(ids.len()));
    if ids.is_empty() {
        return;
    }
    let first_tile = features.start / TILE_ROWS;
    for (tile, out) in out.chunks_exact_mut(ids.len() * TILE_ROWS).enumerate() {
        for (id, out) in ids.iter().zip(out.as_chunks_mut::<TILE_ROWS>().0) {
            let row = *id as usize;
            assert!(row < table.tile_count() * TILE_ROWS, "id {row} has a row");
            let values = sixteen(table, row, (first_tile + tile) * TILE_ROWS);
            *out = values.map(|value| value * factor);
        }
    }
}

/// Columns `k..k+16` of one row; zeros past the last column.
pub(crate) fn sixteen(table: PackedTiles<'_>, row: usize, k: usize) -> [f32; TILE_ROWS] {
    let tile = table.tile(row / TILE_ROWS);
    let lane = row % TILE_ROWS;
    match table.kind().quant_layout() {
        Some(layout) => unpack::half_row(&layout, tile, k / BLOCK_COLS, k / TILE_ROWS % 2, lane),
        None => std::array::from_fn(|i| match k + i < table.cols() {
            true => unpack::float_value(table.kind(), tile, k + i, lane),
            false => 0.0,
        }),
    }
}

/// One element, for those who need just that: row `row`, column `k`.
///
/// Panics if the row (padding included) or the column does not exist.
pub fn element(table: PackedTiles<'_>, row: usize, k: usize) -> f32 {
    assert!(row < table.tile_count() * TILE_ROWS && k < table.cols(), "the element exists");
    sixteen(table, row, k / TILE_ROWS * TILE_ROWS)[k % TILE_ROWS]
}
