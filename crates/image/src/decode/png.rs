//! PNG: row by row; of an interlaced picture pass by pass, straight to the pixels' places.
//!
//! Believes: the decoder's row lengths, which it asserts. Must not know: other formats.

use super::{damaged, over_white, rgba_over_white, room};
use crate::error::ImageError;
use crate::header::{Format, Header};
use crate::limits::PNG_ANCILLARY_BYTES_MAX;
use crate::picture::{Picture, Size};
use crate::window::Window;
use ::png::{BitDepth, ColorType, DecodingError, Limits, Transformations};
use std::io::{Read, Seek};

/// Reads a PNG.
pub(super) fn decode<R: Read + Seek>(
    window: Window<R>,
    header: &Header,
) -> Result<Picture, ImageError> {
    let limits = Limits { bytes: PNG_ANCILLARY_BYTES_MAX + row_bytes_max(header.stored) };
    let mut decoder = ::png::Decoder::new_with_limits(window, limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(|error| fault(&error))?;
    let info = reader.info();
    if (info.width, info.height) != (header.stored.width, header.stored.height) {
        return Err(damaged(Format::Png, &"two headers of different size"));
    }
    let interlaced = info.interlaced;
    let (color, BitDepth::Eight) = reader.output_color_type() else {
        let what = "a depth other than 8 after expansion".to_owned();
        return Err(ImageError::Unsupported { format: Format::Png, what });
    };
    let mut pixels = room(header);
    let passes: &[Pass] = if interlaced { &ADAM7 } else { &[WHOLE] };
    let width = header.stored.width as usize;
    for pass in passes {
        let (columns, rows) = pass.size(header.stored);
        if columns == 0 {
            continue;
        }
        for row in 0..rows {
            let data = reader.next_row().map_err(|error| fault(&error))?;
            let Some(data) = data else {
                return Err(damaged(Format::Png, &"the data ends before the last row"));
            };
            let y = (pass.y + row * pass.dy) as usize;
            let line = &mut pixels[y * width * 3..(y + 1) * width * 3];
            let data = &data.data()[..columns as usize * color.samples()];
            write_row(data, color, line, pass);
        }
    }
    Ok(Picture::turned(header.stored, header.orientation, pixels))
}

/// One pass of interlacing: first column and row, and the steps from pixel to pixel.
struct Pass {
    x: u32,
    y: u32,
    dx: u32,
    dy: u32,
}

const WHOLE: Pass = Pass { x: 0, y: 0, dx: 1, dy: 1 };

const ADAM7: [Pass; 7] = [
    Pass { x: 0, y: 0, dx: 8, dy: 8 },
    Pass { x: 4, y: 0, dx: 8, dy: 8 },
    Pass { x: 0, y: 4, dx: 4, dy: 8 },
    Pass { x: 2, y: 0, dx: 4, dy: 4 },
    Pass { x: 0, y: 2, dx: 2, dy: 4 },
    Pass { x: 1, y: 0, dx: 2, dy: 2 },
    Pass { x: 0, y: 1, dx: 1, dy: 2 },
];

impl Pass {
    /// Columns and rows of this pass.
    fn size(&self, picture: Size) -> (u32, u32) {
        let columns = picture.width.saturating_sub(self.x).div_ceil(self.dx);
        let rows = picture.height.saturating_sub(self.y).div_ceil(self.dy);
        (columns, rows)
    }
}

/// Spreads one row of samples over the pixels of a line.
fn write_row(data: &[u8], color: ColorType, line: &mut [u8], pass: &Pass) {
    if pass.dx == 1 && color == ColorType::Rgb {
        line.copy_from_slice(data);
        return;
    }
    if pass.dx == 1 && color == ColorType::Rgba {
        rgba_over_white(data, line);
        return;
    }
    let places = line.chunks_exact_mut(3).skip(pass.x as usize).step_by(pass.dx as usize);
    for (samples, pixel) in data.chunks_exact(color.samples()).zip(places) {
        match *samples {
            [grey] => pixel.fill(grey),
            [grey, alpha] => pixel.fill(over_white(grey, alpha)),
            [red, green, blue] => pixel.copy_from_slice(&[red, green, blue]),
            [.., _] => rgba_over_white(samples, pixel),
            [] => {}
        }
    }
}

/// What the decoder may reserve for rows: a few, of at most eight bytes a pixel.
fn row_bytes_max(size: Size) -> usize {
    size.width as usize * 8 * 8
}

fn fault(error: &DecodingError) -> ImageError {
    damaged(Format::Png, error)
}
