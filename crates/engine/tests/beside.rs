//! A tile encoded while a sequence goes on: the same bits as one after the other, and everything
//! that may go wrong in between.

#[path = "common/vision.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod vision;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use dctms_exec::{Beside, ExecError, HostTensor, LongRun};
use dctms_ir::ids::{DimId, PhaseId};
use dctms_kernels::isa::Isa;
use dctms_models::{VisionMode, names, phases};
use dctms_planner::Activations;
use vision::{VisionRun, VisionSetup};

const NAMES: [&str; 2] = ["vision-idefics3", "vision-lfm2"];

/// A pair of files, and a tile of theirs.
struct Case {
    text: PathBuf,
    eyes: PathBuf,
    rgb: Vec<u8>,
    grid: [u32; 2],
    tokens: u32,
}

impl Case {
    fn open(name: &str) -> Case {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let file = |ending: &str| folder.join(format!("{name}{ending}"));
        let text = std::fs::read(file(".json")).expect("a reference");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
        let eyes = file("-mmproj-f16.gguf");
        let merge = dctms_engine::Eyes::open(&eyes).expect("a vision file").config.merge as u32;
        let grid = [0, 1].map(|axis| number(&json["grid"][axis]));
        Case {
            text: file("-text-f16.gguf"),
            eyes,
            rgb: std::fs::read(file(".rgb")).expect("pixels"),
            tokens: grid[0] * grid[1] / (merge * merge),
            grid,
        }
    }

    fn start(&self, lanes: u32, mode: VisionMode) -> VisionRun {
        let setup = VisionSetup {
            isa: Isa::detect_best(),
            lanes,
            activations: Activations::Quantised,
            context: (400, 40),
            chunk: 24,
            image_tokens: 300,
            mode,
        };
        VisionRun::start(&self.text, &self.eyes, &setup, &[])
    }

    /// A prompt that shows the tile, whose rows begin at `first_row`, and for each token its row.
    fn prompt(&self, first_row: u32) -> (Vec<u32>, Vec<u32>) {
        let rows = (0..self.tokens).map(|row| first_row + row + 1);
        let tokens = [3, 5].into_iter().chain((0..self.tokens).map(|_| 0)).chain([7]);
        (tokens.collect(), [0, 0].into_iter().chain(rows).chain([0]).collect())
    }
}

/// What the host needs to know of a plan to decode beside a tile.
struct Names {
    long: PhaseId,
    decode: PhaseId,
    prefill: PhaseId,
    dims: [DimId; 4],
    io: [HostTensor; 4],
    pixels: HostTensor,
    grid: HostTensor,
    first_row: HostTensor,
    vocabulary: usize,
    position: u32,
}

impl Names {
    fn of(run: &VisionRun) -> Names {
        let phase = |name: &str| run.plan.program.phase_named(name).expect("a phase");
        let dim = |name: &str| run.plan.program.dim_named(name).expect("a dim");
        Names {
            long: phase(phases::VISION_BESIDE),
            decode: phase(phases::DECODE_BESIDE),
            prefill: phase(phases::PREFILL),
            dims: ["sequences", "rows", "segments", "segments.window"].map(dim),
            io: [names::TOKENS, names::POSITIONS, names::SLOTS, names::LOGITS]
                .map(|name| run.host(name)),
            pixels: run.host(names::PIXELS),
            grid: run.host(names::GRID),
            first_row: run.host(names::FIRST_ROW),
            vocabulary: run.vocabulary,
            position: run.positions,
        }
    }

    /// One token more, and the bits of the logits that follow.
    fn step(&mut self, beside: &mut Beside<'_>, token: u32) -> Result<Vec<u32>, ExecError> {
        let [tokens, positions, slots, logits] = self.io;
        for (tensor, value) in [(tokens, token), (positions, self.position), (slots, 0)] {
            beside.integers_mut(tensor)[0] = value;
        }
        let segments = u64::from(self.position / 256 + 1);
        for (dim, value) in self.dims.into_iter().zip([1, 1, segments, segments]) {
            beside.set_dim(dim, value)?;
        }
        beside.run(self.decode)?;
        self.position += 1;
        Ok(bits(&beside.floats(logits)[..self.vocabulary]))
    }
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().copied().map(f32::to_bits).collect()
}

