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

pub use dctms_image::Picture;
use dctms_image::{ImageError, Size, decode};

use crate::error::{Class, EngineError};
use crate::eyes::{FAMILY_MAX, ImageLimits, Oversize, Placed, Tiler};
use crate::generation::Sequence;
use crate::runner::{Runner, Tile, TilePlan};

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
    /// Tiles by plan.
    pub plans: TilePlans,
}

/// How many tiles each plan encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TilePlans {
    /// The one for any tile, the region with a chunk, the twin beside decode steps.
    others: [u32; 3],
    /// Smaller members: patches at most, and tiles; those in use stand first.
    members: [(u64, u32); FAMILY_MAX - 1],
}

impl TilePlans {
    /// Counts a tile.
    ///
    /// # Panics
    /// When there are more members than a family may have.
    pub fn count(&mut self, plan: TilePlan) {
        let count = match plan {
            TilePlan::Bound => &mut self.others[0],
            TilePlan::Chunk => &mut self.others[1],
            TilePlan::Steps => &mut self.others[2],
            TilePlan::Member(patches_max) => {
                let mut places = self.members.iter_mut();
                let own = |(bound, tiles): &&mut (u64, u32)| *bound == patches_max || *tiles == 0;
                let place = places.find(own).expect("a family has no more members");
                place.0 = patches_max;
                &mut place.1
            }
        };
        *count += 1;
    }

    /// Each plan that encoded any, with how many.
    pub fn counts(&self) -> impl Iterator<Item = (TilePlan, u32)> + '_ {
        let others = [TilePlan::Bound, TilePlan::Chunk, TilePlan::Steps].into_iter();
        let members = self.members.iter().map(|(bound, tiles)| (TilePlan::Member(*bound), *tiles));
        others.zip(self.others).chain(members).filter(|(_, tiles)| *tiles > 0)
    }
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

/// A picture on its way to rows of embeddings, tile by tile: it may stop between any two and go
/// on later.
pub struct Encoding {
    placed: Placed,
    /// Decoded, from its first tile to its last.
    picture: Option<Picture>,
    /// Tiles done.
    done: u32,
    /// The next tile's row among the embeddings.
    row: u32,
    times: EncodeTimes,
    /// Seconds of pixels that earlier tiles took.
    pixels_s: f64,
}

impl Encoding {
    /// A picture of which nothing is done.
    #[must_use]
    pub fn new(placed: &Placed) -> Encoding {
        Encoding {
            placed: *placed,
            picture: None,
            done: 0,
            row: placed.first_row,
            times: EncodeTimes::default(),
            pixels_s: 0.0,
        }
    }

    /// The next tile; nothing once all are encoded.
    #[must_use]
    pub fn tile(&self, tiler: &Tiler) -> Option<Tile> {
        if self.done >= self.placed.layout.count() {
            return None;
        }
        let size = self.placed.layout.size(self.placed.layout.part(self.done));
        Some(Tile {
            pixel_bytes: size.pixels() as usize * 3,
            grid: tiler.grid(size),
            tokens: tiler.tokens(size),
            first_row: self.row,
        })
    }

    /// Whether it must be given its picture before it can go on.
    #[must_use]
    pub fn needs_picture(&self) -> bool {
        self.picture.is_none() && self.done < self.placed.layout.count()
    }

    /// The picture, as [`read`] gives it, which took so many seconds.
    pub fn give(&mut self, picture: Picture, decode_s: f64) {
        self.picture = Some(picture);
        self.times.decode_s += decode_s;
        self.pixels_s += decode_s;
    }

    /// Writes the next tile's pixels.
    ///
    /// # Panics
    /// Without its picture.
    pub fn render(&mut self, pixels: &mut [u8]) {
        let start = Instant::now();
        let picture = self.picture.as_ref().expect("the picture was given");
        self.placed.layout.render(picture, self.placed.layout.part(self.done), pixels);
        self.times.render_s += start.elapsed().as_secs_f64();
    }

    /// The next tile is encoded, by this plan, which took so many seconds with its pixels. Behind
    /// the last one the picture is forgotten.
    pub fn encoded(&mut self, tile: &Tile, plan: TilePlan, whole_s: f64) {
        let pixels_s = self.times.decode_s + self.times.render_s;
        self.times.encode_s += (whole_s - (pixels_s - self.pixels_s)).max(0.0);
        self.pixels_s = pixels_s;
        self.times.tiles += 1;
        self.times.plans.count(plan);
        self.done += 1;
        self.row += tile.tokens;
        if self.done >= self.placed.layout.count() {
            self.picture = None;
        }
    }

    /// Where it stands in the prompt, and what it took so far.
    #[must_use]
    pub fn report(&self) -> (Placed, EncodeTimes) {
        (self.placed, self.times)
    }

    /// Encodes the tiles that are left. Reads ahead where the plan overlaps the two: beside each
    /// tile a whole chunk of the first sequence that has one whose pictures are encoded. All
    /// pictures before this one must be. Whatever follows goes on where the sequences then are; the
    /// answer is the same.
    ///
    /// # Errors
    /// As [`Runner::encode_tile`].
    ///
    /// # Panics
    /// Without its picture.
    pub fn finish(
        &mut self,
        tiler: &Tiler,
        runner: &mut Runner,
        readers: &mut [Sequence],
    ) -> Result<(), EngineError> {
        let chunk = runner.bounds().prefill_chunk as usize;
        while let Some(tile) = self.tile(tiler) {
            let start = Instant::now();
            let shape = (tile.pixel_bytes, tile.grid, tile.tokens);
            let render = |pixels: &mut [u8]| self.render(pixels);
            let worth = runner.is_worth_a_region(tile.grid);
            let ready = |reader: &&mut Sequence| worth && reader.is_ready(chunk, tile.first_row);
            let plan = match readers.iter_mut().find(ready) {
                Some(reader) => {
                    let (row, ahead) = (tile.first_row, reader.ahead(chunk));
                    let plan = runner.encode_tile_beside(shape, row, render, ahead)?;
                    reader.read(chunk);
                    self.times.chunks += 1;
                    plan
                }
                None => runner.encode_tile(shape, tile.first_row, render)?,
            };
            self.encoded(&tile, plan, start.elapsed().as_secs_f64());
        }
        Ok(())
    }
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

/// As [`encode`], and reads ahead: see [`Encoding::finish`].
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
    let mut encoding = Encoding::new(seen.1);
    encoding.give(picture, start.elapsed().as_secs_f64());
    encoding.finish(seen.0, runner, readers)?;
    Ok(encoding.report().1)
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

/// Opens a picture's file.
///
/// # Errors
/// Class `File` for one that cannot be read, or is no regular file.
pub fn open(path: &Path) -> Result<File, EngineError> {
    let read = |error: std::io::Error| named(path, &ImageError::from(error));
    // Asked before opening: opening a pipe would wait for somebody to write.
    let kind = std::fs::metadata(path).map_err(read)?.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() { "a directory" } else { "a device, a pipe or a socket" };
        let message = format!("{}: {what}, a picture is a regular file", path.display());
        return Err(EngineError::new(Class::File, message));
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
