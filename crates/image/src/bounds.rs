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

    /// The largest size of the same shape within the bounds, at least one pixel an edge; the size
    /// itself where it is.
    ///
    /// # Panics
    /// For an edge of 0.
    #[must_use]
    pub fn fit(&self, size: Size) -> Size {
        assert!(size.width > 0 && size.height > 0);
        let (long, short) = (size.width.max(size.height), size.width.min(size.height));
        if long <= self.edge_max && size.pixels() <= self.pixels_max {
            return size;
        }
        // The short edge of a long one, rounded to nearest.
        let beside = |edge: u64| {
            let (long, short) = (u64::from(long), u64::from(short));
            ((2 * edge * short + long) / (2 * long)).max(1)
        };
        // Pixels grow with the long edge: the last that fits is found by halving.
        let (mut fits, mut over) = (1, u64::from(self.edge_max.min(long)) + 1);
        while over - fits > 1 {
            let edge = fits.midpoint(over);
            match edge * beside(edge) <= self.pixels_max {
                true => fits = edge,
                false => over = edge,
            }
        }
        let (fits, other) = (fits as u32, beside(fits) as u32);
        match size.width >= size.height {
            true => Size::new(fits, other),
            false => Size::new(other, fits),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_the_largest_of_its_shape() {
        let bounds = ImageBounds::of(Size::new(1024, 768));
        for (from, to) in [
            ((1, 1), (1, 1)),
            ((1024, 768), (1024, 768)),
            ((768, 1024), (768, 1024)),
            ((4000, 3000), (1024, 768)),
            ((3000, 4000), (768, 1024)),
            ((1000, 1000), (886, 886)),
            ((16_384, 1), (1024, 1)),
            ((1, 16_384), (1, 1024)),
        ] {
            let got = bounds.fit(Size::new(from.0, from.1));
            assert_eq!((got.width, got.height), to, "{from:?}");
        }
        let mut state = 3_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            1 + ((state >> 33) % below) as u32
        };
        for _ in 0..20_000 {
            let bounds = ImageBounds::of(Size::new(draw(3000), draw(3000)));
            let size = Size::new(draw(16_000), draw(16_000));
            let fit = bounds.fit(size);
            let within = |size: Size| {
                size.width.max(size.height) <= bounds.edge_max && size.pixels() <= bounds.pixels_max
            };
            assert!(within(fit) && fit.width > 0 && fit.height > 0, "{size:?} in {bounds:?}");
            assert!(fit.width <= size.width && fit.height <= size.height);
            let shape = f64::from(size.height) / f64::from(size.width);
            let (wide, lying) = (size.width >= size.height, shape.min(1.0 / shape));
            let long = if wide { fit.width } else { fit.height };
            let short = if wide { fit.height } else { fit.width };
            let exact = (f64::from(long) * lying).max(1.0);
            assert!((f64::from(short) - exact).abs() <= 0.5001, "{size:?} becomes {fit:?}");
            let next = Size::new(long + 1, (f64::from(long + 1) * lying).round().max(1.0) as u32);
            assert!(fit == size || !within(next), "{size:?}: {fit:?}, {next:?} would fit");
        }
    }
}
