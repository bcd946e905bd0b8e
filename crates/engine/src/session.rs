//! The whole path in a few calls, for programs that embed the engine.
//!
//! ```text
//! Model::open → library_settings → resolve_bounds → plan (verified) → Generator::start → generate
//! ```
//!
//! Believes that the caller owns the process: allocator, latch and process limits belong to a
//! binary, so the envelope of a library is the arena plus the heap that the caller declares. The
//! command line does not come through here.

use dctms_exec::sample::SamplerRecord;
use dctms_exec::{CertifiedPlan, ConstantBytes, SessionOptions};
use dctms_ir::Dtype;
use dctms_ir::plan::{Machine, Plan};
use dctms_kernels::isa::Isa;
use dctms_models::VisionMode;
use dctms_planner::{Activations, Balance, Choices};
use dctms_system::arena::ArenaPages;
use dctms_system::lanes::LanesConfig;
use dctms_system::machine::machine_memory;
use dctms_system::processors::processors;
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Scratch,
    SpecialText, Tokenizer,
};

use crate::error::{Class, EngineError};
use crate::eyes::ImageLimits;
use crate::generation::{
    Control, EndTokens, Finish, GenerationOptions, LogitsDigest, Sequence, Timing, generate,
};
use crate::loading::Loader;
use crate::model::{Model, Vocabulary};
use crate::planning::{PlanSettings, Planned, RuntimeModel};
use crate::runner::Runner;

/// Stack of each lane beside the caller's thread, bytes.
pub const LANE_STACK_BYTES: usize = 128 << 10;

/// Tokens of a prefill step when nothing else is chosen.
const PREFILL_CHUNK_TOKENS: u64 = 256;

/// Settings for the machine that this runs on: its memory, its lanes, its best instruction set,
/// f16 keys and values, quantised activations. `heap_bytes` is the heap that the embedding program
/// declares for everything but the arena.
///
/// # Errors
/// Class `System` when the operating system does not give the facts.
pub fn library_settings(heap_bytes: u64) -> Result<PlanSettings, EngineError> {
    let memory = machine_memory()?;
    let lanes = processors()?.default_lanes().min(64) as u32;
    let isa = Isa::detect_best().name();
    Ok(PlanSettings {
        max_input_tokens: None,
        max_output_tokens: None,
        sequences: 1,
        prefill_chunk: PREFILL_CHUNK_TOKENS,
        logit_rows: 1,
        images: ImageLimits::default(),
        smaller_chunks: 0,
        mode: VisionMode::Serial,
        kv_type: Dtype::F16,
        activations: Activations::Quantised,
        choices: Choices::default(),
        machine: Machine {
            memory_bytes: memory.limit_bytes,
            memory_source: memory.source.name().to_string(),
            lanes,
            isa: isa.to_string(),
            profile_sha256: "builtin".to_string(),
        },
        balance: Balance::builtin(isa, lanes),
        runtime: RuntimeModel {
            heap_fixed_bytes: heap_bytes,
            stacks_bytes: u64::from(lanes - 1) * LANE_STACK_BYTES as u64,
            ..RuntimeModel::default()
        },
    })
}

/// Maps the arena of a plan, makes it resident and loads the weights.
///
/// # Errors
/// Class `DoesNotFit` before anything is mapped; a file that cannot be read; an operating system
/// that refuses.
pub fn load(model: &Model, planned: &Planned) -> Result<Runner, EngineError> {
    let Planned { plan, certificate } = planned;
    let envelope = &plan.envelope;
    if !envelope.fits() {
        return Err(EngineError::new(
            Class::DoesNotFit,
            format!("needs {} bytes, the limit is {}", envelope.total, envelope.hardware),
        ));
    }
    model.require_complete()?;
    let options = session_options(plan, LANE_STACK_BYTES)?;
    let window = model.config.windows.iter().copied().max().unwrap_or(0);
    let certified = CertifiedPlan::new(plan, certificate)?;
    let mut runner = Runner::start(certified, &options, (model.config.vocabulary, window))?;
    runner.make_resident(None, || ())?;
    let files = model.files(plan)?;
    runner.load(&Loader::new(&files, model.vocabulary.as_ref(), None))?;
    runner.keep(files);
    Ok(runner)
}

