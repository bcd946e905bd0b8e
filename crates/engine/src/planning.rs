//! From an opened model and a user's bounds to a certified plan; from several models to one plan
//! for all of them in one process.

use dctms_ir::ids::PhaseId;
use dctms_ir::join::{Steps, own_name};
use dctms_ir::plan::{Bounds, Machine, Plan, RuntimeBytes};
use dctms_ir::region::Streams;
use dctms_ir::{Dtype, Program, twin};
use dctms_models::clip::TileGrid;
use dctms_models::{
    BuildOptions, VisionConfig, VisionMode, VisionPart, build_program_with_vision, phases,
};
use dctms_planner::{Activations, Balance, Choices, PlanOptions, Shaping};
use dctms_verifier::Certificate;

use crate::error::{Class, EngineError};
use crate::eyes::{Eyes, ImageLimits};
use crate::model::Model;
use crate::model_file::CheckpointFile;

mod joint;

use joint::programs;

/// Recent tokens that a repetition penalty looks at.
pub const PENALTY_WINDOW: u64 = 64;

/// What the user chose; `None` leaves a choice to [`resolve_bounds`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSettings {
    /// Tokens of a prompt.
    pub max_input_tokens: Option<u64>,
    /// Tokens generated.
    pub max_output_tokens: Option<u64>,
    /// Sequences decoded together.
    pub sequences: u64,
    /// Tokens of a prefill step.
    pub prefill_chunk: u64,
    /// Rows of logits of a step.
    pub logit_rows: u64,
    /// Pictures, where the model has eyes.
    pub images: ImageLimits,
    /// Which weights are resident when, where the model has eyes.
    pub mode: VisionMode,
    /// Members of the decoder's family for smaller chunks of a prompt, at most.
    pub smaller_chunks: u32,
    /// Type of keys and values.
    pub kv_type: Dtype,
    /// Path of the products.
    pub activations: Activations,
    /// What is preferred where memory and time pull apart.
    pub choices: Choices,
    /// Machine to plan for.
    pub machine: Machine,
    /// Its rates.
    pub balance: Balance,
    /// Memory of the process beside the arena.
    pub runtime: RuntimeModel,
}

impl PlanSettings {
    /// What decides, beside bounds, which phases a program has.
    #[must_use]
    pub fn phases(&self) -> PhaseSettings {
        let (smaller_tiles, smaller_chunks) = (self.images.smaller, self.smaller_chunks);
        PhaseSettings { mode: self.mode, smaller_tiles, smaller_chunks }
    }
}

/// What decides, beside bounds, which phases a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseSettings {
    /// Which weights are resident when, where the model has eyes.
    pub mode: VisionMode,
    /// Members of the encoder's family for smaller tiles, at most.
    pub smaller_tiles: u32,
    /// Members of the decoder's family for smaller chunks, at most.
    pub smaller_chunks: u32,
}

impl PhaseSettings {
    /// Those of a plan, as its phases show them.
    #[must_use]
    pub fn of(plan: &Plan) -> PhaseSettings {
        let members = |family: &str| {
            let is_smaller = |name: &str| {
                let own = own_name(name);
                twin::family(own) == family && twin::bound(own).is_some()
            };
            // Of several models each has its own.
            let mut counts = std::collections::BTreeMap::new();
            for phase in plan.program.phases.iter().filter(|phase| is_smaller(&phase.name)) {
                let label = phase.name.strip_suffix(own_name(&phase.name));
                *counts.entry(label).or_insert(0) += 1;
            }
            counts.into_values().max().unwrap_or(0)
        };
        PhaseSettings {
            mode: mode_of(plan),
            smaller_tiles: members(phases::VISION),
            smaller_chunks: members(phases::PREFILL),
        }
    }
}

