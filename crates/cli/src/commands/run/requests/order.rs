//! A request from its line to its pictures, and the next one that is looked at meanwhile.
//!
//! ```text
//! order 0   read · place · render · encode · see · generate ─────────── report
//! order 1                                    │ read · place · tiles …   │ render · …
//! ```
//!
//! While an answer is written, and the plan overlaps the two, the next request is read as far as it
//! has come and its pictures are encoded, tile by tile. What is refused of it waits for its turn.
//!
//! Allocates nothing in the heap of the run but the texts of refusals; pictures have their region.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use dctms_engine::eyes::Placed;
use dctms_engine::generation::{Arriving, Sequence};
use dctms_engine::pictures::{self, EncodeTimes, Encoding};
use dctms_engine::runner::{Tile, TilePlan};
use dctms_engine::{EngineError, Runner};
use dctms_system::heap::{Region, look_away};

use super::desk::Eyes;
use super::line::{Piece, Request, Role, Span};
use crate::HEAP;
use crate::commands::run::images;
use crate::commands::run::input::{Input, Taken, Wait};
use crate::commands::run::options::usage;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not whole yet.
    Awaited,
    /// It is whole.
    Read,
    /// Its pictures are placed.
    Placed,
    /// It is refused.
    Refused,
    /// There is none.
    End,
}

/// A request, and what is known of it.
pub struct Order {
    line: Vec<u8>,
    len: usize,
    number: u64,
    /// What its line says.
    pub request: Request,
    /// Its pictures by their headers, in the order of their marks.
    pub placed: Vec<Placed>,
    encodings: Vec<Encoding>,
    stage: Stage,
    refusal: Option<EngineError>,
}

impl Order {
    /// With room for a line, so many messages and so many pictures.
    #[must_use]
    pub fn with_room(line: Vec<u8>, messages: usize, images: usize) -> Order {
        Order {
            line,
            len: 0,
            number: 0,
            request: Request::with_room(messages, images),
            placed: Vec::with_capacity(images),
            encodings: Vec::with_capacity(images),
            stage: Stage::Awaited,
            refusal: None,
        }
    }

    /// Heap of one, bytes.
    #[must_use]
    pub fn heap_bytes(line_bytes: usize, messages: usize, images: usize) -> usize {
        let each = size_of::<Placed>() + size_of::<Encoding>();
        line_bytes + Request::heap_bytes(messages, images) + images * each
    }

    /// Its line.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line[..self.len]
    }

    /// The line's number, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Forgets the request: the next line is another one.
    pub fn clear(&mut self) {
        self.request.id = None;
        self.placed.clear();
        self.encodings.clear();
        self.stage = Stage::Awaited;
        self.refusal = None;
    }

    /// Reads the line, unless that is done; whether there was one.
    pub fn read(&mut self, input: &mut Input, wait: Wait) -> bool {
        if self.stage != Stage::Awaited {
            return self.stage != Stage::End;
        }
        let taken = input.take(&mut self.line, wait);
        self.number = input.line_number();
        self.len = 0;
        match taken {
            Ok(Taken::NotYet) => {}
            Ok(Taken::End) => self.stage = Stage::End,
            Ok(Taken::Line(len)) => {
                self.len = len;
                self.stage = Stage::Read;
                if let Err(error) = self.request.read(&mut self.line[..len]) {
                    self.refuse(usage(error.to_string()));
                }
            }
            Err(error) => {
                // What is there of it may say what the sender calls it.
                self.len = self.line.len();
                self.request.find_id(&mut self.line);
                self.refuse(error);
            }
        }
        self.stage != Stage::End
    }

    /// It is answered with this.
    pub fn refuse(&mut self, error: EngineError) {
        self.encodings.clear();
        self.refusal = Some(error);
        self.stage = Stage::Refused;
    }

    /// Why it is refused, if it is.
    ///
    /// # Errors
    /// That.
    pub fn accepted(&mut self) -> Result<(), EngineError> {
        self.refusal.take().map_or(Ok(()), Err)
    }

    /// Places the pictures by their headers, unless that is done.
    ///
    /// # Errors
    /// Pictures for a model that has no eyes, a picture that is none, or over the bounds.
    pub fn place(&mut self, eyes: Option<&Eyes>) -> Result<(), EngineError> {
        if self.stage == Stage::Placed {
            return Ok(());
        }
        self.stage = Stage::Placed;
        if self.request.pictures() == 0 {
            return Ok(());
        }
        let Some(eyes) = eyes else { return Err(images::blind("this")) };
        let mut row = 0;
        for path in pictures_of(&self.request) {
            let path = path_of(path, &self.line[..self.len]);
            let placed = pictures::place(path, &eyes.limits, &eyes.tiler, row)?;
            row += placed.rows;
            self.encodings.push(Encoding::new(&placed));
            self.placed.push(placed);
        }
        Ok(())
    }

    /// Encodes the tiles that are left, and gives what each picture took. Beside them `readers` read
    /// what is ready of their prompts, where the plan overlaps the two.
    ///
    /// # Errors
    /// As [`pictures::encode`].
    pub fn see(
        &mut self,
        eyes: Option<&Eyes>,
        (runner, readers): (&mut Runner, &mut [Sequence]),
        take: &mut dyn FnMut((Placed, EncodeTimes)),
    ) -> Result<(), EngineError> {
        let Some(eyes) = eyes else { return Ok(()) };
        let _scope = HEAP.scope(Region::Image);
        for (path, encoding) in pictures_of(&self.request).zip(&mut self.encodings) {
            let path = path_of(path, &self.line[..self.len]);
            look(encoding, path, eyes)?;
            encoding.finish(&eyes.tiler, runner, readers)?;
            take(encoding.report());
        }
        Ok(())
    }
}

