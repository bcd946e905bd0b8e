//! The token path: prefill, then sample and decode until every sequence is done.
//!
//! All buffers are made before the first token with room for the bound; from then on nothing here
//! allocates. A sequence ends at an end token, at its limit, at a stop text, or when the caller
//! says so; the others go on in a smaller step.

mod decode;

use std::time::Instant;

use dctms_exec::sample::SamplerRecord;
use dctms_text::{ControlTokens, LeadingSpace, StreamDecoder, Tokenizer};
use sha2::{Digest, Sha256};

use crate::error::{Class, EngineError};
use crate::runner::{Chunk, IMAGE_ROW, Prefilled, Runner};

use decode::{Active, Decoding};
pub use decode::{Arriving, Nothing, SEQUENCES_MAX};

/// Longest stop text, bytes: so much output is held back to look for one.
pub const STOP_BYTES_MAX: usize = 256;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so.
    EndToken,
    /// Its limit.
    Length,
    /// A stop text came.
    StopText,
    /// The caller said so.
    Cancelled,
}

impl Finish {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Finish::EndToken => "end_token",
            Finish::Length => "length",
            Finish::StopText => "stop_text",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// Whether end tokens end a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndTokens {
    /// They do.
    Obeyed,
    /// They are tokens like any other.
    Ignored,
}

/// Whether the logits of sampled steps are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsDigest {
    /// SHA-256 over all rows.
    Computed,
    /// Not.
    Skipped,
}

/// What is the same for every sequence of a generation.
#[derive(Clone, Debug)]
pub struct GenerationOptions {
    /// Sampling.
    pub sampler: SamplerRecord,
    /// Seed of the first sequence; each further one adds 1.
    pub seed: u64,
    /// End tokens.
    pub end_tokens: EndTokens,
    /// Texts that end a sequence; they are not part of the output.
    pub stop_texts: Vec<String>,
    /// Digest of logits.
    pub digest: LogitsDigest,
}

/// One sequence: what goes in, and everything that comes out.
pub struct Sequence {
    slot: u32,
    /// All tokens of the slot so far: the context, for penalties.
    context: Vec<u32>,
    /// Tokens of `context` that are in the caches.
    cached: usize,
    limit: usize,
    generated: usize,
    decoder: StreamDecoder,
    /// Output that was not given to the caller yet: what may still become a stop text.
    text: Vec<u8>,
    /// Bytes given to the caller.
    shown: usize,
    hash: Sha256,
    random: [u8; 32],
    finish: Option<Finish>,
}

impl Sequence {
    /// A sequence for `slot` that can hold `context_max` tokens in all.
    #[must_use]
    pub fn new(slot: u32, context_max: usize) -> Sequence {
        Sequence {
            slot,
            context: Vec::with_capacity(context_max),
            cached: 0,
            limit: 0,
            generated: 0,
            decoder: StreamDecoder::new(ControlTokens::Hidden, LeadingSpace::Kept),
            text: Vec::with_capacity(TEXT_BYTES),
            shown: 0,
            hash: Sha256::new(),
            random: [0; 32],
            finish: None,
        }
    }

