//! From a picture's file to rows of embeddings: header, prompt, pixels, tiles.
//!
//! ```text
//! before planning   open → header → tiles and tokens         (nothing decoded)
//! before a prompt   decode → for each tile: render, encode   (one picture at a time)
//! ```
//!
//! Believes that the file is the one whose header was read; where it is not, it is refused.
//! Allocates: the caller says from where.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use dctms_image::{ImageError, Picture, Size, decode};

use crate::error::{Class, EngineError};
use crate::eyes::{ImageLimits, Oversize, Placed, Tiler};
use crate::generation::Sequence;
use crate::runner::Runner;

/// What encoding a picture took.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct EncodeTimes {
    /// Seconds of decoding the file.
    pub decode_s: f64,
    /// Seconds of cutting and resizing.
    pub render_s: f64,
    /// Seconds of the encoder.
    pub encode_s: f64,
    /// Tiles.
    pub tiles: u32,
    /// Chunks of prompts that were read beside them.
    pub chunks: u32,
}

/// Reads a picture's header, cuts it, and places it at `first_row` of the embeddings.
///
/// # Errors
/// Class `OverBound` for a picture over the bounds, `File` for one that is none.
pub fn place(
    path: &Path,
    limits: &ImageLimits,
    tiler: &Tiler,
    first_row: u32,
) -> Result<Placed, EngineError> {
    let file = open(path)?;
    let header = dctms_image::header::read_header(file).map_err(|error| named(path, &error))?;
    limits.bounds().check(&header).map_err(|error| {
        let error = named(path, &error);
        match error.class {
            Class::OverBound => over(&error, header.size(), limits),
            _ => error,
        }
    })?;
    tiler
        .place(limits.seen(header.size()), first_row)
        .map_err(|error| EngineError::new(error.class, format!("{}: {error}", path.display())))
}

/// The refusal of a picture that is too large, with what would help.
fn over(error: &EngineError, size: Size, limits: &ImageLimits) -> EngineError {
    let Size { width, height } = limits.seen(size);
    let help = match limits.oversize {
        Oversize::Refused => format!("{width}x{height} of it would fit: --oversize resize"),
        Oversize::Resized(_) => "what is decoded is bounded by --max-source-size".to_string(),
    };
    EngineError::new(error.class, format!("{error}; {help}"))
}

/// Decodes a picture and encodes its tiles.
///
/// # Errors
/// As [`place`]; class `File` for a damaged picture, or one that is not that which was placed.
pub fn encode(
    path: &Path,
    limits: &ImageLimits,
    seen: (&Tiler, &Placed),
    runner: &mut Runner,
) -> Result<EncodeTimes, EngineError> {
    encode_beside(path, limits, seen, runner, &mut [])
}

/// As [`encode`], and reads ahead where the plan overlaps the two: beside each tile a whole chunk
/// of the first sequence that has one whose pictures are encoded. All pictures before this one
/// must be. Whatever follows goes on where the sequences then are; the answer is the same.
///
/// # Errors
/// As [`encode`].
pub fn encode_beside(
    path: &Path,
    limits: &ImageLimits,
    seen: (&Tiler, &Placed),
    runner: &mut Runner,
    readers: &mut [Sequence],
) -> Result<EncodeTimes, EngineError> {
    let start = Instant::now();
    let picture = read(&open(path)?, path, limits, seen.1)?;
    encode_picture(&picture, start.elapsed().as_secs_f64(), seen, runner, readers)
}

/// Decodes a picture's file at the size at which it was placed. Everything that it takes is heap,
/// and goes with it.
///
/// # Errors
/// Class `File` for a damaged picture, or one that is not that which was placed.
pub fn read(
    file: &File,
    path: &Path,
    limits: &ImageLimits,
    placed: &Placed,
) -> Result<Picture, EngineError> {
    let read = |error: std::io::Error| named(path, &ImageError::from(error));
    let bytes = file.metadata().map_err(read)?.len();
    let picture = decode(file, bytes, &limits.bounds()).map_err(|error| named(path, &error))?;
    if limits.seen(picture.size()) != placed.size {
        let message = format!("{}: the picture changed since its header was read", path.display());
        return Err(EngineError::new(Class::File, message));
    }
    // The decoded one is given up: the largest that is decoded counts, not both.
    Ok(picture.resized(placed.size))
}

/// Encodes the tiles of a picture that was decoded in so many seconds; else as [`encode_beside`].
///
/// # Errors
/// As [`Runner::encode_tile`].
pub fn encode_picture(
    picture: &Picture,
    decode_s: f64,
    (tiler, placed): (&Tiler, &Placed),
    runner: &mut Runner,
    readers: &mut [Sequence],
) -> Result<EncodeTimes, EngineError> {
    let chunk = runner.bounds().prefill_chunk as usize;
    let mut times = EncodeTimes { decode_s, ..Default::default() };
    let mut row = placed.first_row;
    for index in 0..placed.layout.count() {
        let start = Instant::now();
        let mut rendered = start;
        let part = placed.layout.part(index);
        let size = placed.layout.size(part);
        let tokens = tiler.tokens(size);
        let tile = (size.pixels() as usize * 3, tiler.grid(size), tokens);
        let render = |pixels: &mut [u8]| {
            placed.layout.render(picture, part, pixels);
            rendered = Instant::now();
        };
        let worth = runner.is_worth_a_region(tile.1);
        match readers.iter_mut().find(|reader| worth && reader.is_ready(chunk, row)) {
            Some(reader) => {
                runner.encode_tile_beside(tile, row, render, reader.ahead(chunk))?;
                reader.read(chunk);
                times.chunks += 1;
            }
            None => runner.encode_tile(tile, row, render)?,
        }
        times.render_s += (rendered - start).as_secs_f64();
        times.encode_s += rendered.elapsed().as_secs_f64();
        times.tiles += 1;
        row += tokens;
    }
    Ok(times)
}

/// Opens a picture's file.
///
/// # Errors
/// Class `File` for one that cannot be read, or is no file.
pub fn open(path: &Path) -> Result<File, EngineError> {
    let read = |error: std::io::Error| named(path, &ImageError::from(error));
    // Asked before opening: opening a pipe would wait for somebody to write.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(EngineError::new(Class::File, format!("{}: no file", path.display())));
    }
    File::open(path).map_err(read)
}

/// An error with the file's name and its class.
fn named(path: &Path, error: &ImageError) -> EngineError {
    let class = match error {
        ImageError::EdgeTooLong { .. }
        | ImageError::TooManyPixels { .. }
        | ImageError::FileTooLong { .. } => Class::OverBound,
        ImageError::UnknownFormat { .. }
        | ImageError::Empty { .. }
        | ImageError::Damaged { .. }
        | ImageError::Unsupported { .. }
        | ImageError::Read { .. } => Class::File,
    };
    EngineError::new(class, format!("{}: {error}", path.display()))
}
