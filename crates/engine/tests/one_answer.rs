//! One answer: the logits of a token have the same bits however they were computed.
//!
//! A sequence is long enough to pass a boundary of attention's segments (256 positions) and, where
//! the model has sliding windows, to wrap their rings several times. It runs in many ways: in
//! chunks of other sizes, on other numbers of lanes, on other instruction sets, from prefill or
//! decode, alone or beside others, in a second session. Every row of logits must be the same.

mod common;

use common::{Setup, prefill_all, real, tiny};
use dctms_engine::Model;
use dctms_engine::generation::{
    Control, EndTokens, GenerationOptions, LogitsDigest, Sequence, Timing, generate,
};
use dctms_engine::runner::{Runner, Step};
use dctms_exec::sample::SamplerRecord;
use dctms_ir::Dtype;
use dctms_ir::plan::Preference;
use dctms_kernels::isa::Isa;
use dctms_planner::{Activations, Choice, Choices};
use sha2::{Digest, Sha256};

/// Digest of the logits of one token.
type Row = [u8; 32];

/// Tokens of the sequence, and how many of them are prompt.
const TOKENS: usize = 310;
const PROMPT: usize = 290;

fn row_digest(runner: &Runner, row: usize) -> Row {
    let mut hash = Sha256::new();
    runner.hash_logits(row, &mut hash);
    hash.finalize().into()
}

/// Seeded token ids: the generator is SplitMix64.
fn token_ids(seed: u64, count: usize, vocabulary: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..count).map(|_| (next() % vocabulary) as u32).collect()
}

/// The first `prompt` tokens by prefill, the others by decode.
fn alone(model: &Model, setup: &Setup, tokens: &[u32], prompt: usize) -> Vec<Row> {
    let mut runner = setup.start(model);
    let mut rows = Vec::new();
    prefill_all(&mut runner, 0, &tokens[..prompt], &mut |_, runner, row| {
        rows.push(row_digest(runner, row));
    });
    for (index, token) in tokens[prompt..].iter().enumerate() {
        let step = Step { slot: 0, token: *token, position: (prompt + index) as u32 };
        runner.decode(&[step]).expect("within bounds");
        rows.push(row_digest(&runner, 0));
    }
    rows
}

/// As [`alone`], with three other sequences that were prefilled before and after and that decode
/// in the same steps, in changing order and number.
fn beside(model: &Model, setup: &Setup, tokens: &[u32], prompt: usize) -> Vec<Row> {
    const SLOT: u32 = 2;
    let setup = Setup { sequences: 4, rows: setup.rows.max(4), ..setup.clone() };
    let mut runner = setup.start(model);
    let vocabulary = model.config.vocabulary;
    let company: Vec<(u32, usize, Vec<u32>)> = [(0, 5), (3, 70), (1, 255)]
        .map(|(slot, len)| (slot, len, token_ids(u64::from(slot) + 7, TOKENS, vocabulary)))
        .to_vec();
    let mut rows = Vec::new();
    for (index, (slot, len, other)) in company.iter().enumerate() {
        prefill_all(&mut runner, *slot, &other[..*len], &mut |_, _, _| ());
        if index == 0 {
            prefill_all(&mut runner, SLOT, &tokens[..prompt], &mut |_, runner, row| {
                rows.push(row_digest(runner, row));
            });
        }
    }
    for (index, token) in tokens[prompt..].iter().enumerate() {
        let position = |start: usize| (start + index) as u32;
        let mut steps = vec![Step { slot: SLOT, token: *token, position: position(prompt) }];
        // The others leave one by one.
        for (slot, len, other) in company.iter().skip(index / 6) {
            let token = other[len + index];
            steps.push(Step { slot: *slot, token, position: position(*len) });
        }
        let row = index % steps.len();
        steps.swap(0, row);
        runner.decode(&steps).expect("within bounds");
        rows.push(row_digest(&runner, row));
    }
    rows
}

/// How a run differs from the first one.
struct Variant {
    name: String,
    setup: Setup,
    prompt: usize,
}

