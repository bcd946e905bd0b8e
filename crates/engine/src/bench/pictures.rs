//! A prompt with a picture, read in two ways that take turns: tiles and chunks one after the
//! other, and tiles beside chunks.
//!
//! Both ways run under one plan (mode overlapped has the plain steps too), so nothing differs but
//! which step runs when; the repetitions alternate, so what else the machine does falls on both.
//! Tiles are seeded bytes: nothing is decoded. The logits of the last token are the answer, which
//! must be the same every time.

use std::time::Instant;

use dctms_ir::plan::{Bounds, Plan};
use dctms_models::{VisionConfig, phases};
use dctms_planner::Balance;
use dctms_planner::predict::{Scene, Step, step_ps};
use sha2::{Digest, Sha256};

use super::fill_tokens;
use crate::error::{Class, EngineError};
use crate::eyes::Eyes;
use crate::generation::{Control, Sequence};
use crate::planning::patches_max;
use crate::runner::{IMAGE_ROW, Runner};

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSettings {
    /// Tokens of text before the picture.
    pub text_tokens: usize,
    /// Tiles of the picture.
    pub tiles: usize,
    /// Repetitions of each way.
    pub repetitions: usize,
}

/// Tokens of text behind the picture: a short question.
pub const QUESTION_TOKENS: usize = 16;

/// A tile of the largest size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Bytes of its pixels.
    pub bytes: usize,
    /// Rows and columns of patches.
    pub grid: [u32; 2],
    /// Tokens that it becomes.
    pub tokens: u32,
}

impl Tile {
    /// The largest square one of an encoder.
    #[must_use]
    pub fn largest(eyes: &Eyes) -> Tile {
        Tile::square(&eyes.config, eyes.config.patches_max())
    }

    /// The largest square one that bounds allow.
    #[must_use]
    pub fn largest_within(eyes: &Eyes, bounds: &Bounds) -> Tile {
        Tile::square(&eyes.config, patches_max(&eyes.config, bounds))
    }

    fn square(config: &VisionConfig, patches_max: u64) -> Tile {
        let side = patches_max.isqrt() / config.merge * config.merge;
        let bytes = (side * config.patch).pow(2) * 3;
        let tokens = (side / config.merge).pow(2) as u32;
        Tile { bytes: bytes as usize, grid: [side as u32; 2], tokens }
    }
}

impl PictureSettings {
    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self, tile: &Tile) -> usize {
        self.text_tokens + self.tiles * tile.tokens as usize + QUESTION_TOKENS
    }

    /// Heap that a benchmark takes beside any run's, bytes.
    #[must_use]
    pub fn heap_bytes(&self, tile: &Tile) -> u64 {
        let tokens = 4 * self.prompt_tokens(tile) * size_of::<u32>();
        (tokens + 8 * self.repetitions * size_of::<f64>() + (64 << 10)) as u64
    }
}

/// Times, in order of measurement: the same repetition of both ways stands at one index.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureSamples {
    /// Seconds of the request, one step after the other.
    pub serial_s: Vec<f64>,
    /// Seconds of the request, tiles beside chunks.
    pub overlapped_s: Vec<f64>,
    /// Seconds of the tiles of the first way.
    pub tiles_s: Vec<f64>,
    /// Chunks that ran beside tiles.
    pub chunks_beside: usize,
    /// SHA-256 of the last token's logits.
    pub answer: [u8; 32],
}

/// How the steps of a request follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One after the other.
    Serial,
    /// Tiles beside chunks where a chunk is ready.
    Overlapped,
}

/// Runs every repetition of both ways, after one of each that is not measured.
///
/// # Errors
/// Bounds, a plan without the region, or answers that differ (class `System`).
pub fn measure(
    runner: &mut Runner,
    settings: &PictureSettings,
    tile: &Tile,
    between: &mut dyn FnMut() -> Control,
) -> Result<PictureSamples, EngineError> {
    let mut tokens = Vec::with_capacity(settings.prompt_tokens(tile));
    prompt(&mut tokens, settings, tile, runner.vocabulary() as u32);
    let each = || Vec::with_capacity(settings.repetitions);
    let mut samples = PictureSamples {
        serial_s: each(),
        overlapped_s: each(),
        tiles_s: each(),
        chunks_beside: 0,
        answer: [0; 32],
    };
    for repetition in 0..=settings.repetitions {
        // Who begins alternates too.
        let ways = match repetition % 2 {
            0 => [Way::Serial, Way::Overlapped],
            _ => [Way::Overlapped, Way::Serial],
        };
        for (index, way) in ways.into_iter().enumerate() {
            let ran = request(runner, settings, tile, (&tokens, way))?;
            if (repetition, index) != (0, 0) && ran.answer != samples.answer {
                let what = format!("repetition {repetition} gave other logits ({way:?})");
                return Err(EngineError::new(Class::System, what));
            }
            samples.answer = ran.answer;
            match way {
                _ if repetition == 0 => {}
                Way::Serial => {
                    samples.serial_s.push(ran.seconds);
                    samples.tiles_s.push(ran.tiles_s);
                }
                Way::Overlapped => samples.overlapped_s.push(ran.seconds),
            }
            samples.chunks_beside = samples.chunks_beside.max(ran.chunks_beside);
        }
        if between() == Control::Stop && repetition > 0 {
            break;
        }
    }
    Ok(samples)
}

