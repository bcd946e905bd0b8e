//! Image encoders against Hugging Face transformers, layer by layer, and the decoder after them.

#[path = "common/vision.rs"]
mod vision;

use std::path::{Path, PathBuf};

use dctms_ir::tensor::Term;
use dctms_kernels::isa::Isa;
use dctms_models::VisionMode;
use dctms_planner::Activations;
use serde_json::Value;
use vision::{VisionRun, VisionSetup, best, errors, integers};

/// Greatest NMSE of a layer in f32 against the reference.
const LAYER_NMSE_MAX: f64 = 1e-9;
/// Greatest difference of an element, relative to the layer's largest.
const LAYER_DIFFERENCE_MAX: f64 = 1e-4;
/// Greatest difference of a logit, relative to the largest.
const LOGITS_DIFFERENCE_MAX: f64 = 1e-3;
/// Least margin of the reference's best two tokens at which the same one must be picked, relative
/// to the largest logit.
const MARGIN_MIN: f64 = 1e-3;

/// What the reference says of a pair of files.
struct Case {
    folder: PathBuf,
    json: Value,
    floats: Vec<f32>,
    rgb: Vec<u8>,
    grid: [u32; 2],
}

impl Case {
    fn open(folder: &Path, name: &str) -> Case {
        let read = |ending: &str| {
            let path = folder.join(format!("{name}.{ending}"));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let json: Value = serde_json::from_slice(&read("json")).expect("JSON");
        let bytes = read("f32");
        let floats = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let grid = integers(&json["grid"]);
        Case {
            folder: folder.to_path_buf(),
            floats: floats.collect(),
            rgb: read("rgb"),
            grid: [grid[0], grid[1]],
            json,
        }
    }

    fn start(&self, file: &str, setup: &VisionSetup) -> VisionRun {
        let text = self.folder.join(self.json["text_file"].as_str().expect("a name"));
        let keep: Vec<String> = self.layers().map(|layer| layer.name).collect();
        VisionRun::start(&text, &self.folder.join(file), setup, &keep)
    }

    fn files(&self) -> Vec<&str> {
        let files = self.json["mmproj_files"].as_array().expect("names");
        files.iter().map(|file| file.as_str().expect("a name")).collect()
    }

    fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        self.json["layers"].as_array().expect("layers").iter().map(|layer| {
            let number = |key: &str| layer[key].as_u64().expect("a number") as usize;
            let (tokens, features) = (number("tokens"), number("features"));
            let rows = &self.floats[number("offset_f32")..][..tokens * features];
            Layer { name: layer["name"].as_str().expect("a name").to_string(), tokens, rows }
        })
    }

    /// Tokens of the picture.
    fn image_tokens(&self) -> usize {
        self.layers().last().expect("layers").tokens
    }

    /// The prompt, and for each of its tokens 0 or one more than the picture's row.
    fn prompt(&self, first_row: u32) -> (Vec<u32>, Vec<u32>) {
        let (before, after) = (integers(&self.json["before"]), integers(&self.json["after"]));
        let image = self.image_tokens();
        let tokens = [&before[..], &vec![0; image], &after].concat();
        let rows: Vec<u32> = (1..=image as u32).map(|row| first_row + row).collect();
        let rows = [&vec![0; before.len()][..], &rows, &vec![0; after.len()]].concat();
        (tokens, rows)
    }

    fn logits(&self) -> &[f32] {
        let at = self.json["logits_offset_f32"].as_u64().expect("a number") as usize;
        &self.floats[at..]
    }
}

struct Layer<'a> {
    name: String,
    tokens: usize,
    rows: &'a [f32],
}

fn setup(case: &Case) -> VisionSetup {
    VisionSetup {
        isa: Isa::detect_best(),
        lanes: 2,
        activations: Activations::Quantised,
        context: (case.prompt(0).0.len() as u64, 64),
        chunk: 32,
        image_tokens: 300,
        mode: VisionMode::Serial,
    }
}

