//! Qwen2.5-VL against Hugging Face transformers: every layer of the encoder for pictures whose
//! windows are ragged, the three positions of every token, logits and greedy text after several
//! pictures.

#[path = "common/vision.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod vision;

use std::path::{Path, PathBuf};

use dctms_engine::bench::pictures::Tile;
use dctms_engine::planning::{PlanSettings, plan, resolve_bounds};
use dctms_engine::runner::{IMAGE_ROW, Step};
use dctms_engine::session::{library_settings, load};
use dctms_engine::{Eyes, ImageLimits, Model, Runner};
use dctms_ir::Dtype;
use dctms_ir::plan::Bounds;
use dctms_kernels::isa::Isa;
use dctms_models::VisionMode;
use dctms_planner::Activations;
use serde_json::Value;
use vision::{VisionRun, VisionSetup, best, errors, integers};

/// Greatest NMSE of a layer in f32 against the reference, and greatest difference of an element,
/// relative to the layer's largest.
const LAYER_ERRORS_MAX: (f64, f64) = (1e-9, 1e-4);
/// Greatest difference of a logit, relative to the largest.
const LOGITS_DIFFERENCE_MAX: f64 = 1e-3;
/// Least margin of the reference's best two tokens at which the same one must be picked, relative
/// to the largest logit.
const MARGIN_MIN: f64 = 1e-3;

const NAME: &str = "vision-qwen25vl";

/// What the reference says of a pair of files.
struct Case {
    folder: PathBuf,
    json: Value,
    floats: Vec<f32>,
    rgb: Vec<u8>,
    /// Pixels of a side of a patch.
    patch: u32,
}

struct Layer<'a> {
    name: String,
    tokens: usize,
    rows: &'a [f32],
}

impl Case {
    fn open(folder: &Path, name: &str, patch: u32) -> Case {
        let read = |ending: &str| {
            let path = folder.join(format!("{name}.{ending}"));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let json: Value = serde_json::from_slice(&read("json")).expect("JSON");
        let bytes = read("f32");
        let floats = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Case {
            folder: folder.to_path_buf(),
            floats: floats.collect(),
            rgb: read("rgb"),
            json,
            patch,
        }
    }

    fn fixture() -> Case {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        Case::open(&folder, NAME, 4)
    }

    fn start(&self, file: &str, setup: &VisionSetup) -> VisionRun {
        let text = self.folder.join(self.json["text_file"].as_str().expect("a name"));
        let keep: Vec<String> = self.layers(0).map(|layer| layer.name).collect();
        VisionRun::start(&text, &self.folder.join(file), setup, &keep)
    }

    fn files(&self) -> Vec<&str> {
        let files = self.json["mmproj_files"].as_array().expect("names");
        files.iter().map(|file| file.as_str().expect("a name")).collect()
    }

    fn image_count(&self) -> usize {
        self.json["images"].as_array().expect("pictures").len()
    }

    /// Grid, first row and pixels of a picture.
    fn image(&self, index: usize) -> ([u32; 2], u32, &[u8]) {
        let of = |index: usize| {
            let image = &self.json["images"][index];
            let grid = integers(&image["grid"]);
            let row = image["first_row"].as_u64().expect("a row") as u32;
            ([grid[0], grid[1]], row)
        };
        let bytes =
            |[rows, columns]: [u32; 2]| (rows * columns * self.patch * self.patch * 3) as usize;
        let before: usize = (0..index).map(|index| bytes(of(index).0)).sum();
        let (grid, row) = of(index);
        (grid, row, &self.rgb[before..][..bytes(grid)])
    }

    fn layers(&self, image: usize) -> impl Iterator<Item = Layer<'_>> {
        let layers = self.json["images"][image]["layers"].as_array().expect("layers");
        layers.iter().map(|layer| {
            let number = |key: &str| layer[key].as_u64().expect("a number") as usize;
            let (tokens, features) = (number("tokens"), number("features"));
            let rows = &self.floats[number("offset_f32")..][..tokens * features];
            Layer { name: layer["name"].as_str().expect("a name").to_string(), tokens, rows }
        })
    }

