//! A conversation on standard input: the caches stay, and only what is new is run.
//!
//! Each turn renders the whole conversation. When that text continues the text before it (as
//! templates do that do not rewrite old turns), only the rest is encoded and run; else the
//! conversation is run again from its beginning, and standard error says so.

use dctms_engine::generation::{Control, Finish, GenerationOptions, Sequence, Timing, generate};
use dctms_engine::planning::resolve_bounds;
use dctms_engine::{Class, EngineError, Model, Runner};
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::{stop_requested, take_stop_request};
use dctms_system::output::Stream;
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Scratch,
    SpecialText, Tokenizer,
};

use super::options::RunArgs;
use super::progress::Progress;
use crate::HEAP;
use crate::failure::Failure;
use crate::machine::settings;
use crate::process::{self, CompileStage, Prepared};

/// Bytes of a conversation's text for each token of its context: what longer text cannot hold.
const TEXT_BYTES_PER_TOKEN: usize = 16;

/// Runs a conversation until the input ends.
///
/// # Errors
/// Usage, a defect of the model, no room. A turn that passes the bounds is refused and the
/// conversation goes on.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    dctms_text::initialise_templates();
    let stage = CompileStage::open()?;
    let (started, template) = {
        let model = Model::open(&args.model_path()?)?;
        stage.limit_for(&model)?;
        if model.vocabulary.is_none() {
            let message = "the model has no tokeniser: a conversation needs one";
            return Err(EngineError::new(Class::File, message).into());
        }
        let mut plan_args = args.plan.clone();
        plan_args.max_output = plan_args.max_output.or(args.limit);
        let mut settings = settings(&plan_args)?;
        let bounds = resolve_bounds(&model, &settings, None)?;
        let context = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
        let template_bytes = model.template.as_ref().map_or(1024, String::len);
        settings.runtime.heap_fixed_bytes += chat_heap_bytes(template_bytes, context);
        let started = process::start(&stage, &model, &settings, &bounds)?;
        (started, stage.lasting(|| model.template.clone()))
    };
    stage.close()?;
    let progress = Progress::new(started.weights_bytes());
    let mut prepared = process::load(started, progress.listener())?;
    progress.done();
    drop(progress);
    converse(args, &mut prepared, template.as_deref())
}

/// Heap of a conversation: the template and its rendering, two texts, and encoding scratch.
fn chat_heap_bytes(template_bytes: usize, context: usize) -> u64 {
    let text = context * TEXT_BYTES_PER_TOKEN;
    let rendering = ChatTemplate::heap_bytes_usual(template_bytes, context / 8, text);
    (rendering + 14 * text + (32 << 10)) as u64
}

