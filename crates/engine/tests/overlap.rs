//! Tiles beside chunks of prompts: the same logits, bit for bit, as one after the other, whatever
//! stands before, between and behind the pictures.

use std::path::{Path, PathBuf};

use dctms_engine::generation::Sequence;
use dctms_engine::planning::{PlanSettings, plan, resolve_bounds};
use dctms_engine::runner::{IMAGE_ROW, Step};
use dctms_engine::session::{library_settings, load};
use dctms_engine::{Class, Eyes, ImageLimits, Model, Runner, VisionMode};
use sha2::{Digest, Sha256};

const NAMES: [&str; 2] = ["vision-idefics3", "vision-lfm2"];
const CHUNK: usize = 16;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn eyes(name: &str) -> Eyes {
    Eyes::open(&fixture(&format!("{name}-mmproj-f16.gguf"))).expect("a vision file")
}

fn start(name: &str, mode: VisionMode) -> Runner {
    let text = Model::open(&fixture(&format!("{name}-text-f16.gguf"))).expect("a model");
    let model = text.with_eyes(eyes(name));
    let library = library_settings(1 << 20).expect("a machine");
    let settings = PlanSettings {
        max_input_tokens: Some(512),
        max_output_tokens: Some(8),
        prefill_chunk: CHUNK as u64,
        images: ImageLimits { count: 4, ..library.images },
        mode,
        ..library
    };
    let bounds = resolve_bounds(&model, &settings, None).expect("bounds");
    let planned = plan(&model, &settings, &bounds).expect("a plan");
    load(&model, &planned).expect("loaded")
}

/// A whole square tile: bytes, grid, tokens.
fn tile(name: &str) -> (usize, [u32; 2], u32) {
    let config = &eyes(name).config;
    let merge = config.merge as u32;
    let side = (config.image_size / config.patch) as u32 / merge * merge;
    let bytes = (side * side) as usize * (config.patch * config.patch * 3) as usize;
    (bytes, [side, side], (side / merge).pow(2))
}

/// Text of so many tokens before each tile; the last of the lengths is behind them all.
fn prompt(texts: &[usize], tokens: u32) -> Vec<u32> {
    let mut prompt: Vec<u32> = Vec::new();
    let (last, before) = texts.split_last().expect("a length");
    for (tile, text) in before.iter().enumerate() {
        prompt.extend((0..*text as u32).map(|index| (index * 7 + tile as u32) % 50));
        let first = tile as u32 * tokens;
        prompt.extend((first..first + tokens).map(|row| row | IMAGE_ROW));
    }
    prompt.extend((0..*last as u32).map(|index| index % 40));
    prompt
}

/// The digest of all logits of a prompt and one more token, and how many chunks ran beside tiles.
fn answer(name: &str, runner: &mut Runner, texts: &[usize]) -> ([u8; 32], usize) {
    let tile = tile(name);
    let tokens = prompt(texts, tile.2);
    let mut sequence = Sequence::new(0, 520);
    sequence.begin(&tokens, 4).expect("room");
    let mut beside = 0;
    for index in 0..texts.len() as u32 - 1 {
        let row = index * tile.2;
        let write = |pixels: &mut [u8]| {
            let colour = |at: usize| (at as u32 * 31 + index * 57) as u8;
            pixels.iter_mut().enumerate().for_each(|(at, byte)| *byte = colour(at));
        };
        if runner.overlaps() && sequence.is_ready(CHUNK, row) {
            runner.encode_tile_beside(tile, row, write, sequence.ahead(CHUNK)).expect("both");
            sequence.read(CHUNK);
            beside += 1;
        } else {
            runner.encode_tile(tile, row, write).expect("encoded");
        }
    }
    let (context, cached) = sequence.context();
    runner.prefill(0, &context[cached..], cached as u32, &mut |_| true).expect("read");
    let mut hash = Sha256::new();
    runner.hash_logits(0, &mut hash);
    runner.decode(&[Step { slot: 0, token: 5, position: tokens.len() as u32 }]).expect("a step");
    runner.hash_logits(0, &mut hash);
    (hash.finalize().into(), beside)
}

#[test]
fn one_answer_beside_or_after() {
    for name in NAMES {
        let mut regions = 0;
        let mut runners = VisionMode::ALL.map(|mode| start(name, mode));
        for texts in [&[40, 3, 3][..], &[0, 20, 0, 17], &[2, 2, 2, 2, 5], &[64, 64, 1], &[1, 1]] {
            let answers = runners.each_mut().map(|runner| answer(name, runner, texts));
            for (mode, (digest, beside)) in VisionMode::ALL.into_iter().zip(answers) {
                assert_eq!(digest, answers[0].0, "{name} {texts:?} {mode:?}: {beside} beside");
                assert!(beside == 0 || mode == VisionMode::Overlapped);
                regions += beside;
            }
        }
        assert!(regions > 3, "{name}: {regions} chunks beside tiles");
    }
}

#[test]
fn what_is_not_ready_waits() {
    let mut sequence = Sequence::new(0, 100);
    let row = |row: u32| row | IMAGE_ROW;
    sequence.begin(&[1, 2, 3, row(0), row(1), 4, row(2), 5], 1).expect("room");
    assert!(sequence.is_ready(3, 0));
    assert!(!sequence.is_ready(4, 0) && sequence.is_ready(4, 1));
    assert!(!sequence.is_ready(5, 1) && sequence.is_ready(6, 2));
    // The last chunk is for whoever wants the logits.
    assert!(!sequence.is_ready(8, 3));
    sequence.read(5);
    assert!(!sequence.is_ready(2, 2) && sequence.is_ready(2, 3) && !sequence.is_ready(3, 3));
}

#[test]
fn a_plan_without_the_region_refuses_it() {
    let mut runner = start(NAMES[0], VisionMode::Serial);
    assert!(!runner.overlaps());
    let mut sequence = Sequence::new(0, 100);
    sequence.begin(&[1; 40], 1).expect("room");
    let ran = runner.encode_tile_beside(tile(NAMES[0]), 0, |_| {}, sequence.ahead(CHUNK));
    assert_eq!(ran.expect_err("no region").class, Class::Usage);
}
