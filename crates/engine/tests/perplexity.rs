//! Perplexity: the same whatever the steps it is computed in, BOS where it belongs, and (on the
//! whole text, in minutes) llama-perplexity's value within half a percent.

mod common;

use common::{Fixture, Setup, fixtures, real, tiny};
use dctms_engine::evaluate::{Perplexity, PerplexityInput, perplexity};
use dctms_engine::generation::Control;
use dctms_engine::runner::Runner;
use dctms_engine::{Model, session};
use dctms_ir::Dtype;
use dctms_text::{EncodeOptions, Ends, Presence, Role, Scratch, SpecialText, Tokenizer};

const CTX_SIZE: usize = 48;

fn measured(model: &Model, chunk: u64, input: PerplexityInput<'_>) -> Perplexity {
    let setup = Setup { chunk, rows: chunk, kv: Dtype::F16, ..Setup::new(input.ctx_size) };
    let mut runner = setup.start(model);
    perplexity(&mut runner, input, &mut |_| Control::Continue).expect("within bounds")
}

/// The definition, written out: one chunk after another, one token after another.
fn by_definition(runner: &mut Runner, input: PerplexityInput<'_>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for chunk in input.tokens.chunks_exact(input.ctx_size) {
        let mut given = chunk.to_vec();
        given[0] = input.bos.unwrap_or(given[0]);
        for position in 0..input.ctx_size - 1 {
            let token = &given[position..=position];
            runner.prefill_with_rows(0, token, position as u32, 0..1).expect("within bounds");
            if position >= input.ctx_size / 2 {
                sum -= runner.log_probability(0, chunk[position + 1] as usize);
                count += 1.0;
            }
        }
    }
    f64::exp(sum / count)
}

#[test]
fn steps_do_not_matter_and_the_definition_is_kept() {
    let model = tiny("gemma3-f16.gguf");
    let tokens: Vec<u32> = (0..150u32).map(|index| (index * 37 + 11) % 270).collect();
    for bos in [None, Some(2)] {
        let input = PerplexityInput { tokens: &tokens, ctx_size: CTX_SIZE, bos };
        let expected = measured(&model, 47, input);
        assert_eq!((expected.chunks, expected.predictions), (3, 3 * 23));
        for chunk in [1, 7, 24, 25] {
            assert_eq!(measured(&model, chunk, input), expected, "steps of {chunk}");
        }
        let mut runner = Setup { kv: Dtype::F16, ..Setup::new(CTX_SIZE) }.start(&model);
        let value = by_definition(&mut runner, input);
        assert!((value / expected.perplexity - 1.0).abs() < 1e-9, "{value} {expected:?}");
    }
}

/// Tokens of the fixtures' text, and BOS if the model asks for it.
fn text_tokens(model: &Model, runner: &Runner) -> (Vec<u32>, Option<u32>) {
    let text = std::fs::read(fixtures().join("alice.txt")).expect("the text");
    let tables = runner.tokenizer_tables().expect("a vocabulary");
    let layout = &model.vocabulary.as_ref().expect("a vocabulary").layout;
    let tokenizer = Tokenizer::new(layout, tables.bytes());
    let facts = tokenizer.facts();
    let mut scratch = Scratch::with_text_bytes_max(facts.kind, text.len());
    let options = EncodeOptions { special_text: SpecialText::PlainText, ends: Ends::AsMetadata };
    let mut ids = Vec::new();
    tokenizer.encode(&text, options, &mut scratch, &mut |id| ids.push(id)).expect("no bound");
    let bos = match facts.bos {
        Presence::Present => facts.role(Role::Bos),
        Presence::Absent => None,
    };
    (ids, bos)
}

fn check_real(name: &str) {
    let fixture = Fixture::read(name);
    let Some(model) = real(fixture.model_files()[0]) else { return };
    let expected = &fixture.json["perplexity"];
    let ctx_size = expected["ctx_size"].as_u64().expect("a number") as usize;
    let setup = Setup { kv: Dtype::F16, ..Setup::new(ctx_size) };
    let mut runner = session::load(&model, &setup.plan(&model)).expect("the model");
    let (tokens, bos) = text_tokens(&model, &runner);
    assert_eq!(Some(tokens.len() as u64), expected["tokens"].as_u64(), "tokens of the text");
    let input = PerplexityInput { tokens: &tokens, ctx_size, bos };
    let result = perplexity(&mut runner, input, &mut |_| Control::Continue).expect("within bounds");
    let theirs = expected["llama_cpp"].as_f64().expect("a number");
    eprintln!("{name}: {result:?}, llama.cpp {theirs}");
    assert_eq!(Some(result.predictions), expected["predictions"].as_u64());
    assert!((result.perplexity / theirs - 1.0).abs() < 0.005, "{} {theirs}", result.perplexity);
}

#[test]
#[ignore = "minutes: 23,000 tokens"]
fn smollm2_on_the_whole_text() {
    check_real("smollm2");
}

#[test]
#[ignore = "minutes: 23,000 tokens"]
fn gemma3_270m_on_the_whole_text() {
    check_real("gemma3-270m");
}
