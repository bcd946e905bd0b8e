//! Idefics3 and SmolVLM: the longest edge to one length, each edge up to a multiple of the tile,
//! a grid of tiles, and the whole picture squeezed into one more.
//!
//! Believes: the processor's rules. Must not know: how many tokens a tile gives.

use super::{Layout, WholeFrom};
use crate::picture::Size;
use crate::resize::Filter;

/// The settings of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idefics3 {
    /// Length to which the longest edge is brought, pixels.
    pub longest_edge: u32,
    /// Edge of a tile, pixels.
    pub tile_edge: u32,
}

/// No edge becomes longer than this, whatever the settings.
const EDGE_MAX: u32 = 4096;

impl Idefics3 {
    /// The tiles of a picture.
    ///
    /// # Panics
    /// For an edge of 0.
    #[must_use]
    pub fn layout(&self, size: Size) -> Layout {
        assert!(size.pixels() > 0 && self.tile_edge > 0);
        let first = below_upper_bound(to_longest_edge(size, self.longest_edge));
        let second = to_multiple(first, self.tile_edge);
        let tile = Size::new(self.tile_edge, self.tile_edge);
        let split = second.width > self.tile_edge || second.height > self.tile_edge;
        let grid = |edge: u32| if split { edge.div_ceil(self.tile_edge) } else { 0 };
        Layout {
            grid_rows: grid(second.height),
            grid_columns: grid(second.width),
            cell: tile,
            whole: Some(if split { tile } else { second }),
            filter: Filter::Lanczos,
            sizes: [first, second],
            steps: 2,
            whole_from: WholeFrom::Grid,
        }
    }

    /// Most tiles of any picture.
    #[must_use]
    pub fn tiles_max(&self) -> u32 {
        let edge = self.longest_edge.min(EDGE_MAX).div_ceil(self.tile_edge);
        if edge > 1 { edge * edge + 1 } else { 1 }
    }
}

/// The longest edge becomes `longest`, the other follows, cut off and then made even.
fn to_longest_edge(size: Size, longest: u32) -> Size {
    let even = |edge: f64| {
        let edge = edge as u32;
        (edge + edge % 2).max(1)
    };
    let aspect = f64::from(size.width) / f64::from(size.height);
    match size.width >= size.height {
        true => Size::new(longest, even(f64::from(longest) / aspect)),
        false => Size::new(even(f64::from(longest) * aspect), longest),
    }
}

fn below_upper_bound(size: Size) -> Size {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let cut = |edge: f64| (edge as u32).max(1);
    if size.width >= size.height && size.width > EDGE_MAX {
        Size::new(EDGE_MAX, cut(f64::from(EDGE_MAX) / aspect))
    } else if size.height > size.width && size.height > EDGE_MAX {
        Size::new(cut(f64::from(EDGE_MAX) * aspect), EDGE_MAX)
    } else {
        size
    }
}

/// The longer edge up to a multiple of the tile, the other after it and up likewise.
fn to_multiple(size: Size, tile: u32) -> Size {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let up = |edge: u32| edge.div_ceil(tile) * tile;
    match size.width >= size.height {
        true => {
            let width = up(size.width);
            Size::new(width, up((f64::from(width) / aspect) as u32))
        }
        false => {
            let height = up(size.height);
            Size::new(up((f64::from(height) * aspect) as u32), height)
        }
    }
}
