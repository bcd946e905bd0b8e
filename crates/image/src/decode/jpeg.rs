//! JPEG: baseline row by row of blocks, progressive with all coefficients held.
//!
//! Believes: that the decoder takes no larger picture than its options allow. Must not know:
//! other formats.

use super::{damaged, room};
use crate::error::ImageError;
use crate::header::{Format, Header};
use crate::limits::JPEG_SCANS_MAX;
use crate::picture::Picture;
use crate::window::Window;
use std::io::{Read, Seek};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// Reads a JPEG.
pub(super) fn decode<R: Read + Seek>(
    window: Window<R>,
    header: &Header,
) -> Result<Picture, ImageError> {
    // Strict: a file that ends early is an error and not half a picture.
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_use_unsafe(false)
        .set_max_width(header.stored.width as usize)
        .set_max_height(header.stored.height as usize)
        .jpeg_set_max_scans(JPEG_SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(window, options);
    let fault = |reason: &dyn std::fmt::Display| damaged(Format::Jpeg, reason);
    decoder.decode_headers().map_err(|error| fault(&error))?;
    let size = decoder.dimensions().unwrap_or((0, 0));
    if size != (header.stored.width as usize, header.stored.height as usize) {
        return Err(fault(&"two frame headers of different size"));
    }
    let mut pixels = room(header);
    decoder.decode_into(&mut pixels).map_err(|error| fault(&error))?;
    Ok(Picture::turned(header.stored, header.orientation, pixels))
}
