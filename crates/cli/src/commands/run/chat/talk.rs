//! The turns of a conversation: render, encode what is new, generate, remember.
//!
//! All buffers are made once, with the room that the plan counts; a turn that does not fit into
//! them is refused by name, or asks for a larger plan, before anything has changed.

use dctms_engine::generation::{Control, Finish, GenerationOptions, Sequence, Timing, generate};
use dctms_engine::{Class, EngineError, Runner};
use dctms_system::SystemError;
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::{stop_requested, take_stop_request};
use dctms_system::output::Stream;
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Scratch,
    SpecialText, TemplateError, Tokenizer,
};

use crate::HEAP;
use crate::commands::run::images::{self, Album, Stretch};
use crate::commands::run::input::Input;
use crate::commands::run::options::RunArgs;
use crate::commands::stream::note;
use crate::failure::on_template;
use crate::process::Prepared;
use crate::room::{self, ChatRoom, Growth};

use std::path::Path;

/// The line that begins a conversation anew.
const RESET: &str = "/reset";

/// How a stretch of conversation ended.
pub enum Outcome {
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

/// A conversation so far.
pub struct Chat<'a> {
    args: &'a RunArgs,
    options: GenerationOptions,
    room: ChatRoom,
    growth: Growth,
    /// User's and assistant's texts in turn.
    turns: Vec<String>,
    /// The rendered text that the caches hold, `before_len` bytes.
    before: Vec<u8>,
    before_len: usize,
    /// The rendered text of the turn that begins.
    text: Vec<u8>,
    tokens: Vec<u32>,
    scratch: Scratch,
    /// The reply that is coming.
    reply: String,
    sequence: [Sequence; 1],
    limit: usize,
    /// Pictures, where the model has eyes.
    album: Option<Album>,
}

impl<'a> Chat<'a> {
    /// A conversation that has not begun, with `room` for its texts.
    #[must_use]
    pub fn new(
        args: &'a RunArgs,
        prepared: &Prepared,
        (room, growth): (ChatRoom, Growth),
        album: Option<Album>,
    ) -> Self {
        let (context, limit) = context_of(prepared);
        Chat {
            args,
            options: args.generation_options(),
            room,
            growth,
            turns: Vec::with_capacity(room.messages_max),
            before: vec![0; room.rendered_bytes_max],
            before_len: 0,
            text: vec![0; room.rendered_bytes_max],
            tokens: Vec::with_capacity(room.text_bytes_max / room::TEXT_BYTES_PER_POSITION),
            scratch: room::scratch(&room, prepared.vocabulary_kind()),
            reply: String::with_capacity(limit.min(context) * room::TEXT_BYTES_PER_POSITION),
            sequence: [Sequence::new(0, context)],
            limit: args.limit.map_or(limit, |asked| limit.min(asked as usize)),
            album,
        }
    }

