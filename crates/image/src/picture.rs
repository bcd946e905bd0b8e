//! A decoded picture: RGB bytes as the file stores them, and the way to look at them.
//!
//! Turning a photograph upright is a way of reading, not a copy: rows of the upright picture are
//! gathered when they are asked for.
//!
//! Believes: its own lengths. Must not know: files, models.

use crate::orientation::Orientation;
use crate::resize::{Filter, resize};
use std::ops::Range;

/// Pixels of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// A size.
    #[must_use]
    pub const fn new(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    /// Pixels in all.
    #[must_use]
    pub const fn pixels(self) -> u64 {
        self.width as u64 * self.height as u64
    }
}

/// A decoded picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    stored: Size,
    orientation: Orientation,
    /// `[height][width][3]` of the stored size.
    pixels: Vec<u8>,
}

impl Picture {
    /// A picture of RGB bytes, `[height][width][3]`, that stands as it is stored.
    ///
    /// # Panics
    /// When the number of bytes is not that of the size.
    #[must_use]
    pub fn new(size: Size, pixels: Vec<u8>) -> Picture {
        Picture::turned(size, Orientation::Upright, pixels)
    }

    pub(crate) fn turned(stored: Size, orientation: Orientation, pixels: Vec<u8>) -> Picture {
        assert_eq!(pixels.len() as u64, stored.pixels() * 3);
        Picture { stored, orientation, pixels }
    }

    /// Size of the upright picture, pixels.
    #[must_use]
    pub fn size(&self) -> Size {
        self.orientation.size_of(self.stored)
    }

    /// The picture in another size, by Lanczos' filter; the first one's bytes are given up after.
    ///
    /// # Panics
    /// For an edge of 0.
    #[must_use]
    pub fn resized(self, size: Size) -> Picture {
        if self.size() == size {
            return self;
        }
        let mut pixels = vec![0; size.pixels() as usize * 3];
        resize(&self, size, Filter::Lanczos, &mut pixels);
        Picture::new(size, pixels)
    }

    /// Writes pixels `columns` of row `row` of the upright picture: 3 bytes each.
    ///
    /// # Panics
    /// Outside the picture, or when `to` has another length.
    pub fn read_row(&self, row: u32, columns: Range<u32>, to: &mut [u8]) {
        assert!(columns.end <= self.size().width && row < self.size().height);
        assert_eq!(to.len(), columns.len() * 3);
        let width = self.stored.width as usize;
        if self.orientation == Orientation::Upright {
            let start = (row as usize * width + columns.start as usize) * 3;
            to.copy_from_slice(&self.pixels[start..start + to.len()]);
            return;
        }
        for (column, pixel) in columns.zip(to.chunks_exact_mut(3)) {
            let (x, y) = self.orientation.stored_place(self.stored, column, row);
            let start = (y as usize * width + x as usize) * 3;
            pixel.copy_from_slice(&self.pixels[start..start + 3]);
        }
    }
}