/// The next order while an answer is written.
pub struct Ahead<'a> {
    /// Where requests come from.
    pub input: &'a mut Input,
    /// The order.
    pub order: &'a mut Order,
    /// What sees.
    pub eyes: &'a Eyes,
}

impl Ahead<'_> {
    /// The picture whose tile is next.
    fn next(&self) -> Option<(usize, Tile)> {
        let tiles = self.order.encodings.iter().map(|encoding| encoding.tile(&self.eyes.tiler));
        tiles.enumerate().find_map(|(index, tile)| Some((index, tile?)))
    }
}

impl Arriving for Ahead<'_> {
    fn tile(&mut self) -> Option<Tile> {
        let _away = look_away();
        self.order.read(self.input, Wait::Not);
        if self.order.stage == Stage::Read
            && let Err(error) = self.order.place(Some(self.eyes))
        {
            self.order.refuse(error);
        }
        self.next().map(|(_, tile)| tile)
    }

    fn render(&mut self, pixels: &mut [u8]) -> Result<(), EngineError> {
        let (_away, _scope) = (look_away(), HEAP.scope(Region::Image));
        let Some((index, _)) = self.next() else { return Ok(()) };
        let order = &mut *self.order;
        let path = pictures_of(&order.request).nth(index);
        let path = path_of(path.unwrap_or_default(), &order.line[..order.len]);
        let encoding = &mut order.encodings[index];
        look(encoding, path, self.eyes)?;
        encoding.render(pixels);
        Ok(())
    }

    fn encoded(&mut self, tile: &Tile, whole_s: f64, result: Result<(), EngineError>) {
        let _away = look_away();
        match (result, self.next()) {
            (Ok(()), Some((index, _))) => {
                self.order.encodings[index].encoded(tile, TilePlan::Steps, whole_s);
            }
            (Err(error), _) => self.order.refuse(error),
            (Ok(()), None) => {}
        }
    }
}

/// Gives an encoding its picture, if it needs one.
fn look(encoding: &mut Encoding, path: &Path, eyes: &Eyes) -> Result<(), EngineError> {
    if encoding.needs_picture() {
        let start = Instant::now();
        let picture = images::read(path, &eyes.limits, &encoding.report().0)?;
        encoding.give(picture, start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The message before whose words the request's pictures stand: the last that a user says.
pub fn question_of(request: &Request) -> Option<usize> {
    request.turns.iter().rposition(|turn| turn.role == Role::User)
}

/// The paths of the pictures in the order of their marks.
fn pictures_of(request: &Request) -> impl Iterator<Item = Span> + '_ {
    let split = question_of(request).map_or(0, |index| request.turns[index].first);
    let (before, behind) = request.pieces.split_at(split);
    inside(before).chain(request.images.iter().copied()).chain(inside(behind))
}

fn inside(pieces: &[Piece]) -> impl Iterator<Item = Span> + '_ {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Picture(path) => Some(*path),
        Piece::Text(_) => None,
    })
}

fn path_of(span: Span, line: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(span.of(line).as_bytes()))
}