    /// Positions that the caches hold.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.sequence[0].context().1
    }

    /// Takes the larger bounds of a new plan. The texts have had their room from the start.
    pub fn grow(&mut self, prepared: &Prepared) {
        let (context, limit) = context_of(prepared);
        self.limit = self.args.limit.map_or(limit, |asked| limit.min(asked as usize));
        self.sequence[0].grow(context);
    }

    /// Takes turns until the input ends, or one needs a larger plan. `line` is a turn that was
    /// read already.
    ///
    /// # Errors
    /// A template that fails, or streams that do.
    pub fn talk(
        &mut self,
        prepared: &mut Prepared,
        template: Option<&str>,
        (input, buffer): (&mut Input, &mut Vec<u8>),
        mut line: Option<String>,
    ) -> Result<Outcome, EngineError> {
        let Prepared { runner, vocabulary, .. } = prepared;
        let (Some(vocabulary), Some(tables)) = (vocabulary, runner.tokenizer_tables()) else {
            unreachable!("checked before planning");
        };
        let tokenizer = Tokenizer::new(&vocabulary.layout, tables.bytes());
        let template = on_template(|| ChatTemplate::new(template, &tokenizer))
            .map_err(|error| EngineError::new(Class::File, error))?;
        loop {
            let next = match line.take() {
                Some(line) => Ok(Some(line)),
                None => {
                    if Stream::Input.is_terminal() {
                        let _ = Stream::Error.write_all(b"> ");
                    }
                    input
                        .next(buffer)
                        .map(|line| line.map(|line| String::from_utf8_lossy(line).into_owned()))
                }
            };
            let turn = match next {
                Ok(None) => return Ok(Outcome::Ended),
                Ok(Some(text)) if text.trim() == RESET => {
                    self.reset();
                    Ok(Turn::Done)
                }
                Ok(Some(text)) => match images::asked(&text) {
                    Some(path) => self.see(runner, path),
                    None => self.turn(runner, &tokenizer, &template, text),
                },
                Err(error) => Err(error),
            };
            match turn {
                Ok(Turn::Done) => {}
                Ok(Turn::Ended) => return Ok(Outcome::Ended),
                Ok(Turn::NeedsRoom { tokens, line }) => {
                    return Ok(Outcome::NeedsRoom { tokens, line });
                }
                Err(error) if matches!(error.class, Class::OverBound | Class::Usage) => {
                    note(format_args!("dctms: {error}\n"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets everything that was said and shown; the plan and the weights stay.
    fn reset(&mut self) {
        self.turns.clear();
        self.before_len = 0;
        self.sequence[0].clear();
        if let Some(album) = &mut self.album {
            album.clear();
        }
        note(format_args!("dctms: the conversation begins anew\n"));
    }

    /// Takes a picture in. One that is refused does not end the conversation.
    fn see(&mut self, runner: &mut Runner, path: &Path) -> Result<Turn, EngineError> {
        let taken = match &mut self.album {
            Some(album) => album.add(path, runner),
            None => Err(images::blind("this")),
        };
        match taken {
            // Ctrl-C gives the picture up, not the conversation.
            Err(_) if take_stop_request() => {
                note(format_args!("dctms: the picture was given up\n"));
                Ok(Turn::Done)
            }
            Err(error) if error.class == Class::System => Err(error),
            Err(error) => {
                note(format_args!("dctms: {error}\n"));
                Ok(Turn::Done)
            }
            Ok(()) => Ok(Turn::Done),
        }
    }

    fn turn(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
        line: String,
    ) -> Result<Turn, EngineError> {
        let line = match &self.album {
            Some(album) => album.marked(line)?,
            None => line,
        };
        self.check_room(&line)?;
        self.turns.push(line);
        match self.begin(tokenizer, template) {
            Ok(Begun::Ready) => {}
            Ok(Begun::NeedsRoom { tokens }) => {
                let line = self.turns.pop().unwrap_or_default();
                return Ok(Turn::NeedsRoom { tokens, line });
            }
            Err(error) => {
                self.turns.pop();
                if let Some(album) = &mut self.album {
                    album.forget_pending();
                }
                return Err(error);
            }
        }
        if let Some(album) = &mut self.album {
            album.shown();
        }
        let written = self.generate(runner, tokenizer)?;
        self.turns.push(self.reply.as_str().to_owned());
        let written = written.and_then(|()| Stream::Output.write_all(b"\n"));
        let stopped = self.sequence[0].finish() == Some(Finish::Cancelled);
        match written {
            // A closed output ends the conversation; one that cannot be written fails it.
            Err(SystemError::ReaderGone) => Ok(Turn::Ended),
            Err(error) => Err(error.into()),
            // Ctrl-C ends the reply, not the conversation.
            Ok(()) if stopped && !take_stop_request() => Ok(Turn::Ended),
            Ok(()) => Ok(Turn::Done),
        }
    }

    /// Whether the texts have room for one more question and its answer.
    fn check_room(&self, line: &str) -> Result<(), EngineError> {
        let over = |message: String| Err(EngineError::new(Class::OverBound, message));
        if self.turns.len() + 2 > self.room.messages_max {
            return over(format!(
                "the conversation has {} messages, the plan holds {}",
                self.turns.len(),
                self.room.messages_max
            ));
        }
        let system = self.args.system.as_ref().map_or(0, String::len);
        let turns: usize = self.turns.iter().map(String::len).sum();
        let bytes = system + turns + line.len() + self.reply.capacity();
        if bytes > self.room.text_bytes_max {
            return over(format!(
                "the conversation and a longest reply have {bytes} bytes of text, the plan holds {}",
                self.room.text_bytes_max
            ));
        }
        Ok(())
    }

    /// Encodes what the caches do not hold yet. Nothing changes when it does not fit.
    fn begin(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        template: &ChatTemplate,
    ) -> Result<Begun, EngineError> {
        let text_len = self.render(template)?;
        let text = &self.text[..text_len];
        let continued = match self.before_len {
            0 => None,
            before_len => text.strip_prefix(&self.before[..before_len]),
        };
        let (rest, ends) = match continued {
            Some(rest) => (rest, Ends::None),
            None => (text, Ends::Template),
        };
        let (tokens, mut count) = (&mut self.tokens, 0);
        tokens.clear();
        let mut push = |id| {
            if count < tokens.capacity() {
                tokens.push(id);
            }
            count += 1;
        };
        let scratch = &mut self.scratch;
        let mut encode = |text: &[u8], ends, push: &mut dyn FnMut(u32)| {
            let options = EncodeOptions { special_text: SpecialText::Parse, ends };
            match tokenizer.encode(text, options, scratch, push) {
                Ok(_) => Ok(()),
                Err(error) => Err(EngineError::new(Class::OverBound, error)),
            }
        };
        match &self.album {
            None => encode(rest, ends, &mut push)?,
            Some(album) => {
                let before_len = text.len() - rest.len();
                album.stretches(text, before_len, ends, &mut |stretch| match stretch {
                    Stretch::Text(text, ends) => encode(text.as_bytes(), ends, &mut push),
                    Stretch::Picture(text) => encode(text.as_bytes(), Ends::None, &mut push),
                    Stretch::Token(token) => {
                        push(token);
                        Ok(())
                    }
                })?;
            }
        }
        let held = match continued {
            Some(_) => self.sequence[0].context().0.len(),
            None => 0,
        };
        let room = self.sequence[0].room() + self.sequence[0].context().0.len() - held;
        if count + self.limit > room && self.growth == Growth::Replanned {
            let tokens = (held + count + self.limit) as u64;
            return Ok(Begun::NeedsRoom { tokens });
        }
        if count >= room {
            return Err(EngineError::new(
                Class::OverBound,
                format!("the turn has {count} tokens, {room} positions are left"),
            ));
        }
        if continued.is_none() && self.before_len > 0 {
            note(format_args!("dctms: the template rewrote earlier turns: running them again\n"));
        }
        if continued.is_none() {
            self.sequence[0].clear();
        }
        let limit = self.limit.min(room - count);
        if limit < self.limit {
            note(format_args!(
                "dctms: {limit} positions are left for this reply (--replan makes room)\n"
            ));
        }
        self.sequence[0].begin(&self.tokens, limit)?;
        std::mem::swap(&mut self.before, &mut self.text);
        self.before_len = text_len;
        Ok(Begun::Ready)
    }

    /// Renders the conversation into `text`; gives its length in bytes. What a conversation has
    /// grown to is not the file's defect.
    fn render(&mut self, template: &ChatTemplate) -> Result<usize, EngineError> {
        let mut messages = Vec::with_capacity(self.turns.len() + 1);
        if let Some(system) = &self.args.system {
            messages.push(Message::text("system", system));
        }
        for (index, turn) in self.turns.iter().enumerate() {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            let content = match &self.album {
                Some(album) => album.content(turn),
                None => Content::Text(turn),
            };
            messages.push(Message { role, content, fields: Vec::new() });
        }
        let conversation = Conversation {
            messages: &messages,
            generation_prompt: GenerationPrompt::Added,
            variables: Vec::new(),
        };
        let rendered = on_template(|| template.render_into(&conversation, &mut self.text));
        rendered.map_err(|error| {
            let class = match error {
                TemplateError::OutputTooLong { .. } | TemplateError::TooMuchWork { .. } => {
                    Class::OverBound
                }
                TemplateError::TooLong { .. }
                | TemplateError::TooComplex { .. }
                | TemplateError::Syntax { .. }
                | TemplateError::Render { .. }
                | TemplateError::Refused { .. } => Class::File,
            };
            EngineError::new(class, error)
        })
    }

    /// Runs the turn; the reply's text stays for the next rendering. Gives what became of the
    /// output.
    fn generate(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<Result<(), SystemError>, EngineError> {
        let reply = &mut self.reply;
        reply.clear();
        let mut whole = true;
        let mut timing = Timing::default();
        let mut written = Ok(());
        HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
        let result = generate(
            runner,
            Some(tokenizer),
            &mut self.sequence,
            &self.options,
            &mut timing,
            &mut |_, piece| {
                whole &= reply.capacity() - reply.len() >= piece.len();
                if whole {
                    reply.push_str(piece);
                }
                if !piece.is_empty() && written.is_ok() {
                    written = Stream::Output.write_all(piece.as_bytes());
                }
                match written.is_err() || stop_requested() {
                    true => Control::Stop,
                    false => Control::Continue,
                }
            },
        );
        HEAP.open_latch();
        result?;
        let end = self.before_len + self.reply.len();
        let shown = self.sequence[0].finish() != Some(Finish::StopText);
        match whole && shown && end <= self.before.len() {
            // The caches hold the prompt and the reply; the end token was not run.
            true => {
                self.before[self.before_len..end].copy_from_slice(self.reply.as_bytes());
                self.before_len = end;
            }
            // The caches hold tokens that the text does not show.
            false => self.before_len = 0,
        }
        Ok(written)
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