/// How much memory the process takes beside the arena.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RuntimeModel {
    /// Heap that does not depend on the plan, bytes.
    pub heap_fixed_bytes: u64,
    /// Heap for each scheduled task, bytes.
    pub heap_per_task_bytes: u64,
    /// Heap for each event of a schedule, bytes.
    pub heap_per_event_bytes: u64,
    /// Heap for each sequence, and for each token that it may hold, bytes.
    pub heap_per_sequence_bytes: u64,
    /// Heap for each token of a sequence's context, bytes.
    pub heap_per_context_token_bytes: u64,
    /// Heap of the compile stage beside what every run of the model takes there, bytes.
    pub compile_extra_bytes: u64,
    /// Heap kept free for making a new plan while the arena is resident, bytes.
    pub replan_heap_bytes: u64,
    /// Stacks of all threads, bytes.
    pub stacks_bytes: u64,
    /// Program image, bytes.
    pub image_bytes: u64,
    /// Fixed input and output buffers, bytes.
    pub io_bytes: u64,
    /// What the envelope does not cover.
    pub not_covered: Vec<String>,
}

/// Prompt tokens planned for when nothing says how many.
pub const DEFAULT_INPUT_TOKENS: u64 = 2048;
/// Tokens generated when nothing says how many.
pub const DEFAULT_OUTPUT_TOKENS: u64 = 256;

/// A plan and its certificate.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Proof that it was verified.
    pub certificate: Certificate,
}

/// What a plan is made for: one model, or several that are resident together.
pub trait Resident {
    /// The models, at least one.
    fn models(&self) -> Vec<&Model>;

    /// Whether their steps may run at the same time.
    fn steps(&self) -> Steps;
}

impl Resident for Model {
    fn models(&self) -> Vec<&Model> {
        vec![self]
    }

    fn steps(&self) -> Steps {
        Steps::Exclusive
    }
}

/// Models that one process holds together, under the same bounds.
pub struct Together {
    /// The models, at least one; the same one may be there twice.
    pub models: Vec<Model>,
    /// Whether their steps may run at the same time.
    pub steps: Steps,
}

impl Resident for Together {
    fn models(&self) -> Vec<&Model> {
        self.models.iter().collect()
    }

    fn steps(&self) -> Steps {
        self.steps
    }
}

/// Positions that every model was trained for.
#[must_use]
pub fn context(resident: &dyn Resident) -> u64 {
    resident.models().iter().map(|model| model.config.context).min().unwrap_or(0)
}

/// Fills in the bounds that the user left open.
///
/// `prompt_tokens` is the length of a prompt that is already known.
///
/// # Errors
/// Class `Usage` when the bounds pass the model's context.
pub fn resolve_bounds(
    resident: &dyn Resident,
    settings: &PlanSettings,
    prompt_tokens: Option<u64>,
) -> Result<Bounds, EngineError> {
    let context = context(resident);
    let output = settings.max_output_tokens;
    let input = settings.max_input_tokens.or(prompt_tokens);
    let (input, output) = match (input, output) {
        (Some(input), Some(output)) => (input, output),
        (Some(input), None) => (input, DEFAULT_OUTPUT_TOKENS.min(context.saturating_sub(input))),
        (None, Some(output)) => (DEFAULT_INPUT_TOKENS.min(context.saturating_sub(output)), output),
        (None, None) => {
            let output = DEFAULT_OUTPUT_TOKENS.min(context / 2);
            (DEFAULT_INPUT_TOKENS.min(context - output), output)
        }
    };
    let wanted = input.saturating_add(output);
    if wanted > context {
        return Err(EngineError::new(
            Class::OverBound,
            format!(
                "max input {input} + max output {output} = {wanted} tokens pass the context of \
                 {context} that the model was trained for"
            ),
        ));
    }
    let (max_images, max_image_tokens) = image_bounds(resident, settings)?;
    Ok(Bounds {
        max_input_tokens: input,
        max_output_tokens: output,
        sequences: settings.sequences,
        prefill_chunk: settings.prefill_chunk.min(input.max(1)),
        logit_rows: settings.logit_rows.max(settings.sequences),
        kv_type: settings.kv_type,
        max_images,
        max_image_tokens,
    })
}

/// Pictures, and tokens of all of them; none where no model has eyes.
fn image_bounds(
    resident: &dyn Resident,
    settings: &PlanSettings,
) -> Result<(u64, u64), EngineError> {
    let models = resident.models();
    let tilers = models.iter().filter_map(|model| Some(model.eyes.as_ref()?.tiler()));
    let size = settings.images.size;
    let Some(most) = tilers.map(|tiler| tiler.tokens_max(size)).max() else { return Ok((0, 0)) };
    let count = settings.images.count;
    let tokens = count.saturating_mul(most);
    if tokens > IMAGE_TOKENS_MAX {
        let message = format!(
            "{count} pictures of up to {most} tokens each: at most {IMAGE_TOKENS_MAX} in all \
             (--max-images)"
        );
        return Err(EngineError::new(Class::OverBound, message));
    }
    Ok((count, tokens))
}

