//! Decoding: one token of every sequence at a time, with or without a tile beside.
//!
//! Believes that every sequence here is read up to its last token. Nothing allocates.

use std::time::Instant;

use dctms_exec::LongRun;
use dctms_text::Tokenizer;

use super::{Control, Finish, GenerationOptions, LogitsDigest, Sequence, Timing};
use crate::error::EngineError;
use crate::runner::{Runner, Runs, Step, Stepper, Tile};

/// Tiles that come while sequences go on: pictures of what is asked next.
pub trait Arriving: Send {
    /// The next tile. Looked for between two steps, so this is quick, and waits for nothing.
    fn tile(&mut self) -> Option<Tile>;

    /// Writes its pixels; on a thread of the encoder's, beside the steps.
    ///
    /// # Errors
    /// A picture that is none: then no tile of it is encoded.
    fn render(&mut self, pixels: &mut [u8]) -> Result<(), EngineError>;

    /// The tile is encoded, which took so many seconds with its pixels; or it could not be.
    fn encoded(&mut self, tile: &Tile, whole_s: f64, result: Result<(), EngineError>);
}

/// No tiles.
pub struct Nothing;

impl Arriving for Nothing {
    fn tile(&mut self) -> Option<Tile> {
        None
    }

    fn render(&mut self, _: &mut [u8]) -> Result<(), EngineError> {
        Ok(())
    }

    fn encoded(&mut self, _: &Tile, _: f64, _: Result<(), EngineError>) {}
}

/// Sequences that are being decoded.
pub(super) struct Decoding<'d, 't> {
    pub tokenizer: Option<&'d Tokenizer<'t>>,
    pub sequences: &'d mut [Sequence],
    pub options: &'d GenerationOptions,
    pub timing: &'d mut Timing,
    pub emit: &'d mut dyn FnMut(usize, &str) -> Control,
    pub active: Active,
    /// When the last token came.
    pub last: Instant,
}

impl Decoding<'_, '_> {
    /// Steps until every sequence is done or the caller says stop.
    pub fn run(
        &mut self,
        runner: &mut Runner,
        arriving: &mut dyn Arriving,
    ) -> Result<(), EngineError> {
        while self.goes_on() {
            let tile = if runner.encodes_beside() { arriving.tile() } else { None };
            let control = match tile {
                Some(tile) => self.beside(runner, (&tile, &mut *arriving))?,
                None => self.step(&mut runner.steps()?)?,
            };
            if control == Control::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Steps until a tile is encoded.
    fn beside(
        &mut self,
        runner: &mut Runner,
        (tile, arriving): (&Tile, &mut dyn Arriving),
    ) -> Result<Control, EngineError> {
        let begun = Instant::now();
        let before = self.timing.step_us.len();
        let render = |pixels: &mut [u8]| arriving.render(pixels);
        let (long, control) = runner.encode_beside(tile, render, |steps| {
            while !steps.is_over() && self.goes_on() {
                let from = self.last;
                let control = self.step(steps)?;
                self.timing.beside.steps_s += (self.last - from).as_secs_f64();
                if control == Control::Stop {
                    return Ok(Control::Stop);
                }
            }
            Ok::<_, EngineError>(Control::Continue)
        })?;
        let counts = &mut self.timing.beside;
        counts.steps += self.timing.step_us.len() - before;
        if !self.goes_on() {
            self.timing.beside.waited_s += self.last.elapsed().as_secs_f64();
        }
        let result = match long {
            LongRun::Whole => {
                self.timing.beside.tiles += 1;
                Ok(())
            }
            // Nothing of it is there, and nobody goes on.
            LongRun::Interrupted => return Ok(Control::Stop),
            LongRun::Unprepared(error) => Err(error),
        };
        arriving.encoded(tile, begun.elapsed().as_secs_f64(), result);
        control
    }

    fn goes_on(&mut self) -> bool {
        self.active.refill(self.sequences);
        !self.active.is_empty()
    }

    /// One token more of every active sequence.
    fn step<R: Runs>(&mut self, stepper: &mut Stepper<'_, R>) -> Result<Control, EngineError> {
        let begun = Instant::now();
        let count = self.active.len();
        let mut steps = [Step { slot: 0, token: 0, position: 0 }; SEQUENCES_MAX];
        for (step, index) in steps.iter_mut().zip(self.active.iter()) {
            let sequence = &mut self.sequences[index];
            *step = Step {
                slot: sequence.slot,
                token: sequence.context[sequence.cached],
                position: sequence.position(),
            };
            sequence.cached += 1;
        }
        stepper.decode(&steps[..count])?;
        let rows = self.active.indices;
        self.pick(stepper, &rows[..count])?;
        self.timing.decode_tokens += count;
        let now = Instant::now();
        self.timing.gap_s = self.timing.gap_s.max((now - self.last).as_secs_f64());
        self.last = now;
        if self.timing.step_us.len() < self.timing.step_us.capacity() {
            self.timing.step_us.push((now - begun).as_micros() as u32);
        }
        let stopped = rows[..count].iter().any(|index| self.show(*index) == Control::Stop);
        Ok(if stopped { Control::Stop } else { Control::Continue })
    }

    /// Samples each row of the last step for its sequence.
    pub fn pick<R: Runs>(
        &mut self,
        stepper: &mut Stepper<'_, R>,
        rows: &[usize],
    ) -> Result<(), EngineError> {
        for (row, index) in rows.iter().enumerate() {
            let sequence = &mut self.sequences[*index];
            stepper.set_sampler(row, self.options.sampler);
            stepper.set_history(row, &sequence.context);
            stepper.set_random(row, &sequence.random);
            if self.options.digest == LogitsDigest::Computed {
                stepper.hash_logits(row, &mut sequence.hash);
            }
        }
        stepper.sample()?;
        for (row, index) in rows.iter().enumerate() {
            let sequence = &mut self.sequences[*index];
            sequence.random = stepper.random(row);
            let token = stepper.sampled(row);
            sequence.take(token, self.tokenizer, self.options);
        }
        Ok(())
    }

    /// Gives the caller what is new and certain.
    pub fn show(&mut self, index: usize) -> Control {
        let sequence = &mut self.sequences[index];
        let end = sequence.showable(&self.options.stop_texts);
        // A stop text may begin inside a character's bytes only if it is no text; then all is held.
        let piece = std::str::from_utf8(&sequence.text[..end]).unwrap_or_default();
        let control = (self.emit)(index, piece);
        sequence.shown += end;
        sequence.text.drain(..end);
        if control == Control::Stop && sequence.finish.is_none() {
            sequence.finish = Some(Finish::Cancelled);
        }
        control
    }
}

/// Most sequences of one step.
pub const SEQUENCES_MAX: usize = 64;

/// The sequences that are not done, without a heap.
pub(super) struct Active {
    indices: [usize; SEQUENCES_MAX],
    count: usize,
}

impl Default for Active {
    fn default() -> Self {
        Active { indices: [0; SEQUENCES_MAX], count: 0 }
    }
}

impl Active {
    fn refill(&mut self, sequences: &[Sequence]) {
        self.count = 0;
        for (index, sequence) in sequences.iter().enumerate().take(SEQUENCES_MAX) {
            if sequence.finish.is_none() && sequence.cached < sequence.context.len() {
                self.indices[self.count] = index;
                self.count += 1;
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices[..self.count].iter().copied()
    }

    fn len(&self) -> usize {
        self.count
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}
