//! `dctms run`: generate text from one prompt, several at once, requests one after another, or in
//! a conversation.
//!
//! Standard output carries the generated text alone (or one JSON object); everything else goes
//! to standard error.

mod chat;
mod images;
mod input;
mod options;
mod output;
mod progress;
mod prompts;
pub mod requests;
mod trace;

use std::time::Instant;

use dctms_engine::eyes::{Placed, Tiler};
use dctms_engine::generation::{Finish, Sequence, Timing, generate};
use dctms_engine::pictures::EncodeTimes;
use dctms_engine::planning::{PlanSettings, Planned, fit_output, plan_unverified, resolve_bounds};
use dctms_engine::{Class, EngineError, Model};
use dctms_exec::CertifiedPlan;
use dctms_exec::trace::Trace;
use dctms_ir::plan::Bounds;
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::{catch_stop_requests, stop_requested};
use dctms_system::process::{FaultScope, faults};
use dctms_text::Tokenizer;

use crate::HEAP;
use crate::advice::{advise, refusal};
use crate::commands::compile::weighted;
use crate::commands::files::require_other;
use crate::commands::stream::note;
use crate::failure::{Failure, INTERRUPTED};
use crate::machine::{lanes_of, settings};
use crate::modes;
use crate::process::{self, CompileStage, HeapLimit, Prepared};

pub use images::open_model;
use options::{Format, Input, RunArgs};
use output::{Report, Sink};
use progress::Progress;

/// Runs the command.
///
/// # Errors
/// Usage, a defect of the model, no room, or a bound that the prompt passes.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let started = Instant::now();
    let args = RunArgs::parse(parser)?;
    match &args.input {
        Input::Chat => return chat::run(&args, started),
        Input::Requests(path) => return requests::run(&args, path, started),
        Input::Text(_) | Input::File(_) | Input::Ids(_) | Input::Lines(_) => {}
    }
    let mut ready = prepare(&args)?;
    // Before this, a signal may simply end the process: nothing of it would be lost.
    catch_stop_requests()?;
    ready.prepared.runner.interrupt_by(stop_requested);
    match args.format {
        Format::Text => announce(&ready.prepared, started),
        Format::Json => warn(&ready.prepared),
    }
    generate_all(&args, &mut ready)
}

/// Says what was loaded, in which envelope.
fn announce(prepared: &Prepared, started: Instant) {
    let bounds = prepared.runner.bounds();
    note(format_args!(
        "dctms: M_max {:.1} MiB of {:.1} MiB; {} + {} tokens; loaded in {:.2} s\n",
        mebibytes(prepared.envelope.total),
        mebibytes(prepared.envelope.hardware),
        bounds.max_input_tokens,
        bounds.max_output_tokens,
        started.elapsed().as_secs_f64()
    ));
    warn(prepared);
}

/// Says what is not as it should be.
fn warn(prepared: &Prepared) {
    if let Some(why) = &prepared.unlocked {
        note(format_args!("dctms: warning: memory is not locked ({why})\n"));
    }
}

/// A loaded model and what it is to be run on.
struct Ready {
    prepared: Prepared,
    prompts: Vec<Vec<u32>>,
    /// How pictures are cut, and where each stands.
    seen: Option<(Tiler, Vec<Placed>)>,
    compile_heap_peak_bytes: usize,
}

/// Everything before the first token: plan, certify, map, load.
fn prepare(args: &RunArgs) -> Result<Ready, Failure> {
    dctms_text::initialise_templates();
    if let Some(trace) = &args.trace {
        require_other(trace, &[&args.model_path()?])?;
    }
    let stage = CompileStage::open()?;
    let (started, prompts, seen) = {
        let vision = args.plan.vision.as_deref();
        let model = images::open_model(&args.model_path()?, vision, &args.images)?;
        let model = weighted(model, &args.model_path()?, &args.plan)?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        model.require_complete()?;
        let tiler = model.eyes.as_ref().map(dctms_engine::Eyes::tiler);
        let limits = settings(&args.plan)?.images;
        let placed = match &tiler {
            Some(tiler) => images::place_all(&args.images, tiler, &limits)?,
            None => Vec::new(),
        };
        let prompts = prompts::read(args, &model, &placed)?;
        let mut plan_args = args.plan.clone();
        plan_args.sequences = Some(sequences(args, prompts.len() as u64)?);
        plan_args.max_output = plan_args.max_output.or(args.limit);
        let settings = settings(&plan_args)?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let settings = match args.replan {
            true => replanned(settings, longest, args.limit),
            false => settings,
        };
        let bounds = resolve_bounds(&model, &settings, Some(longest.max(1)))?;
        let settings = modes::of_run(&model, settings, &bounds, args.plan.mode)?;
        let settings = match args.trace {
            Some(_) => traced(&model, settings, &bounds)?,
            None => settings,
        };
        check_prompt(longest, args.limit, &bounds)?;
        let (planned, bounds) = certify(args, &model, &settings, bounds)?;
        debug_assert_eq!(planned.plan.bounds, bounds);
        let mut started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        if args.trace.is_some() {
            let certified = CertifiedPlan::new(&planned.plan, &planned.certificate);
            let certified = certified.map_err(EngineError::from)?;
            stage.lasting(|| started.runner_mut().record(certified, trace::RECORDS));
        }
        // Only now has the run's heap the room that the plan gives it.
        let seen = stage.lasting(|| tiler.map(|tiler| (tiler, placed.clone())));
        (started, stage.lasting(|| prompts.clone()), seen)
    };
    let compile_heap_peak_bytes = stage.close()?;
    let progress = Progress::new(started.weights_bytes());
    let prepared = process::load(started, progress.listener())?;
    progress.done();
    Ok(Ready { prepared, prompts, seen, compile_heap_peak_bytes })
}

