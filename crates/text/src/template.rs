//! Chat templates: from messages to the text that a model was trained to continue.
//!
//! A template is a Jinja program inside a model file, written for Hugging Face's environment:
//! blocks trimmed, `raise_exception`, Python's string methods, JSON without HTML escapes, loop
//! controls. `strftime_now` is left undefined, so that the same messages give the same text on
//! any day; templates then take their own fixed date.
//!
//! A template is untrusted: its length, its work, its nesting and its chains are bounded. Usual
//! ones need less than 64 KiB of stack, hostile chains and macros less than 1 MiB. Not bounded is
//! the depth of lists that a template nests while it runs: printing or comparing tens of
//! thousands of levels takes about 1 KiB of stack each, in the template engine. A caller with a
//! fixed stack has to expect its end there (`dctms_system::overflow` tells it by name).
//!
//! A file without a template gets one by its vocabulary: ChatML when `<|im_start|>` is a token,
//! Gemma's when `<start_of_turn>` is, else the messages' contents, one a line.

use crate::limits::{
    TEMPLATE_ELIF_COUNT_MAX, TEMPLATE_FUEL_MAX, TEMPLATE_LEN_BYTES_MAX, TEMPLATE_RECURSION_MAX,
    TEMPLATE_TAG_BYTES_MAX,
};
use crate::source::Role;
use crate::template_scan::{Excess, excess};
use crate::template_value::{ordered_map, to_json};
use crate::tokenizer::Tokenizer;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::fmt;

const NAME: &str = "chat_template";

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const GEMMA: &str = "{{ bos_token }}{% for message in messages %}<start_of_turn>\
    {{ 'model' if message.role == 'assistant' else 'user' }}\n\
    {{ message.content | trim }}<end_of_turn>\n{% endfor %}\
    {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";

const PLAIN: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    origin: TemplateOrigin,
}

/// Where a template came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model file.
    File,
    /// ChatML, chosen because `<|im_start|>` is a token.
    ChatMl,
    /// Gemma's turns, chosen because `<start_of_turn>` is a token.
    GemmaTurns,
    /// Contents only.
    Plain,
}

/// What a template can use besides the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// The text ends with the beginning of the assistant's turn.
    Added,
    /// It ends with the last message.
    None,
}

/// One message of a conversation.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// What it says.
    pub content: Content<'a>,
    /// Further fields that templates know (`tool_calls`, `name`, `reasoning_content`, …).
    pub fields: Vec<(String, Value)>,
}

impl<'a> Message<'a> {
    /// A message of one text.
    pub fn text(role: &'a str, text: &'a str) -> Self {
        Self { role, content: Content::Text(text), fields: Vec::new() }
    }
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content<'a> {
    /// Nothing: a message that only calls tools.
    None,
    /// One text.
    Text(&'a str),
    /// Texts and images in order; the template writes the images' placeholders.
    Parts(Vec<Part<'a>>),
}

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// A text.
    Text(&'a str),
    /// An image, which has no text of its own.
    Image,
}

/// What is rendered.
#[derive(Debug, Clone)]
pub struct Conversation<'a> {
    /// The messages in order.
    pub messages: &'a [Message<'a>],
    /// Whether the assistant's turn is begun.
    pub generation_prompt: GenerationPrompt,
    /// Further variables (`tools`, `enable_thinking`, `date_string`, …).
    pub variables: Vec<(String, Value)>,
}

impl ChatTemplate {
    /// Compiles the template of a file (`tokenizer.chat_template`), or the one that the
    /// vocabulary suggests when there is none.
    ///
    /// # Errors
    /// [`TemplateError`] for a template that is too long or is no Jinja.
    pub fn new(source: Option<&str>, tokenizer: &Tokenizer<'_>) -> Result<Self, TemplateError> {
        let has = |name: &str| tokenizer.special_token_of(name.as_bytes()).is_some();
        let (source, origin) = match source {
            Some(source) => (source, TemplateOrigin::File),
            None if has("<|im_start|>") => (CHATML, TemplateOrigin::ChatMl),
            None if has("<start_of_turn>") => (GEMMA, TemplateOrigin::GemmaTurns),
            None => (PLAIN, TemplateOrigin::Plain),
        };
        let mut environment = environment();
        let token = |role| {
            let text = tokenizer.role(role).map(|id| tokenizer.token_bytes(id));
            String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
        };
        environment.add_global("bos_token", token(Role::Bos));
        environment.add_global("eos_token", token(Role::Eos));
        environment.add_global("pad_token", token(Role::Padding));
        environment.add_global("unk_token", token(Role::Unknown));
        Self::compile(environment, source, origin)
    }

