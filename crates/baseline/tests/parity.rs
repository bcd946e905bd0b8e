//! The same answer under every memory management: dynamic, prototype and the product give logits
//! that are equal bit for bit, with caches that grow several times and rings that wrap.

use std::path::{Path, PathBuf};

use dctms_baseline::system::{Answer, Digest, Kind, Limits, System};
use dctms_engine::artefact::Weights;
use dctms_engine::artefact::write::Outline;
use dctms_engine::generation::{
    Control, EndTokens, GenerationOptions, LogitsDigest, Sequence, Timing, generate,
};
use dctms_engine::planning::{PlanSettings, plan, resolve_bounds};
use dctms_engine::session::{library_settings, load};
use dctms_engine::{Model, Runner};
use dctms_exec::sample::SamplerRecord;
use dctms_ir::Dtype;

/// Models of the fixtures: biases, head norms, windows, tied heads, mixed types.
const MODELS: [&str; 5] =
    ["llama-f32", "qwen2-f16", "qwen3-f16", "gemma3-f16", "llama-legacy-mixed"];
/// Tokens of the prompt and of the answer: beyond two growths of a cache.
const PROMPT: usize = 200;
const OUTPUT: usize = 310;

fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("tests/fixtures").join(format!("{name}.gguf"))
}

fn settings(kv_type: Dtype) -> PlanSettings {
    let mut settings = library_settings(0).expect("facts of the machine");
    settings.max_input_tokens = Some(PROMPT as u64);
    settings.max_output_tokens = Some(OUTPUT as u64);
    settings.prefill_chunk = 64;
    settings.kv_type = kv_type;
    settings.machine.lanes = 2;
    settings
}

/// What the product says; also the runner, to compile the model from.
fn product(model: &Model, settings: &PlanSettings, prompt: &[u32]) -> (Answer, Runner) {
    let bounds = resolve_bounds(model, settings, None).expect("bounds");
    let planned = plan(model, settings, &bounds).expect("a plan");
    let mut runner = load(model, &planned).expect("a runner");
    let mut sequence = Sequence::new(0, PROMPT + OUTPUT);
    sequence.begin(prompt, OUTPUT).expect("within bounds");
    let options = GenerationOptions {
        sampler: SamplerRecord::GREEDY,
        seed: 0,
        end_tokens: EndTokens::Ignored,
        stop_texts: Vec::new(),
        digest: LogitsDigest::Computed,
    };
    let sequences = std::slice::from_mut(&mut sequence);
    let mut timing = Timing::with_steps(OUTPUT);
    let mut emit = |_: usize, _: &str| Control::Continue;
    generate(&mut runner, None, sequences, &options, &mut timing, &mut emit).expect("an answer");
    let answer = Answer {
        tokens: sequence.generated().to_vec(),
        logits_sha256: Some(sequence.logits_sha256()),
        ..Answer::default()
    };
    (answer, runner)
}

#[test]
fn every_system_gives_the_same_bits() {
    for (index, name) in MODELS.iter().enumerate() {
        let kv_type = [Dtype::F16, Dtype::F32][index % 2];
        let settings = settings(kv_type);
        let model = Model::open(&fixture(name)).expect(name);
        let vocabulary = model.config.vocabulary as u32;
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + 11) % vocabulary).collect();
        let (expected, runner) = product(&model, &settings, &prompt);
        let bounds = resolve_bounds(&model, &settings, None).expect("bounds");
        let planned = plan(&model, &settings, &bounds).expect("a plan");
        let compiled = std::env::temp_dir().join(format!("baseline-{name}-{}", std::process::id()));
        let outline = Outline::new(&model.checkpoint, &planned.plan).expect("an outline");
        outline.write(&runner, &compiled).expect("a compiled model");
        for kind in [Kind::Dynamic, Kind::Prototype] {
            let model = Model::open(&compiled).expect("compiled").weighted(Weights::Mapped);
            let mut system = System::start(model, &settings, kind).expect("a system");
            // Twice: the second request finds what the first one left.
            for _ in 0..2 {
                let mut answer = Answer::default();
                let limits = Limits { tokens: OUTPUT, digest: Digest::Computed };
                system.generate(&prompt, limits, &mut answer, &mut |_, _| false).expect("answers");
                assert_eq!(answer.tokens, expected.tokens, "{name} {kind:?}");
                assert_eq!(answer.logits_sha256, expected.logits_sha256, "{name} {kind:?}");
            }
        }
        std::fs::remove_file(&compiled).expect("removed");
    }
}