const FIRST: [u32; 5] = [2, 9, 4, 8, 6];
const SAID: [u32; 6] = [11, 12, 13, 14, 15, 16];

/// Encodes the case's tile at `first_row`, `SAID` being decoded beside it.
fn encode_beside(
    run: &mut VisionRun,
    case: &Case,
    first_row: u32,
    stop: &(dyn Fn() -> bool + Sync),
) -> (LongRun<()>, Vec<Vec<u32>>) {
    let mut names = Names::of(run);
    let values =
        [(names::PATCHES, case.grid[0] * case.grid[1]), (names::IMAGE_TOKENS, case.tokens)];
    for (name, value) in values {
        if let Some(dim) = run.plan.program.dim_named(name) {
            run.session.set_dim(dim, u64::from(value)).expect("within the bounds");
        }
    }
    let (pixels, grid, row) = (names.pixels, names.grid, names.first_row);
    let done = run.session.run_beside(
        (names.long, stop),
        |preparing| {
            preparing.bytes_mut(pixels)[..case.rgb.len()].copy_from_slice(&case.rgb);
            preparing.integers_mut(grid).copy_from_slice(&case.grid);
            preparing.integers_mut(row)[0] = first_row;
            Ok(())
        },
        |beside| SAID.map(|token| names.step(beside, token).expect("decoded")),
    );
    let (long, logits) = done.expect("ran");
    run.positions = names.position;
    (long, logits.to_vec())
}

fn never() -> bool {
    false
}

/// What a tile encoded between two answers, and what was answered, would be.
fn one_after_the_other(case: &Case) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut run = case.start(2, VisionMode::Serial);
    run.prefill(&FIRST, &[0; 5]);
    let said = SAID.map(|token| bits(&run.decode(token)));
    run.encode(&case.rgb, case.grid, 3);
    let (tokens, rows) = case.prompt(3);
    (said.to_vec(), bits(&run.prefill(&tokens, &rows)))
}

#[test]
fn one_answer_beside_and_one_after_the_other() {
    for name in NAMES {
        let case = Case::open(name);
        let expected = one_after_the_other(&case);
        for lanes in [2, 3, 5] {
            let mut run = case.start(lanes, VisionMode::Overlapped);
            run.prefill(&FIRST, &[0; 5]);
            let (long, said) = encode_beside(&mut run, &case, 3, &never);
            assert_eq!(long, LongRun::Whole, "{name} {lanes}");
            let (tokens, rows) = case.prompt(3);
            let seen = bits(&run.prefill(&tokens, &rows));
            assert!((said, seen) == expected, "{name}, {lanes} lanes: other bits");
        }
        // One lane is everybody's; the plan is one all the same.
        let mut run = case.start(1, VisionMode::Overlapped);
        run.encode(&case.rgb, case.grid, 3);
    }
}

#[test]
fn what_follows_an_interrupted_tile_is_as_if_it_had_not_been() {
    let case = Case::open(NAMES[0]);
    let expected = one_after_the_other(&case);
    for tasks in [0, 1, 7, 20] {
        let left = AtomicU32::new(tasks);
        let down = |left: u32| Some(left.saturating_sub(1));
        let stop = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down) == Ok(0);
        let mut run = case.start(3, VisionMode::Overlapped);
        run.prefill(&FIRST, &[0; 5]);
        let (long, said) = encode_beside(&mut run, &case, 3, &stop);
        assert_eq!(long, LongRun::Interrupted, "{tasks} tasks");
        run.encode(&case.rgb, case.grid, 3);
        let (tokens, rows) = case.prompt(3);
        assert!((said, bits(&run.prefill(&tokens, &rows))) == expected, "{tasks} tasks");
    }
}

