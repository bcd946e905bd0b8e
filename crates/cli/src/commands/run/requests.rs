//! Requests one after another in one process: a line of JSON in, a line of JSON out.
//!
//! The plan is made once, for the largest request that the bounds allow; each request begins with
//! an empty context in the same still process, so what one leaves behind no other sees. A request
//! that is refused is an answer like any other, with an error in it, and the next one is read.
//!
//! Standard output carries the answers, one line each, in the order of the requests.

mod desk;
pub mod line;
pub mod order;

use std::path::Path;
use std::time::Instant;

use dctms_engine::planning::resolve_bounds;
use dctms_engine::{Class, EngineError};
use dctms_system::interrupt::catch_stop_requests;

use super::chat::{first_plan, load};
use super::input::{Input, Source};
use super::options::RunArgs;
use crate::commands::compile::weighted;
use crate::commands::stream::note;
use crate::failure::{Failure, INTERRUPTED};
use crate::machine::{lanes_of, settings};
use crate::modes;
use crate::process::{self, CompileStage, HeapLimit};
use crate::room::{ChatRoom, for_requests, request_images, template_bytes};
use crate::sight;

use desk::{Desk, Eyes, Outcome};

/// Answers requests until the input ends.
///
/// # Errors
/// Usage, a defect of the model, no room; exit code 130 when a request was cut short.
pub fn run(args: &RunArgs, path: &Path, begun: Instant) -> Result<(), Failure> {
    dctms_text::initialise_templates();
    let source = Source::open(path)?;
    let stage = CompileStage::open()?;
    let (started, template, room, images, eyes) = {
        let vision = args.plan.vision.as_deref();
        let model = super::open_model(&args.model_path()?, vision, &[])?;
        let model = weighted(model, &args.model_path()?, &args.plan)?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        model.require_complete()?;
        if model.vocabulary.is_none() {
            let message = "the model has no tokeniser: requests need one";
            return Err(EngineError::new(Class::File, message).into());
        }
        let mut plan_args = args.plan.clone();
        plan_args.max_output = plan_args.max_output.or(args.limit);
        let settings = for_requests(settings(&plan_args)?, &model);
        let bounds = resolve_bounds(&model, &settings, None)?;
        let settings = modes::of_run(&model, settings, &bounds, args.plan.mode)?;
        let planned = first_plan(args, &model, &settings)?;
        if let Some(what) = sight::over(&model, &settings.images, &planned.plan.bounds) {
            note(format_args!("dctms: {what}\n"));
        }
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        let bounds = &planned.plan.bounds;
        let positions = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
        let room = ChatRoom::of(positions, template_bytes(model.template.as_deref()));
        let images = request_images(&model, &settings);
        let eyes = stage.lasting(|| {
            let tiler = model.eyes.as_ref()?.tiler();
            Some(Eyes::new(tiler, settings.images, model.template.as_deref()))
        });
        let template = stage.lasting(|| model.template.clone());
        (started, template, room, images, eyes)
    };
    let compile_heap_peak_bytes = stage.close()?;
    let mut prepared = load(started)?;
    catch_stop_requests()?;
    super::announce(&prepared, begun);
    let mut input = Input::new(source, "request", room.line_bytes_max(images));
    let mut desk =
        Desk::new(args, &prepared, (room, images), eyes.as_ref(), compile_heap_peak_bytes);
    match desk.serve(&mut prepared, template.as_deref(), &mut input)? {
        Outcome::Ended => Ok(()),
        Outcome::Interrupted => Err(Failure::Reported(INTERRUPTED)),
    }
}
