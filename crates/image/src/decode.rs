//! From a file to a picture: one module a format, each a thin shell round a decoder.
//!
//! A shell asks its decoder for pixels in the leanest form that it offers, and turns them into
//! RGB on the way: grey is spread, palettes are looked up, sixteen bits lose their lower eight,
//! what is transparent shows white behind it.
//!
//! Believes: that decoders write no further than they are given room. Does not believe: that a
//! decoder's size is the header's; it is compared. Must not know: what the picture is for.

mod gif;
mod jpeg;
mod png;
mod webp;

use crate::bounds::ImageBounds;
use crate::error::ImageError;
use crate::header::{self, Format, Header};
use crate::picture::Picture;
use crate::window::Window;
use std::io::{Read, Seek};

/// Reads a picture from a file of `file_bytes`.
///
/// Takes at most [`ImageBounds::decode_heap_bytes`] of heap, result included, for any file that
/// is what its header says. A file made to waste memory may make a decoder ask for more; the
/// caller's heap decides then.
///
/// # Errors
/// Every [`ImageError`].
pub fn decode<R: Read + Seek>(
    reader: R,
    file_bytes: u64,
    bounds: &ImageBounds,
) -> Result<Picture, ImageError> {
    let mut window = Window::new(reader)?;
    let header = header::read(&mut window)?;
    bounds.check(&header)?;
    // Later than the header: who gives a photograph that is too large wants to hear its size.
    if file_bytes > bounds.file_bytes_max() {
        let (bound, value) = (bounds.file_bytes_max(), file_bytes);
        return Err(ImageError::FileTooLong { bound, value });
    }
    std::io::Seek::rewind(&mut window)?;
    match header.format {
        Format::Png => png::decode(window, &header),
        Format::Jpeg => jpeg::decode(window, &header),
        Format::WebP => webp::decode(window, &header),
        Format::Gif => gif::decode(window, &header),
    }
}

/// Room for the answer.
fn room(header: &Header) -> Vec<u8> {
    vec![0; header.stored.pixels() as usize * 3]
}

/// A channel of `alpha` over white, rounded to nearest: (value·alpha + 255·(255 − alpha)) / 255.
fn over_white(value: u8, alpha: u8) -> u8 {
    let sum = u32::from(value) * u32::from(alpha) + 255 * u32::from(255 - alpha) + 128;
    ((sum + (sum >> 8)) >> 8) as u8
}

/// RGBA to RGB over white.
fn rgba_over_white(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(4).zip(to.chunks_exact_mut(3)) {
        for channel in 0..3 {
            to[channel] = over_white(from[channel], from[3]);
        }
    }
}

/// A decoder's complaint; it does not say where it stands.
fn damaged(format: Format, reason: &dyn std::fmt::Display) -> ImageError {
    const REASON_CHARS_MAX: usize = 160;
    let reason = reason.to_string().chars().take(REASON_CHARS_MAX).collect();
    ImageError::Damaged { format, offset: None, reason }
}

#[cfg(test)]
mod tests {
    use super::over_white;

    #[test]
    fn over_white_rounds_to_nearest() {
        for value in 0..=255_u8 {
            for alpha in 0..=255_u8 {
                let sum = f64::from(value) * f64::from(alpha) + 255.0 * f64::from(255 - alpha);
                assert_eq!(over_white(value, alpha), (sum / 255.0).round() as u8);
            }
        }
    }
}