    /// The prompt, and for each of its tokens 0 or one more than its row.
    fn prompt(&self) -> (Vec<u32>, Vec<u32>) {
        (integers(&self.json["token_ids"]), integers(&self.json["rows"]))
    }

    fn logits(&self) -> &[f32] {
        let at = self.json["logits_offset_f32"].as_u64().expect("a number") as usize;
        &self.floats[at..]
    }

    fn setup(&self) -> VisionSetup {
        VisionSetup {
            isa: Isa::detect_best(),
            lanes: 2,
            activations: Activations::Float,
            context: (self.prompt().0.len() as u64, 64),
            chunk: 32,
            image_tokens: 1024,
            mode: VisionMode::Serial,
        }
    }
}

/// Compares a file's layers, positions, logits and greedy text with the reference.
fn compare(
    case: &Case,
    (file, activations): (&str, Activations),
    (nmse_max, difference_max): (f64, f64),
    print: bool,
) {
    let mut run = case.start(file, &VisionSetup { activations, ..case.setup() });
    let exact = nmse_max <= LAYER_ERRORS_MAX.0;
    for image in 0..case.image_count() {
        let (grid, first_row, rgb) = case.image(image);
        run.encode(rgb, grid, first_row);
        for layer in case.layers(image) {
            let (nmse, difference) = errors(&run.rows(&layer.name, layer.tokens), layer.rows);
            let about = format!("{file} picture {image} {}", layer.name);
            if print {
                println!("{about}: NMSE {nmse:.2e}, largest {difference:.2e}");
            }
            assert!(nmse <= nmse_max, "{about}: NMSE {nmse:e}");
            assert!(difference <= difference_max, "{about}: difference {difference:e}");
        }
    }
    let (tokens, rows) = case.prompt();
    let mut logits = run.prefill(&tokens, &rows);
    let positions = case.json["positions"].as_array().expect("positions");
    for (index, three) in run.rotary_positions(tokens.len() as u32).iter().enumerate() {
        assert_eq!(integers(&positions[index]), three, "position {index}");
    }
    let (nmse, difference) = errors(&logits, case.logits());
    if print {
        println!("{file} logits: NMSE {nmse:.2e}, largest {difference:.2e}");
    }
    assert!(nmse <= nmse_max.max(1e-6), "{file} logits: NMSE {nmse:e}");
    assert!(!exact || difference <= LOGITS_DIFFERENCE_MAX, "{file} logits: {difference:e}");
    let largest = case.logits().iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    let greedy = &case.json["greedy"];
    let margins = greedy["margins"].as_array().expect("margins");
    for (step, want) in integers(&greedy["token_ids"]).into_iter().enumerate() {
        let margin = margins[step].as_f64().expect("a number") / f64::from(largest);
        let certain = exact && margin >= MARGIN_MIN;
        assert!(!certain || best(&logits) == want, "{file} token {step}: not {want}");
        logits = run.decode(want);
    }
}

#[test]
fn layers_positions_logits_and_text_are_the_references() {
    let case = Case::fixture();
    for file in case.files() {
        compare(&case, (file, Activations::Float), LAYER_ERRORS_MAX, false);
    }
}

/// Encodes every picture and asks; all bits that come of it.
fn answer(case: &Case, file: &str, setup: &VisionSetup) -> (Vec<u32>, VisionRun) {
    let mut run = case.start(file, setup);
    let mut bits = Vec::new();
    for image in (0..case.image_count()).rev() {
        let (grid, first_row, rgb) = case.image(image);
        run.encode(rgb, grid, first_row);
        for layer in case.layers(image) {
            bits.extend(run.rows(&layer.name, layer.tokens));
        }
    }
    let (tokens, rows) = case.prompt();
    bits.extend(run.prefill(&tokens, &rows));
    bits.extend(run.decode(7));
    (bits.into_iter().map(f32::to_bits).collect(), run)
}

