//! The order in which an image's patches are tokens, and the windows of it.
//!
//! Where attention sees windows only, the patches of a window stand together, and in it the squares
//! that become one token: then a window is a range of tokens and a square a range within it.
//!
//! ```text
//! grid of 3 × 5 squares, windows of 2 × 2 squares        tokens by squares
//!   0 1 | 4 5 | 8                                         windows 0..4 4..8 8..10
//!   2 3 | 6 7 | 9                                                 10..12 12..14 14..15
//!   ----+-----+--
//!  10 11|12 13|14
//! ```

use core::ops::Range;

use super::Grid;

/// Which patch is which token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Row by row.
    Rows,
    /// Window by window, in each square by square, in each row by row. Windows at the right and
    /// the lower edge have what is left.
    Windows {
        /// Patches of a side of a square.
        square: usize,
        /// Squares of a side of a window.
        window: usize,
    },
}

impl PatchOrder {
    /// Patches of a side of a square and of a window; row by row is one window of single patches.
    fn sides(self, grid: Grid) -> (usize, usize) {
        match self {
            PatchOrder::Rows => (1, grid.rows.max(grid.columns).max(1)),
            PatchOrder::Windows { square, window } => (square, square * window),
        }
    }

    /// Row and column of each patch, in the order of tokens. The grid is whole squares.
    pub fn patches(self, grid: Grid) -> impl Iterator<Item = (usize, usize)> + Clone {
        let (square, side) = self.sides(grid);
        let Grid { rows, columns } = grid;
        debug_assert!(rows.is_multiple_of(square) && columns.is_multiple_of(square));
        corners((0..rows, 0..columns), side).flat_map(move |(top, left)| {
            let window = (top..rows.min(top + side), left..columns.min(left + side));
            corners(window, square).flat_map(move |(y, x)| {
                let square = (y..rows.min(y + square), x..columns.min(x + square));
                corners(square, 1)
            })
        })
    }

    /// The token that a patch is.
    #[must_use]
    pub fn token(self, grid: Grid, (y, x): (usize, usize)) -> usize {
        let (square, side) = self.sides(grid);
        let (top, left) = (y / side * side, x / side * side);
        let (height, width) = (side.min(grid.rows - top), side.min(grid.columns - left));
        let before = top * grid.columns + left * height;
        let (y, x) = (y - top, x - left);
        let squares = y / square * square * width + x / square * square * square;
        before + squares + y % square * square + x % square
    }

    /// The tokens of each window, in order.
    pub fn windows(self, grid: Grid) -> impl Iterator<Item = Range<usize>> + Clone {
        let (_, side) = self.sides(grid);
        let Grid { rows, columns } = grid;
        corners((0..rows, 0..columns), side).map(move |(top, left)| {
            let (height, width) = (side.min(rows - top), side.min(columns - left));
            let first = top * columns + left * height;
            first..first + height * width
        })
    }
}

/// Upper left corners of the squares of a side that cover a rectangle, row by row.
fn corners(
    (rows, columns): (Range<usize>, Range<usize>),
    side: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    rows.step_by(side).flat_map(move |y| columns.clone().step_by(side).map(move |x| (y, x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_windows_and_tokens_agree() {
        let windows = |square, window| PatchOrder::Windows { square, window };
        let orders = [PatchOrder::Rows, windows(2, 4), windows(2, 1), windows(1, 3), windows(3, 2)];
        for order in orders {
            for (rows, columns) in [(6, 6), (6, 12), (12, 18), (18, 30), (24, 6), (54, 48)] {
                let grid = Grid { rows, columns };
                let patches: Vec<_> = order.patches(grid).collect();
                assert_eq!(patches.len(), grid.len());
                for (token, patch) in patches.iter().enumerate() {
                    assert_eq!(order.token(grid, *patch), token, "{order:?} {grid:?} {patch:?}");
                }
                let mut next = 0;
                let (_, side) = order.sides(grid);
                for window in order.windows(grid) {
                    assert_eq!(window.start, next);
                    next = window.end;
                    let of = |(y, x): &(usize, usize)| (y / side, x / side);
                    let own = &patches[window];
                    assert!(own.iter().all(|patch| of(patch) == of(&own[0])), "{order:?} {grid:?}");
                }
                assert_eq!(next, grid.len());
            }
        }
    }

    #[test]
    fn the_picture_above_is_right() {
        let order = PatchOrder::Windows { square: 1, window: 2 };
        let grid = Grid { rows: 3, columns: 5 };
        let tokens = (0..15).map(|i| order.token(grid, (i / 5, i % 5)));
        let picture = [0, 1, 4, 5, 8, 2, 3, 6, 7, 9, 10, 11, 12, 13, 14];
        assert_eq!(tokens.collect::<Vec<_>>(), picture);
    }
}
