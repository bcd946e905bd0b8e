//! A model with eyes through the runner: the same logits whether both weight sets stay or each is
//! loaded when its turn comes, over several pictures and answers; and files that fail.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use dctms_engine::pictures::{encode, place};
use dctms_engine::planning::{PlanSettings, plan, resolve_bounds};
use dctms_engine::runner::{IMAGE_ROW, Step};
use dctms_engine::session::{library_settings, load};
use dctms_engine::{Class, Eyes, ImageLimits, Model, Runner, VisionMode};
use sha2::{Digest, Sha256};

const NAMES: [&str; 2] = ["vision-idefics3", "vision-lfm2"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn start(name: &str, mode: VisionMode) -> Runner {
    start_with(name, &fixture(&format!("{name}-mmproj-f16.gguf")), mode)
}

fn start_with(name: &str, eyes: &Path, mode: VisionMode) -> Runner {
    let text = Model::open(&fixture(&format!("{name}-text-f16.gguf"))).expect("a model");
    let eyes = Eyes::open(eyes).expect("a vision file");
    let model = text.with_eyes(eyes);
    let library = library_settings(1 << 20).expect("a machine");
    let settings = PlanSettings {
        max_input_tokens: Some(512),
        max_output_tokens: Some(8),
        prefill_chunk: 32,
        mode,
        ..library
    };
    let bounds = resolve_bounds(&model, &settings, None).expect("bounds");
    let planned = plan(&model, &settings, &bounds).expect("a plan");
    load(&model, &planned).expect("loaded")
}

/// A tile of some colour, a prompt that holds it, one more token.
fn turn(runner: &mut Runner, name: &str, (colour, position): (u8, u32), hash: &mut Sha256) -> u32 {
    let eyes = Eyes::open(&fixture(&format!("{name}-mmproj-f16.gguf"))).expect("a vision file");
    let config = &eyes.config;
    let side = (config.image_size / config.patch) as u32;
    let merge = config.merge as u32;
    let side = side / merge * merge;
    let tokens = side * side / (merge * merge);
    let bytes = (side * side) as usize * (config.patch * config.patch * 3) as usize;
    let tile = (bytes, [side, side], tokens);
    runner.encode_tile(tile, 0, |pixels| pixels.fill(colour)).expect("encoded");
    let rows = (0..tokens).map(|row| row | IMAGE_ROW);
    let prompt: Vec<u32> = [1, 2].into_iter().chain(rows).chain([3]).collect();
    runner.prefill(0, &prompt, position, &mut |_| true).expect("read");
    runner.hash_logits(0, hash);
    let position = position + prompt.len() as u32;
    runner.decode(&[Step { slot: 0, token: 5, position }]).expect("decoded");
    runner.hash_logits(0, hash);
    position + 1
}

#[test]
fn one_answer_in_both_modes() {
    for name in NAMES {
        let digest = |mode: VisionMode| {
            let mut runner = start(name, mode);
            let mut hash = Sha256::new();
            let position = turn(&mut runner, name, (30, 0), &mut hash);
            turn(&mut runner, name, (200, position), &mut hash);
            (hash.finalize().to_vec(), runner.reloads())
        };
        let (serial, none) = digest(VisionMode::Serial);
        let (resident, reloads) = digest(VisionMode::PhaseResident);
        assert_eq!(serial, resident, "{name}");
        assert_eq!(none, None, "{name}");
        let reloads = reloads.expect("weights that come and go");
        // Encoder, decoder, encoder, decoder.
        assert_eq!(reloads.count, 4, "{name}");
        assert!(reloads.bytes > 0 && reloads.seconds > 0.0, "{name}");
    }
}

/// A text alone asks for one set, once.
#[test]
fn text_alone_loads_the_decoder_once() {
    let mut runner = start(NAMES[0], VisionMode::PhaseResident);
    assert_eq!(runner.reloads().expect("turns").count, 0);
    for position in [0, 4] {
        runner.prefill(0, &[1, 2, 3, 4], position, &mut |_| true).expect("read");
    }
    assert_eq!(runner.reloads().expect("turns").count, 1);
}

/// A vision file that is cut off while it is open: the turn fails, as often as it is tried; what
/// is asked of the text alone is answered, its own weights being loaded again; and once the file is
/// whole the same turn gives the same answer.
#[test]
fn a_turn_that_fails_is_taken_again() {
    let name = NAMES[0];
    let whole = std::fs::read(fixture(&format!("{name}-mmproj-f16.gguf"))).expect("bytes");
    let path = std::env::temp_dir().join(format!("dctms-turns-{}.gguf", std::process::id()));
    std::fs::write(&path, &whole).expect("written");
    let mut runner = start_with(name, &path, VisionMode::PhaseResident);
    let mut hash = Sha256::new();
    let position = turn(&mut runner, name, (30, 0), &mut hash);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(whole.len() as u64 / 2).expect("cut");
    let ask = |runner: &mut Runner, hash: &mut Sha256| {
        runner.prefill(0, &[1, 2], position, &mut |_| true).expect("a question without pictures");
        runner.hash_logits(0, hash);
    };
    for _ in 0..2 {
        for _ in 0..2 {
            let failed = runner.encode_tile((3, [1, 1], 1), 0, |_| {});
            assert_eq!(failed.expect_err("the file is cut").class, Class::File);
        }
        ask(&mut runner, &mut hash);
    }
    let failed = runner.encode_tile((3, [1, 1], 1), 0, |_| {});
    assert_eq!(failed.expect_err("the file is cut").class, Class::File);
    std::fs::write(&path, &whole).expect("written again");
    turn(&mut runner, name, (200, position), &mut hash);
    let _ = std::fs::remove_file(&path);
    let mut other = start(name, VisionMode::Serial);
    let mut expected = Sha256::new();
    let position = turn(&mut other, name, (30, 0), &mut expected);
    (0..2).for_each(|_| ask(&mut other, &mut expected));
    turn(&mut other, name, (200, position), &mut expected);
    assert_eq!(hash.finalize(), expected.finalize());
}

/// Tasks that may still begin, counted down; stop at 0.
static LEFT: AtomicU32 = AtomicU32::new(NEVER);

/// More tasks than any tile here has.
const NEVER: u32 = 1 << 30;

fn stop_when_none_is_left() -> bool {
    let down = |left: u32| Some(left.saturating_sub(1));
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down) == Ok(0)
}