/// Most tokens of all pictures of a request.
const IMAGE_TOKENS_MAX: u64 = 1 << 17;

/// Heap of decoding pictures, bytes; 0 where no model has eyes.
#[must_use]
pub fn image_heap_bytes(resident: &dyn Resident, settings: &PlanSettings) -> u64 {
    match resident.models().iter().any(|model| model.eyes.is_some()) {
        true => settings.images.heap_bytes(),
        false => 0,
    }
}

/// Heap of what is known of each picture: its tiles and its place in the prompt.
const HEAP_PER_IMAGE_BYTES: u64 = 512;
/// Heap of where a sequence shows a picture.
const HEAP_PER_SHOWN_IMAGE_BYTES: u64 = 16;

/// The logical program of a model under bounds.
///
/// # Errors
/// Any defect of the model, or bounds that make no sense.
pub fn program(
    model: &Model,
    bounds: &Bounds,
    settings: PhaseSettings,
) -> Result<Program, EngineError> {
    let (tokenizer_bytes, vocabulary) = match &model.vocabulary {
        Some(vocabulary) => {
            let range = vocabulary.info.range();
            (vocabulary.layout.len_bytes() as u64, (range.start, range.end - range.start))
        }
        None => (0, (0, 0)),
    };
    let options = BuildOptions {
        bounds: bounds.clone(),
        tokenizer_bytes,
        vocabulary,
        penalty_window: PENALTY_WINDOW,
        smaller_chunks: settings.smaller_chunks,
    };
    let file = CheckpointFile(&model.checkpoint);
    let eyes_file = model.eyes.as_ref().map(|eyes| CheckpointFile(&eyes.checkpoint));
    let part = model.eyes.as_ref().zip(eyes_file.as_ref()).map(|(eyes, file)| VisionPart {
        file,
        config: &eyes.config,
        first_file: model.checkpoint.shard_count() as u32,
        patches_max: patches_max(&eyes.config, bounds),
        mode: settings.mode,
        smaller: settings.smaller_tiles,
    });
    let mut program = build_program_with_vision(&file, &model.config, &options, part.as_ref())?;
    program.models.push(model.info());
    program.models.extend(model.eyes.as_ref().map(Eyes::info));
    Ok(program)
}

/// Patches of the largest tile that the bounds allow: a picture that is one tile has as many as its
/// tokens are made of.
pub(crate) fn patches_max(config: &VisionConfig, bounds: &Bounds) -> u64 {
    match config.grid {
        TileGrid::Fixed | TileGrid::Variable { .. } => config.patches_max(),
        TileGrid::Whole { .. } => {
            let tokens = bounds.max_image_tokens / bounds.max_images.max(1);
            tokens.saturating_mul(config.merge * config.merge).min(config.patches_max())
        }
    }
}

/// Makes and verifies a plan. A plan that does not fit is returned like any other: ask its
/// envelope.
///
/// # Errors
/// Any defect of the model; class `System` if the planner and the verifier disagree, which would
/// be a bug of ours.
pub fn plan(
    resident: &dyn Resident,
    settings: &PlanSettings,
    bounds: &Bounds,
) -> Result<Planned, EngineError> {
    let plan = plan_unverified(resident, settings, bounds)?;
    let certificate = certify(&plan)?;
    Ok(Planned { plan, certificate })
}

