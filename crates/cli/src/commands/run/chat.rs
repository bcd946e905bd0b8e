//! A conversation on standard input: the caches stay, and only what is new is run.
//!
//! Each turn renders the whole conversation. When that text continues the text before it (as
//! templates do that do not rewrite old turns), only the rest is encoded and run; else the
//! conversation is run again from its beginning, and standard error says so.

mod talk;

use std::time::Instant;

use dctms_engine::planning::{PlanSettings, Planned, fit, resolve_bounds};
use dctms_engine::{Class, EngineError, Model};
use dctms_ir::plan::Bounds;
use dctms_system::interrupt::{catch_stop_requests, stop_requested};

use super::images::Album;
use super::input::{Input, Source};
use super::mebibytes;
use super::options::RunArgs;
use super::progress::Progress;
use crate::args::UsageError;
use crate::commands::compile::weighted;
use crate::commands::stream::note;
use crate::failure::Failure;
use crate::machine::{lanes_of, settings};
use crate::modes;
use crate::process::{self, CompileStage, HeapLimit, Prepared, Started};
use crate::room::{ChatRoom, Growth, for_conversation, template_bytes};

use talk::{Chat, Outcome};

/// Runs a conversation until the input ends.
///
/// # Errors
/// Usage, a defect of the model, no room. A turn that passes the bounds is refused and the
/// conversation goes on.
pub fn run(args: &RunArgs, begun: Instant) -> Result<(), Failure> {
    dctms_text::initialise_templates();
    let stage = CompileStage::open()?;
    let growth = args.growth();
    let (started, template, identity, room, album) = {
        let vision = args.plan.vision.as_deref();
        if vision.is_some() && growth == Growth::Replanned {
            let message = "--replan: a conversation with pictures keeps its plan".to_string();
            return Err(UsageError::Wrong(message).into());
        }
        let model = super::open_model(&args.model_path()?, vision, &[])?;
        let model = weighted(model, &args.model_path()?, &args.plan)?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        model.require_complete()?;
        if model.vocabulary.is_none() {
            let message = "the model has no tokeniser: a conversation needs one";
            return Err(EngineError::new(Class::File, message).into());
        }
        let settings = chat_settings(args, &model)?;
        let bounds = resolve_bounds(&model, &settings, None)?;
        let settings = modes::of_run(&model, settings, &bounds, args.plan.mode)?;
        let planned = first_plan(args, &model, &settings)?;
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        let identity = Identity {
            header_sha256: *model.checkpoint.header_sha256(),
            context: model.config.context as usize,
        };
        let bounds = &planned.plan.bounds;
        let positions = match growth {
            Growth::Replanned => identity.context,
            Growth::Bounded => (bounds.max_input_tokens + bounds.max_output_tokens) as usize,
        };
        let room = ChatRoom::of(positions, template_bytes(model.template.as_deref()));
        let album = stage.lasting(|| {
            let tiler = model.eyes.as_ref()?.tiler();
            Some(Album::new(tiler, settings.images, model.template.as_deref()))
        });
        (started, stage.lasting(|| model.template.clone()), identity, room, album)
    };
    stage.close()?;
    let mut prepared = load(started)?;
    catch_stop_requests()?;
    super::announce(&prepared, begun);
    let mut chat = Chat::new(args, &prepared, (room, growth), album);
    let mut input = Input::new(Source::Standard, "turn", room.text_bytes_max);
    let mut buffer = input.buffer();
    let mut line = None;
    loop {
        let read = (&mut input, &mut buffer);
        match chat.talk(&mut prepared, template.as_deref(), read, line.take())? {
            Outcome::Ended => return Ok(()),
            Outcome::NeedsRoom { tokens, line: again } => {
                match replan(args, prepared, &mut chat, tokens, &identity)? {
                    Replanned::Larger(larger) => {
                        prepared = larger;
                        line = Some(again);
                    }
                    // The turn is refused; the conversation goes on as it was.
                    Replanned::Refused(same, error) => {
                        prepared = same;
                        note(format_args!("dctms: {error}\n"));
                    }
                }
            }
        }
    }
}

/// Loads what was started; from here on a signal is asked for.
///
/// # Errors
/// As [`process::load`].
pub fn load(started: Started) -> Result<Prepared, EngineError> {
    let progress = Progress::new(started.weights_bytes());
    let mut prepared = process::load(started, progress.listener())?;
    prepared.runner.interrupt_by(stop_requested);
    progress.done();
    Ok(prepared)
}

fn chat_settings(args: &RunArgs, model: &Model) -> Result<PlanSettings, EngineError> {
    let mut plan_args = args.plan.clone();
    plan_args.max_output = plan_args.max_output.or(args.limit);
    Ok(for_conversation(settings(&plan_args)?, model, args.growth()))
}

