//! A conversation on standard input: the caches stay, and only what is new is run.
//!
//! Each turn renders the whole conversation. When that text continues the text before it (as
//! templates do that do not rewrite old turns), only the rest is encoded and run; else the
//! conversation is run again from its beginning, and standard error says so.

use std::io::{BufRead, ErrorKind};
use std::time::Instant;

use dctms_engine::generation::{Control, Finish, GenerationOptions, Sequence, Timing, generate};
use dctms_engine::planning::{PlanSettings, Planned, compile_heap_bytes, resolve_bounds};
use dctms_engine::{Class, EngineError, Model, Runner};
use dctms_ir::plan::Bounds;
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::{catch_stop_requests, stop_requested, take_stop_request};
use dctms_system::output::Stream;
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Scratch,
    SpecialText, Tokenizer, VocabularyKind,
};

use super::mebibytes;
use super::options::RunArgs;
use super::progress::Progress;
use crate::HEAP;
use crate::commands::stream::note;
use crate::failure::Failure;
use crate::machine::{lanes_of, settings};
use crate::process::{self, CompileStage, HeapLimit, Prepared, Started};

/// Bytes of a conversation's text for each token of its context: what longer text cannot hold.
const TEXT_BYTES_PER_TOKEN: usize = 16;

/// Runs a conversation until the input ends.
///
/// # Errors
/// Usage, a defect of the model, no room. A turn that passes the bounds is refused and the
/// conversation goes on.
pub fn run(args: &RunArgs, begun: Instant) -> Result<(), Failure> {
    dctms_text::initialise_templates();
    let stage = CompileStage::open()?;
    let (started, template, identity) = {
        let model = Model::open(&args.model_path()?)?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        if model.vocabulary.is_none() {
            let message = "the model has no tokeniser: a conversation needs one";
            return Err(EngineError::new(Class::File, message).into());
        }
        let settings = chat_settings(args, &model)?;
        let bounds = resolve_bounds(&model, &settings, None)?;
        let settings = with_chat_heap(args, settings, &model, &bounds);
        let planned = process::certify(&model, &settings, &bounds)?;
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        let identity = Identity {
            header_sha256: *model.checkpoint.header_sha256(),
            context: model.config.context as usize,
        };
        (started, stage.lasting(|| model.template.clone()), identity)
    };
    stage.close()?;
    let mut prepared = load(started)?;
    catch_stop_requests()?;
    super::announce(&prepared, begun);
    let mut chat = Chat::new(args, &prepared);
    let text_bytes_max = match args.replan {
        true => identity.context * TEXT_BYTES_PER_TOKEN,
        false => chat.text_bytes_max,
    };
    let mut input = Input::new(text_bytes_max / 2);
    let mut line = None;
    loop {
        match chat.talk(&mut prepared, template.as_deref(), &mut input, line.take())? {
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

fn load(started: Started) -> Result<Prepared, EngineError> {
    let progress = Progress::new(started.weights_bytes());
    let prepared = process::load(started, progress.listener())?;
    progress.done();
    Ok(prepared)
}

fn chat_settings(args: &RunArgs, model: &Model) -> Result<PlanSettings, EngineError> {
    let mut plan_args = args.plan.clone();
    plan_args.max_output = plan_args.max_output.or(args.limit);
    let mut settings = settings(&plan_args)?;
    if args.replan {
        // A new plan is made while the arena is resident: its heap is room of its own.
        settings.runtime.replan_heap_bytes = compile_heap_bytes(model, settings.machine.lanes);
    }
    Ok(settings)
}

/// Adds the heap of a conversation: the template and its rendering, two texts, and encoding
/// scratch; for the longest context that a new plan may have, when there may be one.
fn with_chat_heap(
    args: &RunArgs,
    mut settings: PlanSettings,
    model: &Model,
    bounds: &Bounds,
) -> PlanSettings {
    let context = match args.replan {
        true => model.config.context,
        false => bounds.max_input_tokens + bounds.max_output_tokens,
    } as usize;
    let template_bytes = model.template.as_ref().map_or(1024, String::len);
    let text = context * TEXT_BYTES_PER_TOKEN;
    let rendering = ChatTemplate::heap_bytes_usual(template_bytes, context / 8, text);
    let encoding = Scratch::heap_bytes(VocabularyKind::BytePair, text);
    settings.runtime.heap_fixed_bytes += (rendering + 3 * text + encoding + (32 << 10)) as u64;
    settings
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
    let Prepared { runner, vocabulary, envelope, unlocked, seal } = prepared;
    let before = runner.bounds().clone();
    seal.lift()?;
    let stage = CompileStage::open()?;
    let positions = chat.sequence[0].context().1;
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
            let same = Prepared { runner, vocabulary, envelope, unlocked, seal };
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
    let model = Model::open(&args.model_path()?)?;
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
    let settings = with_chat_heap(args, settings, &model, &bounds);
    let planned = process::certify(&model, &settings, &bounds)?;
    Ok((model, settings, planned))
}

/// How a stretch of conversation ended.
enum Outcome {
    /// The input ended, or nobody listens.
    Ended,
    /// A turn needs so many positions in all, and a new plan was allowed.
    NeedsRoom {
        /// Positions.
        tokens: u64,
        /// The turn, to be taken again.
        line: String,
    },
}

/// Lines of standard input, each within a bound.
struct Input {
    line: Vec<u8>,
    bytes_max: usize,
}

impl Input {
    fn new(bytes_max: usize) -> Input {
        Input { line: Vec::with_capacity(bytes_max + 2), bytes_max }
    }

    /// The next line that is not blank; `None` at the end. A longer or broken one is refused.
    fn next(&mut self) -> Result<Option<String>, EngineError> {
        let mut input = std::io::stdin().lock();
        loop {
            self.line.clear();
            let bytes = self
                .read_line(&mut input)
                .map_err(|error| EngineError::new(Class::System, error))?;
            if bytes == 0 {
                return Ok(None);
            }
            if bytes > self.bytes_max {
                return Err(EngineError::new(
                    Class::OverBound,
                    format!("the turn has {bytes} bytes, at most {}", self.bytes_max),
                ));
            }
            match std::str::from_utf8(&self.line) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => return Ok(Some(text.trim_end_matches(['\n', '\r']).to_string())),
                Err(_) => {
                    return Err(EngineError::new(Class::OverBound, "the turn is not UTF-8"));
                }
            }
        }
    }
}

impl Input {
    /// Reads up to a line's end and keeps what the bound allows; gives the bytes of the line, 0
    /// at the end of the input, or when a signal asks to stop while nothing comes.
    fn read_line(&mut self, input: &mut impl BufRead) -> std::io::Result<usize> {
        let mut bytes = 0;
        loop {
            let available = match input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    if stop_requested() {
                        return Ok(0);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let end = available.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
            let count = end.unwrap_or(available.len());
            let room = self.bytes_max - self.line.len();
            self.line.extend_from_slice(&available[..count.min(room)]);
            input.consume(count);
            bytes += count;
            if end.is_some() || count == 0 {
                return Ok(bytes);
            }
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
    /// The reply that is coming: made once, so that turns leave no holes in the heap.
    reply: String,
    sequence: [Sequence; 1],
    limit: usize,
    text_bytes_max: usize,
}

impl<'a> Chat<'a> {
    fn new(args: &'a RunArgs, prepared: &Prepared) -> Chat<'a> {
        let (context, limit) = context_of(prepared);
        let text_bytes_max = context * TEXT_BYTES_PER_TOKEN;
        Chat {
            args,
            options: args.generation_options(),
            turns: Vec::new(),
            before: String::new(),
            scratch: Scratch::with_text_bytes_max(kind_of(prepared), text_bytes_max),
            reply: String::with_capacity(limit * TEXT_BYTES_PER_TOKEN),
            sequence: [Sequence::new(0, context)],
            limit: args.limit.map_or(limit, |asked| limit.min(asked as usize)),
            text_bytes_max,
        }
    }

    /// Takes the larger bounds of a new plan.
    fn grow(&mut self, prepared: &Prepared) {
        let (context, limit) = context_of(prepared);
        self.limit = self.args.limit.map_or(limit, |asked| limit.min(asked as usize));
        self.text_bytes_max = context * TEXT_BYTES_PER_TOKEN;
        self.sequence[0].grow(context);
        // The old scratch goes first, so that both are never there at once.
        self.scratch = Scratch::with_text_bytes_max(kind_of(prepared), 0);
        self.scratch = Scratch::with_text_bytes_max(kind_of(prepared), self.text_bytes_max);
    }

    fn talk(
        &mut self,
        prepared: &mut Prepared,
        template: Option<&str>,
        input: &mut Input,
        mut line: Option<String>,
    ) -> Result<Outcome, EngineError> {
        let Prepared { runner, vocabulary, .. } = prepared;
        let (Some(vocabulary), Some(tables)) = (vocabulary, runner.tokenizer_tables()) else {
            unreachable!("checked before planning");
        };
        let tokenizer = Tokenizer::new(&vocabulary.layout, tables.bytes());
        let template = ChatTemplate::new(template, &tokenizer)
            .map_err(|error| EngineError::new(Class::File, error))?;
        loop {
            let next = match line.take() {
                Some(line) => Ok(Some(line)),
                None => {
                    if Stream::Input.is_terminal() {
                        let _ = Stream::Error.write_all(b"> ");
                    }
                    input.next()
                }
            };
            let turn = match next {
                Ok(None) => return Ok(Outcome::Ended),
                Ok(Some(text)) => self.turn(runner, &tokenizer, &template, text),
                Err(error) => Err(error),
            };
            match turn {
                Ok(Turn::Done) => {}
                Ok(Turn::Ended) => return Ok(Outcome::Ended),
                Ok(Turn::NeedsRoom { tokens, line }) => {
                    return Ok(Outcome::NeedsRoom { tokens, line });
                }
                Err(error) if error.class == Class::OverBound => {
                    note(format_args!("dctms: {error}\n"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn turn(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
        line: String,
    ) -> Result<Turn, EngineError> {
        let turns_bytes: usize = self.turns.iter().map(String::len).sum();
        if turns_bytes + line.len() > self.text_bytes_max / 2 {
            if self.args.replan {
                // A token is four bytes of text or so; the new plan's tokeniser will say.
                let tokens = ((turns_bytes + line.len()) / 4 + self.limit) as u64;
                let tokens = tokens.max(self.sequence[0].context().0.len() as u64 + 1);
                return Ok(Turn::NeedsRoom { tokens, line });
            }
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "the conversation has {} bytes of text, the plan holds {}",
                    turns_bytes + line.len(),
                    self.text_bytes_max / 2
                ),
            ));
        }
        self.turns.push(line);
        match self.begin(tokenizer, template) {
            Ok(Begun::Ready) => {}
            Ok(Begun::NeedsRoom { tokens }) => {
                let line = self.turns.pop().unwrap_or_default();
                return Ok(Turn::NeedsRoom { tokens, line });
            }
            Err(error) => {
                self.turns.pop();
                return Err(error);
            }
        }
        self.generate(runner, tokenizer)?;
        self.turns.push(self.reply.as_str().to_owned());
        let gone = Stream::Output.write_all(b"\n").is_err();
        let stopped = self.sequence[0].finish() == Some(Finish::Cancelled);
        // Ctrl-C ends the reply, not the conversation; a closed output ends both.
        let interrupted = stopped && take_stop_request();
        match gone || (stopped && !interrupted) {
            true => Ok(Turn::Ended),
            false => Ok(Turn::Done),
        }
    }

    /// Encodes what the caches do not hold yet. Nothing changes when it does not fit.
    fn begin(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
    ) -> Result<Begun, EngineError> {
        let text = self.render(template, GenerationPrompt::Added)?;
        let continued = match self.before.is_empty() {
            true => None,
            false => text.strip_prefix(self.before.as_str()),
        };
        let (rest, ends) = match continued {
            Some(rest) => (rest, Ends::None),
            None => (text.as_str(), Ends::Template),
        };
        let options = EncodeOptions { special_text: SpecialText::Parse, ends };
        let mut tokens = Vec::new();
        tokenizer
            .encode(rest.as_bytes(), options, &mut self.scratch, &mut |id| tokens.push(id))
            .map_err(|error| EngineError::new(Class::OverBound, error))?;
        let held = match continued {
            Some(_) => self.sequence[0].context().0.len(),
            None => 0,
        };
        let room = self.sequence[0].room() + self.sequence[0].context().0.len() - held;
        if tokens.len() + self.limit > room && self.args.replan {
            let tokens = (held + tokens.len() + self.limit) as u64;
            return Ok(Begun::NeedsRoom { tokens });
        }
        if tokens.len() >= room {
            return Err(EngineError::new(
                Class::OverBound,
                format!("the turn has {} tokens, {room} positions are left", tokens.len()),
            ));
        }
        if continued.is_none() && !self.before.is_empty() {
            note(format_args!("dctms: the template rewrote earlier turns: running them again\n"));
        }
        if continued.is_none() {
            self.sequence[0].clear();
        }
        let limit = self.limit.min(room - tokens.len());
        if limit < self.limit {
            note(format_args!(
                "dctms: {limit} positions are left for this reply (--replan makes room)\n"
            ));
        }
        self.sequence[0].begin(&tokens, limit)?;
        self.before = text;
        Ok(Begun::Ready)
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
    ) -> Result<(), EngineError> {
        let reply = &mut self.reply;
        reply.clear();
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
            _ => self.before.push_str(&self.reply),
        }
        Ok(())
    }
}

/// How a turn ended.
enum Turn {
    Done,
    Ended,
    NeedsRoom { tokens: u64, line: String },
}

/// Whether a turn can run.
enum Begun {
    Ready,
    NeedsRoom { tokens: u64 },
}

/// Positions of the context, and tokens of a reply.
fn context_of(prepared: &Prepared) -> (usize, usize) {
    let bounds = prepared.runner.bounds();
    let context = bounds.max_input_tokens + bounds.max_output_tokens;
    (context as usize, bounds.max_output_tokens as usize)
}

fn kind_of(prepared: &Prepared) -> VocabularyKind {
    let vocabulary = prepared.vocabulary.as_ref();
    vocabulary.map_or(VocabularyKind::BytePair, |vocabulary| vocabulary.layout.facts().kind)
}
