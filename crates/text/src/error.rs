//! What can go wrong, one enum a stage: reading a vocabulary, encoding a text.
//!
//! Each message names what was found, where, and the bound it broke. The template stage keeps
//! its own error beside it in `template`.

use std::fmt;

/// A vocabulary that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableError {
    /// `tokenizer.ggml.model` is absent.
    ModelMissing,
    /// `tokenizer.ggml.model` names a tokeniser that is not implemented.
    ModelUnknown {
        /// The name found.
        name: String,
    },
    /// `tokenizer.ggml.pre` names a word splitter that is not implemented.
    PreTokenizerUnknown {
        /// The name found.
        name: String,
    },
    /// The vocabulary has no token.
    Empty,
    /// There are more tokens or merges than the tables can number.
    TooMany {
        /// `tokens` or `merges`.
        what: &'static str,
        /// The largest accepted number.
        count_max: usize,
    },
    /// A token's text is too long.
    TokenTooLong {
        /// Which token.
        id: u32,
        /// Its length in bytes.
        len_bytes: usize,
        /// The longest accepted.
        len_bytes_max: usize,
    },
    /// A token's type number is none that the format defines.
    TokenTypeUnknown {
        /// Which token.
        id: u32,
        /// The number found.
        code: i32,
    },
    /// A token's score is not a number, or infinite.
    ScoreNotFinite {
        /// Which token.
        id: u32,
    },
    /// A byte token's text does not have the form `<0xAB>`.
    ByteTokenMalformed {
        /// Which token.
        id: u32,
    },
    /// A role (`bos`, `eos`, …) is given a token that does not exist.
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The token it names.
        id: u32,
        /// How many tokens there are.
        token_count: usize,
    },
    /// More tokens end a generation than the tables can list.
    TooManyEndTokens {
        /// The largest accepted number.
        count_max: usize,
    },
    /// A merge is not two texts with one space between them.
    MergeMalformed {
        /// Its rank, from zero.
        rank: usize,
    },
    /// A merge names a text that is not a token.
    MergeUnknownToken {
        /// Its rank, from zero.
        rank: usize,
    },
    /// Two tokens have the text that a merge makes, so its rank is not clear.
    MergeAmbiguous {
        /// Its rank, from zero.
        rank: usize,
    },
    /// So many texts share one hash bucket that look-ups would crawl.
    Skewed {
        /// `texts` or `merges`.
        what: &'static str,
        /// The largest accepted number in one bucket.
        entries_max: usize,
    },
    /// The buffer given to the builder has not the length that the layout states.
    BufferLen {
        /// Its length in bytes.
        len_bytes: usize,
        /// The length wanted.
        wanted_bytes: usize,
    },
    /// The source gave other data when visited again.
    SourceChanged,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ModelMissing => {
                write!(f, "tokenizer.ggml.model is absent: the file has no tokeniser")
            }
            Self::ModelUnknown { name } => write!(
                f,
                "tokenizer.ggml.model = {name:?} is not supported; supported: {}",
                crate::source::VocabularyKind::NAMES
            ),
            Self::PreTokenizerUnknown { name } => write!(
                f,
                "tokenizer.ggml.pre = {name:?} is not supported; supported: {}",
                crate::source::PreTokenizer::names()
            ),
            Self::Empty => write!(f, "tokenizer.ggml.tokens is empty"),
            Self::TooMany { what, count_max } => {
                write!(f, "tokenizer.ggml.{what} has more than {count_max} entries")
            }
            Self::TokenTooLong { id, len_bytes, len_bytes_max } => write!(
                f,
                "token {id} is {len_bytes} bytes long, at most {len_bytes_max} are accepted"
            ),
            Self::TokenTypeUnknown { id, code } => {
                write!(f, "token {id} has the unknown type {code} in tokenizer.ggml.token_type")
            }
            Self::ScoreNotFinite { id } => {
                write!(f, "token {id} has a score that is not finite in tokenizer.ggml.scores")
            }
            Self::ByteTokenMalformed { id } => {
                write!(f, "token {id} is a byte token but its text is not of the form <0xAB>")
            }
            Self::SpecialOutOfRange { key, id, token_count } => {
                write!(f, "{key} = {id}, but there are only {token_count} tokens")
            }
            Self::TooManyEndTokens { count_max } => {
                write!(f, "more than {count_max} tokens end a generation")
            }
            Self::MergeMalformed { rank } => {
                write!(f, "tokenizer.ggml.merges[{rank}] is not two texts with a space between")
            }
            Self::MergeUnknownToken { rank } => write!(
                f,
                "tokenizer.ggml.merges[{rank}] joins texts of which one, or the result, is no token"
            ),
            Self::MergeAmbiguous { rank } => {
                write!(f, "tokenizer.ggml.merges[{rank}] makes a text that several tokens have")
            }
            Self::Skewed { what, entries_max } => write!(
                f,
                "more than {entries_max} {what} share one hash bucket: the file is not sensible"
            ),
            Self::BufferLen { len_bytes, wanted_bytes } => write!(
                f,
                "the buffer for the tokeniser tables has {len_bytes} bytes, not {wanted_bytes}"
            ),
            Self::SourceChanged => {
                write!(f, "the vocabulary changed between measuring and building")
            }
        }
    }
}

impl std::error::Error for TableError {}

/// A text that cannot be encoded within the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeError {
    /// The text is longer than the scratch was made for.
    TextTooLong {
        /// Its length in bytes.
        len_bytes: usize,
        /// The bound.
        len_bytes_max: usize,
    },
    /// The tokens do not fit the output.
    TooManyTokens {
        /// How many tokens the text has.
        count: usize,
        /// How many fit.
        count_max: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TextTooLong { len_bytes, len_bytes_max } => {
                write!(f, "the text has {len_bytes} bytes, the bound is {len_bytes_max}")
            }
            Self::TooManyTokens { count, count_max } => {
                write!(f, "the text has {count} tokens, the bound is {count_max}")
            }
        }
    }
}

impl std::error::Error for EncodeError {}