/// Settings with room for a trace: what it takes is known from the plan without it.
fn traced(
    model: &Model,
    mut settings: PlanSettings,
    bounds: &Bounds,
) -> Result<PlanSettings, EngineError> {
    let plan = plan_unverified(model, &settings, bounds)?;
    let bytes = Trace::heap_bytes(&plan, trace::RECORDS) + trace::WRITER_HEAP_BYTES;
    settings.runtime.heap_fixed_bytes += bytes;
    Ok(settings)
}

/// Sequences to plan for: those asked for, which must hold the prompts, else one a prompt.
fn sequences(args: &RunArgs, prompts: u64) -> Result<u64, EngineError> {
    match args.plan.sequences {
        Some(given) if given < prompts && !args.replan => Err(EngineError::new(
            Class::OverBound,
            format!("{prompts} prompts, the plan holds {given} sequences (--sequences)"),
        )),
        Some(given) => Ok(given.max(prompts)),
        None => Ok(prompts),
    }
}

/// Plans for the bounds; when nobody asked for an output bound, for the longest output that fits,
/// and says so. What does not fit is refused with the settings that would.
fn certify(
    args: &RunArgs,
    model: &Model,
    settings: &PlanSettings,
    bounds: Bounds,
) -> Result<(Planned, Bounds), Failure> {
    let error = match process::certify(model, settings, &bounds) {
        Ok(planned) => return Ok((planned, bounds)),
        Err(error) if error.class == Class::DoesNotFit => error,
        Err(error) => return Err(error.into()),
    };
    if args.limit.is_none() && args.plan.max_output.is_none() {
        let fitting = fit_output(model, settings, &bounds)?;
        if let Some(fitting) = fitting {
            note(format_args!(
                "dctms: output capped at {} tokens: no more fits into {} bytes\n",
                fitting.max_output_tokens, settings.machine.memory_bytes
            ));
            return Ok((process::certify(model, settings, &fitting)?, fitting));
        }
    }
    Err(refused(model, settings, &bounds, error)?)
}

/// The refusal of bounds that do not fit, with the settings that would.
fn refused(
    model: &Model,
    settings: &PlanSettings,
    bounds: &Bounds,
    error: EngineError,
) -> Result<Failure, EngineError> {
    let plan = plan_unverified(model, settings, bounds)?;
    if plan.envelope.fits() {
        // The limit is kept, but less than that is free just now.
        return Ok(error.into());
    }
    let advice = advise(model, settings, &plan, plan.envelope.hardware);
    let refusal = refusal(&plan.envelope, &plan.machine.memory_source, &advice);
    Ok(EngineError::new(Class::DoesNotFit, refusal).into())
}

/// Bounds that the prompt and the limit pass are raised before there is a plan, and it is said.
fn replanned(mut settings: PlanSettings, longest: u64, limit: Option<u64>) -> PlanSettings {
    for (what, bound, wanted) in [
        ("input", &mut settings.max_input_tokens, Some(longest)),
        ("output", &mut settings.max_output_tokens, limit),
    ] {
        if let (Some(given), Some(wanted)) = (*bound, wanted)
            && wanted > given
        {
            note(format_args!(
                "dctms: max {what} raised from {given} to {wanted} tokens (--replan)\n"
            ));
            *bound = Some(wanted);
        }
    }
    settings
}

