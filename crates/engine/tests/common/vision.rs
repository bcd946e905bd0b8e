//! A vision file beside a text file, run phase by phase: every layer that is asked for is kept.
//!
//! The program is the engine's; what differs is that some of its passing values are made buffers
//! of the host, so that they can be read after the run. Planner and verifier take them as they are.

use std::path::Path;

use dctms_engine::Model;
use dctms_engine::model_file::CheckpointFile;
use dctms_engine::planning::certify;
use dctms_engine::rotary::RotaryPositions;
use dctms_engine::runner::IMAGE_ROW;
use dctms_engine::session::session_options;
use dctms_exec::{CertifiedPlan, LoadHost, Session};
use dctms_format::Checkpoint;
use dctms_ir::plan::{Bounds, Machine, Plan, RuntimeBytes};
use dctms_ir::tensor::Term;
use dctms_ir::{Dtype, Program, Residence};
use dctms_kernels::isa::Isa;
use dctms_models::{
    BuildOptions, VisionMode, VisionPart, build_program_with_vision, names, phases,
    read_vision_config,
};
use dctms_planner::{Activations, Balance, PlanOptions};
use serde_json::Value;

/// How a pair of files is run.
#[derive(Clone, Copy, Debug)]
pub struct VisionSetup {
    pub isa: Isa,
    pub lanes: u32,
    pub activations: Activations,
    /// Tokens of a prompt, its pictures' among them, and of an answer.
    pub context: (u64, u64),
    /// Tokens of a prefill step.
    pub chunk: u64,
    /// Tokens of all tiles.
    pub image_tokens: u64,
    /// Which weights are resident when.
    pub mode: VisionMode,
}

/// A loaded pair of files.
pub struct VisionRun {
    pub plan: Plan,
    /// The session, for what this does not do itself.
    pub session: Session,
    patch: usize,
    merge: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Positions that are in the caches.
    pub positions: u32,
    rotary: RotaryPositions,
    text: Model,
    eyes: Checkpoint,
    /// The phase that loaded the weights which are there now, where they come and go.
    loaded: Option<&'static str>,
    /// Times that weights were loaded again.
    pub reloads: usize,
}

/// The files of both checkpoints, in the order of the program.
struct Files<'a>([&'a Checkpoint; 2]);

impl LoadHost for Files<'_> {
    fn read(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), String> {
        let source = self.0[file as usize].source(0);
        source.read_at(offset, buffer).map_err(|error| error.to_string())
    }

    fn build_tokenizer(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), String> {
        Err("no tokeniser in this program".to_string())
    }

    fn loaded(&self, _: u64) {}
}

impl VisionRun {
    /// Plans, verifies and loads; the tensors of the phase `vision` named in `keep` are kept.
    pub fn start(text: &Path, vision: &Path, setup: &VisionSetup, keep: &[String]) -> VisionRun {
        let text = Model::open(text).expect("a text model");
        let eyes = Checkpoint::open(vision).expect("a vision file");
        let file = CheckpointFile(&eyes);
        let config = read_vision_config(&file).unwrap_or_else(|error| panic!("{error}"));
        let options = build_options(setup);
        let bounds = options.bounds.clone();
        let patches_max = config.patches_max();
        let part = VisionPart {
            file: &file,
            config: &config,
            first_file: 1,
            patches_max,
            mode: setup.mode,
            smaller: 0,
        };
        let decoder = CheckpointFile(&text.checkpoint);
        let mut program = build_program_with_vision(&decoder, &text.config, &options, Some(&part))
            .unwrap_or_else(|error| panic!("{error}"));
        program.models = vec![text.info(), text.info()];
        keep.iter().for_each(|name| make_external(&mut program, name));
        let plan = plan(&program, bounds, setup);
        let certificate = certify(&plan).unwrap_or_else(|error| panic!("{error}"));
        let certified = CertifiedPlan::new(&plan, &certificate).expect("its own certificate");
        let options = session_options(&plan, 256 << 10).expect("this machine's options");
        let mut session = Session::start(certified, &options).expect("a session");
        let load = plan.program.phase_named("load").expect("a phase");
        session.load(load, &Files([&text.checkpoint, &eyes])).expect("loaded");
        VisionRun {
            session,
            patch: config.patch as usize,
            merge: config.merge as usize,
            vocabulary: text.config.vocabulary as usize,
            positions: 0,
            rotary: RotaryPositions::new(8, 1),
            plan,
            text,
            eyes,
            loaded: None,
            reloads: 0,
        }
    }