/// One variant for each thing that must not matter, and some that mix them.
fn variants(base: &Setup) -> Vec<Variant> {
    let variant = |name: &str, setup: Setup, prompt: usize| {
        let rows = setup.chunk;
        Variant { name: name.to_string(), setup: Setup { rows, ..setup }, prompt }
    };
    let of = |chunk: u64, lanes: u32| Setup { chunk, lanes, ..base.clone() };
    let mut variants = vec![
        variant("a second session", base.clone(), PROMPT),
        variant("chunk 1", of(1, 2), PROMPT),
        variant("chunk 7 on three lanes", of(7, 3), PROMPT),
        variant("chunk 256 on one lane", of(256, 1), PROMPT),
        variant("decoded from the third token on", of(32, 2), 2),
        variant("prefilled to the end", of(32, 3), TOKENS),
    ];
    for isa in Isa::available().filter(|isa| *isa != base.isa) {
        variants.push(variant(isa.name(), Setup { isa, ..of(32, 2) }, PROMPT));
    }
    variants
}

fn check(model: &Model, base: &Setup) {
    let tokens = token_ids(1, TOKENS, model.config.vocabulary);
    let expected = alone(model, base, &tokens, PROMPT);
    assert_eq!(expected.len(), TOKENS);
    let distinct: std::collections::BTreeSet<&Row> = expected.iter().collect();
    assert!(distinct.len() > TOKENS - 3, "the rows differ from each other");
    for Variant { name, setup, prompt } in variants(base) {
        let rows = alone(model, &setup, &tokens, prompt);
        assert_same(&expected, &rows, &name, base);
    }
    for lanes in [1, 3] {
        let setup = Setup { lanes, chunk: 7, rows: 7, ..base.clone() };
        let rows = beside(model, &setup, &tokens, PROMPT);
        assert_same(&expected, &rows, "beside three others", base);
    }
}

fn assert_same(expected: &[Row], rows: &[Row], variant: &str, base: &Setup) {
    assert_eq!(expected.len(), rows.len(), "{variant}");
    let differs = expected.iter().zip(rows).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{variant}: first token whose logits differ (base {base:?})");
}

fn base(kv: Dtype) -> Setup {
    Setup { chunk: 32, rows: 32, kv, activations: Activations::Quantised, ..Setup::new(TOKENS) }
}

fn check_tiny(file: &str) {
    let model = tiny(file);
    for kv in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        if kv == Dtype::Q8_0 && !model.config.head_dim.is_multiple_of(32) {
            eprintln!("{file}: heads of {} have no q8_0 cache", model.config.head_dim);
            continue;
        }
        check(&model, &base(kv));
    }
}

macro_rules! tiny_models {
    ($($test:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $test() {
                check_tiny($file);
            }
        )*
    };
}

tiny_models! {
    llama_of_legacy_types: "llama-legacy-mixed.gguf",
    qwen2_with_biases: "qwen2-f16.gguf",
    qwen3_of_k_quants: "qwen3-k-quants-mixed.gguf",
    gemma3_with_windows: "gemma3-f16.gguf",
}

/// Nothing that the planner chooses is in a result: fusion, row blocks, replacement in place,
/// alignment, order and cuts.
#[test]
fn the_planners_choices_change_no_bit() {
    let model = tiny("llama-legacy-mixed.gguf");
    let base = base(Dtype::F16);
    let tokens = token_ids(1, TOKENS, model.config.vocabulary);
    let expected = alone(&model, &base, &tokens, PROMPT);
    let memory = Choices { preference: Preference::MemoryFirst, without: Vec::new() };
    let without = Choice::ALL.map(|choice| Choices { without: vec![choice], ..Choices::default() });
    for choices in without.into_iter().chain([memory]) {
        let setup = Setup { choices: choices.clone(), ..base.clone() };
        let rows = alone(&model, &setup, &tokens, PROMPT);
        assert_same(&expected, &rows, &format!("{choices:?}"), &base);
    }
}

/// Float activations have the same property; the parity tests measure on them.
#[test]
fn k_quants_with_float_activations() {
    let setup = Setup { activations: Activations::Float, ..base(Dtype::F16) };
    check(&tiny("qwen3-k-quants-mixed.gguf"), &setup);
}