#[test]
fn one_answer_for_any_lanes_instruction_set_chunk_and_mode() {
    let case = Case::fixture();
    let file = case.files()[1];
    let mut answers = Vec::new();
    for isa in Isa::available() {
        for (lanes, chunk) in [(1, 64), (2, 3), (3, 50)] {
            for mode in VisionMode::ALL {
                let setup = VisionSetup { isa, lanes, chunk, mode, ..case.setup() };
                answers.push(answer(&case, file, &setup).0);
            }
        }
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
}

/// No buffer is as large as patches times patches, nor is the gate's or the other product whole.
#[test]
fn values_of_a_layer_bound_what_passes() {
    let case = Case::fixture();
    let run = VisionRun::start(
        &case.folder.join(case.json["text_file"].as_str().expect("a name")),
        &case.folder.join(case.files()[0]),
        &case.setup(),
        &[],
    );
    let program = &run.plan.program;
    let phase = program.phase_named("vision");
    let vision = program.tensors.iter().zip(&run.plan.placements);
    let vision = vision.filter(|(tensor, _)| tensor.phase == phase);
    // The most patches of a tile, the encoder's width, its feed-forward width in whole tiles.
    let (patches, width, feed_forward) = (4096u64, 48, 96);
    for (tensor, placement) in vision.clone() {
        let wide = patches * feed_forward.max(4 * width) * 4;
        assert!(placement.bytes <= wide, "{}: {} bytes", tensor.name, placement.bytes);
    }
    let gated = vision.filter(|(tensor, _)| tensor.name.contains("ffn_up"));
    assert_eq!(gated.count(), 0, "a product of a gated layer is whole");
}

/// The runner over the case's files, with all pictures encoded.
fn runner(case: &Case, chunk: u64, sequences: u64) -> Runner {
    let text = case.folder.join(case.json["text_file"].as_str().expect("a name"));
    let eyes = Eyes::open(&case.folder.join(case.files()[1])).expect("a vision file");
    let model = Model::open(&text).expect("a model").with_eyes(eyes);
    let settings = PlanSettings {
        max_input_tokens: Some(case.prompt().0.len() as u64),
        max_output_tokens: Some(8),
        prefill_chunk: chunk,
        sequences,
        images: ImageLimits::new(3, (72, 64)),
        kv_type: Dtype::F32,
        ..library_settings(1 << 20).expect("a machine")
    };
    let bounds = resolve_bounds(&model, &settings, None).expect("bounds");
    let planned = plan(&model, &settings, &bounds).expect("a plan");
    let mut runner = load(&model, &planned).expect("loaded");
    for image in 0..case.image_count() {
        let (grid, first_row, rgb) = case.image(image);
        let tile = (rgb.len(), grid, grid[0] * grid[1] / 4);
        runner.encode_tile(tile, first_row, |to| to.copy_from_slice(rgb)).expect("encoded");
    }
    runner
}

/// Chunks of any length, a second call in the middle of a picture, rows for perplexity, another
/// slot beside others, a slot that is read again: a token's positions are the same, so its logits.
#[test]
fn every_way_to_a_token_gives_one_answer() {
    let case = Case::fixture();
    let (tokens, rows) = case.prompt();
    let prompt: Vec<u32> = (tokens.iter().zip(&rows))
        .map(|(token, row)| row.checked_sub(1).map_or(*token, |row| row | IMAGE_ROW))
        .collect();
    let said = integers(&case.json["greedy"]["token_ids"]);
    let row_of = |runner: &Runner, row: usize| -> Vec<u32> {
        (0..runner.vocabulary()).map(|token| runner.logit(row, token).to_bits()).collect()
    };
    let go_on = |runner: &mut Runner, slot: u32, others: &[u32]| -> Vec<Vec<u32>> {
        let mut answers = vec![row_of(runner, 0)];
        for (index, token) in said[..4].iter().enumerate() {
            let position = (prompt.len() + index) as u32;
            let other = |slot: &u32| Step { slot: *slot, token: 9, position: 3 + index as u32 };
            let mut steps: Vec<Step> = others.iter().map(other).collect();
            steps.push(Step { slot, token: *token, position });
            runner.decode(&steps).expect("within bounds");
            answers.push(row_of(runner, others.len()));
        }
        answers
    };
    let read = |runner: &mut Runner, slot: u32, part: &[u32], from: u32| {
        runner.prefill(slot, part, from, &mut |_| true).expect("within bounds");
    };
    let mut whole = runner(&case, 128, 1);
    read(&mut whole, 0, &prompt, 0);
    let want = go_on(&mut whole, 0, &[]);
    let floats: Vec<f32> = want[0].iter().map(|bits| f32::from_bits(*bits)).collect();
    assert!(errors(&floats, case.logits()).0 < 1e-9);

    let mut cut = runner(&case, 7, 3);
    for slot in [1, 2] {
        read(&mut cut, slot, &[1, 2, 3], 0);
    }
    // A call ends inside of the first picture.
    read(&mut cut, 0, &prompt[..20], 0);
    read(&mut cut, 0, &prompt[20..], 20);
    assert_eq!(go_on(&mut cut, 0, &[1, 2]), want);
    // The slot is text for a while, then shows the same again; another shows it too.
    read(&mut cut, 0, &[5, 6, 7], 0);
    for slot in [0, 2] {
        read(&mut cut, slot, &prompt, 0);
        assert_eq!(go_on(&mut cut, slot, &[]), want, "slot {slot}");
    }
    // As perplexity reads.
    let mut rowed = runner(&case, 50, 1);
    for (index, part) in prompt.chunks(50).enumerate() {
        let last = part.len() - 1;
        let from = (index * 50) as u32;
        rowed.prefill_with_rows(0, part, from, last..last + 1).expect("within bounds");
    }
    assert_eq!(go_on(&mut rowed, 0, &[]), want);
    // A picture's rows from the middle on stand for nothing.
    assert!(rowed.prefill(0, &[4 | IMAGE_ROW], 0, &mut |_| true).is_err());
}

/// Full width and fewer layers: `scripts/make_vision_fixtures.py --real DIRECTORY`, then this with
/// `DCTMS_VISION_REAL=DIRECTORY`.
#[test]
#[ignore = "needs the files that scripts/make_vision_fixtures.py --real makes"]
fn full_width() {
    let folder = PathBuf::from(std::env::var("DCTMS_VISION_REAL").expect("a directory"));
    let case = Case::open(&folder, "qwen2.5-vl-3b-reduced", 14);
    for file in case.files() {
        let errors_max = match file.contains("q8_0") {
            true => (1e-3, f64::INFINITY),
            false => LAYER_ERRORS_MAX,
        };
        compare(&case, (file, Activations::Float), errors_max, true);
        if file.contains("q8_0") {
            println!("as it runs");
            compare(&case, (file, Activations::Quantised), errors_max, true);
        }
    }
}

/// Expectations of the largest request are of the bounds' largest picture, not of the largest that
/// the file takes.
#[test]
fn the_largest_tile_is_within_the_bounds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let file = folder.join(format!("{NAME}-mmproj-f16.gguf"));
    let eyes = Eyes::open(&file).expect("a vision file");
    for max_image_tokens in [1, 16, 25, 40] {
        let bounds = Bounds {
            max_input_tokens: 64,
            max_output_tokens: 8,
            sequences: 1,
            prefill_chunk: 16,
            logit_rows: 1,
            kv_type: Dtype::F16,
            max_images: 1,
            max_image_tokens,
        };
        let side = max_image_tokens.isqrt();
        assert_eq!(u64::from(Tile::largest_within(&eyes, &bounds).tokens), side * side);
    }
}
