//! Pictures of a prompt: where they stand in its text, and what they become in its tokens.
//!
//! A text carries a mark for each picture. A template that knows pictures is given them as parts
//! and writes its own mark; to another one they are marks inside the text, and stand before the
//! words. After rendering, the text is cut at the marks, and each picture's pieces come between.

use std::path::{Path, PathBuf};
use std::time::Instant;

use dctms_engine::eyes::{Piece, Placed, Tiler};
use dctms_engine::generation::Sequence;
use dctms_engine::pictures::{self, EncodeTimes, Encoding, Picture};
use dctms_engine::runner::IMAGE_ROW;
use dctms_engine::{Class, EngineError, ImageLimits, Model, Runner};

use dctms_system::heap::Region;
use dctms_text::{Content, Ends, Part};

use super::options::usage;
use crate::HEAP;
use crate::commands::stream::note;

/// The mark of a picture in a text of ours: no user's text may hold it.
pub const MARK: &str = "\u{1}picture\u{1}";
/// Marks that templates write which know pictures; with all that is part of the picture's own text.
const TEMPLATE_MARKS: [&str; 2] = ["<|vision_start|><|image_pad|><|vision_end|>", "<image>"];

/// Who writes the marks of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// We do, inside of texts.
    Ours,
    /// The template does, which knows pictures.
    Template(&'static str),
}

/// The model of a command, with the vision file that its options name.
///
/// # Errors
/// Any defect of either file; pictures without a vision file.
pub fn open_model(
    path: &Path,
    vision: Option<&Path>,
    images: &[PathBuf],
) -> Result<Model, EngineError> {
    let model = Model::open(path)?;
    match vision {
        Some(vision) => {
            let eyes = dctms_engine::Eyes::open(vision).map_err(|error| {
                let name = vision.display().to_string();
                // What cannot be opened says its name itself.
                match error.message.starts_with(&name) {
                    true => error,
                    false => EngineError::new(error.class, format!("{name}: {error}")),
                }
            })?;
            Ok(model.with_eyes(eyes))
        }
        None if images.is_empty() => Ok(model),
        None => Err(blind(&path.display().to_string())),
    }
}

/// The refusal of a picture by a model that has no eyes.
#[must_use]
pub fn blind(model: &str) -> EngineError {
    usage(format!(
        "{model} is a text model and cannot see: a picture needs its vision file (--mmproj FILE)"
    ))
}

/// Pictures one after another, as their headers place them.
///
/// # Errors
/// A picture that is none, or over the bounds.
pub fn place_all(
    paths: &[PathBuf],
    tiler: &Tiler,
    limits: &ImageLimits,
) -> Result<Vec<Placed>, EngineError> {
    let mut placed = Vec::with_capacity(paths.len());
    let mut row = 0;
    for path in paths {
        let next = pictures::place(path, limits, tiler, row)?;
        row += next.rows;
        placed.push(next);
    }
    Ok(placed)
}

/// Decodes and encodes a picture, with the heap's region for pictures.
///
/// # Errors
/// As [`pictures::encode`].
pub fn encode(
    path: &Path,
    limits: &ImageLimits,
    seen: (&Tiler, &Placed),
    runner: &mut Runner,
) -> Result<EncodeTimes, EngineError> {
    encode_beside(path, limits, seen, runner, &mut [])
}

/// As [`encode`]; where the plan overlaps the two, chunks of prompts are read beside the tiles.
///
/// # Errors
/// As [`pictures::encode_beside`].
pub fn encode_beside(
    path: &Path,
    limits: &ImageLimits,
    seen: (&Tiler, &Placed),
    runner: &mut Runner,
    readers: &mut [Sequence],
) -> Result<EncodeTimes, EngineError> {
    let start = Instant::now();
    let _scope = HEAP.scope(Region::Image);
    let picture = read(path, limits, seen.1)?;
    let mut encoding = Encoding::new(seen.1);
    encoding.give(picture, start.elapsed().as_secs_f64());
    encoding.finish(seen.0, runner, readers)?;
    Ok(encoding.report().1)
}

