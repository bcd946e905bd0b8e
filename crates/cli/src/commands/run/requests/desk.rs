//! Where a request is answered: read, place its pictures, render, encode, see, generate, report.
//!
//! All buffers are made once, with the room that the plan counts. Everything that can be refused
//! before anything is computed is: the line, the pictures' headers, the length of the prompt.

use std::fmt::Write as _;

use dctms_engine::eyes::{Placed, Tiler};
use dctms_engine::generation::{
    Arriving, Control, Finish, GenerationOptions, Nothing, Sequence, Timing, generate_beside,
};
use dctms_engine::pictures::EncodeTimes;
use dctms_engine::{Class, EngineError, ImageLimits, Runner};
use dctms_system::SystemError;
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::stop_requested;
use dctms_system::process::{FaultScope, Faults, faults};
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Part,
    Scratch, SpecialText, TemplateError, Tokenizer,
};

use super::line::{Piece, Request, Role, Span, Turn};
use super::order::{Ahead, Order, question_of};
use crate::HEAP;
use crate::commands::run::images::{self, MARK, Marks, Stretch};
use crate::commands::run::input::{Input, Wait};
use crate::commands::run::options::{RunArgs, usage};
use crate::commands::run::output::Report;
use crate::commands::stream::Output;
use crate::failure::{Failure, on_template};
use crate::process::Prepared;
use crate::room::{self, ChatRoom};

/// How the requests ended.
pub enum Outcome {
    /// There are no more, or nobody listens.
    Ended,
    /// A signal came while one was answered, or before the first.
    Interrupted,
}

/// What only a model with eyes has.
pub struct Eyes {
    /// Cuts pictures.
    pub tiler: Tiler,
    /// Their bounds.
    pub limits: ImageLimits,
    marks: Marks,
}

impl Eyes {
    /// How its pictures are cut and bounded, and whether the template writes their marks.
    #[must_use]
    pub fn new(tiler: Tiler, limits: ImageLimits, template: Option<&str>) -> Eyes {
        Eyes { tiler, limits, marks: Marks::of(template) }
    }
}

/// Everything that a request needs but the model.
pub struct Desk<'a> {
    args: &'a RunArgs,
    options: GenerationOptions,
    room: ChatRoom,
    /// The rendered text.
    text: Vec<u8>,
    tokens: Vec<u32>,
    scratch: Scratch,
    sequence: [Sequence; 1],
    timing: Timing,
    eyes: Option<&'a Eyes>,
    /// Pictures that a request may have.
    images: usize,
    pictures: Vec<(Placed, EncodeTimes)>,
    limit: usize,
    compile_heap_peak_bytes: usize,
}

/// What texts become tokens by.
struct Language<'t> {
    tokenizer: Tokenizer<'t>,
    template: ChatTemplate,
}

/// What happened between the first token and the last.
struct Counts {
    faults: Faults,
    allocations: u64,
}

