//! What an image encoder needs beside products, norms and attention: pixels to patches, positions,
//! squares of patches, and rows of embeddings moved about.
//!
//! Every function fills the slice of a range of tiles (16 features) for all tokens. Where nothing
//! else is said patches run row by row through the image's grid: patch (y, x) is token
//! y·columns + x.

mod order;
mod positions;
#[cfg(test)]
mod tests;

pub use order::PatchOrder;
pub use positions::{POSITIONS_SIDE_MAX, add_positions};

use crate::limits::TILE_ROWS;
use core::ops::Range;

/// Rows and columns of an image in patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Patches from top to bottom.
    pub rows: usize,
    /// Patches from left to right.
    pub columns: usize,
}

impl Grid {
    /// Patches of the image.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How pixels become numbers.
#[derive(Clone, Copy, Debug)]
pub struct Patches {
    /// The image in patches.
    pub grid: Grid,
    /// Which patch is which token.
    pub order: PatchOrder,
    /// Side of a patch, pixels.
    pub side: usize,
    /// Mean of each channel of pixels in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
}

impl Patches {
    /// Features of a patch: channels, rows, columns.
    #[must_use]
    pub const fn features(&self) -> usize {
        3 * self.side * self.side
    }

    /// Bytes of the image.
    #[must_use]
    pub const fn pixel_bytes(&self) -> usize {
        self.grid.len() * self.features()
    }

    /// The number of every byte of each channel: `(byte/255 − mean) / deviation`, each operation
    /// rounded.
    fn values(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            std::array::from_fn(|byte| {
                (byte as f32 / 255.0 - self.mean[channel]) / self.deviation[channel]
            })
        })
    }
}

/// Pixels as patches: feature `(channel · side + row) · side + column` of patch t is that pixel of
/// the patch, normalised; features past the last are 0.
///
/// `pixels` is RGB, row by row; `out` the tile-major slice of `tiles`. Panics unless the lengths
/// agree.
pub fn patchify(pixels: &[u8], patches: &Patches, tiles: Range<usize>, out: &mut [f32]) {
    let Patches { grid, order, side, .. } = *patches;
    assert_eq!(pixels.len(), patches.pixel_bytes(), "bytes of the pixels");
    assert_eq!(out.len(), tiles.len() * grid.len() * TILE_ROWS, "floats of the patches");
    let row_bytes = 3 * side * grid.columns;
    let values = patches.values();
    for (tile, out) in tiles.zip(out.chunks_exact_mut(grid.len() * TILE_ROWS)) {
        let place: [Option<(usize, usize)>; TILE_ROWS] = std::array::from_fn(|lane| {
            let feature = tile * TILE_ROWS + lane;
            let (channel, pixel) = (feature / (side * side), feature % (side * side));
            let at = pixel / side * row_bytes + pixel % side * 3 + channel;
            (channel < 3).then_some((channel, at))
        });
        let out = out.as_chunks_mut::<TILE_ROWS>().0.iter_mut();
        for (out, (y, x)) in out.zip(order.patches(grid)) {
            let pixels = &pixels[y * side * row_bytes + x * side * 3..];
            *out = place.map(|place| match place {
                Some((channel, at)) => values[channel][usize::from(pixels[at])],
                None => 0.0,
            });
        }
    }
}

/// Squares of `factor`² patches as one token each: feature `(dy · factor + dx) · width + c` of
/// token (Y, X) is feature c of patch (Y·factor + dy, X·factor + dx).
///
/// `x` is whole, its patches in `order`; `out` is the tile-major slice of `tiles`. Panics unless
/// the lengths agree and the grid is whole squares, which are those of the order if it has any.
pub fn merge_patches(
    x: &[f32],
    (grid, order): (Grid, PatchOrder),
    factor: usize,
    tiles: Range<usize>,
    out: &mut [f32],
) {
    let whole = grid.rows.is_multiple_of(factor) && grid.columns.is_multiple_of(factor);
    assert!(factor > 0 && whole, "a grid of whole squares of {factor}");
    let merged = Grid { rows: grid.rows / factor, columns: grid.columns / factor };
    assert!(!grid.is_empty() && x.len().is_multiple_of(grid.len() * TILE_ROWS), "whole tiles");
    let width_tiles = x.len() / (grid.len() * TILE_ROWS);
    assert!(tiles.end <= width_tiles * factor * factor, "tiles {tiles:?} of the merged patches");
    assert_eq!(out.len(), tiles.len() * merged.len() * TILE_ROWS, "floats of the merged patches");
    let x = x.as_chunks::<TILE_ROWS>().0;
    for (tile, out) in tiles.zip(out.chunks_exact_mut(merged.len() * TILE_ROWS)) {
        let (square, channel) = (tile / width_tiles, tile % width_tiles);
        let (dy, dx) = (square / factor, square % factor);
        let x = &x[channel * grid.len()..][..grid.len()];
        for (token, out) in out.as_chunks_mut::<TILE_ROWS>().0.iter_mut().enumerate() {
            let (y, column) = (token / merged.columns, token % merged.columns);
            *out = x[order.token(grid, (y * factor + dy, column * factor + dx))];
        }
    }
}

/// Writes `tokens` tokens of `x` into rows `first..` of `rows`, whose tiles have `capacity` rows;
/// both are tile-major slices of the same features. Panics unless the lengths agree and the rows
/// exist.
pub fn place_rows(x: &[f32], tokens: usize, first: usize, capacity: usize, rows: &mut [f32]) {
    assert!(tokens > 0 && first.checked_add(tokens).is_some_and(|end| end <= capacity));
    assert_eq!(x.len() / tokens, rows.len() / capacity, "features of both sides");
    let tiles = x.chunks_exact(tokens * TILE_ROWS);
    for (x, rows) in tiles.zip(rows.chunks_exact_mut(capacity * TILE_ROWS)) {
        rows[first * TILE_ROWS..][..x.len()].copy_from_slice(x);
    }
}

/// Replaces token t of `out` by row `indices[t] − 1` of `rows`, whose tiles have `capacity` rows,
/// where that index is above 0. Panics unless the lengths agree and the rows exist.
pub fn splice_rows(rows: &[f32], capacity: usize, indices: &[u32], out: &mut [f32]) {
    let tokens = indices.len();
    assert!(tokens > 0 && capacity > 0, "tokens and rows");
    assert_eq!(out.len() / tokens, rows.len() / capacity, "features of both sides");
    let tiles = rows.chunks_exact(capacity * TILE_ROWS);
    for (rows, out) in tiles.zip(out.chunks_exact_mut(tokens * TILE_ROWS)) {
        let (rows, out) = (rows.as_chunks::<TILE_ROWS>().0, out.as_chunks_mut::<TILE_ROWS>().0);
        for (index, out) in indices.iter().zip(out) {
            if let Some(row) = index.checked_sub(1) {
                *out = rows[row as usize];
            }
        }
    }
}
