//! What the engine's tests share: fixtures, models by name, and a loaded runner for any settings.
//!
//! Believes the format of `tests/fixtures/README.md`. No command line and no allocator of its
//! own: this is the library as another program would use it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use dctms_engine::planning::{PlanSettings, Planned, RuntimeModel, plan};
use dctms_engine::runner::Runner;
use dctms_engine::{Model, session};
use dctms_ir::Dtype;
use dctms_ir::plan::{Bounds, Machine};
use dctms_kernels::isa::Isa;
use dctms_planner::{Activations, Balance, Choices};
use serde_json::Value;

/// Everything that a run depends on beside the model.
#[derive(Clone, Debug)]
pub struct Setup {
    pub isa: Isa,
    pub lanes: u32,
    pub chunk: u64,
    pub sequences: u64,
    /// Rows of logits of a step.
    pub rows: u64,
    /// Input and output tokens.
    pub context: (u64, u64),
    pub kv: Dtype,
    pub activations: Activations,
    /// What the planner prefers and leaves out.
    pub choices: Choices,
    /// Memory of the machine.
    pub memory_bytes: u64,
}

impl Setup {
    /// One sequence of `context` tokens, logits of every token, on two lanes.
    pub fn new(context: usize) -> Setup {
        let input = context as u64 - 1;
        Setup {
            isa: Isa::detect_best(),
            lanes: 2,
            chunk: 64.min(input),
            sequences: 1,
            rows: 64.min(input),
            context: (input, 1),
            kv: Dtype::F32,
            activations: Activations::Quantised,
            choices: Choices::default(),
            memory_bytes: 8 << 30,
        }
    }

    /// The verified plan of a model under this setup.
    pub fn plan(&self, model: &Model) -> Planned {
        let isa = self.isa.name();
        let settings = PlanSettings {
            max_input_tokens: None,
            max_output_tokens: None,
            sequences: self.sequences,
            prefill_chunk: self.chunk,
            logit_rows: self.rows,
            images: dctms_engine::ImageLimits::default(),
            mode: dctms_engine::VisionMode::Serial,
            smaller_chunks: 0,
            kv_type: self.kv,
            activations: self.activations,
            choices: self.choices.clone(),
            machine: Machine {
                memory_bytes: self.memory_bytes,
                memory_source: "test".to_string(),
                lanes: self.lanes,
                isa: isa.to_string(),
                profile_sha256: "builtin".to_string(),
            },
            balance: Balance::builtin(isa, self.lanes),
            runtime: RuntimeModel::default(),
        };
        let bounds = Bounds {
            max_input_tokens: self.context.0,
            max_output_tokens: self.context.1,
            sequences: self.sequences,
            prefill_chunk: self.chunk,
            logit_rows: self.rows.max(self.sequences),
            kv_type: self.kv,
            max_images: 0,
            max_image_tokens: 0,
        };
        plan(model, &settings, &bounds).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// A loaded runner.
    pub fn start(&self, model: &Model) -> Runner {
        session::load(model, &self.plan(model)).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

/// Runs `tokens` from position 0 in the slot, chunk by chunk, and hands each token's logits over.
pub fn prefill_all(
    runner: &mut Runner,
    slot: u32,
    tokens: &[u32],
    on_row: &mut dyn FnMut(usize, &Runner, usize),
) {
    prefill_some(runner, slot, tokens, &|_| true, on_row);
}

/// As [`prefill_all`], with the logits of the positions that are wanted. A chunk's last row is
/// computed in any case, and handed over only when it is wanted.
pub fn prefill_some(
    runner: &mut Runner,
    slot: u32,
    tokens: &[u32],
    wanted: &dyn Fn(usize) -> bool,
    on_row: &mut dyn FnMut(usize, &Runner, usize),
) {
    let bounds = runner.bounds();
    let chunk = bounds.prefill_chunk.min(bounds.logit_rows) as usize;
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let start = index * chunk;
        let last = part.len() - 1;
        let rows: Vec<usize> =
            (0..part.len()).filter(|index| wanted(start + index) || *index == last).collect();
        runner
            .prefill_with_rows(slot, part, start as u32, rows.iter().copied())
            .expect("a chunk within bounds");
        for (row, index) in rows.iter().enumerate().filter(|(_, index)| wanted(start + **index)) {
            on_row(start + index, runner, row);
        }
    }
}

/// The token of the largest logit of a row, the least id among equals.
pub fn best_token(runner: &Runner, row: usize) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for id in 0..runner.vocabulary() {
        let logit = runner.logit(row, id);
        if logit > best.0 {
            best = (logit, id as u32);
        }
    }
    best.1
}

/// One fixture: what the reference says of a model.
pub struct Fixture {
    pub json: Value,
    rows: Vec<f32>,
}

/// One sequence of a fixture.
pub struct Expected<'a> {
    pub name: &'a str,
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    pub margins: Vec<f32>,
    /// Positions whose logits are stored.
    positions: Vec<usize>,
    columns: usize,
    column_stride: usize,
    rows: &'a [f32],
}