fn converse(
    args: &RunArgs,
    prepared: &mut Prepared,
    template: Option<&str>,
) -> Result<(), Failure> {
    let Prepared { runner, vocabulary, .. } = prepared;
    let (Some(vocabulary), Some(tables)) = (vocabulary, runner.tokenizer_tables()) else {
        unreachable!("checked before planning");
    };
    let tokenizer = Tokenizer::new(&vocabulary.layout, tables.bytes());
    let template = ChatTemplate::new(template, &tokenizer)
        .map_err(|error| EngineError::new(Class::File, error))?;
    let bounds = runner.bounds().clone();
    let context = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
    let text_bytes_max = context * TEXT_BYTES_PER_TOKEN;
    let mut chat = Chat {
        args,
        options: args.generation_options(),
        turns: Vec::new(),
        before: String::new(),
        scratch: Scratch::with_text_bytes_max(vocabulary.layout.facts().kind, text_bytes_max),
        sequence: [Sequence::new(0, context)],
        limit: bounds.max_output_tokens as usize,
        text_bytes_max,
    };
    let is_terminal = Stream::Input.is_terminal();
    let mut lines = std::io::stdin().lines();
    loop {
        if is_terminal {
            let _ = Stream::Error.write_all(b"> ");
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(|error| EngineError::new(Class::System, error))?;
        if line.trim().is_empty() {
            continue;
        }
        match chat.turn(runner, &tokenizer, &template, &line) {
            Ok(Control::Continue) => {}
            Ok(Control::Stop) => return Ok(()),
            Err(error) if error.class == Class::OverBound => eprintln!("dctms: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A conversation so far.
struct Chat<'a> {
    args: &'a RunArgs,
    options: GenerationOptions,
    /// User's and assistant's texts in turn.
    turns: Vec<String>,
    /// The rendered text that the caches hold.
    before: String,
    scratch: Scratch,
    sequence: [Sequence; 1],
    limit: usize,
    text_bytes_max: usize,
}

impl Chat<'_> {
    fn turn(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
        line: &str,
    ) -> Result<Control, EngineError> {
        let turns_bytes: usize = self.turns.iter().map(String::len).sum();
        if turns_bytes + line.len() > self.text_bytes_max / 2 {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "the conversation has {} bytes of text, the plan holds {}",
                    turns_bytes + line.len(),
                    self.text_bytes_max / 2
                ),
            ));
        }
        self.turns.push(line.to_string());
        let begun = self.begin(tokenizer, template);
        if let Err(error) = begun {
            self.turns.pop();
            return Err(error);
        }
        let reply = self.generate(runner, tokenizer)?;
        self.turns.push(reply);
        let gone = Stream::Output.write_all(b"\n").is_err();
        let stopped = self.sequence[0].finish() == Some(Finish::Cancelled);
        // Ctrl-C ends the reply, not the conversation; a closed output ends both.
        let interrupted = stopped && take_stop_request();
        match gone || (stopped && !interrupted) {
            true => Ok(Control::Stop),
            false => Ok(Control::Continue),
        }
    }

    /// Encodes what the caches do not hold yet.
    fn begin(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
    ) -> Result<(), EngineError> {
        let text = self.render(template, GenerationPrompt::Added)?;
        let rest = match text.strip_prefix(self.before.as_str()) {
            Some(rest) if !self.before.is_empty() => rest,
            Some(_) | None => {
                if !self.before.is_empty() {
                    eprintln!("dctms: the template rewrote earlier turns: running them again");
                }
                self.sequence[0].clear();
                self.before.clear();
                text.as_str()
            }
        };
        let ends = if rest.len() == text.len() { Ends::Template } else { Ends::None };
        let options = EncodeOptions { special_text: SpecialText::Parse, ends };
        let mut tokens = Vec::new();
        tokenizer
            .encode(rest.as_bytes(), options, &mut self.scratch, &mut |id| tokens.push(id))
            .map_err(|error| EngineError::new(Class::OverBound, error))?;
        let room = self.sequence[0].room();
        let limit = self.limit.min(room.saturating_sub(tokens.len())).max(1);
        self.sequence[0].begin(&tokens, limit)?;
        self.before = text;
        Ok(())
    }

    fn render(
        &self,
        template: &ChatTemplate,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, EngineError> {
        let mut messages = Vec::with_capacity(self.turns.len() + 1);
        if let Some(system) = &self.args.system {
            messages.push(Message::text("system", system));
        }
        for (index, turn) in self.turns.iter().enumerate() {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            messages.push(Message { role, content: Content::Text(turn), fields: Vec::new() });
        }
        let conversation =
            Conversation { messages: &messages, generation_prompt, variables: Vec::new() };
        template.render(&conversation).map_err(|error| EngineError::new(Class::File, error))
    }

    /// Runs the turn; the reply's text stays for the next rendering.
    fn generate(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<String, EngineError> {
        let mut reply = String::with_capacity(self.text_bytes_max / 4);
        let mut timing = Timing::default();
        let mut gone = false;
        HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
        let result = generate(
            runner,
            Some(tokenizer),
            &mut self.sequence,
            &self.options,
            &mut timing,
            &mut |_, piece| {
                if reply.capacity() - reply.len() >= piece.len() {
                    reply.push_str(piece);
                }
                if !piece.is_empty() {
                    gone |= Stream::Output.write_all(piece.as_bytes()).is_err();
                }
                match gone || stop_requested() {
                    true => Control::Stop,
                    false => Control::Continue,
                }
            },
        );
        HEAP.open_latch();
        result?;
        match self.sequence[0].finish() {
            // The caches hold tokens that the reply does not show.
            Some(Finish::StopText) => self.before.clear(),
            // The caches hold the prompt and the reply; the end token was not run.
            _ => self.before.push_str(&reply),
        }
        reply.shrink_to_fit();
        Ok(reply)
    }
}
