//! GIF: the first frame, on a white canvas.
//!
//! Believes: the decoder's frame sizes, after they are compared with the canvas. Must not know:
//! other formats.

use super::{damaged, room};
use crate::error::ImageError;
use crate::header::{Format, Header};
use crate::picture::Picture;
use crate::window::Window;
use ::gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use std::io::{Read, Seek};
use std::num::NonZeroU64;

/// Reads the first frame of a GIF.
pub(super) fn decode<R: Read + Seek>(
    window: Window<R>,
    header: &Header,
) -> Result<Picture, ImageError> {
    let fault = |error: DecodingError| damaged(Format::Gif, &error);
    let contradiction = |reason: &str| damaged(Format::Gif, &reason);
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Extensions within a file may not take more than a frame.
    let limit = header.stored.pixels().max(64 << 10);
    options.set_memory_limit(
        NonZeroU64::new(limit).map_or(MemoryLimit::Unlimited, MemoryLimit::Bytes),
    );
    let mut decoder = options.read_info(window).map_err(fault)?;
    let frame = decoder.next_frame_info().map_err(fault)?;
    let Some(frame) = frame else { return Err(contradiction("there is no frame")) };
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (columns, rows) = (usize::from(frame.width), usize::from(frame.height));
    let transparent = frame.transparent;
    let width = header.stored.width as usize;
    if left + columns > width || top + rows > header.stored.height as usize {
        return Err(contradiction("a frame reaches beyond the canvas"));
    }
    let mut indices = vec![0; columns * rows];
    decoder.read_into_buffer(&mut indices).map_err(fault)?;
    let palette = decoder.palette().map_err(fault)?;
    let mut pixels = room(header);
    pixels.fill(255);
    for (row, indices) in indices.chunks_exact(columns.max(1)).enumerate() {
        let start = ((top + row) * width + left) * 3;
        let line = &mut pixels[start..start + columns * 3];
        for (&index, pixel) in indices.iter().zip(line.chunks_exact_mut(3)) {
            if Some(index) == transparent {
                continue;
            }
            let start = usize::from(index) * 3;
            let Some(color) = palette.get(start..start + 3) else {
                return Err(contradiction("a colour that the palette does not have"));
            };
            pixel.copy_from_slice(color);
        }
    }
    Ok(Picture::turned(header.stored, header.orientation, pixels))
}