/// A tile that is stopped says so; a question without pictures or the same one may follow.
#[test]
fn a_tile_can_be_stopped() {
    for (name, mode) in [
        (NAMES[0], VisionMode::Serial),
        (NAMES[1], VisionMode::PhaseResident),
        (NAMES[0], VisionMode::Overlapped),
    ] {
        let mut runner = start(name, mode);
        runner.interrupt_by(stop_when_none_is_left);
        LEFT.store(NEVER, Ordering::Relaxed);
        let mut expected = Sha256::new();
        turn(&mut runner, name, (30, 0), &mut expected);
        let config = Eyes::open(&fixture(&format!("{name}-mmproj-f16.gguf"))).expect("eyes").config;
        let side = (config.image_size / config.patch / config.merge * config.merge) as u32;
        let tokens = side * side / (config.merge * config.merge) as u32;
        let bytes = (side * side) as usize * (config.patch * config.patch * 3) as usize;
        for tasks in [0, 1, 7, 20, 31] {
            LEFT.store(tasks, Ordering::Relaxed);
            let stopped = runner.encode_tile((bytes, [side, side], tokens), 0, |p| p.fill(99));
            assert_eq!(stopped.expect_err("stopped").class, Class::System, "{mode:?}");
            LEFT.store(NEVER, Ordering::Relaxed);
            if tasks % 2 == 1 {
                runner.prefill(0, &[1, 2, 3], 0, &mut |_| true).expect("a question without one");
            }
            let mut hash = Sha256::new();
            turn(&mut runner, name, (30, 0), &mut hash);
            assert_eq!(hash.finalize(), expected.clone().finalize(), "{mode:?}, {tasks} tasks");
        }
    }
}

/// A picture over the bound is refused with what would fit, or made smaller; what is larger than
/// anything that is decoded is refused in any case.
#[test]
fn larger_pictures_are_refused_or_made_smaller() {
    let name = NAMES[0];
    let tiler = Eyes::open(&fixture(&format!("{name}-mmproj-f16.gguf"))).expect("eyes").tiler();
    let path = fixture("../../demo/vision/pictures/te_canon_056.png");
    let limits = ImageLimits::new(1, (120, 60));
    let error = place(&path, &limits, &tiler, 0).expect_err("224x224 pixels");
    assert_eq!(error.class, Class::OverBound);
    assert!(error.message.contains("84x84 of it would fit: --oversize resize"), "{error}");
    let small = limits.resizing(Some((224, 200)));
    let error = place(&path, &small, &tiler, 0).expect_err("more than is decoded");
    assert!(error.message.contains("--max-source-size"), "{error}");
    for limits in [limits.resizing(None), limits.resizing(Some((224, 224)))] {
        let decoded = limits.bounds().pixels_max;
        let placed = place(&path, &limits, &tiler, 0);
        if decoded < 224 * 224 {
            assert_eq!(placed.expect_err("over twice each edge").class, Class::OverBound);
            continue;
        }
        let placed = placed.expect("made smaller");
        assert_eq!((placed.size.width, placed.size.height), (84, 84));
        let mut runner = start(name, VisionMode::Serial);
        let times = encode(&path, &limits, (&tiler, &placed), &mut runner).expect("seen");
        assert_eq!(times.tiles, placed.layout.count());
    }
    assert!(limits.heap_bytes() < limits.resizing(None).heap_bytes());
    let same = ImageLimits::new(1, (224, 224));
    let placed = place(&path, &same, &tiler, 0).expect("within");
    assert_eq!(same.resizing(None).seen(placed.size), placed.size);
}
