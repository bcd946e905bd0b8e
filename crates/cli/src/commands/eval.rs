//! `dctms eval`: the perplexity of a model on a text, by llama-perplexity's definition.
//!
//! Runs inside a planned, sealed envelope like any generation: the tokens of the text are counted
//! in the heap of the run, the text itself in that of the compile stage.

use std::path::{Path, PathBuf};

use dctms_engine::evaluate::{Perplexity, PerplexityInput, STEP_TOKENS_MAX, check, perplexity};
use dctms_engine::generation::Control;
use dctms_engine::planning::resolve_bounds;
use dctms_engine::{Class, EngineError, Model};
use dctms_system::heap::{LatchScope, OnViolation, Region};
use dctms_system::interrupt::{catch_stop_requests, stop_requested};
use dctms_system::process::memory_facts;
use dctms_text::{EncodeOptions, Ends, Presence, Role, Scratch, SpecialText, Tokenizer};
use lexopt::prelude::*;

use crate::HEAP;
use crate::args::{PlanArgs, UsageError, count, unknown, within};
use crate::commands::compile::weighted;
use crate::commands::files::read_at_most;
use crate::commands::stream::note;
use crate::commands::{model_path, say};
use crate::failure::{Failure, INTERRUPTED};
use crate::machine::{lanes_of, settings};
use crate::process::{self, CompileStage, HeapLimit, Prepared};

/// Tokens of a prefill step, and so rows of logits, when nothing else is asked for.
const STEP_TOKENS: u64 = 64;
/// Tokens of a chunk, as llama-perplexity's.
const CTX_SIZE: u64 = 512;
/// Longest text, bytes.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Heap for each byte of text while it is tokenised: the text, its scratch, its tokens.
const HEAP_PER_TEXT_BYTE: u64 = 24;

struct EvalArgs {
    model: Option<PathBuf>,
    plan: PlanArgs,
    text: PathBuf,
    ctx_size: u64,
    json: bool,
}

impl EvalArgs {
    fn parse(parser: &mut lexopt::Parser) -> Result<EvalArgs, UsageError> {
        let plan = PlanArgs { prefill_chunk: STEP_TOKENS, ..PlanArgs::default() };
        let (mut text, mut model) = (None, None);
        let mut args =
            EvalArgs { model: None, plan, text: PathBuf::new(), ctx_size: CTX_SIZE, json: false };
        while let Some(argument) = parser.next()? {
            match argument {
                Short('m') => model = Some(parser.value()?.into()),
                Short('c') | Long("ctx-size") => {
                    args.ctx_size = within(count(parser, "ctx-size")?, "ctx-size", 3, 1 << 24)?;
                }
                Long("perplexity") => text = Some(parser.value()?.into()),
                Long("json") => args.json = true,
                Long(name) => {
                    let name = name.to_string();
                    if !args.plan.take(&name, parser)? {
                        return Err(unknown(&Long(&name)));
                    }
                }
                Value(value) if model.is_none() => model = Some(value.into()),
                other => return Err(unknown(&other)),
            }
        }
        let most = STEP_TOKENS_MAX as u64;
        within(args.plan.prefill_chunk, "prefill-chunk", 1, most)?;
        args.plan.require_blind("eval")?;
        args.model = model;
        args.text = text.ok_or_else(|| {
            UsageError::Wrong("what to evaluate is missing: --perplexity FILE".to_string())
        })?;
        Ok(args)
    }
}

/// Runs the command.
///
/// # Errors
/// Usage, a defect of the model, a text that is too short, no room.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let args = EvalArgs::parse(parser)?;
    let Ready { mut prepared, tokens, bos } = prepare(&args)?;
    // Before this, a signal may simply end the process: nothing of it would be lost.
    catch_stop_requests()?;
    prepared.runner.interrupt_by(stop_requested);
    let total = prepared.envelope.total;
    note(format_args!("dctms: {} tokens, M_max {total} bytes\n", tokens.len()));
    let input = PerplexityInput { tokens: &tokens, ctx_size: args.ctx_size as usize, bos };
    let chunks = tokens.len() / input.ctx_size;
    let allocations = HEAP.allocations();
    HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
    let result = perplexity(&mut prepared.runner, input, &mut |so_far| {
        show(so_far, chunks);
        match stop_requested() {
            true => Control::Stop,
            false => Control::Continue,
        }
    });
    HEAP.open_latch();
    let allocations = HEAP.allocations() - allocations;
    let result = result?;
    let complete = result.chunks == chunks;
    if args.json {
        say(&json(&args, &prepared, tokens.len(), &result, allocations, chunks)?)?;
    }
    if !complete {
        // What came of a part of a text is no figure of the text.
        note(format_args!("dctms: interrupted after {} of {chunks} chunks\n", result.chunks));
        return Err(Failure::Reported(INTERRUPTED));
    }
    note(format_args!(
        "dctms: ± {:.5} over {} predictions in {} chunks of {}\n",
        result.deviation, result.predictions, result.chunks, args.ctx_size
    ));
    match args.json {
        true => Ok(()),
        false => say(&format!("perplexity {:.4}\n", result.perplexity)),
    }
}