impl<'a> Desk<'a> {
    /// With the room of a plan, for so many pictures a request.
    #[must_use]
    pub fn new(
        args: &'a RunArgs,
        prepared: &Prepared,
        (room, images): (ChatRoom, usize),
        eyes: Option<&'a Eyes>,
        compile_heap_peak_bytes: usize,
    ) -> Desk<'a> {
        let bounds = prepared.runner.bounds();
        let context = (bounds.max_input_tokens + bounds.max_output_tokens) as usize;
        let limit = bounds.max_output_tokens as usize;
        Desk {
            args,
            options: args.generation_options(),
            room,
            text: vec![0; room.rendered_bytes_max],
            tokens: Vec::with_capacity(room.text_bytes_max / room::TEXT_BYTES_PER_POSITION),
            scratch: room::scratch(&room, prepared.vocabulary_kind()),
            sequence: [Sequence::new(0, context)],
            timing: Timing::with_steps(limit),
            eyes,
            images,
            pictures: Vec::with_capacity(images),
            limit,
            compile_heap_peak_bytes,
        }
    }

    /// Answers requests until there are no more.
    ///
    /// # Errors
    /// A template that is none, or streams that fail.
    pub fn serve(
        &mut self,
        prepared: &mut Prepared,
        template: Option<&str>,
        input: &mut Input,
    ) -> Result<Outcome, Failure> {
        let Prepared { runner, vocabulary, envelope, unlocked, .. } = prepared;
        let (Some(vocabulary), Some(tables)) = (vocabulary, runner.tokenizer_tables()) else {
            unreachable!("checked before planning");
        };
        let tokenizer = Tokenizer::new(&vocabulary.layout, tables.bytes());
        let template = on_template(|| ChatTemplate::new(template, &tokenizer))
            .map_err(|error| EngineError::new(Class::File, error))?;
        let language = Language { tokenizer, template };
        // The order that is answered comes first; where the plan overlaps the two, the next one
        // behind it.
        let count = if runner.encodes_beside() { 2 } else { 1 };
        let order = |_| Order::with_room(input.buffer(), self.room.messages_max, self.images);
        let mut orders: Vec<Order> = (0..count).map(order).collect();
        let mut answered = false;
        loop {
            let Some((order, next)) = orders.split_first_mut() else {
                unreachable!("at least one")
            };
            if stop_requested() {
                return Ok(Outcome::Interrupted);
            }
            if !order.read(input, Wait::ForLine) {
                // Who waits for another one has answered all that there were.
                return Ok(match stop_requested() && !answered {
                    true => Outcome::Interrupted,
                    false => Outcome::Ended,
                });
            }
            answered = true;
            let next = next.first_mut();
            let answered = self.answer(runner, &language, order, (next, &mut *input));
            let mut output = Output::new();
            output.bytes(b"{");
            if let Some(id) = order.request.id {
                let _ = write!(output, "\"id\":{},", id.of(order.line()));
            }
            let cut = match answered {
                Ok(counts) => {
                    let locked = unlocked.is_none();
                    let mut report = Report {
                        sequences: &self.sequence,
                        pictures: &self.pictures,
                        reloads: runner.reloads(),
                        timing: &mut self.timing,
                        tokenizer: Some(&language.tokenizer),
                        envelope,
                        compile_heap_peak_bytes: self.compile_heap_peak_bytes,
                        minor_faults: counts.faults.minor,
                        major_faults: counts.faults.major,
                        allocations: counts.allocations,
                        locked,
                        options: &self.options,
                    };
                    report.json(&mut output)?;
                    self.sequence[0].finish() == Some(Finish::Cancelled)
                }
                // What the operating system refused once it will refuse again.
                Err(error) if error.class == Class::System && !stop_requested() => {
                    return Err(error.into());
                }
                Err(error) => {
                    let code = error.class.exit_code();
                    let _ = write!(
                        output,
                        "\"error\":{{\"class\":\"{}\",\"exit_code\":{code},\"message\":\"",
                        error.class.name()
                    );
                    output.json_piece(&error.message);
                    output.bytes(b"\"}");
                    stop_requested()
                }
            };
            let _ = writeln!(output, ",\"line\":{}}}", order.number());
            match output.end() {
                None => {}
                Some(SystemError::ReaderGone) => return Ok(Outcome::Ended),
                Some(error) => return Err(error.into()),
            }
            if cut {
                return Ok(Outcome::Interrupted);
            }
            order.clear();
            orders.rotate_left(1);
        }
    }

    /// Answers an order; the sequence then holds the answer. Meanwhile the next one is looked at.
    fn answer(
        &mut self,
        runner: &mut Runner,
        language: &Language<'_>,
        order: &mut Order,
        (next, input): (Option<&mut Order>, &mut Input),
    ) -> Result<Counts, EngineError> {
        self.pictures.clear();
        self.timing.clear();
        self.sequence[0].clear();
        order.accepted()?;
        let limit = self.limit_of_answer(&order.request)?;
        order.place(self.eyes)?;
        self.render(language, order)?;
        let input_max = runner.bounds().max_input_tokens;
        let count = self.encode(language, &order.placed)?;
        if count as u64 > input_max {
            let message =
                format!("the prompt has {count} tokens, the plan holds {input_max} (--max-input)");
            return Err(EngineError::new(Class::OverBound, message));
        }
        if count == 0 {
            return Err(usage("the prompt is empty".to_string()));
        }
        self.sequence[0].begin(&self.tokens, limit)?;
        let (pictures, readers) = (&mut self.pictures, &mut self.sequence);
        order.see(self.eyes, (runner, readers), &mut |seen| pictures.push(seen))?;
        match next.zip(self.eyes) {
            Some((order, eyes)) => {
                self.generate(runner, &language.tokenizer, &mut Ahead { input, order, eyes })
            }
            None => self.generate(runner, &language.tokenizer, &mut Nothing),
        }
    }

    /// Tokens that the answer may have.
    fn limit_of_answer(&self, request: &Request) -> Result<usize, EngineError> {
        let wanted = request.max_tokens.or(self.args.limit).unwrap_or(self.limit as u64);
        match wanted {
            1.. if wanted <= self.limit as u64 => Ok(wanted as usize),
            _ => Err(EngineError::new(
                Class::OverBound,
                format!(
                    "{wanted} output tokens are asked for, the plan holds 1 to {} (--max-output)",
                    self.limit
                ),
            )),
        }
    }

    /// Renders the messages into `text`.
    fn render(&mut self, language: &Language<'_>, order: &Order) -> Result<(), EngineError> {
        let marks = self.marks();
        let (request, line) = (&order.request, order.line());
        self.check_texts((request, line), marks)?;
        let question = question_of(request);
        let turns = request.turns.iter().enumerate();
        let said: Vec<Said<'_>> = turns
            .map(|(index, turn)| {
                let before: &[Span] = match Some(index) == question {
                    true => &request.images,
                    false => &[],
                };
                said((request, turn, before), line, marks)
            })
            .collect();
        self.text.resize(self.text.capacity(), 0);
        if self.args.raw {
            let [Said::Whole(text)] = said.as_slice() else {
                return Err(usage("--raw: a prompt is one text, without messages".to_string()));
            };
            let bytes = text.as_bytes();
            self.text[..bytes.len()].copy_from_slice(bytes);
            self.text.truncate(bytes.len());
            return Ok(());
        }
        let mut messages = Vec::with_capacity(said.len() + 1);
        let led = request.turns.first().is_some_and(|turn| turn.role == Role::System);
        if let Some(system) = self.args.system.as_ref().filter(|_| !led) {
            messages.push(Message::text("system", system));
        }
        for (turn, said) in request.turns.iter().zip(&said) {
            let content = match said {
                Said::Whole(text) => Content::Text(text),
                Said::Parts(parts) => Content::Parts(parts.clone()),
            };
            messages.push(Message { role: turn.role.name(), content, fields: Vec::new() });
        }
        let conversation = Conversation {
            messages: &messages,
            generation_prompt: GenerationPrompt::Added,
            variables: Vec::new(),
        };
        let rendered = on_template(|| language.template.render_into(&conversation, &mut self.text));
        let len = rendered.map_err(template_error)?;
        self.text.truncate(len);
        Ok(())
    }

    /// Who writes the marks of pictures.
    fn marks(&self) -> Marks {
        match self.eyes {
            Some(eyes) if !self.args.raw => eyes.marks,
            Some(_) | None => Marks::Ours,
        }
    }

    /// Refuses texts over the room, and texts that hold a picture's mark.
    fn check_texts(
        &self,
        (request, line): (&Request, &[u8]),
        marks: Marks,
    ) -> Result<(), EngineError> {
        let mut bytes = self.args.system.as_ref().map_or(0, String::len);
        for piece in &request.pieces {
            if let Piece::Text(text) = piece {
                let text = text.of(line);
                bytes += text.len();
                if self.eyes.is_some() {
                    images::check_text(text, marks)?;
                }
            }
        }
        match bytes > self.room.text_bytes_max {
            true => Err(EngineError::new(
                Class::OverBound,
                format!(
                    "the request has {bytes} bytes of text, the plan holds {}",
                    self.room.text_bytes_max
                ),
            )),
            false => Ok(()),
        }
    }

    /// Encodes the rendered text into `tokens`; gives how many there are.
    fn encode(&mut self, language: &Language<'_>, placed: &[Placed]) -> Result<usize, EngineError> {
        let (special_text, ends) = match self.args.raw {
            true => (SpecialText::PlainText, Ends::AsMetadata),
            false => (SpecialText::Parse, Ends::Template),
        };
        let marks = self.marks();
        let (tokens, mut count) = (&mut self.tokens, 0);
        tokens.clear();
        let mut push = |id| {
            if count < tokens.capacity() {
                tokens.push(id);
            }
            count += 1;
        };
        let scratch = &mut self.scratch;
        let mut encode = |text: &str, special_text, ends, push: &mut dyn FnMut(u32)| {
            let options = EncodeOptions { special_text, ends };
            match language.tokenizer.encode(text.as_bytes(), options, scratch, push) {
                Ok(_) => Ok(()),
                Err(error) => Err(EngineError::new(Class::OverBound, error)),
            }
        };
        let text = std::str::from_utf8(&self.text)
            .map_err(|_| EngineError::new(Class::File, "the template's text is not UTF-8"))?;
        match self.eyes.filter(|_| !placed.is_empty()) {
            None => encode(text, special_text, ends, &mut push)?,
            Some(eyes) => {
                let mark = marks.mark();
                let placed = (&eyes.tiler, placed);
                images::stretches(text, mark, placed, ends, &mut |stretch| match stretch {
                    Stretch::Text(text, ends) => encode(text, special_text, ends, &mut push),
                    Stretch::Picture(text) => {
                        encode(text, SpecialText::Parse, Ends::None, &mut push)
                    }
                    Stretch::Token(token) => {
                        push(token);
                        Ok(())
                    }
                })?;
            }
        }
        Ok(count)
    }

    fn generate(
        &mut self,
        runner: &mut Runner,
        tokenizer: &Tokenizer<'_>,
        arriving: &mut dyn Arriving,
    ) -> Result<Counts, EngineError> {
        let before = faults(FaultScope::Process);
        HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
        let result = generate_beside(
            runner,
            Some(tokenizer),
            (&mut self.sequence, &self.options),
            &mut self.timing,
            &mut |_, _| match stop_requested() {
                true => Control::Stop,
                false => Control::Continue,
            },
            arriving,
        );
        // Without those of what is looked at meanwhile.
        let allocations = HEAP.open_latch();
        let after = faults(FaultScope::Process);
        result?;
        let faults =
            Faults { minor: after.minor - before.minor, major: after.major - before.major };
        Ok(Counts { faults, allocations })
    }
}