/// The plan that a conversation begins with. An input bound that nobody asked for shrinks to what
/// fits, and it is said.
///
/// # Errors
/// What does not fit, with what would.
pub fn first_plan(
    args: &RunArgs,
    model: &Model,
    settings: &PlanSettings,
) -> Result<Planned, Failure> {
    let bounds = resolve_bounds(model, settings, None)?;
    let error = match process::certify(model, settings, &bounds) {
        Ok(planned) => return Ok(planned),
        Err(error) if error.class == Class::DoesNotFit => error,
        Err(error) => return Err(error.into()),
    };
    let limit_bytes = settings.machine.memory_bytes;
    if args.plan.max_input.is_none()
        && let Ok(fitting) = fit(model, settings, limit_bytes)
        && fitting.max_input_tokens < bounds.max_input_tokens
    {
        note(format_args!(
            "dctms: input capped at {} tokens: no more fits into {limit_bytes} bytes\n",
            fitting.max_input_tokens
        ));
        return Ok(process::certify(model, settings, &fitting)?);
    }
    Err(super::refused(model, settings, &bounds, error)?)
}

/// What a new plan must be of: the same file, and no longer than it was trained for.
struct Identity {
    header_sha256: [u8; 32],
    context: usize,
}

/// What came of asking for a larger plan.
enum Replanned {
    /// It runs, with the caches carried over.
    Larger(Prepared),
    /// It cannot be; everything is as it was.
    Refused(Prepared, EngineError),
}

/// Makes a plan for at least `tokens` positions, carries the caches over, and says what changed.
/// The plan is made and found to fit before anything of the old one is given up.
fn replan(
    args: &RunArgs,
    prepared: Prepared,
    chat: &mut Chat<'_>,
    tokens: u64,
    identity: &Identity,
) -> Result<Replanned, Failure> {
    let Prepared { runner, vocabulary, envelope, lanes, unlocked, seal } = prepared;
    let before = runner.bounds().clone();
    seal.lift()?;
    let stage = CompileStage::open()?;
    let positions = chat.positions();
    let (started, old) = match larger_plan(args, &stage, &before, tokens, identity) {
        Ok((model, settings, planned)) => {
            drop(vocabulary);
            let old = runner.retire()?;
            let mut started =
                process::launch(&stage, &model, &settings, &planned, HeapLimit::Kept)?;
            if !started.runner_mut().take_over(&old, positions) {
                let message = "the new plan's caches are not like the old one's";
                return Err(EngineError::new(Class::System, message).into());
            }
            let after = &planned.plan.bounds;
            note(format_args!(
                "dctms: new plan: {} + {} → {} + {} tokens, M_max {:.1} → {:.1} MiB; {positions} \
                 positions carried over\n",
                before.max_input_tokens,
                before.max_output_tokens,
                after.max_input_tokens,
                after.max_output_tokens,
                mebibytes(envelope.total),
                mebibytes(planned.plan.envelope.total),
            ));
            (started, old)
        }
        Err(error) => {
            // The message outlives the stage that it was made in.
            let lasting = stage.lasting(|| error.clone());
            drop(error);
            let error = lasting;
            stage.close()?;
            let seal = dctms_system::seal::seal()?;
            let same = Prepared { runner, vocabulary, envelope, lanes, unlocked, seal };
            return Ok(Replanned::Refused(same, error));
        }
    };
    drop(old);
    stage.close()?;
    let prepared = load(started)?;
    chat.grow(&prepared);
    Ok(Replanned::Larger(prepared))
}

/// The model, opened again, and a certified plan of it with room for `tokens` positions.
fn larger_plan(
    args: &RunArgs,
    stage: &CompileStage,
    before: &Bounds,
    tokens: u64,
    identity: &Identity,
) -> Result<(Model, PlanSettings, Planned), EngineError> {
    let path = &args.model_path()?;
    let model = weighted(Model::open(path)?, path, &args.plan)?;
    if *model.checkpoint.header_sha256() != identity.header_sha256 {
        let message = "the model file is another one than at the start";
        return Err(EngineError::new(Class::File, message));
    }
    stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
    let mut settings = chat_settings(args, &model)?;
    let output = before.max_output_tokens;
    let most = model.config.context.saturating_sub(output);
    let wanted = tokens.saturating_sub(output).max(before.max_input_tokens * 2).min(most);
    if wanted + output < tokens || wanted <= before.max_input_tokens {
        return Err(EngineError::new(
            Class::OverBound,
            format!(
                "{tokens} positions are needed, the model was trained for {}",
                model.config.context
            ),
        ));
    }
    settings.max_input_tokens = Some(wanted);
    settings.max_output_tokens = Some(output);
    let bounds = resolve_bounds(&model, &settings, None)?;
    let planned = process::certify(&model, &settings, &bounds)?;
    Ok((model, settings, planned))
}
