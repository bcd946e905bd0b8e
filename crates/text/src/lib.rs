//! Tokenisers over flat planned tables, and chat templates.
//!
//! A vocabulary in a model file becomes one buffer of bytes whose exact length follows from the
//! file's header: [`Facts::measure`] reads the source, [`TableLayout::new`] sizes, [`build`]
//! fills, [`Tokenizer`] is a view. Encoding works in a [`Scratch`] of fixed size and allocates
//! nothing; decoding streams whole characters. The crate knows neither files nor models' graphs:
//! a reader of files implements [`VocabularySource`].
#![forbid(unsafe_code)]

mod alphabet;
mod bits;
mod build;
mod decode;
mod encode;
mod error;
mod facts;
mod layout;
pub mod limits;
mod merge;
mod normalize;
mod scratch;
mod source;
mod template;
mod template_scan;
mod template_value;
mod tokenizer;
mod tree;
mod unicode;
mod unicode_compositions;
mod unicode_decompositions;
mod unicode_letters;
mod words;

pub use build::build;
pub use decode::{ControlTokens, LeadingSpace, StreamDecoder};
pub use encode::{EncodeOptions, Encoded, Ends, SpecialText};
pub use error::{EncodeError, TableError};
pub use facts::{Facts, MergeForm, Normalization, Presence};
pub use layout::TableLayout;
pub use scratch::Scratch;
pub use source::{
    Flag, PreTokenizer, Role, TokenEntry, TokenKind, VocabularyKind, VocabularySource,
};
pub use template::{
    ChatTemplate, Content, Conversation, GenerationPrompt, Message, Part, TemplateError,
    TemplateOrigin, initialise_templates,
};
pub use template_value::ordered_map;
pub use tokenizer::Tokenizer;

/// A value of a chat template's variables.
pub use minijinja::Value as TemplateValue;