#[test]
fn a_tile_that_cannot_be_prepared_is_not_encoded() {
    let case = Case::open(NAMES[0]);
    let mut run = case.start(2, VisionMode::Overlapped);
    run.prefill(&FIRST, &[0; 5]);
    run.encode(&case.rgb, case.grid, 3);
    let images = run.host(names::IMAGES);
    let before = bits(run.session.floats(images));
    let mut names = Names::of(&run);
    let (long, said) = run
        .session
        .run_beside(
            (names.long, &never),
            |_| Err("a damaged file"),
            |beside| names.step(beside, SAID[0]),
        )
        .expect("ran");
    assert_eq!(long, LongRun::Unprepared("a damaged file"));
    assert!(said.is_ok());
    assert!(before == bits(run.session.floats(images)), "no task ran");
}

#[test]
fn only_what_the_flow_pairs_runs_beside() {
    let case = Case::open(NAMES[0]);
    let mut run = case.start(2, VisionMode::Overlapped);
    let names = Names::of(&run);
    run.prefill(&FIRST, &[0; 5]);
    run.encode(&case.rgb, case.grid, 3);
    let nothing = |_: &mut dctms_exec::Preparing| Ok::<(), ()>(());
    let refused = |error: ExecError, words: &str| {
        assert!(error.to_string().contains(words), "{error}");
    };
    for phase in [names.prefill, names.long] {
        let ran = run.session.run_beside((names.long, &never), nothing, |beside| beside.run(phase));
        refused(ran.expect("ran").1.expect_err("not paired"), "may not run beside vision.beside");
    }
    let phase = |name: &str| run.plan.program.phase_named(name).expect("a phase");
    let (vision, load) = (phase(phases::VISION), phase(phases::LOAD));
    let ran = run.session.run_beside((vision, &never), nothing, |_| ());
    refused(ran.expect_err("lane 0 has work"), "leaves no lane");
    let ran = run.session.run_beside((load, &never), nothing, |_| ());
    refused(ran.expect_err("not in this order"), "may not follow");
}

#[test]
fn nobody_is_lent_what_another_may_be_using() {
    let case = Case::open(NAMES[0]);
    let panics = |what: fn(&mut VisionRun, &Names)| {
        let mut run = case.start(2, VisionMode::Overlapped);
        run.prefill(&FIRST, &[0; 5]);
        let names = Names::of(&run);
        catch_unwind(AssertUnwindSafe(|| what(&mut run, &names))).is_err()
    };
    assert!(panics(|run, names| {
        let pixels = names.pixels;
        let ran = run.session.run_beside(
            (names.long, &never),
            |_| Ok::<(), ()>(()),
            |beside| beside.bytes(pixels).len(),
        );
        ran.expect("panics before");
    }));
    assert!(panics(|run, names| {
        let tokens = names.io[0];
        let ran = run.session.run_beside(
            (names.long, &never),
            |preparing| {
                preparing.integers_mut(tokens)[0] = 1;
                Ok::<(), ()>(())
            },
            |_| (),
        );
        ran.expect("a lane panicked");
    }));
}

#[test]
fn a_panic_of_a_lane_ends_both_sides() {
    let case = Case::open(NAMES[0]);
    let mut run = case.start(3, VisionMode::Overlapped);
    run.prefill(&FIRST, &[0; 5]);
    let mut names = Names::of(&run);
    let ran = run.session.run_beside(
        (names.long, &never),
        |_| -> Result<(), ()> { panic!("on purpose") },
        |beside| {
            while !beside.is_over() {
                std::thread::yield_now();
            }
            assert!(names.step(beside, 1).is_err());
        },
    );
    assert!(matches!(ran, Err(ExecError::System { .. })), "{ran:?}");
    let again = run.session.run_beside((names.long, &never), |_| Ok::<(), ()>(()), |_| ());
    assert!(again.is_err());
}