    /// Starts a turn: `tokens` follow what the sequence holds already; at most `limit` tokens are
    /// generated.
    ///
    /// # Errors
    /// Class `OverBound` when the context has no room for them.
    pub fn begin(&mut self, tokens: &[u32], limit: usize) -> Result<(), EngineError> {
        let room = self.context.capacity() - self.context.len();
        if tokens.len() + limit > room || tokens.is_empty() {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "{} prompt tokens + {limit} output tokens pass the {room} positions left",
                    tokens.len()
                ),
            ));
        }
        self.context.extend_from_slice(tokens);
        self.limit = limit;
        self.generated = 0;
        self.text.clear();
        self.shown = 0;
        self.decoder = StreamDecoder::new(ControlTokens::Hidden, LeadingSpace::Kept);
        self.hash = Sha256::new();
        self.finish = None;
        Ok(())
    }

    /// Makes room for a context of `context_max` tokens in all.
    pub fn grow(&mut self, context_max: usize) {
        self.context.reserve_exact(context_max.saturating_sub(self.context.len()));
    }

    /// Forgets everything: the next turn starts at position 0.
    pub fn clear(&mut self) {
        self.context.clear();
        self.cached = 0;
    }

    /// Tokens generated in this turn.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        &self.context[self.context.len() - self.generated..]
    }

    /// Tokens of the whole context, and how many of them are in the caches.
    #[must_use]
    pub fn context(&self) -> (&[u32], usize) {
        (&self.context, self.cached)
    }

    /// Bytes of the output that were given to the caller: the whole output without a stop text
    /// once the turn is over.
    #[must_use]
    pub fn shown_bytes(&self) -> usize {
        self.shown
    }

    /// Why the turn ended, when it did.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether the next `chunk` tokens are not the last ones and have no row of the pictures'
    /// embeddings from `row` on.
    #[must_use]
    pub fn is_ready(&self, chunk: usize, row: u32) -> bool {
        let rest = &self.context[self.cached..];
        let is_there = |token: &u32| *token & IMAGE_ROW == 0 || *token ^ IMAGE_ROW < row;
        self.finish.is_none() && rest.len() > chunk && rest[..chunk].iter().all(is_there)
    }

    /// The next `chunk` tokens.
    #[must_use]
    pub fn ahead(&self, chunk: usize) -> Chunk<'_> {
        let tokens = &self.context[self.cached..self.cached + chunk];
        Chunk { slot: self.slot, tokens, position: self.position() }
    }

    /// The next `chunk` tokens are in the caches now.
    pub fn read(&mut self, chunk: usize) {
        self.cached += chunk;
        assert!(self.cached < self.context.len(), "the last chunk gives the logits");
    }

    /// SHA-256 of the logits of the sampled steps.
    #[must_use]
    pub fn logits_sha256(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }

    /// Positions left.
    #[must_use]
    pub fn room(&self) -> usize {
        self.context.capacity() - self.context.len()
    }

    fn position(&self) -> u32 {
        self.cached as u32
    }

    /// Takes a sampled token; decides whether the turn is over.
    fn take(&mut self, token: u32, tokenizer: Option<&Tokenizer<'_>>, options: &GenerationOptions) {
        let ends = tokenizer.is_some_and(|tokenizer| tokenizer.is_end_of_generation(token));
        if ends && options.end_tokens == EndTokens::Obeyed {
            self.finish = Some(Finish::EndToken);
            self.flush();
            return;
        }
        self.context.push(token);
        self.generated += 1;
        if let Some(tokenizer) = tokenizer {
            let text = &mut self.text;
            self.decoder.push(tokenizer, token, &mut |piece| append(text, piece));
        }
        if let Some(at) = first_stop(&self.text, &options.stop_texts) {
            self.text.truncate(at);
            self.finish = Some(Finish::StopText);
        } else if self.generated >= self.limit {
            self.finish = Some(Finish::Length);
            self.flush();
        }
    }

    fn flush(&mut self) {
        let text = &mut self.text;
        self.decoder.finish(&mut |piece| append(text, piece));
    }

    /// Output that can no longer become part of a stop text.
    fn showable(&self, stop_texts: &[String]) -> usize {
        if self.finish.is_some() {
            return self.text.len();
        }
        let held = (1..=self.text.len().min(STOP_BYTES_MAX)).rev().find(|held| {
            let tail = &self.text[self.text.len() - held..];
            stop_texts.iter().any(|stop| stop.len() > *held && stop.as_bytes().starts_with(tail))
        });
        self.text.len() - held.unwrap_or(0)
    }
}

/// Held output: a possible stop text, then one token's text and a character.
const TEXT_BYTES: usize = STOP_BYTES_MAX + dctms_text::limits::TOKEN_LEN_BYTES_MAX + 16;

/// Appends; the buffer has room, since all but a possible stop text was given away.
fn append(text: &mut Vec<u8>, piece: &str) {
    debug_assert!(text.capacity() - text.len() >= piece.len());
    text.extend_from_slice(piece.as_bytes());
}

fn first_stop(text: &[u8], stop_texts: &[String]) -> Option<usize> {
    let stops = stop_texts.iter().filter(|stop| !stop.is_empty());
    stops.filter_map(|stop| text.windows(stop.len()).position(|w| w == stop.as_bytes())).min()
}

/// What the caller says after each piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Stop within this step.
    Stop,
}

/// Times of a generation. The step times have room for every step from the start.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Prompt tokens run.
    pub prompt_tokens: usize,
    /// Seconds of prefill, all sequences.
    pub prefill_s: f64,
    /// Seconds to the first token of the first sequence.
    pub first_token_s: f64,
    /// Tokens sampled in decode steps.
    pub decode_tokens: usize,
    /// Seconds of decoding.
    pub decode_s: f64,
    /// Microseconds of each decode step.
    pub step_us: Vec<u32>,
    /// Seconds of the longest gap between two tokens.
    pub gap_s: f64,
    /// Steps that were taken beside a tile, tiles that were encoded beside steps, and seconds that
    /// everybody waited for the last of these.
    pub beside: BesideCounts,
}

/// What was done beside what.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BesideCounts {
    /// Decode steps beside a tile.
    pub steps: usize,
    /// Seconds of those steps.
    pub steps_s: f64,
    /// Tiles beside decode steps.
    pub tiles: usize,
    /// Seconds between the last token and the end of the tile that was being encoded.
    pub waited_s: f64,
}

