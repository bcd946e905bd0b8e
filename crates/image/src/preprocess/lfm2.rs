//! The `lfm2` projector's family: edges that are multiples of what one token covers, a least and
//! a most number of tokens, and for large pictures a grid of tiles with a thumbnail.
//!
//! Believes: the processor's rules. Must not know: how the grid becomes a prompt.

use super::{Layout, WholeFrom};
use crate::picture::Size;
use crate::resize::Filter;

/// The settings of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lfm2 {
    /// Edge of a patch, pixels.
    pub patch_edge: u32,
    /// Patches that one token covers along an edge.
    pub merge: u32,
    /// Least tokens of a picture.
    pub tokens_min: u32,
    /// Most tokens of a picture or thumbnail.
    pub tokens_max: u32,
    /// Whether large pictures are cut, and how.
    pub tiling: Tiling,
}

/// What is done with a picture of more than twice the most tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// It is made smaller.
    Never,
    /// It becomes a grid of 2 to 10 tiles, and a thumbnail behind them.
    Grid {
        /// Edge of a tile, pixels.
        tile_edge: u32,
    },
}

/// Width and height of every grid of 2 to 10 tiles, by their product. Among equals the order is
/// that in which the processor's own list stands, and it decides between ratios equally near.
const GRIDS: [(u32, u32); 26] = [
    (1, 2),
    (2, 1),
    (3, 1),
    (1, 3),
    (2, 2),
    (4, 1),
    (1, 4),
    (5, 1),
    (1, 5),
    (1, 6),
    (6, 1),
    (3, 2),
    (2, 3),
    (7, 1),
    (1, 7),
    (4, 2),
    (2, 4),
    (1, 8),
    (8, 1),
    (1, 9),
    (3, 3),
    (9, 1),
    (2, 5),
    (5, 2),
    (10, 1),
    (1, 10),
];

impl Lfm2 {
    /// The tiles of a picture.
    ///
    /// # Panics
    /// For an edge of 0.
    #[must_use]
    pub fn layout(&self, size: Size) -> Layout {
        assert!(size.pixels() > 0 && self.token_edge() > 0);
        let whole = self.whole(size);
        let alone = Layout {
            grid_rows: 0,
            grid_columns: 0,
            cell: whole,
            whole: Some(whole),
            filter: Filter::Bilinear,
            sizes: [whole, whole],
            steps: 0,
            whole_from: WholeFrom::Original,
        };
        match self.tiling {
            Tiling::Grid { tile_edge } if self.is_large(size) => {
                let (columns, rows) = nearest_grid(size, tile_edge);
                let cut = Size::new(columns * tile_edge, rows * tile_edge);
                Layout {
                    grid_rows: rows,
                    grid_columns: columns,
                    cell: Size::new(tile_edge, tile_edge),
                    sizes: [cut, cut],
                    steps: 1,
                    ..alone
                }
            }
            Tiling::Grid { .. } | Tiling::Never => alone,
        }
    }

    /// Most tiles of any picture.
    #[must_use]
    pub fn tiles_max(&self) -> u32 {
        match self.tiling {
            Tiling::Never => 1,
            Tiling::Grid { .. } => 11,
        }
    }

    /// Pixels that one token covers along an edge.
    fn token_edge(&self) -> u32 {
        self.patch_edge * self.merge
    }

    fn token_pixels(&self) -> u64 {
        u64::from(self.token_edge()).pow(2)
    }

    /// An edge to the nearest multiple of a token's, halves to the even one.
    fn nearest(&self, edge: u32) -> u32 {
        let factor = self.token_edge();
        (f64::from(edge) / f64::from(factor)).round_ties_even() as u32 * factor
    }

    fn is_large(&self, size: Size) -> bool {
        const TOLERANCE: u64 = 2;
        let up = |edge: u32| u64::from(self.nearest(edge).max(self.patch_edge));
        let bound = u64::from(self.tokens_max) * self.token_pixels() * TOLERANCE;
        up(size.width) * up(size.height) > bound
    }

    /// The size of the picture in one piece.
    fn whole(&self, size: Size) -> Size {
        let factor = self.token_edge();
        let pixels_min = u64::from(self.tokens_min) * self.token_pixels();
        let pixels_max = u64::from(self.tokens_max) * self.token_pixels();
        let near =
            Size::new(self.nearest(size.width).max(factor), self.nearest(size.height).max(factor));
        let pixels = size.pixels() as f64;
        let factor_exact = f64::from(factor);
        if near.pixels() > pixels_max {
            let beta = (pixels / pixels_max as f64).sqrt();
            let down = |edge: u32| {
                ((f64::from(edge) / beta / factor_exact).floor() as u32 * factor).max(factor)
            };
            Size::new(down(size.width), down(size.height))
        } else if near.pixels() < pixels_min {
            let beta = (pixels_min as f64 / pixels).sqrt();
            let up = |edge: u32| (f64::from(edge) * beta / factor_exact).ceil() as u32 * factor;
            Size::new(up(size.width), up(size.height))
        } else {
            near
        }
    }
}

/// Width and height of the grid whose shape is nearest; of grids equally near the one before,
/// unless the picture has more than half the pixels of the later.
fn nearest_grid(size: Size, tile_edge: u32) -> (u32, u32) {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let mut best = (1, 1);
    let mut best_difference = f64::INFINITY;
    for (columns, rows) in GRIDS {
        let difference = (aspect - f64::from(columns) / f64::from(rows)).abs();
        let grid_pixels = u64::from(tile_edge).pow(2) * u64::from(columns) * u64::from(rows);
        if difference < best_difference {
            (best, best_difference) = ((columns, rows), difference);
        } else if difference == best_difference && size.pixels() * 2 > grid_pixels {
            best = (columns, rows);
        }
    }
    best
}
