//! WebP: lossy or lossless, with or without transparency; of an animation the first frame.
//!
//! Believes: that the decoder fills the room that it asks for. Must not know: other formats.

use super::{damaged, over_white, room};
use crate::error::ImageError;
use crate::header::{Format, Header};
use crate::picture::Picture;
use crate::window::Window;
use image_webp::WebPDecoder;
use std::io::{Read, Seek};

/// Reads a WebP.
pub(super) fn decode<R: Read + Seek>(
    window: Window<R>,
    header: &Header,
) -> Result<Picture, ImageError> {
    let fault = |reason: &dyn std::fmt::Display| damaged(Format::WebP, reason);
    let mut decoder = WebPDecoder::new(window).map_err(|error| fault(&error))?;
    if decoder.dimensions() != (header.stored.width, header.stored.height) {
        return Err(fault(&"two headers of different size"));
    }
    // What is not covered by the first frame of an animation is transparent, so white.
    let mut pixels = match decoder.has_alpha() {
        true => vec![0; header.stored.pixels() as usize * 4],
        false => room(header),
    };
    decoder.read_image(&mut pixels).map_err(|error| fault(&error))?;
    let transparent = decoder.has_alpha();
    drop(decoder);
    if transparent {
        flatten(&mut pixels, header.stored.pixels() as usize);
    }
    Ok(Picture::turned(header.stored, header.orientation, pixels))
}

/// RGBA to RGB over white, within one buffer.
fn flatten(pixels: &mut Vec<u8>, count: usize) {
    for pixel in 0..count {
        let alpha = pixels[pixel * 4 + 3];
        for channel in 0..3 {
            pixels[pixel * 3 + channel] = over_white(pixels[pixel * 4 + channel], alpha);
        }
    }
    pixels.truncate(count * 3);
    pixels.shrink_to_fit();
}