    /// Encodes a tile of a grid; its tokens go to the embeddings from `first_row` on.
    pub fn encode(&mut self, rgb: &[u8], grid: [u32; 2], first_row: u32) {
        let patches = u64::from(grid[0]) * u64::from(grid[1]);
        assert_eq!(rgb.len() as u64, patches * (self.patch * self.patch * 3) as u64);
        let host = |name: &str| self.host(name);
        let (pixels, grids, rows) =
            (host(names::PIXELS), host(names::GRID), host(names::FIRST_ROW));
        self.session.bytes_mut(pixels)[..rgb.len()].copy_from_slice(rgb);
        self.session.integers_mut(grids).copy_from_slice(&grid);
        self.session.integers_mut(rows)[0] = first_row;
        let [height, width] = grid.map(|patches| patches / self.merge as u32);
        self.rotary.placed(first_row, (height, width));
        let tokens = patches / (self.merge * self.merge) as u64;
        for (name, value) in [(names::PATCHES, patches), (names::IMAGE_TOKENS, tokens)] {
            if let Some(dim) = self.plan.program.dim_named(name) {
                self.session.set_dim(dim, value).expect("within the bounds");
            }
        }
        self.run("vision");
    }

    /// A kept activation as plain rows, of a tile of so many tokens.
    pub fn rows(&self, name: &str, tokens: usize) -> Vec<f32> {
        let floats = self.session.floats(self.host(&format!("vision.{name}")));
        let id = self.plan.program.tensor_named(&format!("vision.{name}")).expect("kept");
        let tiles = self.plan.program.tensor(id).shape[0].value(&[]).expect("constant") as usize;
        dctms_kernels::naive::layout::to_rows(&floats[..tiles * 16 * tokens], tokens)
    }

    /// Appends tokens; where `rows` is above 0 the embedding of that row less one stands instead.
    /// The logits of the last one follow.
    pub fn prefill(&mut self, tokens: &[u32], rows: &[u32]) -> Vec<f32> {
        let chunk = self.plan.bounds.prefill_chunk as usize;
        for (tokens, rows) in tokens.chunks(chunk).zip(rows.chunks(chunk)) {
            let shown: Vec<u32> = (tokens.iter().zip(rows))
                .map(|(token, row)| row.checked_sub(1).map_or(*token, |row| row | IMAGE_ROW))
                .collect();
            if self.turns_by_three() {
                self.rotary.read(0, self.positions, &shown).expect("a picture");
            }
            self.place(tokens);
            let (images, wanted) = (self.host(names::IMAGE_ROWS), self.host(names::ROWS));
            self.session.integers_mut(images)[..rows.len()].copy_from_slice(rows);
            self.session.integers_mut(wanted)[0] = tokens.len() as u32 - 1;
            self.set("tokens", tokens.len() as u64);
            self.set("rows", 1);
            self.run("prefill");
            self.positions += tokens.len() as u32;
        }
        self.logits()
    }

    /// One token more, and the logits that follow.
    pub fn decode(&mut self, token: u32) -> Vec<f32> {
        self.place(&[token]);
        let segments = u64::from(self.positions / 256 + 1);
        let dims = [("sequences", 1), ("rows", 1), ("segments", segments)];
        dims.into_iter().for_each(|(name, value)| self.set(name, value));
        self.set("segments.window", segments);
        self.run("decode");
        self.positions += 1;
        self.logits()
    }

    fn place(&mut self, tokens: &[u32]) {
        let positions: Vec<u32> = (0..tokens.len() as u32).map(|i| self.positions + i).collect();
        for (name, values) in [(names::TOKENS, tokens), (names::POSITIONS, &positions)] {
            let place = self.host(name);
            self.session.integers_mut(place)[..values.len()].copy_from_slice(values);
        }
        let slots = self.host(names::SLOTS);
        self.session.integers_mut(slots).fill(0);
        if self.turns_by_three() {
            let place = self.host(names::ROTARY_POSITIONS);
            let three: Vec<u32> =
                positions.iter().flat_map(|index| self.rotary.at(0, *index)).collect();
            self.session.integers_mut(place)[..three.len()].copy_from_slice(&three);
        }
    }

    /// Whether tokens in pictures have three positions.
    fn turns_by_three(&self) -> bool {
        self.plan.program.tensor_named(names::ROTARY_POSITIONS).is_some()
    }

    /// The three positions of each of the first tokens.
    #[allow(dead_code, reason = "each test uses a part")]
    pub fn rotary_positions(&self, count: u32) -> Vec<[u32; 3]> {
        (0..count).map(|index| self.rotary.at(0, index)).collect()
    }

    fn logits(&self) -> Vec<f32> {
        self.session.floats(self.host(names::LOGITS))[..self.vocabulary].to_vec()
    }

