//! What the first bytes of a file say: format, size, and how the picture is to be held.
//!
//! Read by hand, through a window, before any decoder exists: so a picture over the bounds is
//! refused before a byte is reserved for it.
//!
//! Believes: nothing. Must not know: bounds (see [`crate::ImageBounds::check`]).

use crate::error::ImageError;
use crate::limits::{CHUNKS_MAX, EXIF_BYTES_MAX, JPEG_SEGMENTS_MAX};
use crate::orientation::Orientation;
use crate::picture::Size;
use crate::window::Window;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Portable Network Graphics.
    Png,
    /// JPEG: baseline and progressive, 8 bits.
    Jpeg,
    /// WebP: lossy and lossless; of an animation the first frame.
    WebP,
    /// GIF: the first frame.
    Gif,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Gif => "GIF",
        })
    }
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format.
    pub format: Format,
    /// Size as it is stored, before the picture is turned upright.
    pub stored: Size,
    pub(crate) orientation: Orientation,
}

impl Header {
    /// Size of the upright picture.
    #[must_use]
    pub fn size(&self) -> Size {
        self.orientation.size_of(self.stored)
    }
}

/// Reads the header of a file.
///
/// # Errors
/// `UnknownFormat`, `Damaged`, `Unsupported`, `Read`. Sizes are not judged.
pub fn read_header<R: Read + Seek>(reader: R) -> Result<Header, ImageError> {
    read(&mut Window::new(reader)?)
}

/// As [`read_header`], through a window.
pub(crate) fn read<R: Read + Seek>(window: &mut Window<R>) -> Result<Header, ImageError> {
    let mut first = [0; 12];
    let got = read_up_to(window, &mut first)?;
    match &first[..got] {
        [0x89, b'P', b'N', b'G', 13, 10, 26, 10, ..] => png(window),
        [0xff, 0xd8, 0xff, ..] => jpeg(window),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => gif(window),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => webp(window),
        _ => Err(ImageError::UnknownFormat { first: [first[0], first[1], first[2], first[3]] }),
    }
}

fn png<R: Read + Seek>(window: &mut Window<R>) -> Result<Header, ImageError> {
    let mut head = [0; 24];
    read_at(window, 0, &mut head, Format::Png)?;
    if head[12..16] != *b"IHDR" {
        return Err(damaged(Format::Png, 12, "the first chunk is not IHDR"));
    }
    let edge = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let stored = Size::new(edge(16), edge(20));
    Ok(Header { format: Format::Png, stored, orientation: png_orientation(window)? })
}

/// Looks for a chunk of EXIF data before the picture's.
fn png_orientation<R: Read + Seek>(window: &mut Window<R>) -> Result<Orientation, ImageError> {
    const AFTER_FIRST_CHUNK: u64 = 33;
    let mut at = AFTER_FIRST_CHUNK;
    for _ in 0..CHUNKS_MAX {
        let mut head = [0; 8];
        window.seek(SeekFrom::Start(at))?;
        if read_up_to(window, &mut head)? < head.len() || head[4..] == *b"IDAT" {
            break;
        }
        let len = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
        if head[4..] == *b"eXIf" {
            let mut exif = vec![0; len.min(EXIF_BYTES_MAX as u64) as usize];
            let got = read_up_to(window, &mut exif)?;
            return Ok(Orientation::from_exif(&exif[..got]));
        }
        at += 12 + len;
    }
    Ok(Orientation::Upright)
}

fn gif<R: Read + Seek>(window: &mut Window<R>) -> Result<Header, ImageError> {
    let mut head = [0; 10];
    read_at(window, 0, &mut head, Format::Gif)?;
    let edge = |at: usize| u32::from(u16::from_le_bytes([head[at], head[at + 1]]));
    Ok(upright(Format::Gif, Size::new(edge(6), edge(8))))
}

/// Walks the segments up to the frame header.
fn jpeg<R: Read + Seek>(window: &mut Window<R>) -> Result<Header, ImageError> {
    let mut orientation = Orientation::Upright;
    let mut at = 2;
    for _ in 0..JPEG_SEGMENTS_MAX {
        let mut marker = [0; 4];
        read_at(window, at, &mut marker, Format::Jpeg)?;
        let [0xff, code, high, low] = marker else {
            return Err(damaged(Format::Jpeg, at, "no marker where a segment must begin"));
        };
        if code == 0xff {
            at += 1;
            continue;
        }
        let len = u64::from(u16::from_be_bytes([high, low]));
        if len < 2 {
            return Err(damaged(Format::Jpeg, at + 2, "a segment of less than two bytes"));
        }
        match code {
            // Frame headers: baseline, extended, progressive.
            0xc0..=0xc2 => {
                let mut frame = [0; 5];
                read_at(window, at + 4, &mut frame, Format::Jpeg)?;
                let height = u32::from(u16::from_be_bytes([frame[1], frame[2]]));
                let width = u32::from(u16::from_be_bytes([frame[3], frame[4]]));
                let stored = Size::new(width, height);
                return Ok(Header { format: Format::Jpeg, stored, orientation });
            }
            0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                let what = format!("the coding of frame type {}", code - 0xc0);
                return Err(ImageError::Unsupported { format: Format::Jpeg, what });
            }
            0xd9 | 0xda => {
                return Err(damaged(Format::Jpeg, at, "no frame header before the data"));
            }
            0xe1 => {
                if let Some(exif) = exif_of_segment(window, at + 4, len - 2)? {
                    orientation = Orientation::from_exif(&exif);
                }
            }
            _ => {}
        }
        at += 2 + len;
    }
    Err(damaged(Format::Jpeg, at, "too many segments before the frame header"))
}