/// Refuses before any compute what the plan does not hold.
fn check_prompt(longest: u64, limit: Option<u64>, bounds: &Bounds) -> Result<(), Failure> {
    let over = |message: String| Err(EngineError::new(Class::OverBound, message).into());
    if longest > bounds.max_input_tokens {
        return over(format!(
            "the prompt has {longest} tokens, the plan holds {} (--max-input)",
            bounds.max_input_tokens
        ));
    }
    if let Some(limit) = limit.filter(|limit| *limit > bounds.max_output_tokens) {
        return over(format!(
            "{limit} output tokens are asked for, the plan holds {} (--max-output)",
            bounds.max_output_tokens
        ));
    }
    Ok(())
}

/// Decodes and encodes the pictures, one after another; beside them reads what is ready of the
/// prompts, where the plan overlaps the two.
fn see(
    args: &RunArgs,
    prepared: &mut Prepared,
    seen: Option<&(Tiler, Vec<Placed>)>,
    sequences: &mut [Sequence],
) -> Result<Vec<(Placed, EncodeTimes)>, Failure> {
    let Some((tiler, placed)) = seen else { return Ok(Vec::new()) };
    let limits = settings(&args.plan)?.images;
    let mut pictures = Vec::with_capacity(placed.len());
    for (path, placed) in args.images.iter().zip(placed) {
        let times =
            images::encode_beside(path, &limits, (tiler, placed), &mut prepared.runner, sequences)?;
        pictures.push((*placed, times));
    }
    Ok(pictures)
}

fn generate_all(args: &RunArgs, ready: &mut Ready) -> Result<(), Failure> {
    let Ready { prepared, prompts, seen, compile_heap_peak_bytes } = ready;
    let timeline = match &args.trace {
        Some(path) => Some((path, trace::create(path)?)),
        None => None,
    };
    let bounds = prepared.runner.bounds().clone();
    let context = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
    let limit = args.limit.unwrap_or(bounds.max_output_tokens) as usize;
    let mut sequences: Vec<Sequence> = Vec::with_capacity(prompts.len());
    for (slot, prompt) in prompts.iter().enumerate() {
        let mut sequence = Sequence::new(slot as u32, context);
        sequence.begin(prompt, limit)?;
        sequences.push(sequence);
    }
    let pictures = see(args, prepared, seen.as_ref(), &mut sequences)?;
    let tables = prepared.runner.tokenizer_tables();
    let tokenizer = prepared
        .vocabulary
        .as_ref()
        .zip(tables.as_ref())
        .map(|(vocabulary, tables)| Tokenizer::new(&vocabulary.layout, tables.bytes()));
    let options = args.generation_options();
    let mut timing = Timing::with_steps(limit);
    let mut sink = Sink::new(args.format, prompts.len());
    let before = faults(FaultScope::Process);
    let allocations = HEAP.allocations();
    HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
    let result = generate(
        &mut prepared.runner,
        tokenizer.as_ref(),
        &mut sequences,
        &options,
        &mut timing,
        &mut |index, piece| sink.emit(index, piece),
    );
    HEAP.open_latch();
    let allocations = HEAP.allocations() - allocations;
    let after = faults(FaultScope::Process);
    result?;
    let mut report = Report {
        sequences: &sequences,
        pictures: &pictures,
        reloads: prepared.runner.reloads(),
        timing: &mut timing,
        tokenizer: tokenizer.as_ref(),
        envelope: &prepared.envelope,
        compile_heap_peak_bytes: *compile_heap_peak_bytes,
        minor_faults: after.minor - before.minor,
        major_faults: after.major - before.major,
        allocations,
        locked: prepared.unlocked.is_none(),
        options: &options,
    };
    sink.finish(&mut report)?;
    if let (Format::Text, Some(reloads)) = (args.format, prepared.runner.reloads()) {
        note(format_args!(
            "dctms: weights loaded {} times for their turn: {:.1} MiB in {:.3} s\n",
            reloads.count,
            mebibytes(reloads.bytes),
            reloads.seconds
        ));
    }
    if let (Some((path, file)), Some(trace)) = (timeline, prepared.runner.session().trace()) {
        trace::write(trace, prepared.lanes, file, path)?;
        if trace.lost() > 0 {
            note(format_args!(
                "dctms: --trace keeps the newest {} records of a lane: {} older ones are lost\n",
                trace::RECORDS,
                trace.lost()
            ));
        }
    }
    // An answer that was cut short is one; none at all is no success.
    let unanswered = |sequence: &Sequence| {
        sequence.finish() == Some(Finish::Cancelled) && sequence.generated().is_empty()
    };
    match sequences.iter().any(unanswered) {
        true => Err(Failure::Reported(INTERRUPTED)),
        false => Ok(()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a person to read")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
