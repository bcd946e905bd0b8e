//! Where a vocabulary comes from: the trait that a reader of model files implements.
//!
//! The crate never sees a file. A source answers a few scalar questions and hands out the tokens
//! and the merges in order, each time from the start; it is asked two or three times and must
//! answer alike. Names of metadata keys and their meanings live here, and nowhere else.

/// A vocabulary as stored in a model file.
pub trait VocabularySource {
    /// The string under `tokenizer.ggml.model`.
    fn model(&self) -> Option<&str>;
    /// The string under `tokenizer.ggml.pre`.
    fn pre_tokenizer(&self) -> Option<&str>;
    /// The boolean under [`Flag::key`].
    fn flag(&self, flag: Flag) -> Option<bool>;
    /// The token identifier under [`Role::key`].
    fn special_token(&self, role: Role) -> Option<u32>;
    /// All tokens in the order of their identifiers.
    fn tokens(&self) -> impl Iterator<Item = TokenEntry<'_>>;
    /// `tokenizer.ggml.merges` in the order of their ranks (two texts with a space between);
    /// empty when the array is absent.
    fn merges(&self) -> impl Iterator<Item = &[u8]>;
}

/// One token as stored in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenEntry<'a> {
    /// Its element of `tokenizer.ggml.tokens`.
    pub text: &'a [u8],
    /// Its element of `tokenizer.ggml.token_type`; 1 (normal) when the array is absent.
    pub type_code: i32,
    /// Its element of `tokenizer.ggml.scores`; 0 when the array is absent.
    pub score: f32,
}

/// A yes-or-no question to the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Texts begin with the beginning-of-sequence token.
    AddBos,
    /// Texts end with the end-of-sequence token.
    AddEos,
    /// SentencePiece: a space is put before a text.
    AddSpacePrefix,
}

impl Flag {
    /// The metadata key.
    pub const fn key(self) -> &'static str {
        match self {
            Self::AddBos => "tokenizer.ggml.add_bos_token",
            Self::AddEos => "tokenizer.ggml.add_eos_token",
            Self::AddSpacePrefix => "tokenizer.ggml.add_space_prefix",
        }
    }
}

/// What a special token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Beginning of sequence.
    Bos,
    /// End of sequence.
    Eos,
    /// End of a turn.
    Eot,
    /// End of a message that a tool answers.
    Eom,
    /// A text that has no token.
    Unknown,
    /// Padding.
    Padding,
}

impl Role {
    /// All roles, in the order of their discriminants.
    pub const ALL: [Self; 6] =
        [Self::Bos, Self::Eos, Self::Eot, Self::Eom, Self::Unknown, Self::Padding];

    /// The metadata key.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Bos => "tokenizer.ggml.bos_token_id",
            Self::Eos => "tokenizer.ggml.eos_token_id",
            Self::Eot => "tokenizer.ggml.eot_token_id",
            Self::Eom => "tokenizer.ggml.eom_token_id",
            Self::Unknown => "tokenizer.ggml.unknown_token_id",
            Self::Padding => "tokenizer.ggml.padding_token_id",
        }
    }
}

/// The two families of tokenisers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyKind {
    /// `gpt2`: byte-level byte-pair encoding with ranked merges.
    BytePair,
    /// `llama`: SentencePiece pieces merged by score, with byte tokens as a last resort.
    SentencePiece,
}

impl VocabularyKind {
    /// The names accepted in `tokenizer.ggml.model`.
    pub const NAMES: &'static str = "gpt2, llama";

    /// The kind that a name means, if it is one of [`Self::NAMES`].
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gpt2" => Some(Self::BytePair),
            "llama" => Some(Self::SentencePiece),
            _ => None,
        }
    }
}

/// How a byte-pair tokeniser splits text into words before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreTokenizer {
    /// GPT-2's expression.
    Gpt2,
    /// Llama 3's expression: digits in threes; whole words that are tokens are taken unmerged.
    Llama3,
    /// Qwen 2's expression: Llama 3's with single digits.
    Qwen2,
    /// Single digits first, then GPT-2's expression between them.
    SmolLm,
}

/// The names in use for each splitter, as files spell them. Files without a name, and those of
/// unnamed families (`default`), are taken for GPT-2's.
const PRE_TOKENIZER_NAMES: [(&str, PreTokenizer); 21] = [
    ("default", PreTokenizer::Gpt2),
    ("gpt-2", PreTokenizer::Gpt2),
    ("phi-2", PreTokenizer::Gpt2),
    ("olmo", PreTokenizer::Gpt2),
    ("mpt", PreTokenizer::Gpt2),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("falcon3", PreTokenizer::Llama3),
    ("smaug-bpe", PreTokenizer::Llama3),
    ("dbrx", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("stablelm2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
    ("megrez", PreTokenizer::Qwen2),
    ("hunyuan", PreTokenizer::Qwen2),
    ("smollm", PreTokenizer::SmolLm),
    ("starcoder", PreTokenizer::SmolLm),
    ("refact", PreTokenizer::SmolLm),
    ("command-r", PreTokenizer::SmolLm),
    ("codeshell", PreTokenizer::SmolLm),
];

impl PreTokenizer {
    /// The splitter that a name means, if it is a known one.
    pub fn from_name(name: &str) -> Option<Self> {
        PRE_TOKENIZER_NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// All known names, for messages.
    pub fn names() -> String {
        PRE_TOKENIZER_NAMES.map(|(name, _)| name).join(", ")
    }
}

/// What kind of token one is. The discriminants are those that the tables store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// The format says nothing about it; never made from text.
    Undefined = 0,
    /// An ordinary piece of text.
    Normal = 1,
    /// Stands for text that has no token.
    Unknown = 2,
    /// Marks structure (`<|im_end|>`); shows no text.
    Control = 3,
    /// Added by the model's makers: taken from text before all merging.
    UserDefined = 4,
    /// A piece that training left unused.
    Unused = 5,
    /// One byte (SentencePiece).
    Byte = 6,
    /// An ordinary token whose text is not in the byte alphabet: shown as it is, never merged.
    Verbatim = 7,
}

impl TokenKind {
    /// The kind of a number of `tokenizer.ggml.token_type`.
    pub const fn from_type_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::Undefined),
            1 => Some(Self::Normal),
            2 => Some(Self::Unknown),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            5 => Some(Self::Unused),
            6 => Some(Self::Byte),
            _ => None,
        }
    }

    /// The kind that the tables' three bits mean.
    pub(crate) const fn from_stored(bits: u8) -> Self {
        match bits & 7 {
            0 => Self::Undefined,
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Verbatim,
        }
    }

    /// Whether merging may make this token from text.
    pub(crate) const fn is_mergeable(self) -> bool {
        match self {
            Self::Normal | Self::Unused => true,
            Self::Undefined
            | Self::Unknown
            | Self::Control
            | Self::UserDefined
            | Self::Byte
            | Self::Verbatim => false,
        }
    }

    /// Whether its text in a prompt stands for the token itself before all merging.
    pub(crate) const fn is_special(self) -> bool {
        match self {
            Self::Unknown | Self::Control | Self::UserDefined => true,
            Self::Undefined | Self::Normal | Self::Unused | Self::Byte | Self::Verbatim => false,
        }
    }
}
