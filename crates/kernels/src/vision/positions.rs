//! A learned grid of positions, resized to the image's grid and added.
//!
//! **Definition** (bilinear with antialias, corners not aligned, as image libraries resize): along
//! an axis of `stored` points, of which `wanted` are made, with `scale = stored/wanted`, point i
//! stands at `c = scale·(i + ½)` and sees the points within `max(scale, 1)` of it, point j with
//! the weight `1 − |j − c + ½| / max(scale, 1)`, divided by the sum of the weights. All of it is
//! f32, each operation rounded. A value is, over the rows and in each over the columns,
//! `Σ wy · (Σ wx · p)`, both by fused multiply-add from 0 in increasing order. Where the grids are
//! equal every point keeps its value.

use crate::gather::sixteen;
use crate::limits::TILE_ROWS;
use crate::packed::PackedTiles;
use crate::simd::Operand;
use core::ops::Range;

use super::Grid;

/// Points along a side of a learned grid, at most.
pub const POSITIONS_SIDE_MAX: usize = 128;

/// Adds the positions: `out = x + position`, the tile-major slices of `tiles` for all patches.
///
/// `table` holds one row for each point of a grid of `side`², row by row. Panics unless the
/// lengths agree and `side` is 1 to [`POSITIONS_SIDE_MAX`].
pub fn add_positions(
    x: Operand<'_>,
    table: PackedTiles<'_>,
    side: usize,
    grid: Grid,
    tiles: Range<usize>,
    out: &mut [f32],
) {
    assert!((1..=POSITIONS_SIDE_MAX).contains(&side), "a grid of {side} a side");
    assert!(side * side <= table.tile_count() * TILE_ROWS, "a row for each point");
    assert!(tiles.end * TILE_ROWS <= table.cols(), "tiles {tiles:?} of the positions");
    assert_eq!(out.len(), tiles.len() * grid.len() * TILE_ROWS, "floats of the patches");
    let x = x.tiles(out.len() / TILE_ROWS);
    let out = out.as_chunks_mut::<TILE_ROWS>().0;
    for y in 0..grid.rows {
        let rows = Taps::new(y, grid.rows, side);
        for column in 0..grid.columns {
            let columns = Taps::new(column, grid.columns, side);
            for (index, tile) in tiles.clone().enumerate() {
                let at = index * grid.len() + y * grid.columns + column;
                let position = resized(table, side, tile, &rows, &columns);
                let x = x.map_or(out[at], |x| x[at]);
                out[at] = std::array::from_fn(|lane| x[lane] + position[lane]);
            }
        }
    }
}

/// One point of the resized grid, sixteen features of it.
fn resized(
    table: PackedTiles<'_>,
    side: usize,
    tile: usize,
    rows: &Taps,
    columns: &Taps,
) -> [f32; TILE_ROWS] {
    let mut sum = [0.0f32; TILE_ROWS];
    for (y, wy) in rows.weights() {
        let mut row = [0.0f32; TILE_ROWS];
        for (x, wx) in columns.weights() {
            let p = sixteen(table, y * side + x, tile * TILE_ROWS);
            row = std::array::from_fn(|lane| wx.mul_add(p[lane], row[lane]));
        }
        sum = std::array::from_fn(|lane| wy.mul_add(row[lane], sum[lane]));
    }
    sum
}

/// The points along an axis that one new point is made of.
struct Taps {
    first: usize,
    count: usize,
    weights: [f32; POSITIONS_SIDE_MAX],
}

impl Taps {
    fn new(index: usize, wanted: usize, stored: usize) -> Taps {
        let scale = stored as f32 / wanted as f32;
        let reach = scale.max(1.0);
        let centre = scale * (index as f32 + 0.5);
        let first = (centre - reach + 0.5).max(0.0) as usize;
        let end = ((centre + reach + 0.5) as usize).min(stored);
        let mut taps = Taps { first, count: end - first, weights: [0.0; POSITIONS_SIDE_MAX] };
        let mut total = 0.0;
        for (j, weight) in taps.weights[..taps.count].iter_mut().enumerate() {
            let distance = (((j + first) as f32 - centre + 0.5) / reach).abs();
            *weight = (1.0 - distance).max(0.0);
            total += *weight;
        }
        for weight in &mut taps.weights[..taps.count] {
            *weight /= total;
        }
        // A point at the edge of reach weighs nothing.
        while taps.count > 1 && taps.weights[taps.count - 1] == 0.0 {
            taps.count -= 1;
        }
        taps
    }

    fn weights(&self) -> impl Iterator<Item = (usize, f32)> {
        self.weights[..self.count].iter().enumerate().map(|(j, weight)| (self.first + j, *weight))
    }
}