/// Makes a plan and trusts it: for searches over bounds, whose result is planned again.
///
/// # Errors
/// Any defect of the model.
pub fn plan_unverified(
    resident: &dyn Resident,
    settings: &PlanSettings,
    bounds: &Bounds,
) -> Result<Plan, EngineError> {
    let programs = programs(resident, bounds, settings.phases())?;
    let runtime = &settings.runtime;
    let options = PlanOptions {
        bounds: bounds.clone(),
        machine: settings.machine.clone(),
        balance: settings.balance,
        activations: settings.activations,
        choices: settings.choices.clone(),
        runtime: RuntimeBytes {
            heap: run_heap_bytes(runtime, bounds, programs.len() as u64)
                + image_heap_bytes(resident, settings)
                + bounds.max_images
                    * (HEAP_PER_IMAGE_BYTES + bounds.sequences * HEAP_PER_SHOWN_IMAGE_BYTES),
            stacks: runtime.stacks_bytes,
            image: runtime.image_bytes,
            io: runtime.io_bytes,
        },
        heap_per_task_bytes: runtime.heap_per_task_bytes,
        heap_per_event_bytes: runtime.heap_per_event_bytes,
        compile_heap_bytes: compile_heap_bytes(resident, settings.machine.lanes)
            + runtime.compile_extra_bytes,
        not_covered: runtime.not_covered.clone(),
    };
    Ok(dctms_planner::plan_together(&programs, resident.steps(), &options)?)
}

/// Which weights are resident when, as a plan's phases show it.
#[must_use]
pub fn mode_of(plan: &Plan) -> VisionMode {
    let is_load = |name: &str| own_name(name) == phases::LOAD_VISION;
    let phases = &plan.program.phases;
    let comes_and_goes = phases.iter().any(|phase| is_load(&phase.name));
    let overlaps = phases.iter().any(|phase| Streams::of(phase).is_some());
    match (comes_and_goes, overlaps) {
        (true, _) => VisionMode::PhaseResident,
        (false, true) => VisionMode::Overlapped,
        (false, false) => VisionMode::Serial,
    }
}

/// Whether steps of different models may run at the same time, as a plan's flow shows it. (Those
/// of one model may have nothing to do with that.)
#[must_use]
pub fn steps_of(plan: &Plan) -> Steps {
    let label = |phase: &PhaseId| {
        let name = &plan.program.phases[phase.index()].name;
        name.split_once(':').map(|(label, _)| label.to_string())
    };
    let pairs = &plan.program.flow.overlap;
    match pairs.iter().any(|(one, other)| label(one) != label(other)) {
        true => Steps::Overlapping,
        false => Steps::Exclusive,
    }
}

/// The legalised program that a plan with these bounds, phases, lanes and products is made for.
///
/// # Errors
/// Any defect of a model, or bounds or lanes that make no sense.
pub fn legal_program(
    resident: &dyn Resident,
    (bounds, settings): (&Bounds, PhaseSettings),
    shaping: &Shaping,
) -> Result<Program, EngineError> {
    let programs = programs(resident, bounds, settings)?;
    Ok(dctms_planner::legal(&programs, resident.steps(), shaping)?)
}

/// Heap of a run beside its commands: what is fixed, and each sequence's tokens, for each model.
fn run_heap_bytes(runtime: &RuntimeModel, bounds: &Bounds, models: u64) -> u64 {
    let context = bounds.max_input_tokens.saturating_add(bounds.max_output_tokens);
    let sequence = context
        .saturating_mul(runtime.heap_per_context_token_bytes)
        .saturating_add(runtime.heap_per_sequence_bytes);
    let sequences = sequence.saturating_mul(bounds.sequences).saturating_mul(models);
    runtime.heap_fixed_bytes.saturating_add(sequences).saturating_add(runtime.replan_heap_bytes)
}

/// Heap that reading, planning and verifying may take: for each model the vocabulary's bytes and
/// tables and a longest prompt's scratch (to encode before there is an arena), and programs, plans
/// and their text, which grow with the tensors. The process enforces it.
#[must_use]
pub fn compile_heap_bytes(resident: &dyn Resident, lanes: u32) -> u64 {
    let lanes = u64::from(lanes);
    let model_bytes = |model: &Model| {
        let vocabulary = model.vocabulary.as_ref().map_or(0, |vocabulary| {
            let range = vocabulary.info.range();
            (range.end - range.start) + vocabulary.layout.len_bytes() as u64
        });
        let seeing = model.eyes.as_ref().map_or(0, |eyes| eyes.checkpoint.tensor_count());
        let tensors = model.checkpoint.tensor_count() + seeing;
        let template = model.template.as_ref().map_or(0, String::len) as u64;
        vocabulary
            + 40 * template
            + COMPILE_HEAP_PER_PROMPT_BYTE * prompt_bytes_max(model)
            + tensor_bytes(lanes) * tensors as u64
    };
    COMPILE_HEAP_FIXED_BYTES + resident.models().into_iter().map(model_bytes).sum::<u64>()
}

