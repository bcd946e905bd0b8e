//! Where tokens stand for a decoder that rotates by three positions: time, row and column.
//!
//! A text's token has one number thrice, its place in the sequence. A picture of `rows` by
//! `columns` tokens that begins at p takes (p, p + row, p + column), and what follows it goes on at
//! p + max(rows, columns): fewer than the tokens it has. Caches and visibility know none of it; they
//! go by the place in the sequence.
//!
//! ```text
//! sequence   0  1  2  3  4  5  6  7  8         a picture of 2 × 3 tokens from 2 on
//! time       0  1  2  2  2  2  2  2  5
//! row        0  1  2  2  2  3  3  3  5
//! column     0  1  2  3  4  2  3  4  5
//! ```
//!
//! So a position follows from the pictures that a slot shows before it. They are remembered as they
//! are read, and forgotten when a slot is read again from an earlier place. Allocates when made,
//! never again.

use crate::error::{Class, EngineError};
use crate::runner::IMAGE_ROW;

/// Tokens of an encoded tile, and the row of the embeddings at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    first_row: u32,
    rows: u32,
    columns: u32,
}

impl Tile {
    fn end(&self) -> u32 {
        self.first_row + self.rows * self.columns
    }
}

/// Tiles remembered for each picture of a request: more than one, so that what earlier requests
/// left does not push out what this one shows.
const TILES_PER_IMAGE: usize = 4;

/// A tile that a slot shows, and where in the sequence it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    start: u32,
    rows: u32,
    columns: u32,
}

impl Shown {
    fn end(&self) -> u32 {
        self.start + self.rows * self.columns
    }
}

/// What is known of tiles and slots.
#[derive(Debug)]
pub struct RotaryPositions {
    /// No two share a row; in the order in which they were placed.
    tiles: Vec<Tile>,
    slots: Vec<Vec<Shown>>,
}

impl RotaryPositions {
    /// For so many pictures and slots.
    #[must_use]
    pub fn new(images: u64, slots: u64) -> RotaryPositions {
        let images = images as usize;
        RotaryPositions {
            tiles: Vec::with_capacity(TILES_PER_IMAGE * images),
            slots: (0..slots).map(|_| Vec::with_capacity(images)).collect(),
        }
    }

    /// A tile of `rows` by `columns` tokens stands at `first_row` of the embeddings from now on, in
    /// the place of those that stood there. Tiles of earlier requests that no other took the place
    /// of go in time, the oldest first.
    pub fn placed(&mut self, first_row: u32, (rows, columns): (u32, u32)) {
        let end = first_row + rows * columns;
        self.tiles.retain(|tile| tile.first_row >= end || tile.end() <= first_row);
        if self.tiles.len() == self.tiles.capacity() {
            self.tiles.remove(0);
        }
        self.tiles.push(Tile { first_row, rows, columns });
    }

    /// `tokens` follow in a slot from `start` on: what was there is forgotten, what they show is
    /// remembered.
    ///
    /// # Errors
    /// Class `Usage` for a picture that is not shown from its first row on, one after another, or
    /// that was not encoded; `OverBound` for more pictures than planned.
    pub fn read(&mut self, slot: u32, start: u32, tokens: &[u32]) -> Result<(), EngineError> {
        let usage = |message: String| Err(EngineError::new(Class::Usage, message));
        let shown = &mut self.slots[slot as usize];
        shown.retain(|picture| picture.start < start);
        for (token, index) in tokens.iter().zip(start..) {
            if token & IMAGE_ROW == 0 || shown.last().is_some_and(|last| index < last.end()) {
                continue;
            }
            let row = token ^ IMAGE_ROW;
            let Some(tile) = self.tiles.iter().find(|tile| tile.first_row == row) else {
                return usage(format!("row {row} of the pictures is no picture's first"));
            };
            if shown.len() == shown.capacity() {
                let message = format!("more pictures than the plan's {}", shown.capacity());
                return Err(EngineError::new(Class::OverBound, message));
            }
            shown.push(Shown { start: index, rows: tile.rows, columns: tile.columns });
        }
        Ok(())
    }

