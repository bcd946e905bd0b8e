//! How each family of vision models cuts a picture into tiles, as pure geometry.
//!
//! A [`Layout`] says which tiles there are, in the order in which the model reads them; rendering
//! one writes its RGB bytes. Sizes are those of the processors that the models were trained with,
//! number for number, odd cases included: they are computed in double precision where those do.
//!
//! Believes: the families' settings. Must not know: pixels as numbers, tokens' names, GGUF keys.

pub mod idefics3;
pub mod lfm2;
pub mod qwen2vl;

use crate::picture::{Picture, Size};
use crate::resize::{Chain, Filter};
use std::ops::Range;

/// What a tile shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One place of a grid, row and column counted from 0.
    Cell {
        /// Row of the grid.
        row: u32,
        /// Column of the grid.
        column: u32,
    },
    /// The whole picture.
    Whole,
}

/// The tiles of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rows of the grid; 0 without a grid.
    pub grid_rows: u32,
    /// Columns of the grid; 0 without a grid.
    pub grid_columns: u32,
    /// Size of each place of the grid, pixels.
    pub cell: Size,
    /// Size of the tile that shows the whole picture, pixels, if there is one.
    pub whole: Option<Size>,
    filter: Filter,
    /// Resizings before the grid is cut: `steps` of `sizes`.
    sizes: [Size; 2],
    steps: usize,
    /// Whether the whole is made from the grid's picture or from the original.
    whole_from: WholeFrom,
}

/// What the tile of the whole picture is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WholeFrom {
    /// The picture that the grid is cut from.
    Grid,
    /// The original.
    Original,
}

impl Layout {
    /// Tiles in all.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.grid_rows * self.grid_columns + u32::from(self.whole.is_some())
    }

    /// Tile `index`: the grid's in rows, then the whole.
    ///
    /// # Panics
    /// Beyond the last.
    #[must_use]
    pub fn part(&self, index: u32) -> Part {
        assert!(index < self.count());
        match index < self.grid_rows * self.grid_columns {
            true => {
                Part::Cell { row: index / self.grid_columns, column: index % self.grid_columns }
            }
            false => Part::Whole,
        }
    }

    /// Size of a tile, pixels.
    ///
    /// # Panics
    /// For the whole where there is none.
    #[must_use]
    pub fn size(&self, part: Part) -> Size {
        match (part, self.whole) {
            (Part::Cell { .. }, _) => self.cell,
            (Part::Whole, Some(size)) => size,
            (Part::Whole, None) => panic!("this layout has no tile of the whole picture"),
        }
    }

    /// Writes a tile of `picture`, `[height][width][3]` bytes.
    ///
    /// # Panics
    /// When `to` has another length than the tile's size says.
    pub fn render(&self, picture: &Picture, part: Part, to: &mut [u8]) {
        let size = self.size(part);
        let cells = |edge: u32, place: u32| -> Range<u32> { place * edge..(place + 1) * edge };
        let steps = &self.sizes[..self.steps];
        match part {
            Part::Cell { row, column } => {
                let (columns, rows) = (cells(size.width, column), cells(size.height, row));
                Chain::new(picture, steps, self.filter, columns, rows).write(to);
            }
            Part::Whole => {
                let all = [self.sizes[0], self.sizes[1], size];
                let sizes = match (self.whole_from, self.steps) {
                    (WholeFrom::Original, _) | (WholeFrom::Grid, 0) => &all[2..],
                    (WholeFrom::Grid, 1) => &[all[0], size],
                    (WholeFrom::Grid, _) => &all[..],
                };
                Chain::new(picture, sizes, self.filter, 0..size.width, 0..size.height).write(to);
            }
        }
    }
}