/// Heap of the compile stage for each tensor of a file: its tensors and operations, and for each
/// lane their tasks, whose clocks have a component for each lane.
fn tensor_bytes(lanes: u64) -> u64 {
    COMPILE_HEAP_PER_TENSOR_BYTES + lanes * (1200 + 100 * lanes)
}

/// Longest prompt that is encoded, bytes: more cannot be tokens of the model's context (or of
/// 32,768 positions) unless tokens were far longer than they are.
#[must_use]
pub fn prompt_bytes_max(model: &Model) -> u64 {
    64 * model.config.context.min(32_768)
}

/// Heap of the compile stage that no model changes, bytes.
pub const COMPILE_HEAP_FIXED_BYTES: u64 = 3 << 20;
/// Heap of the compile stage for each tensor of a file, bytes.
pub const COMPILE_HEAP_PER_TENSOR_BYTES: u64 = 40 << 10;
/// Heap of the compile stage for each byte of a prompt: its text, its rendering, its scratch and
/// its tokens.
pub const COMPILE_HEAP_PER_PROMPT_BYTE: u64 = 24;

/// Verifies a plan.
///
/// # Errors
/// The first violations, class `System`.
pub fn certify(plan: &Plan) -> Result<Certificate, EngineError> {
    dctms_verifier::verify(&plan.program, plan).map_err(|violations| {
        let first: Vec<String> = violations.iter().take(5).map(ToString::to_string).collect();
        EngineError::new(
            Class::System,
            format!("{} violations: {}", violations.len(), first.join("; ")),
        )
    })
}

/// The bounds with the most output tokens, up to those given, whose plan fits the machine;
/// `None` when not even one does.
///
/// # Errors
/// Any defect of the model.
pub fn fit_output(
    resident: &dyn Resident,
    settings: &PlanSettings,
    bounds: &Bounds,
) -> Result<Option<Bounds>, EngineError> {
    let with = |output: u64| Bounds { max_output_tokens: output, ..bounds.clone() };
    let fits = |output: u64| -> Result<bool, EngineError> {
        Ok(plan_unverified(resident, settings, &with(output))?.envelope.fits())
    };
    if !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut over) = (1, bounds.max_output_tokens + 1);
    while over - fitting > 1 {
        let middle = fitting + (over - fitting) / 2;
        match fits(middle)? {
            true => fitting = middle,
            false => over = middle,
        }
    }
    Ok(Some(with(fitting)))
}

/// The largest context (input + output tokens) whose plan takes at most `budget_bytes`, and its
/// bounds. Output stays as asked; input takes the rest.
///
/// # Errors
/// Class `DoesNotFit` when not even one prompt token fits.
pub fn fit(
    resident: &dyn Resident,
    settings: &PlanSettings,
    budget_bytes: u64,
) -> Result<Bounds, EngineError> {
    let context = context(resident);
    let output = settings.max_output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS);
    let output = output.min(context.saturating_sub(1)).max(1);
    let most = context.saturating_sub(output);
    let total = |input: u64| -> Result<(u64, Bounds), EngineError> {
        let settings = PlanSettings {
            max_input_tokens: Some(input),
            max_output_tokens: Some(output),
            ..settings.clone()
        };
        let bounds = resolve_bounds(resident, &settings, None)?;
        let plan = plan_unverified(resident, &settings, &bounds)?;
        Ok((plan.envelope.total, bounds))
    };
    let (least, bounds) = total(1)?;
    if least > budget_bytes {
        return Err(EngineError::new(
            Class::DoesNotFit,
            format!(
                "a context of 1 + {output} tokens needs {least} bytes, {} more than the budget of \
                 {budget_bytes}",
                least - budget_bytes
            ),
        ));
    }
    let (mut fits, mut over, mut best) = (1, most + 1, bounds);
    while over - fits > 1 {
        let middle = fits + (over - fits) / 2;
        let (bytes, bounds) = total(middle)?;
        if bytes <= budget_bytes {
            (fits, best) = (middle, bounds);
        } else {
            over = middle;
        }
    }
    Ok(best)
}