/// Decodes a picture in the heap's region for pictures, and gives up where that is too little.
///
/// # Errors
/// As [`pictures::read`].
pub fn read(path: &Path, limits: &ImageLimits, placed: &Placed) -> Result<Picture, EngineError> {
    let file = pictures::open(path)?;
    let _scope = HEAP.scope(Region::Image);
    // SAFETY: decoding takes no lock, starts no thread, and owns nothing but heap of this scope:
    // the file stays ours.
    let read = unsafe { HEAP.guarded(|| pictures::read(&file, path, limits, placed)) };
    read.map_err(|given_up| {
        let message = format!("{}: decoding it takes {given_up}", path.display());
        EngineError::new(Class::File, message)
    })?
}

impl Marks {
    /// Who writes them where texts go through a template.
    #[must_use]
    pub fn of(template: Option<&str>) -> Marks {
        let Some(text) =
            template.filter(|text| ["'image'", "\"image\""].iter().any(|kind| text.contains(kind)))
        else {
            return Marks::Ours;
        };
        let found = TEMPLATE_MARKS.into_iter().find(|mark| text.contains(mark));
        found.map_or(Marks::Ours, Marks::Template)
    }

    /// The mark in a rendered text.
    #[must_use]
    pub fn mark(self) -> &'static str {
        match self {
            Marks::Ours => MARK,
            Marks::Template(mark) => mark,
        }
    }
}

/// What a template is given for a text that begins with its pictures' marks.
#[must_use]
pub fn content(text: &str, marks: Marks) -> Content<'_> {
    if marks == Marks::Ours {
        return Content::Text(text);
    }
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(after) = rest.strip_prefix(MARK) {
        parts.push(Part::Image);
        rest = after;
    }
    parts.push(Part::Text(rest));
    Content::Parts(parts)
}

/// Refuses a user's text that holds a mark.
///
/// # Errors
/// Class `OverBound`, so that a conversation goes on.
pub fn check_text(text: &str, marks: Marks) -> Result<(), EngineError> {
    let mark = marks.mark();
    match text.contains(mark) || text.contains(MARK) {
        true => Err(EngineError::new(
            Class::OverBound,
            format!("the text holds {mark:?}, which stands for a picture"),
        )),
        false => Ok(()),
    }
}

/// Longest text that belongs to a picture's tile, bytes.
pub const PICTURE_TEXT_BYTES_MAX: usize = 256;

/// The pictures of a conversation.
pub struct Album {
    tiler: Tiler,
    limits: ImageLimits,
    marks: Marks,
    /// All so far, in the order of their marks.
    placed: Vec<Placed>,
    /// Of those the last ones, which no turn has shown yet.
    pending: usize,
}

impl Album {
    /// An empty one, with room for all that the limits allow.
    #[must_use]
    pub fn new(tiler: Tiler, limits: ImageLimits, template: Option<&str>) -> Album {
        Album {
            tiler,
            limits,
            marks: Marks::of(template),
            placed: Vec::with_capacity(limits.count as usize),
            pending: 0,
        }
    }

    /// Reads and encodes a picture, which the next turn shows.
    ///
    /// # Errors
    /// A picture that is none, or over the bounds; nothing has changed then.
    pub fn add(&mut self, path: &Path, runner: &mut Runner) -> Result<(), EngineError> {
        if self.placed.len() as u64 >= self.limits.count {
            let message = format!(
                "pictures of the conversation so far: {}, of which the plan holds {} \
                 (--max-images)",
                self.placed.len(),
                self.limits.count
            );
            return Err(EngineError::new(Class::OverBound, message));
        }
        let row = self.placed.last().map_or(0, |last| last.first_row + last.rows);
        let placed = pictures::place(path, &self.limits, &self.tiler, row)?;
        let times = encode(path, &self.limits, (&self.tiler, &placed), runner)?;
        self.placed.push(placed);
        self.pending += 1;
        note(format_args!(
            "dctms: picture {}: {}x{} pixels, {} tiles, {} tokens; decoded in {:.0} ms, encoded \
             in {:.0} ms\n",
            self.placed.len(),
            placed.size.width,
            placed.size.height,
            times.tiles,
            placed.rows,
            times.decode_s * 1000.0,
            (times.render_s + times.encode_s) * 1000.0
        ));
        Ok(())
    }

