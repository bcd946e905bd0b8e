//! Stillness: from the first decode step to the last nothing is allocated, and with memory locked
//! nothing faults.
//!
//! The allocator of this program is the product's own, which counts; with its latch closed an
//! allocation of any thread would be counted as well. One test only, so that no other thread of
//! the test harness is at work.

mod common;

use common::{Setup, tiny};
use dctms_engine::generation::{
    Control, EndTokens, GenerationOptions, LogitsDigest, Sequence, Timing, generate,
};
use dctms_exec::sample::SamplerRecord;
use dctms_ir::Dtype;
use dctms_system::heap::{BoundedHeap, HeapConfig, LatchScope, OnViolation};
use dctms_system::image::prefault_image;
use dctms_system::process::{FaultScope, faults, lock_all};
use dctms_text::Tokenizer;

#[global_allocator]
static HEAP: BoundedHeap = BoundedHeap::new(HeapConfig {
    boot_limit_bytes: 1 << 30,
    run_reserve_bytes: 1 << 30,
    exit_code: 3,
});

/// Decode steps that must be still.
const STEPS: usize = 256;
/// Tokens of each prompt.
const PROMPT: usize = 20;
/// Sequences decoded together.
const SEQUENCES: usize = 3;

/// Sampling with everything that it can do, so that every part of it is seen.
fn options() -> GenerationOptions {
    GenerationOptions {
        sampler: SamplerRecord {
            temperature: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.01,
            repeat_penalty: 1.1,
        },
        seed: 7,
        end_tokens: EndTokens::Ignored,
        stop_texts: vec!["no such text".to_string()],
        digest: LogitsDigest::Computed,
    }
}

#[test]
fn decode_steps_allocate_nothing_and_do_not_fault() {
    for file in ["llama-legacy-mixed.gguf", "gemma3-f16.gguf"] {
        check(file);
    }
}

fn check(file: &str) {
    let model = tiny(file);
    let setup = Setup {
        context: (PROMPT as u64, STEPS as u64 + 1),
        chunk: 8,
        rows: 1,
        sequences: SEQUENCES as u64,
        kv: Dtype::F16,
        ..Setup::new(64)
    };
    let mut runner = setup.start(&model);
    let tables = runner.tokenizer_tables().expect("the tiny models have vocabularies");
    let layout = &model.vocabulary.as_ref().expect("a vocabulary").layout;
    let tokenizer = Tokenizer::new(layout, tables.bytes());
    let mut sequences: Vec<Sequence> = Vec::new();
    for slot in 0..SEQUENCES {
        let mut sequence = Sequence::new(slot as u32, PROMPT + STEPS + 1);
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|id| id + 40 * slot as u32).collect();
        sequence.begin(&prompt, STEPS + 1).expect("within bounds");
        sequences.push(sequence);
    }
    let options = options();
    let mut timing = Timing::with_steps(STEPS + 1);
    let locked = lock_all();
    if locked.is_err() {
        prefault_image().expect("the program's pages");
    }
    let (allocations, before) = (HEAP.allocations(), faults(FaultScope::Process));
    HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
    let mut pieces = 0;
    let result = generate(
        &mut runner,
        Some(&tokenizer),
        &mut sequences,
        &options,
        &mut timing,
        &mut |_, piece| {
            pieces += piece.len();
            Control::Continue
        },
    );
    HEAP.open_latch();
    let (allocations, after) = (HEAP.allocations() - allocations, faults(FaultScope::Process));
    result.expect("a generation within bounds");
    assert!(timing.decode_tokens >= SEQUENCES * STEPS, "{} tokens", timing.decode_tokens);
    assert!(pieces > 0, "some text came out");
    assert_eq!(allocations, 0, "{file}: allocations over {STEPS} steps");
    let minor = after.minor - before.minor;
    let major = after.major - before.major;
    match locked {
        Ok(()) => assert_eq!((minor, major), (0, 0), "{file}: minor and major faults"),
        Err(error) => {
            eprintln!("{file}: not locked ({error}); {minor} minor, {major} major faults")
        }
    }
}
