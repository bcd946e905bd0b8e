//! One more than a bound is refused before anything is computed, and the session goes on.

mod common;

use common::{Setup, fixtures, prefill_all, tiny};
use dctms_engine::bench::{BenchSettings, work};
use dctms_engine::runner::{Runner, Step};
use dctms_engine::{Class, EngineError, Model, session};
use dctms_exec::{CertifiedPlan, ExecError};
use dctms_kernels::peak::Streams;

/// Bounds of the plan under test.
const CONTEXT: u64 = 40;
const CHUNK: u64 = 8;
const ROWS: u64 = 4;
const SEQUENCES: u64 = 2;

fn model() -> Model {
    tiny("llama-f16.gguf")
}

fn setup() -> Setup {
    Setup {
        context: (CONTEXT - 10, 10),
        chunk: CHUNK,
        rows: ROWS,
        sequences: SEQUENCES,
        ..Setup::new(64)
    }
}

/// The bits of the logits after three tokens in slot 0.
fn answer(runner: &mut Runner) -> Vec<u32> {
    let mut bits = Vec::new();
    prefill_all(runner, 0, &[1, 2, 3], &mut |_, runner, row| {
        bits = (0..runner.vocabulary()).map(|id| runner.logit(row, id).to_bits()).collect();
    });
    bits
}

/// A refusal of that class, naming both numbers.
fn refused<T: std::fmt::Debug>(result: Result<T, EngineError>, class: Class, parts: &[&str]) {
    let error = result.expect_err("it must be refused");
    assert_eq!(error.class, class, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{error}: no {part:?}");
    }
}

#[test]
fn one_more_than_a_bound_is_refused_and_the_session_goes_on() {
    let model = model();
    let mut runner = setup().start(&model);
    let expected = answer(&mut runner);
    let tokens = [5u32; CONTEXT as usize + 1];
    let step = |slot: u32, token: u32, position: u32| Step { slot, token, position };
    let over = Class::OverBound;

    // Positions: N + M.
    refused(runner.prefill(0, &tokens, 0, &mut |_| true), over, &["41", "40"]);
    refused(runner.decode(&[step(0, 1, CONTEXT as u32)]), over, &["41", "40"]);
    // Tokens of a step, rows of logits, sequences of a step.
    let chunk = &tokens[..CHUNK as usize + 1];
    refused(runner.prefill_with_rows(0, chunk, 0, 8..9), over, &["tokens = 9", "8"]);
    refused(runner.prefill_with_rows(0, &tokens[..6], 0, 1..6), over, &["rows = 5", "4"]);
    let three = [step(0, 1, 3), step(1, 1, 0), step(0, 1, 4)];
    refused(runner.decode(&three), over, &["sequences = 3", "2"]);
    // Slots and token ids.
    refused(runner.decode(&[step(SEQUENCES as u32, 1, 0)]), over, &["slot 2"]);
    refused(runner.prefill(2, &[1], 0, &mut |_| true), over, &["slot 2"]);
    refused(runner.decode(&[step(0, 270, 3)]), Class::Usage, &["270"]);
    refused(runner.prefill(0, &[1, 270], 0, &mut |_| true), Class::Usage, &["270"]);

    assert_eq!(answer(&mut runner), expected, "after all those refusals");
    // The bound itself is no refusal.
    runner.prefill(0, &tokens[..CONTEXT as usize], 0, &mut |_| true).expect("N + M tokens");
    runner.decode(&[step(0, 269, 39), step(1, 1, 0)]).expect("B sequences");
}

#[test]
fn phases_out_of_order_are_refused() {
    let model = model();
    let planned = setup().plan(&model);
    let mut runner = session::load(&model, &planned).expect("a tiny model");
    let files = model.files(&planned.plan).expect("the fixture");
    let loader = dctms_engine::loading::Loader::new(&files, model.vocabulary.as_ref(), None);
    refused(runner.load(&loader), Class::System, &["load"]);
    answer(&mut runner);
}

/// A lent constant outlives its session's borrow, so the session may not take its pages away.
#[test]
fn a_session_whose_constant_is_lent_does_not_retire() {
    let model = model();
    let runner = setup().start(&model);
    let tables = runner.tokenizer_tables().expect("the tiny models have vocabularies");
    let before = tables.bytes().to_vec();
    refused(runner.retire().map(|_| ()), Class::System, &["lent"]);
    assert!(before.iter().any(|byte| *byte != 0));
    assert_eq!(tables.bytes(), before, "what is lent stays");
    setup().start(&model).retire().expect("nothing is lent");
}

#[test]
fn a_certificate_of_another_plan_starts_nothing() {
    let model = model();
    let planned = setup().plan(&model);
    let other = Setup { chunk: CHUNK - 1, ..setup() }.plan(&model);
    let error = CertifiedPlan::new(&planned.plan, &other.certificate).expect_err("another plan");
    assert_eq!(error, ExecError::WrongCertificate);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_before_weights_are_read() {
    let model = model();
    let mut planned = setup().plan(&model);
    let total = planned.plan.envelope.total;
    // A machine of one byte less: the plan is made again for it, and verified.
    let small = |bytes: u64| Setup { memory_bytes: bytes, ..setup() }.plan(&model);
    planned = small(total);
    session::load(&model, &planned).expect("exactly enough");
    let error = session::load(&model, &small(total - 1)).err().expect("one byte short");
    assert_eq!(error.class, Class::DoesNotFit, "{error}");
}

#[test]
fn a_file_cut_off_after_its_header_plans_but_does_not_load() {
    let whole = std::fs::read(fixtures().join("llama-f16.gguf")).expect("the fixture");
    let path = std::env::temp_dir().join(format!("dctms-cut-{}.gguf", std::process::id()));
    std::fs::write(&path, &whole[..whole.len() - 1000]).expect("a temporary file");
    let model = Model::open(&path).expect("the header is whole");
    let planned = setup().plan(&model);
    let error = session::load(&model, &planned).err();
    std::fs::remove_file(&path).expect("the temporary file");
    assert_eq!(error.expect("weights are missing").class, Class::File);
}

/// What is compared with the speed of a step must read the same bytes as the step, on any lanes.
#[test]
fn reading_the_weights_of_a_step_reads_all_of_them_once() {
    for (file, lanes) in [("llama-legacy-mixed.gguf", 1), ("llama-legacy-mixed.gguf", 3)] {
        let (model, setup) = (tiny(file), Setup { lanes, ..setup() });
        let planned = setup.plan(&model);
        let settings = BenchSettings {
            prompt_tokens: 1,
            gen_tokens: 1,
            depth_tokens: 0,
            sequences: 1,
            repetitions: 1,
        };
        let expected = work(&planned.plan, &settings).weight_bytes_per_step;
        let mut runner = session::load(&model, &planned).expect("it loads");
        for streams in Streams::ALL {
            assert_eq!(runner.read_decode_weights(streams), Ok(expected), "{lanes} lanes");
        }
        assert!(expected > 0);
    }
}