/// The figures so far.
fn show(so_far: &Perplexity, chunks: usize) {
    note(format_args!("[{}/{chunks}] {:.4}\n", so_far.chunks, so_far.perplexity));
}

fn json(
    args: &EvalArgs,
    prepared: &Prepared,
    tokens: usize,
    result: &Perplexity,
    allocations: u64,
    chunks: usize,
) -> Result<String, Failure> {
    // JSON has no word for what no chunk gave.
    let figure = |value: f64| match value.is_finite() {
        true => format!("{value:.6}"),
        false => "null".to_string(),
    };
    Ok(format!(
        "{{\"perplexity\":{},\"deviation\":{},\"complete\":{},\"tokens\":{tokens},\
         \"chunks\":{},\"predictions\":{},\"ctx_size\":{},\"peak_bytes\":{},\"m_max_bytes\":{},\
         \"heap_peak_bytes\":{},\"heap_bytes\":{},\"allocations\":{allocations}}}\n",
        figure(result.perplexity),
        figure(result.deviation),
        result.chunks == chunks,
        result.chunks,
        result.predictions,
        args.ctx_size,
        memory_facts()?.peak_resident_bytes,
        prepared.envelope.total,
        HEAP.figures(Region::Run).live_peak_bytes,
        prepared.envelope.runtime.heap,
    ))
}

/// A loaded model and the text's tokens.
struct Ready {
    prepared: Prepared,
    tokens: Vec<u32>,
    bos: Option<u32>,
}

fn prepare(args: &EvalArgs) -> Result<Ready, Failure> {
    let stage = CompileStage::open()?;
    let (started, tokens, bos) = {
        let text_bytes = text_len(&args.text)?;
        let path = &model_path(args.model.as_deref())?;
        let model = weighted(Model::open(path)?, path, &args.plan)?;
        let compile_extra_bytes = HEAP_PER_TEXT_BYTE * text_bytes;
        stage.limit_for(&model, lanes_of(&args.plan)?, compile_extra_bytes)?;
        model.checkpoint.require_complete().map_err(EngineError::from)?;
        let (ids, bos) = encode(&model, &args.text, text_bytes)?;
        check(ids.len(), args.ctx_size as usize)?;
        let mut plan_args = args.plan.clone();
        plan_args.max_input = Some(args.ctx_size - 1);
        plan_args.max_output = Some(1);
        let mut settings = settings(&plan_args)?;
        settings.logit_rows = plan_args.prefill_chunk.min(args.ctx_size - 1);
        settings.runtime.heap_fixed_bytes += (ids.len() * size_of::<u32>()) as u64;
        settings.runtime.compile_extra_bytes = compile_extra_bytes;
        let bounds = resolve_bounds(&model, &settings, None)?;
        let planned = process::certify(&model, &settings, &bounds)?;
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        // Only now has the run's heap the room that the plan gives it.
        (started, stage.lasting(|| ids.as_slice().to_vec()), bos)
    };
    stage.close()?;
    Ok(Ready { prepared: process::load(started, None)?, tokens, bos })
}

fn text_len(path: &Path) -> Result<u64, EngineError> {
    let fail = |what: String| EngineError::new(Class::Usage, format!("{}: {what}", path.display()));
    let len = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if len > TEXT_BYTES_MAX {
        return Err(fail(format!("{len} bytes, at most {TEXT_BYTES_MAX}")));
    }
    Ok(len)
}

/// The tokens of the text as llama-perplexity makes them: ends as the metadata says, texts of
/// special tokens as text. And BOS, if the model asks for it.
fn encode(
    model: &Model,
    path: &Path,
    text_bytes: u64,
) -> Result<(Vec<u32>, Option<u32>), EngineError> {
    let vocabulary = model
        .vocabulary
        .as_ref()
        .ok_or_else(|| EngineError::new(Class::File, "the model has no tokeniser".to_string()))?;
    let text = read_at_most(path, text_bytes)
        .map_err(|what| EngineError::new(Class::Usage, format!("{}: {what}", path.display())))?;
    let mut tables = vec![0; vocabulary.layout.len_bytes()];
    let bytes = model.vocabulary_bytes(vocabulary)?;
    dctms_text::build(&vocabulary.layout, &vocabulary.info.view(&bytes), &mut tables)
        .map_err(|error| EngineError::new(Class::File, error))?;
    drop(bytes);
    let tokenizer = Tokenizer::new(&vocabulary.layout, &tables);
    let facts = tokenizer.facts();
    let mut scratch = Scratch::with_text_bytes_max(facts.kind, text.len());
    let options = EncodeOptions { special_text: SpecialText::PlainText, ends: Ends::AsMetadata };
    // At most a token a byte, and the ends: room made at once does not move.
    let mut ids = Vec::with_capacity(text.len() + 2);
    tokenizer
        .encode(&text, options, &mut scratch, &mut |id| ids.push(id))
        .map_err(|error| EngineError::new(Class::OverBound, error))?;
    let bos = match facts.bos {
        Presence::Present => facts.role(Role::Bos),
        Presence::Absent => None,
    };
    Ok((ids, bos))
}