/// Text, the rows of the tiles, the question.
fn prompt(tokens: &mut Vec<u32>, settings: &PictureSettings, tile: &Tile, vocabulary: u32) {
    fill_tokens(tokens, settings.text_tokens + QUESTION_TOKENS, vocabulary);
    let rows = (0..settings.tiles as u32 * tile.tokens).map(|row| row | IMAGE_ROW);
    let question = tokens.split_off(settings.text_tokens);
    tokens.extend(rows.chain(question));
}

struct Ran {
    seconds: f64,
    tiles_s: f64,
    chunks_beside: usize,
    answer: [u8; 32],
}

fn request(
    runner: &mut Runner,
    settings: &PictureSettings,
    tile: &Tile,
    (tokens, way): (&[u32], Way),
) -> Result<Ran, EngineError> {
    let chunk = runner.bounds().prefill_chunk as usize;
    let mut sequence = Sequence::new(0, tokens.len() + 1);
    sequence.begin(tokens, 1)?;
    let mut chunks_beside = 0;
    let start = Instant::now();
    for index in 0..settings.tiles as u32 {
        let row = index * tile.tokens;
        let parts = (tile.bytes, tile.grid, tile.tokens);
        let write = |pixels: &mut [u8]| {
            let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761 + index) >> 24;
            pixels.iter_mut().enumerate().for_each(|(at, pixel)| *pixel = byte(at) as u8);
        };
        if way == Way::Overlapped && sequence.is_ready(chunk, row) {
            runner.encode_tile_beside(parts, row, write, sequence.ahead(chunk))?;
            sequence.read(chunk);
            chunks_beside += 1;
        } else {
            runner.encode_tile(parts, row, write)?;
        }
    }
    let tiles_s = start.elapsed().as_secs_f64();
    let (context, cached) = sequence.context();
    runner.prefill(0, &context[cached..], cached as u32, &mut |_| true)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut hash = Sha256::new();
    runner.hash_logits(0, &mut hash);
    Ok(Ran { seconds, tiles_s, chunks_beside, answer: hash.finalize().into() })
}

/// Seconds that a plan expects of the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// One step after the other.
    pub serial_s: f64,
    /// Tiles beside chunks; as the first where the plan has no region.
    pub overlapped_s: f64,
    /// The tiles of the first way.
    pub tiles_s: f64,
}

/// The largest request that bounds allow: as many tiles of the largest size as its pictures may
/// have, text before them for the rest of the input.
#[must_use]
pub fn largest(bounds: &Bounds, tile: &Tile) -> PictureSettings {
    let (tokens, input) = (tile.tokens as usize, bounds.max_input_tokens as usize);
    let room = input.saturating_sub(QUESTION_TOKENS);
    let tiles = (bounds.max_image_tokens as usize).min(room) / tokens;
    PictureSettings { text_tokens: room - tiles * tokens, tiles, repetitions: 0 }
}

/// What a machine of these rates takes for the request: the same decisions as when it is run.
///
/// # Errors
/// An operation that breaks its contract.
///
/// # Panics
/// For a plan of several models, or without eyes.
pub fn expected(
    plan: &Plan,
    balance: &Balance,
    settings: &PictureSettings,
    tile: &Tile,
) -> Result<Expected, EngineError> {
    let scene = |name: &str| {
        let phase = plan.program.phase_named(name);
        Scene::of(plan, phase.expect("a phase of a decoder with eyes"))
    };
    let chunk = plan.bounds.prefill_chunk as usize;
    let prompt = settings.prompt_tokens(tile);
    let step = |scene: &Scene<'_>, from: usize| {
        let tokens = chunk.min(prompt - from) as u64;
        step_ps(scene, balance, Step { tokens, depth: from as u64 })
    };
    let tile_ps = step_ps(&scene(phases::VISION), balance, Step { tokens: 1, depth: 0 })?;
    let chunks = |from: usize| -> Result<f64, EngineError> {
        let prefill = scene(phases::PREFILL);
        let mut sum = 0.0;
        for from in (from..prompt).step_by(chunk) {
            sum += step(&prefill, from)?;
        }
        Ok(sum)
    };
    let region = plan.program.phase_named(phases::VISION_AND_PREFILL);
    let region = region.map(|phase| Scene::of(plan, phase));
    let (mut overlapped_ps, mut from) = (0.0, 0);
    for index in 0..settings.tiles {
        let there = settings.text_tokens + index * tile.tokens as usize;
        match region.as_ref().filter(|_| from + chunk <= there) {
            Some(region) => {
                overlapped_ps += step(region, from)?;
                from += chunk;
            }
            None => overlapped_ps += tile_ps,
        }
    }
    let tiles_ps = tile_ps * settings.tiles as f64;
    Ok(Expected {
        serial_s: (tiles_ps + chunks(0)?) / 1e12,
        overlapped_s: (overlapped_ps + chunks(from)?) / 1e12,
        tiles_s: tiles_ps / 1e12,
    })
}