/// Compares a file's layers, logits and greedy text with the reference.
fn compare(case: &Case, file: &str, nmse_max: f64, print: bool) {
    let activations = match nmse_max > LAYER_NMSE_MAX {
        true => Activations::Float,
        false => Activations::Quantised,
    };
    let mut run = case.start(file, &VisionSetup { activations, ..setup(case) });
    run.encode(&case.rgb, case.grid, 0);
    let exact = nmse_max <= LAYER_NMSE_MAX;
    for layer in case.layers() {
        let (nmse, difference) = errors(&run.rows(&layer.name, layer.tokens), layer.rows);
        if print {
            println!("{file} {}: NMSE {nmse:.2e}, largest {difference:.2e}", layer.name);
        }
        assert!(nmse <= nmse_max, "{file} {}: NMSE {nmse:e}", layer.name);
        let small = !exact || difference <= LAYER_DIFFERENCE_MAX;
        assert!(small, "{file} {}: difference {difference:e}", layer.name);
    }
    let (tokens, rows) = case.prompt(0);
    let mut logits = run.prefill(&tokens, &rows);
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

const NAMES: [&str; 4] = ["vision-idefics3", "vision-lfm2", "vision-lfm2-scale", "vision-joined"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

#[test]
fn layers_logits_and_text_are_the_references() {
    for name in NAMES {
        let case = Case::open(&fixtures(), name);
        for file in case.files() {
            compare(&case, file, LAYER_NMSE_MAX, false);
        }
    }
}

#[test]
fn one_answer_for_any_lanes_instruction_set_and_chunk() {
    for name in NAMES {
        let case = Case::open(&fixtures(), name);
        let file = case.files()[1];
        let mut answers = Vec::new();
        for isa in Isa::available() {
            for (lanes, chunk, first_row) in [(1, 64, 0), (2, 3, 0), (3, 5, 9)] {
                let setup = VisionSetup { isa, lanes, chunk, ..setup(&case) };
                let mut run = case.start(file, &setup);
                // Another tile before, elsewhere among the embeddings, leaves no trace.
                let rest: Vec<u8> = case.rgb.iter().map(|byte| 255 - byte).collect();
                run.encode(&rest, [case.grid[1], case.grid[0]], first_row + 30);
                run.encode(&case.rgb, case.grid, first_row);
                let (tokens, rows) = case.prompt(first_row);
                let mut bits: Vec<u32> = Vec::new();
                for layer in case.layers() {
                    let rows = run.rows(&layer.name, layer.tokens);
                    bits.extend(rows.into_iter().map(f32::to_bits));
                }
                bits.extend(run.prefill(&tokens, &rows).into_iter().map(f32::to_bits));
                bits.extend(run.decode(7).into_iter().map(f32::to_bits));
                answers.push(bits);
            }
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
    }
}

/// Two questions with a picture each: the same bits whether both weight sets stay or each is loaded
/// into the bytes of the other, and the plans differ by what they must.
#[test]
fn one_answer_whichever_weights_are_resident() {
    for name in NAMES {
        let case = Case::open(&fixtures(), name);
        let file = case.files()[0];
        let run = |mode: VisionMode| {
            let mut run = case.start(file, &VisionSetup { mode, ..setup(&case) });
            let mut bits: Vec<u32> = Vec::new();
            for turn in 0..2 {
                let first_row = turn * 100;
                run.encode(&case.rgb, case.grid, first_row);
                let (tokens, rows) = case.prompt(first_row);
                let half = tokens.len() / 2;
                // Half of the prompt each turn: the caches live through the second picture.
                let part = if turn == 0 { 0..half } else { half..tokens.len() };
                let logits = run.prefill(&tokens[part.clone()], &rows[part]);
                bits.extend(logits.into_iter().chain(run.decode(7)).map(f32::to_bits));
            }
            (bits, run.reloads, run.plan)
        };
        let (bits, reloads, serial) = run(VisionMode::Serial);
        let (again, reloads_resident, resident) = run(VisionMode::PhaseResident);
        assert_eq!(bits, again, "{name}");
        assert_eq!([reloads, reloads_resident], [0, 4], "{name}");
        let sets = [0, 1].map(|model| weights(&serial, model));
        assert_eq!(sets, [0, 1].map(|model| weights(&resident, model)), "{name}");
        let (serial, resident) = (&serial.envelope, &resident.envelope);
        assert!(serial.total >= resident.total + sets[0].min(sets[1]), "{name}");
        assert_eq!(serial.kv, resident.kv, "{name}");
    }
}

/// What a vision file adds to a plan is its weights, its buffers and, where a tile needs more room
/// than a step of text, the difference: nothing else.
#[test]
fn the_plan_accounts_for_every_byte_of_the_encoder() {
    for name in NAMES {
        let case = Case::open(&fixtures(), name);
        let text = case.folder.join(case.json["text_file"].as_str().expect("a name"));
        let setup = setup(&case);
        let alone = vision::text_plan(&text, &setup).envelope;
        let plan = VisionRun::start(&text, &case.folder.join(case.files()[1]), &setup, &[]).plan;
        let known = |name: &str| name.starts_with("io.vision.") || name == "io.image_rows";
        let buffers: u64 = (plan.program.tensors.iter().zip(&plan.placements))
            .filter(|(tensor, _)| known(&tensor.name) || tensor.name == "vision.images")
            .map(|(_, placement)| placement.bytes.next_multiple_of(64))
            .sum();
        let both = &plan.envelope;
        assert_eq!(both.weights - alone.weights, weights(&plan, 1), "{name}");
        assert_eq!(both.kv, alone.kv, "{name}");
        // The last of the lasting regions is filled up to where the transients end on a page.
        let filling = both.persistent.abs_diff(alone.persistent + buffers);
        assert!(filling <= 2 * 4096, "{name}: {filling} bytes that nothing explains");
        assert!(both.intermediate >= alone.intermediate, "{name}");
        let terms = both.weights + both.kv + both.persistent + both.intermediate;
        assert_eq!(both.total, terms, "{name}");
    }
}

/// Bytes of a model's weights.
fn weights(plan: &dctms_ir::Plan, model: u32) -> u64 {
    let tensors = plan.program.tensors.iter().zip(&plan.placements);
    let own = tensors.filter(|(tensor, _)| tensor.model == model && tensor.term == Term::Weights);
    own.map(|(_, placement)| placement.bytes).sum()
}

/// The true configurations, quantised weights with activations in f32:
/// `scripts/make_vision_fixtures.py --real DIRECTORY`, then this with
/// `DCTMS_VISION_REAL=DIRECTORY`.
#[test]
#[ignore = "needs the files that scripts/make_vision_fixtures.py --real makes"]
fn true_configurations() {
    let folder = PathBuf::from(std::env::var("DCTMS_VISION_REAL").expect("a directory"));
    for name in ["smolvlm-256m", "lfm2-style"] {
        if !folder.join(format!("{name}.json")).exists() {
            continue;
        }
        let case = Case::open(&folder, name);
        for file in case.files() {
            let nmse_max = match file.contains("q8_0") {
                true => 1e-3,
                false => LAYER_NMSE_MAX,
            };
            compare(&case, file, nmse_max, true);
        }
    }
}

/// Processor time of this thread so far.
fn busy_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux");
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.expect("a number") / 1e9
}

/// Time of a tile, the best of some runs, and what the plan counts for it.
#[test]
#[ignore = "needs the files that scripts/make_vision_fixtures.py --real makes"]
fn speed_of_the_true_configuration() {
    let folder = PathBuf::from(std::env::var("DCTMS_VISION_REAL").expect("a directory"));
    let case = Case::open(&folder, "smolvlm-256m");
    let wanted = std::env::var("DCTMS_VISION_FILES").unwrap_or_default();
    let files = case.files().into_iter().filter(|file| file.contains(&wanted));
    for (file, lanes) in files.flat_map(|file| [(file, 2), (file, 1)]) {
        let text = folder.join(case.json["text_file"].as_str().expect("a name"));
        let setup = VisionSetup { lanes, ..setup(&case) };
        let mut run = VisionRun::start(&text, &folder.join(file), &setup, &[]);
        let intermediate = run.plan.envelope.intermediate;
        let (mut best, mut busy) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..3 {
            let (start, before) = (std::time::Instant::now(), busy_s());
            run.encode(&case.rgb, case.grid, 0);
            best = best.min(start.elapsed().as_secs_f64());
            busy = busy.min(busy_s() - before);
        }
        println!(
            "{file}, {lanes} lanes: {best:.3} s a tile ({busy:.3} s of lane 0's processor time), \
             {intermediate} bytes of intermediates"
        );
    }
}

/// Greedy answers of a vision file and a text file to pictures of one size, as token ids: for
/// comparison with other programs. `DCTMS_VISION_ASK` is a directory with `cases.json` (`text`,
/// `mmproj`, `grid`, `before`, `after`, `end`, `cases[].name`) and RGB bytes for each name.
#[test]
#[ignore = "needs pictures and a model"]
fn answers_about_pictures() {
    let folder = PathBuf::from(std::env::var("DCTMS_VISION_ASK").expect("a directory"));
    let text = std::fs::read_to_string(folder.join("cases.json")).expect("cases");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let path = |key: &str| PathBuf::from(json[key].as_str().expect("a path"));
    let (before, after) = (integers(&json["before"]), integers(&json["after"]));
    let grid = integers(&json["grid"]);
    let (image, end) = ((grid[0] * grid[1] / 4) as usize, json["end"].as_u64().expect("an id"));
    let setup = VisionSetup {
        isa: Isa::detect_best(),
        lanes: 2,
        activations: Activations::Quantised,
        context: ((before.len() + image + after.len()) as u64, 64),
        chunk: 128,
        image_tokens: 256,
        mode: VisionMode::Serial,
    };
    for case in json["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name");
        let mut run = VisionRun::start(&path("text"), &path("mmproj"), &setup, &[]);
        let rgb = std::fs::read(folder.join(format!("{name}.rgb"))).expect("a picture");
        run.encode(&rgb, [grid[0], grid[1]], 0);
        let tokens = [&before[..], &vec![0; image], &after].concat();
        let rows: Vec<u32> = (1..=image as u32).collect();
        let rows = [&vec![0; before.len()][..], &rows, &vec![0; after.len()]].concat();
        let mut logits = run.prefill(&tokens, &rows);
        let mut ids = Vec::new();
        while ids.len() < 20 && u64::from(best(&logits)) != end {
            ids.push(best(&logits));
            logits = run.decode(best(&logits));
        }
        println!("ANSWER {name} {ids:?}");
    }
}