impl Fixture {
    pub fn read(name: &str) -> Fixture {
        let path = fixtures().join(name);
        let text = std::fs::read_to_string(path.with_extension("json")).expect("the fixture");
        let bytes = std::fs::read(path.with_extension("f32")).expect("the fixture's rows");
        let floats = bytes.chunks_exact(4);
        Fixture {
            json: serde_json::from_str(&text).expect("JSON"),
            rows: floats.map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect(),
        }
    }

    pub fn model_files(&self) -> Vec<&str> {
        let files = self.json["model_files"].as_array().expect("model_files");
        files.iter().map(|file| file.as_str().expect("a name")).collect()
    }

    pub fn sequences(&self) -> Vec<Expected<'_>> {
        let sequences = self.json["sequences"].as_array().expect("sequences");
        sequences.iter().map(|sequence| self.expected(sequence)).collect()
    }

    fn expected<'a>(&'a self, sequence: &'a Value) -> Expected<'a> {
        let logits = &sequence["logits"];
        let number = |key: &str| logits[key].as_u64().expect("a number") as usize;
        let positions: Vec<usize> =
            integers(&logits["positions"]).into_iter().map(|p| p as usize).collect();
        let start = number("offset_f32");
        let columns = number("columns");
        Expected {
            name: sequence["name"].as_str().expect("a name"),
            prompt: integers(&sequence["token_ids"]),
            greedy: integers(&sequence["greedy"]["token_ids"]),
            margins: floats(&sequence["greedy"]["margins"]),
            columns,
            column_stride: number("column_stride"),
            rows: &self.rows[start..start + columns * positions.len()],
            positions,
        }
    }
}

impl Expected<'_> {
    /// Prompt and continuation.
    pub fn tokens(&self) -> Vec<u32> {
        [self.prompt.as_slice(), &self.greedy].concat()
    }

    /// The stored logits of a position: pairs of token and logit.
    pub fn row(&self, position: usize) -> Option<impl Iterator<Item = (usize, f32)>> {
        let index = self.positions.iter().position(|stored| *stored == position)?;
        let row = &self.rows[index * self.columns..(index + 1) * self.columns];
        let stride = self.column_stride;
        Some(row.iter().enumerate().map(move |(column, logit)| (column * stride, *logit)))
    }
}

fn integers(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list");
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().expect("a list");
    list.iter().map(|margin| margin.as_f64().expect("a number") as f32).collect()
}

/// The folder of fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Opens a model of the fixtures.
pub fn tiny(file: &str) -> Model {
    Model::open(&fixtures().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Opens a real model from the files that `DCTMS_TEST_MODELS` lists (separated by colons) or from
/// the repository's cache; `None`, with a line that says so, when it is not there.
pub fn real(file: &str) -> Option<Model> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models").join(file);
    let listed = std::env::var_os("DCTMS_TEST_MODELS").unwrap_or_default();
    let mut paths = std::env::split_paths(&listed).chain([cache]);
    let found = paths.find(|path| path.ends_with(file) && path.is_file());
    if found.is_none() {
        eprintln!("skipped: no {file} in DCTMS_TEST_MODELS or .cache/models (make models)");
    }
    found.map(|path| Model::open(&path).unwrap_or_else(|error| panic!("{file}: {error}")))
}