    /// Time, row and column of a place of a slot.
    #[must_use]
    pub fn at(&self, slot: u32, index: u32) -> [u32; 3] {
        let mut saved = 0;
        for picture in &self.slots[slot as usize] {
            if index < picture.start {
                break;
            }
            if index < picture.end() {
                let first = picture.start - saved;
                let (row, column) = (
                    (index - picture.start) / picture.columns,
                    (index - picture.start) % picture.columns,
                );
                return [first, first + row, first + column];
            }
            saved += picture.rows * picture.columns - picture.rows.max(picture.columns);
        }
        [index - saved; 3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_all(positions: &RotaryPositions, slot: u32, count: u32) -> Vec<[u32; 3]> {
        (0..count).map(|index| positions.at(slot, index)).collect()
    }

    fn picture(first: u32, count: u32) -> impl Iterator<Item = u32> {
        (first..first + count).map(|row| row | IMAGE_ROW)
    }

    #[test]
    fn the_picture_above_is_right_however_it_is_read() {
        let prompt: Vec<u32> = [7, 7].into_iter().chain(picture(0, 6)).chain([7]).collect();
        let want = [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5, 5, 5],
        ];
        for cut in 0..=prompt.len() {
            let mut positions = RotaryPositions::new(1, 2);
            positions.placed(0, (2, 3));
            positions.read(1, 0, &prompt[..cut]).expect("a picture");
            positions.read(1, cut as u32, &prompt[cut..]).expect("a picture");
            assert_eq!(at_all(&positions, 1, 9), want, "cut at {cut}");
            assert_eq!(positions.at(1, 20), [17; 3], "what is decoded goes on");
            assert_eq!(positions.at(0, 20), [20; 3], "another slot shows nothing");
            // Read again from a place inside of the picture, and then without it.
            positions.read(1, 4, &prompt[4..]).expect("the picture goes on");
            assert_eq!(at_all(&positions, 1, 9), want);
            positions.read(1, 0, &[7; 9]).expect("text");
            assert_eq!(positions.at(1, 8), [8; 3]);
        }
    }

    #[test]
    fn pictures_add_up_and_stand_side_by_side() {
        let mut positions = RotaryPositions::new(2, 1);
        positions.placed(0, (3, 1));
        positions.placed(3, (2, 2));
        let prompt: Vec<u32> = picture(0, 3).chain(picture(3, 4)).chain([9, 9]).collect();
        positions.read(0, 0, &prompt).expect("two pictures");
        let columns: Vec<u32> = at_all(&positions, 0, 9).iter().map(|place| place[2]).collect();
        assert_eq!(columns, [0, 0, 0, 3, 4, 3, 4, 5, 6]);
        let rows: Vec<u32> = at_all(&positions, 0, 9).iter().map(|place| place[1]).collect();
        assert_eq!(rows, [0, 1, 2, 3, 3, 4, 4, 5, 6]);
    }

    #[test]
    fn what_was_not_encoded_is_refused() {
        let mut positions = RotaryPositions::new(1, 1);
        let shown: Vec<u32> = picture(0, 4).collect();
        assert!(positions.read(0, 0, &shown).is_err());
        positions.placed(0, (2, 2));
        assert!(positions.read(0, 0, &shown[1..]).is_err(), "not from its first row on");
        positions.read(0, 0, &shown).expect("a picture");
        positions.placed(2, (2, 2));
        assert!(positions.read(0, 0, &shown).is_err(), "another stands in its place");
        let both: Vec<u32> = picture(2, 4).chain(picture(6, 1)).collect();
        positions.placed(6, (1, 1));
        assert!(positions.read(0, 0, &both).is_err(), "one picture was planned");
    }

    #[test]
    fn what_earlier_requests_left_is_in_nobodys_way() {
        let mut positions = RotaryPositions::new(2, 1);
        for request in 0..50u32 {
            let rows = 1 + request % 7;
            let (first, second) = ((rows, 2), (1, 1 + request % 3));
            positions.placed(2 * rows, second);
            positions.placed(0, first);
            let shown = picture(0, 2 * rows).chain(picture(2 * rows, second.1));
            let prompt: Vec<u32> = shown.chain([3]).collect();
            positions.read(0, 0, &prompt).expect("both pictures");
            let after = rows.max(2) + second.1;
            assert_eq!(positions.at(0, 2 * rows + second.1), [after; 3], "request {request}");
        }
    }
}