    /// Heap that compiling and rendering usual templates takes at most, for a template of
    /// `template_bytes` and `message_count` messages of `content_bytes` together (a test holds
    /// the bound). A hostile template may ask for more: 64 bytes for each unit of
    /// [`TEMPLATE_FUEL_MAX`], or what the heap's own limit gives.
    pub const fn heap_bytes_usual(
        template_bytes: usize,
        message_count: usize,
        content_bytes: usize,
    ) -> usize {
        (64 << 10) + 32 * template_bytes + 1024 * message_count + 6 * content_bytes
    }

    /// As [`Self::heap_bytes_usual`], for rendering into a buffer by [`Self::render_into`]; the
    /// buffer is not counted.
    pub const fn heap_bytes_usual_into(
        template_bytes: usize,
        message_count: usize,
        content_bytes: usize,
    ) -> usize {
        (48 << 10) + 24 * template_bytes + 384 * message_count + 3 * content_bytes
    }

    /// Where the template came from.
    pub fn origin(&self) -> TemplateOrigin {
        self.origin
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`TemplateError`] with the line: the template failed, refused the conversation, or did
    /// too much.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(TemplateError::from)?;
        template.render(context(conversation)).map_err(TemplateError::from)
    }

    /// The text of a conversation, written into `out`; returns its length in bytes. The heap then
    /// holds the messages' texts and the template's intermediate strings, but not the whole.
    ///
    /// # Errors
    /// Those of [`Self::render`], and [`TemplateError::OutputTooLong`].
    pub fn render_into(
        &self,
        conversation: &Conversation<'_>,
        out: &mut [u8],
    ) -> Result<usize, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(TemplateError::from)?;
        let len_bytes_max = out.len();
        let mut rest = out;
        match template.render_captured_to(context(conversation), &mut rest) {
            Ok(_) => Ok(len_bytes_max - rest.len()),
            Err(error) if error.kind() == ErrorKind::WriteFailure => {
                Err(TemplateError::OutputTooLong { len_bytes_max })
            }
            Err(error) => Err(TemplateError::from(error)),
        }
    }

    fn compile(
        mut environment: Environment<'static>,
        source: &str,
        origin: TemplateOrigin,
    ) -> Result<Self, TemplateError> {
        if source.len() > TEMPLATE_LEN_BYTES_MAX {
            let (len_bytes, len_bytes_max) = (source.len(), TEMPLATE_LEN_BYTES_MAX);
            return Err(TemplateError::TooLong { len_bytes, len_bytes_max });
        }
        match excess(source) {
            Some(Excess::Tag { line }) => {
                let (what, count_max) = ("bytes in one tag", TEMPLATE_TAG_BYTES_MAX);
                return Err(TemplateError::TooComplex { line, what, count_max });
            }
            Some(Excess::Elifs { line }) => {
                let (what, count_max) = ("elifs", TEMPLATE_ELIF_COUNT_MAX);
                return Err(TemplateError::TooComplex { line, what, count_max });
            }
            None => {}
        }
        environment.add_template_owned(NAME, source.to_string()).map_err(TemplateError::from)?;
        Ok(Self { environment, origin })
    }
}