/// Token ids and digest of the logits of each sequence's sampled steps.
fn sampled(runner: &mut Runner, seed: u64, prompts: &[(u32, &[u32])]) -> Vec<(Vec<u32>, Row)> {
    const LIMIT: usize = 24;
    let mut sequences: Vec<Sequence> = Vec::new();
    for (slot, prompt) in prompts {
        let mut sequence = Sequence::new(*slot, prompt.len() + LIMIT);
        sequence.begin(prompt, LIMIT).expect("within bounds");
        sequences.push(sequence);
    }
    let options = GenerationOptions {
        sampler: SamplerRecord { temperature: 1.2, top_p: 0.98, ..SamplerRecord::GREEDY },
        seed,
        end_tokens: EndTokens::Ignored,
        stop_texts: Vec::new(),
        digest: LogitsDigest::Computed,
    };
    let mut timing = Timing::with_steps(LIMIT);
    let emit = &mut |_: usize, _: &str| Control::Continue;
    generate(runner, None, &mut sequences, &options, &mut timing, emit).expect("within bounds");
    sequences.iter().map(|s| (s.generated().to_vec(), s.logits_sha256())).collect()
}

/// With a seed, sampled tokens too are the same alone, together, and on other lanes.
#[test]
fn sampled_tokens_do_not_depend_on_company() {
    let model = tiny("qwen3-k-quants-mixed.gguf");
    let setup = Setup { sequences: 4, rows: 4, ..base(Dtype::F16) };
    let lens = [5, 33, 64, 100];
    let prompts = lens.map(|len| token_ids(len as u64, len, model.config.vocabulary));
    let slots = [2, 0, 3, 1];
    let together: Vec<(u32, &[u32])> =
        slots.into_iter().zip(prompts.iter().map(Vec::as_slice)).collect();
    let expected = sampled(&mut setup.start(&model), 11, &together);
    let fewest = std::collections::BTreeSet::from_iter(expected.iter().map(|(ids, _)| ids));
    assert_eq!(fewest.len(), 4, "four different texts");
    for (lanes, isa) in [(1, setup.isa), (3, Isa::Scalar)] {
        let mut runner = Setup { lanes, isa, chunk: 7, ..setup.clone() }.start(&model);
        for (index, prompt) in together.iter().enumerate() {
            // The seed of a sequence is the first one's plus its number.
            let alone = sampled(&mut runner, 11 + index as u64, &[*prompt]);
            assert_eq!(alone[0], expected[index], "sequence {index} on {lanes} lanes");
        }
    }
}

/// Real models, shortly: the scalar code would take minutes, and so would many loads.
#[test]
fn smollm2() {
    check_real("SmolLM2-135M-Instruct.Q4_1.gguf");
}

/// K-quants, windows, and heads of 256.
#[test]
fn gemma3() {
    check_real("gemma-3-270m-q4_k_m.gguf");
}

fn check_real(file: &str) {
    let Some(model) = real(file) else { return };
    let tokens = token_ids(3, 24, model.config.vocabulary);
    let prompt = 18;
    for kv in [Dtype::F16, Dtype::Q8_0] {
        let setup =
            |chunk: u64, lanes: u32| Setup { chunk, rows: chunk, lanes, kv, ..Setup::new(64) };
        let base = setup(32, 2);
        let expected = alone(&model, &base, &tokens, prompt);
        let isa = Isa::from_name("avx2").unwrap_or(base.isa);
        let rows = alone(&model, &Setup { isa, ..setup(7, 3) }, &tokens, prompt);
        assert_same(&expected, &rows, "chunk 7, 3 lanes, avx2", &base);
        if kv == Dtype::Q8_0 {
            continue;
        }
        let rows = alone(&model, &setup(1, 1), &tokens, prompt);
        assert_same(&expected, &rows, "chunk 1, 1 lane", &base);
        // Beside another sequence, which decodes in the same steps.
        let mut runner = Setup { sequences: 2, ..setup(7, 2) }.start(&model);
        let mut rows = Vec::new();
        prefill_all(&mut runner, 0, &tokens[5..14], &mut |_, _, _| ());
        prefill_all(&mut runner, 1, &tokens[..prompt], &mut |_, runner, row| {
            rows.push(row_digest(runner, row));
        });
        for index in prompt..tokens.len() {
            let step = |slot: u32, at: usize| Step { slot, token: tokens[at], position: at as u32 };
            let neighbour = Step { position: (index - 14) as u32, ..step(0, index) };
            runner.decode(&[neighbour, step(1, index)]).expect("within bounds");
            rows.push(row_digest(&runner, 1));
        }
        assert_same(&expected, &rows, "beside another", &base);
    }
}
