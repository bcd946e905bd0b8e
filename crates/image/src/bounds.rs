//! How large a picture may be, and what decoding the largest takes.
//!
//! Believes: the constants of `limits`, which tests hold against measured peaks. Must not know:
//! files.

use crate::error::ImageError;
use crate::header::Header;
use crate::limits;
use crate::picture::Size;

/// The bounds of pictures that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageBounds {
    /// Most pixels.
    pub pixels_max: u64,
    /// Most pixels of an edge.
    pub edge_max: u32,
}

impl ImageBounds {
    /// Pictures that have no more pixels than `size` and no longer edge, lying or standing.
    ///
    /// # Panics
    /// When an edge is 0 or over [`limits::EDGE_MAX`]: callers check what users say.
    #[must_use]
    pub fn of(size: Size) -> ImageBounds {
        let edge_max = size.width.max(size.height);
        assert!(size.width > 0 && size.height > 0 && edge_max <= limits::EDGE_MAX);
        ImageBounds { pixels_max: size.pixels(), edge_max }
    }

    /// Most bytes of a file.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        self.pixels_max * limits::FILE_BYTES_PER_PIXEL_MAX + limits::FILE_EXTRA_BYTES_MAX
    }

    /// Bytes of the picture that decoding leaves.
    #[must_use]
    pub fn picture_bytes(&self) -> u64 {
        self.pixels_max * 3
    }

    /// Heap bytes that [`crate::decode()`] takes at most for a file that is what it says, its
    /// result included, and that [`crate::preprocess`] takes after it.
    #[must_use]
    pub fn decode_heap_bytes(&self) -> u64 {
        // The sum of both edges is largest where one is as long as it may be.
        let edge = u64::from(self.edge_max);
        let edges = edge + self.pixels_max.div_ceil(edge);
        let pad = limits::DECODE_PAD_PIXELS;
        let padded = self.pixels_max + pad * edges + pad * pad;
        let plain = self.pixels_max * limits::DECODE_BYTES_PER_PIXEL;
        let blocks = padded * limits::DECODE_BYTES_PER_PADDED_PIXEL
            + edge * limits::DECODE_BYTES_PER_EDGE_PIXEL;
        plain.max(blocks) + limits::DECODE_FIXED_BYTES
    }

    /// Compares a header with the bounds.
    ///
    /// # Errors
    /// `Empty`, `EdgeTooLong` or `TooManyPixels`.
    pub fn check(&self, header: &Header) -> Result<(), ImageError> {
        let Header { format, stored: Size { width, height }, .. } = *header;
        if width == 0 || height == 0 {
            return Err(ImageError::Empty { format, width, height });
        }
        if width.max(height) > self.edge_max {
            return Err(ImageError::EdgeTooLong { format, width, height, bound: self.edge_max });
        }
        if header.stored.pixels() > self.pixels_max {
            return Err(ImageError::TooManyPixels {
                format,
                width,
                height,
                bound: self.pixels_max,
            });
        }
        Ok(())
    }
}