/// How a session runs a plan here: its instruction set, its lanes with stacks of
/// `lane_stack_bytes` each, and waiting that fits the processors.
///
/// # Errors
/// A processor without the plan's instruction set, or an operating system that tells no facts.
pub fn session_options(
    plan: &Plan,
    lane_stack_bytes: usize,
) -> Result<SessionOptions, EngineError> {
    let isa = Isa::from_name(&plan.machine.isa).ok_or_else(|| {
        EngineError::new(Class::System, format!("this processor has no {}", plan.machine.isa))
    })?;
    let lanes = plan.machine.lanes as usize;
    let processors = processors()?;
    Ok(SessionOptions {
        isa,
        lanes: LanesConfig {
            lanes,
            stack_bytes: lane_stack_bytes,
            events: 0,
            spin: processors.spin_policy(lanes),
            pinning: processors.pinning(lanes),
        },
        pages: ArenaPages::Huge,
    })
}

/// A loaded model that answers one prompt after another, greedily.
pub struct Generator {
    runner: Runner,
    sequence: Sequence,
    vocabulary: Vocabulary,
    tables: ConstantBytes,
    template: Option<String>,
}

impl Generator {
    /// Loads a planned model.
    ///
    /// # Errors
    /// As [`load`]; class `File` for a model without a tokeniser.
    pub fn start(model: &Model, planned: &Planned) -> Result<Generator, EngineError> {
        let runner = load(model, planned)?;
        let (vocabulary, tables) =
            model.vocabulary.clone().zip(runner.tokenizer_tables()).ok_or_else(|| {
                EngineError::new(Class::File, "the model has no tokeniser".to_string())
            })?;
        let bounds = runner.bounds();
        let context = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
        let sequence = Sequence::new(0, context);
        Ok(Generator { runner, sequence, vocabulary, tables, template: model.template.clone() })
    }

    /// Answers one user message in a conversation of its own, through the model's chat template,
    /// with at most `limit` tokens. `emit` gets the text as it comes.
    ///
    /// # Errors
    /// Class `OverBound` when message and answer pass the plan; class `File` for a template that
    /// fails.
    pub fn answer(
        &mut self,
        message: &str,
        limit: usize,
        emit: &mut dyn FnMut(&str) -> Control,
    ) -> Result<Finish, EngineError> {
        let tokenizer = Tokenizer::new(&self.vocabulary.layout, self.tables.bytes());
        let template = self.template.as_deref();
        let prompt = rendered(template, &tokenizer, message)?;
        let ids = encoded(&tokenizer, &prompt)?;
        self.sequence.clear();
        self.sequence.begin(&ids, limit)?;
        let options = GenerationOptions {
            sampler: SamplerRecord::GREEDY,
            seed: 0,
            end_tokens: EndTokens::Obeyed,
            stop_texts: Vec::new(),
            digest: LogitsDigest::Skipped,
        };
        let sequences = std::slice::from_mut(&mut self.sequence);
        let mut timing = Timing::with_steps(limit);
        generate(
            &mut self.runner,
            Some(&tokenizer),
            sequences,
            &options,
            &mut timing,
            &mut |_, piece| emit(piece),
        )?;
        Ok(self.sequence.finish().unwrap_or(Finish::Cancelled))
    }
}

/// A conversation of one user message as the prompt of a model, by its chat template.
///
/// # Errors
/// Class `File` for a template that fails.
pub fn rendered(
    template: Option<&str>,
    tokenizer: &Tokenizer<'_>,
    message: &str,
) -> Result<String, EngineError> {
    let file = |error: dctms_text::TemplateError| EngineError::new(Class::File, error);
    let messages = [Message { role: "user", content: Content::Text(message), fields: Vec::new() }];
    let conversation = Conversation {
        messages: &messages,
        generation_prompt: GenerationPrompt::Added,
        variables: Vec::new(),
    };
    ChatTemplate::new(template, tokenizer).and_then(|t| t.render(&conversation)).map_err(file)
}

/// Token ids of a rendered prompt.
///
/// # Errors
/// Class `OverBound` for a text that is too long.
pub fn encoded(tokenizer: &Tokenizer<'_>, text: &str) -> Result<Vec<u32>, EngineError> {
    let options = EncodeOptions { special_text: SpecialText::Parse, ends: Ends::None };
    let mut scratch = Scratch::with_text_bytes_max(tokenizer.facts().kind, text.len());
    let mut ids = Vec::new();
    tokenizer
        .encode(text.as_bytes(), options, &mut scratch, &mut |id| ids.push(id))
        .map_err(|error| EngineError::new(Class::OverBound, error))?;
    Ok(ids)
}