    fn set(&mut self, name: &str, value: u64) {
        let dim = self.plan.program.dim_named(name).expect("a dim of every decoder");
        self.session.set_dim(dim, value).expect("within the bounds");
    }

    fn run(&mut self, phase: &str) {
        let id = |name: &str| self.plan.program.phase_named(name);
        let needed = if phase == phases::VISION { phases::LOAD_VISION } else { phases::LOAD_TEXT };
        let phase = id(phase).expect("a phase");
        if let Some(load) = id(needed).filter(|_| self.loaded != Some(needed)) {
            let files = Files([&self.text.checkpoint, &self.eyes]);
            self.session.reload(load, &files).expect("loaded again");
            self.loaded = Some(needed);
            self.reloads += 1;
        }
        self.session.run(phase).expect("no lane panicked");
    }

    /// Takes weights that come and go for gone.
    #[allow(dead_code, reason = "each test uses a part")]
    pub fn forget_loaded(&mut self) {
        self.loaded = None;
    }

    /// A host tensor by name.
    pub fn host(&self, name: &str) -> dctms_exec::HostTensor {
        let id = self.plan.program.tensor_named(name).unwrap_or_else(|| panic!("no {name}"));
        self.session.host_tensor(id).unwrap_or_else(|| panic!("{name} is passing"))
    }
}

fn make_external(program: &mut Program, name: &str) {
    let name = format!("vision.{name}");
    let id = program.tensor_named(&name).unwrap_or_else(|| panic!("no tensor {name}"));
    let tensor = &mut program.tensors[id.index()];
    (tensor.residence, tensor.term) = (Residence::External, Term::Persistent);
    tensor.phase = None;
}

/// The plan of the text model alone, under the same bounds.
pub fn text_plan(text: &Path, setup: &VisionSetup) -> Plan {
    let text = Model::open(text).expect("a text model");
    let options = build_options(setup);
    let decoder = CheckpointFile(&text.checkpoint);
    let mut program = build_program_with_vision(&decoder, &text.config, &options, None)
        .unwrap_or_else(|error| panic!("{error}"));
    program.models = vec![text.info()];
    plan(&program, options.bounds, setup)
}

fn build_options(setup: &VisionSetup) -> BuildOptions {
    BuildOptions {
        bounds: Bounds {
            max_input_tokens: setup.context.0,
            max_output_tokens: setup.context.1,
            sequences: 1,
            prefill_chunk: setup.chunk,
            logit_rows: 1,
            kv_type: Dtype::F32,
            max_images: 1,
            max_image_tokens: setup.image_tokens,
        },
        tokenizer_bytes: 0,
        vocabulary: (0, 0),
        penalty_window: 64,
        smaller_chunks: 0,
    }
}

fn plan(program: &Program, bounds: Bounds, setup: &VisionSetup) -> Plan {
    let isa = setup.isa.name();
    let options = PlanOptions {
        bounds,
        machine: Machine {
            memory_bytes: 8 << 30,
            memory_source: "test".to_string(),
            lanes: setup.lanes,
            isa: isa.to_string(),
            profile_sha256: "builtin".to_string(),
        },
        balance: Balance::builtin(isa, setup.lanes),
        activations: setup.activations,
        choices: Default::default(),
        runtime: RuntimeBytes::default(),
        heap_per_task_bytes: 0,
        heap_per_event_bytes: 0,
        compile_heap_bytes: 0,
        not_covered: Vec::new(),
    };
    dctms_planner::plan(program, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The integers of a fixture.
pub fn integers(value: &Value) -> Vec<u32> {
    let values = value.as_array().expect("integers").iter();
    values.map(|value| value.as_u64().expect("an integer") as u32).collect()
}

/// Σ(x − reference)²/Σ reference², and the largest difference by the largest reference.
pub fn errors(got: &[f32], want: &[f32]) -> (f64, f64) {
    assert_eq!(got.len(), want.len(), "elements");
    let (mut error, mut power, mut difference, mut largest) = (0.0, 0.0, 0.0f64, 0.0f64);
    for (got, want) in got.iter().zip(want) {
        let (got, want) = (f64::from(*got), f64::from(*want));
        error += (got - want).powi(2);
        power += want * want;
        difference = difference.max((got - want).abs());
        largest = largest.max(want.abs());
    }
    (error / power, difference / largest)
}

/// The greatest logit.
pub fn best(logits: &[f32]) -> u32 {
    let better = |best: usize, next: usize| if logits[next] > logits[best] { next } else { best };
    (0..logits.len()).reduce(better).expect("logits") as u32
}