/// The EXIF data of an APP1 segment, if it is one.
fn exif_of_segment<R: Read + Seek>(
    window: &mut Window<R>,
    at: u64,
    len: u64,
) -> Result<Option<Vec<u8>>, ImageError> {
    const PREFIX: &[u8; 6] = b"Exif\0\0";
    if len < PREFIX.len() as u64 {
        return Ok(None);
    }
    let mut prefix = [0; PREFIX.len()];
    read_at(window, at, &mut prefix, Format::Jpeg)?;
    if prefix != *PREFIX {
        return Ok(None);
    }
    // A segment has less than 64 KiB.
    let mut exif = vec![0; len as usize - PREFIX.len()];
    read_at(window, at + PREFIX.len() as u64, &mut exif, Format::Jpeg)?;
    Ok(Some(exif))
}

fn webp<R: Read + Seek>(window: &mut Window<R>) -> Result<Header, ImageError> {
    let format = Format::WebP;
    let mut head = [0; 30];
    window.seek(SeekFrom::Start(0))?;
    let got = read_up_to(window, &mut head)?;
    let [chunk, data] = match got {
        25.. => [&head[12..16], &head[20..30]],
        _ => return Err(damaged(format, got as u64, "the file ends in its header")),
    };
    let two = |at: usize| u32::from(u16::from_le_bytes([data[at], data[at + 1]]));
    let three = |at: usize| two(at) | u32::from(data[at + 2]) << 16;
    let (stored, extended) = match chunk {
        b"VP8 " if data[3..6] == [0x9d, 1, 0x2a] => {
            (Size::new(two(6) & 0x3fff, two(8) & 0x3fff), false)
        }
        b"VP8L" if data[0] == 0x2f => {
            let bits = two(1) | two(3) << 16;
            (Size::new((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1), false)
        }
        b"VP8X" => (Size::new(three(4) + 1, three(7) + 1), true),
        _ => return Err(damaged(format, 12, "no picture data after the header")),
    };
    let orientation = match extended {
        true => webp_orientation(window)?,
        false => Orientation::Upright,
    };
    Ok(Header { format, stored, orientation })
}

/// Looks for a chunk of EXIF data; it stands behind the picture.
fn webp_orientation<R: Read + Seek>(window: &mut Window<R>) -> Result<Orientation, ImageError> {
    let mut at = 12;
    for _ in 0..CHUNKS_MAX {
        let mut head = [0; 8];
        window.seek(SeekFrom::Start(at))?;
        if read_up_to(window, &mut head)? < head.len() {
            break;
        }
        let len = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        if head[..4] == *b"EXIF" {
            let mut exif = vec![0; len.min(EXIF_BYTES_MAX as u64) as usize];
            let got = read_up_to(window, &mut exif)?;
            let exif = &exif[..got];
            return Ok(Orientation::from_exif(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)));
        }
        at += 8 + len + len % 2;
    }
    Ok(Orientation::Upright)
}

fn upright(format: Format, stored: Size) -> Header {
    Header { format, stored, orientation: Orientation::Upright }
}

fn damaged(format: Format, offset: u64, reason: &str) -> ImageError {
    ImageError::Damaged { format, offset: Some(offset), reason: reason.to_owned() }
}

/// Fills `to` from byte `at`.
fn read_at<R: Read + Seek>(
    window: &mut Window<R>,
    at: u64,
    to: &mut [u8],
    format: Format,
) -> Result<(), ImageError> {
    window.seek(SeekFrom::Start(at))?;
    match read_up_to(window, to)? {
        got if got == to.len() => Ok(()),
        got => Err(damaged(format, at + got as u64, "the file ends in its header")),
    }
}

/// Reads until `to` is full or the file ends; bytes read.
fn read_up_to<R: Read>(reader: &mut R, to: &mut [u8]) -> Result<usize, ImageError> {
    let mut got = 0;
    while got < to.len() {
        match reader.read(&mut to[got..])? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}