impl Timing {
    /// Times with room for `steps` decode steps.
    #[must_use]
    pub fn with_steps(steps: usize) -> Timing {
        Timing { step_us: Vec::with_capacity(steps), ..Timing::default() }
    }

    /// Forgets the times and keeps the room.
    pub fn clear(&mut self) {
        let mut step_us = std::mem::take(&mut self.step_us);
        step_us.clear();
        *self = Timing { step_us, ..Timing::default() };
    }
}

/// Runs every sequence that has begun to its end. `emit` gets each piece of text, with the index
/// of its sequence, and may stop everything.
///
/// # Errors
/// Bounds, or a lane that panicked.
pub fn generate(
    runner: &mut Runner,
    tokenizer: Option<&Tokenizer<'_>>,
    sequences: &mut [Sequence],
    options: &GenerationOptions,
    timing: &mut Timing,
    emit: &mut dyn FnMut(usize, &str) -> Control,
) -> Result<(), EngineError> {
    generate_beside(runner, tokenizer, (sequences, options), timing, emit, &mut Nothing)
}

/// As [`generate`]; where the plan overlaps the two, tiles that arrive are encoded while sequences
/// go on. Gives back the sequences' control when the tile that is being encoded is.
///
/// # Errors
/// As [`generate`].
pub fn generate_beside(
    runner: &mut Runner,
    tokenizer: Option<&Tokenizer<'_>>,
    (sequences, options): (&mut [Sequence], &GenerationOptions),
    timing: &mut Timing,
    emit: &mut dyn FnMut(usize, &str) -> Control,
    arriving: &mut dyn Arriving,
) -> Result<(), EngineError> {
    let start = Instant::now();
    let mut decoding = Decoding {
        tokenizer,
        sequences,
        options,
        timing,
        emit,
        active: Active::default(),
        last: start,
    };
    for index in 0..decoding.sequences.len() {
        let sequence = &mut decoding.sequences[index];
        if sequence.finish.is_some() || sequence.cached == sequence.context.len() {
            continue;
        }
        sequence.random = dctms_exec::sample::random_state(options.seed.wrapping_add(index as u64));
        let (slot, position) = (sequence.slot, sequence.position());
        let prompt = &sequence.context[sequence.cached..];
        let emit = &mut *decoding.emit;
        let prefilled = runner
            .prefill(slot, prompt, position, &mut |_| emit(index, "") == Control::Continue)?;
        if let Prefilled::Stopped { done } = prefilled {
            // Whoever goes on runs the rest.
            sequence.cached += done;
            sequence.finish = Some(Finish::Cancelled);
            break;
        }
        decoding.timing.prompt_tokens += prompt.len();
        sequence.cached = sequence.context.len();
        decoding.pick(&mut runner.steps()?, &[index])?;
        if decoding.timing.first_token_s == 0.0 {
            decoding.timing.first_token_s = start.elapsed().as_secs_f64();
        }
        if decoding.show(index) == Control::Stop {
            break;
        }
    }
    decoding.timing.prefill_s += start.elapsed().as_secs_f64();
    let start = Instant::now();
    decoding.last = start;
    decoding.run(runner, arriving)?;
    decoding.timing.decode_s += (decoding.last - start).as_secs_f64();
    for sequence in sequences.iter_mut().filter(|sequence| sequence.finish.is_none()) {
        sequence.finish = Some(Finish::Cancelled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(stop_texts: &[&str]) -> GenerationOptions {
        GenerationOptions {
            sampler: SamplerRecord::GREEDY,
            seed: 0,
            end_tokens: EndTokens::Obeyed,
            stop_texts: stop_texts.iter().map(ToString::to_string).collect(),
            digest: LogitsDigest::Skipped,
        }
    }

    #[test]
    fn text_that_may_become_a_stop_is_held_back() {
        let mut sequence = Sequence::new(0, 16);
        let stops = options(&["END", "\n\n"]).stop_texts;
        sequence.text.extend_from_slice(b"so it E");
        assert_eq!(sequence.showable(&stops), 6);
        sequence.text.extend_from_slice(b"N");
        assert_eq!(sequence.showable(&stops), 6);
        sequence.text.extend_from_slice(b"x");
        assert_eq!(sequence.showable(&stops), 9);
        assert_eq!(first_stop(b"a END b", &stops), Some(2));
        assert_eq!(first_stop(b"a EN", &stops), None);
    }

    #[test]
    fn a_turn_that_does_not_fit_is_refused_before_anything_changes() {
        let mut sequence = Sequence::new(0, 8);
        let error = sequence.begin(&[1, 2, 3, 4, 5], 4).expect_err("9 of 8 positions");
        assert_eq!(error.class, Class::OverBound);
        assert_eq!(sequence.context().0.len(), 0);
        sequence.begin(&[1, 2, 3, 4, 5], 3).expect("8 of 8 positions");
    }
}