    /// A user's turn with the marks of the pictures that it shows first.
    ///
    /// # Errors
    /// A text that holds a mark itself.
    pub fn marked(&self, line: String) -> Result<String, EngineError> {
        check_text(&line, self.marks)?;
        Ok(match self.pending {
            0 => line,
            pending => MARK.repeat(pending) + &line,
        })
    }

    /// The pending pictures were shown.
    pub fn shown(&mut self) {
        self.pending = 0;
    }

    /// The pending pictures belong to a turn that was refused: their room is free again.
    pub fn forget_pending(&mut self) {
        self.placed.truncate(self.placed.len() - self.pending);
        self.pending = 0;
    }

    /// Forgets all pictures: their room is free again.
    pub fn clear(&mut self) {
        self.placed.clear();
        self.pending = 0;
    }

    /// What a template is given for a turn.
    #[must_use]
    pub fn content<'t>(&self, turn: &'t str) -> Content<'t> {
        content(turn, self.marks)
    }

    /// Cuts the rendered text behind `before_len` bytes.
    ///
    /// # Errors
    /// As [`stretches`].
    pub fn stretches(
        &self,
        text: &[u8],
        before_len: usize,
        ends: Ends,
        take: &mut dyn FnMut(Stretch<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let broken = || EngineError::new(Class::System, "a rendered text that is not UTF-8");
        let text = std::str::from_utf8(text).map_err(|_| broken())?;
        let (before, rest) = text.split_at_checked(before_len).ok_or_else(broken)?;
        let mark = self.marks.mark();
        let first = before.matches(mark).count().min(self.placed.len());
        let last = (first + rest.matches(mark).count()).min(self.placed.len());
        stretches(rest, mark, (&self.tiler, &self.placed[first..last]), ends, take)
    }
}

/// The picture that a line of a conversation asks for.
#[must_use]
pub fn asked(line: &str) -> Option<&Path> {
    let path = line.strip_prefix("/image ")?.trim();
    (!path.is_empty()).then(|| Path::new(path))
}

/// A stretch of a prompt, in its order.
pub enum Stretch<'a> {
    /// Text, and what stands at its ends.
    Text(&'a str, Ends),
    /// Text that belongs to a picture: special tokens by their names.
    Picture(&'a str),
    /// A token that is a row of the pictures' embeddings.
    Token(u32),
}

/// Cuts a rendered text at its marks and gives `take` what it becomes.
///
/// # Errors
/// What `take` says; a text with another number of marks than pictures.
pub fn stretches(
    text: &str,
    mark: &str,
    (tiler, placed): (&Tiler, &[Placed]),
    first_ends: Ends,
    take: &mut dyn FnMut(Stretch<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let found = text.matches(mark).count();
    if found != placed.len() {
        let message = format!("places for pictures: {found}, pictures: {}", placed.len());
        return Err(EngineError::new(Class::File, message));
    }
    let mut ends = first_ends;
    for (index, stretch) in text.split(mark).enumerate() {
        if index > 0 {
            let mut result = Ok(());
            tiler.pieces(&placed[index - 1], &mut |piece| {
                if result.is_ok() {
                    result = match piece {
                        Piece::Text(text) => take(Stretch::Picture(&text)),
                        Piece::Rows(first, count) => (first..first + count)
                            .try_for_each(|row| take(Stretch::Token(IMAGE_ROW | row))),
                    };
                }
            });
            result?;
        }
        take(Stretch::Text(stretch, ends))?;
        ends = Ends::None;
    }
    Ok(())
}