/// What a message says, as its template takes it.
enum Said<'l> {
    /// One text; pictures are marks in it.
    Whole(String),
    /// For a template that writes the marks itself.
    Parts(Vec<Part<'l>>),
}

/// What a message says: `before` it, pictures.
fn said<'l>(
    (request, turn, before): (&Request, &Turn, &[Span]),
    line: &'l [u8],
    marks: Marks,
) -> Said<'l> {
    let pieces = &request.pieces[turn.first..turn.end];
    let pictured = pieces.iter().any(|piece| matches!(piece, Piece::Picture(_)));
    if marks != Marks::Ours && (pictured || !before.is_empty()) {
        let mut parts = Vec::with_capacity(before.len() + pieces.len());
        parts.extend(before.iter().map(|_| Part::Image));
        parts.extend(pieces.iter().map(|piece| match piece {
            Piece::Text(text) => Part::Text(text.of(line)),
            Piece::Picture(_) => Part::Image,
        }));
        return Said::Parts(parts);
    }
    let bytes = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.of(line).len(),
        Piece::Picture(_) => MARK.len(),
    });
    let mut whole = String::with_capacity(before.len() * MARK.len() + bytes.sum::<usize>());
    before.iter().for_each(|_| whole.push_str(MARK));
    for piece in pieces {
        whole.push_str(match piece {
            Piece::Text(text) => text.of(line),
            Piece::Picture(_) => MARK,
        });
    }
    Said::Whole(whole)
}

/// What a request has grown to is not the file's defect.
fn template_error(error: TemplateError) -> EngineError {
    let class = match error {
        TemplateError::OutputTooLong { .. }
        | TemplateError::TooMuchWork { .. }
        | TemplateError::Refused { .. } => Class::OverBound,
        TemplateError::TooLong { .. }
        | TemplateError::TooComplex { .. }
        | TemplateError::Syntax { .. }
        | TemplateError::Render { .. } => Class::File,
    };
    EngineError::new(class, error)
}