/// What can go wrong with a chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The template is too long.
    TooLong {
        /// Its length in bytes.
        len_bytes: usize,
        /// The longest accepted.
        len_bytes_max: usize,
    },
    /// The template has a longer chain of operators or branches than the stack could bear.
    TooComplex {
        /// Its line, from one.
        line: usize,
        /// What there is too much of.
        what: &'static str,
        /// How much is accepted.
        count_max: usize,
    },
    /// The template is no Jinja.
    Syntax {
        /// Its line, from one.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template failed while rendering.
    Render {
        /// Its line, from one; zero when not known.
        line: usize,
        /// What went wrong there.
        message: String,
    },
    /// The template called `raise_exception`: it does not accept the conversation.
    Refused {
        /// Its line, from one.
        line: usize,
        /// Its reason.
        message: String,
    },
    /// The text does not fit where it is to be written.
    OutputTooLong {
        /// The bound in bytes.
        len_bytes_max: usize,
    },
    /// The template did more work than allowed.
    TooMuchWork {
        /// The bound, in instructions or 64-byte pieces.
        work_max: u64,
    },
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        let line = error.line().unwrap_or(0);
        let detail = error.detail().unwrap_or_default().to_string();
        let message = if detail.is_empty() { error.kind().to_string() } else { detail };
        match error.kind() {
            ErrorKind::SyntaxError => Self::Syntax { line, message },
            ErrorKind::OutOfFuel => Self::TooMuchWork { work_max: TEMPLATE_FUEL_MAX },
            _ => match message.strip_prefix(REFUSAL) {
                Some(reason) => Self::Refused { line, message: reason.to_string() },
                None => Self::Render { line, message },
            },
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len_bytes, len_bytes_max } => write!(
                f,
                "the chat template has {len_bytes} bytes, at most {len_bytes_max} are accepted"
            ),
            Self::TooComplex { line, what, count_max } => {
                write!(f, "the chat template has more than {count_max} {what} at line {line}")
            }
            Self::Syntax { line, message } => {
                write!(f, "the chat template is malformed in line {line}: {message}")
            }
            Self::Render { line, message } => {
                write!(f, "the chat template failed in line {line}: {message}")
            }
            Self::Refused { line, message } => {
                write!(f, "the chat template refuses the conversation (line {line}): {message}")
            }
            Self::OutputTooLong { len_bytes_max } => {
                write!(f, "the rendered conversation is longer than {len_bytes_max} bytes")
            }
            Self::TooMuchWork { work_max } => {
                write!(f, "the chat template did more than {work_max} units of work")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

/// Makes the template engine's own tables (filters, tests, texts of small numbers: about 15 KiB
/// that live as long as the process), so that a later rendering leaves nothing behind.
pub fn initialise_templates() {
    let environment = environment();
    let warm = "{% for i in range(2) %}{{ i }}{{ [i] | tojson(indent=1) }}{% endfor %}";
    let rendered = environment.render_str(warm, ordered_map(Vec::new()));
    debug_assert!(rendered.is_ok());
}

/// Marks the errors that `raise_exception` makes.
const REFUSAL: &str = "\u{1}refused: ";

/// Hugging Face's environment.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("default delimiters"));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(TEMPLATE_FUEL_MAX));
    environment.set_recursion_limit(TEMPLATE_RECURSION_MAX);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
    });
    environment.add_filter("tojson", |value: &Value, options: Kwargs| {
        let indent: Option<usize> = options.get("indent")?;
        let _ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
        options.assert_all_used()?;
        to_json(value, indent)
    });
    environment
}

/// The variables of one rendering.
fn context(conversation: &Conversation<'_>) -> Value {
    let messages: Vec<Value> = conversation.messages.iter().map(message_value).collect();
    let is_added = conversation.generation_prompt == GenerationPrompt::Added;
    let mut entries = conversation.variables.clone();
    entries.push(("messages".into(), Value::from(messages)));
    entries.push(("add_generation_prompt".into(), Value::from(is_added)));
    ordered_map(entries)
}

fn message_value(message: &Message<'_>) -> Value {
    let content = match &message.content {
        Content::None => Value::from(()),
        Content::Text(text) => Value::from(*text),
        Content::Parts(parts) => Value::from(parts.iter().map(part_value).collect::<Vec<_>>()),
    };
    let mut entries = vec![("role".into(), Value::from(message.role)), ("content".into(), content)];
    entries.extend(message.fields.iter().cloned());
    ordered_map(entries)
}

fn part_value(part: &Part<'_>) -> Value {
    let entry = |key: &str, value: &str| (key.to_string(), Value::from(value));
    ordered_map(match part {
        Part::Text(text) => vec![entry("type", "text"), entry("text", text)],
        Part::Image => vec![entry("type", "image")],
    })
}
