//! The facts of a vocabulary that decide the size and the form of its tables.
//!
//! [`Facts::measure`] reads the source once or twice from front to back and keeps only numbers,
//! so that a plan can count the tables exactly before any memory for them exists. Two
//! observations make tables small:
//!
//! * Trained byte-pair vocabularies number their tokens in the order of their merges, one merge
//!   a token. Then the rank of a merge is the identifier of its result, and a merge is fully
//!   described by where its result's text is split: one byte a token instead of a pair table.
//! * SentencePiece byte-pair vocabularies number their pieces by falling score. Then the
//!   identifier orders merges as the score does, and no score is kept.
//!
//! Both are checked on the data, and the general form is used where they do not hold.

use crate::alphabet::{is_byte_alphabet, plain_bytes};
use crate::error::TableError;
use crate::limits::{END_TOKENS_MAX, MERGE_COUNT_MAX, TOKEN_COUNT_MAX, TOKEN_LEN_BYTES_MAX};
use crate::source::{
    Flag, PreTokenizer, Role, TokenEntry, TokenKind, VocabularyKind, VocabularySource,
};

/// How the order of merges is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeForm {
    /// Byte pair: the result's identifier is the rank; one split position a token.
    SplitById,
    /// Byte pair: an index from pairs of tokens to ranks.
    PairIndex,
    /// SentencePiece: smaller identifiers merge first.
    ScoreById,
    /// SentencePiece: one score a token.
    ScoreTable,
}

/// Whether an end is marked with a token by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    Present,
    /// It is not.
    Absent,
}

impl Presence {
    const fn from_flag(flag: bool) -> Self {
        if flag { Self::Present } else { Self::Absent }
    }
}

/// What is done to text before it is split into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalization {
    /// Nothing.
    None,
    /// Unicode's normalisation form C.
    FormC,
}

/// Everything about a vocabulary but its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The family.
    pub kind: VocabularyKind,
    /// The word splitter (byte pair only; ignored for SentencePiece).
    pub pre_tokenizer: PreTokenizer,
    /// What is done to text first (byte pair only).
    pub normalization: Normalization,
    /// How merges are ordered and stored.
    pub merge_form: MergeForm,
    /// Number of tokens.
    pub token_count: usize,
    /// Sum of the lengths of the tokens' plain texts in bytes.
    pub text_len_bytes: usize,
    /// Length of the longest plain text in bytes.
    pub token_len_bytes_max: usize,
    /// Number of merges (byte pair only).
    pub merge_count: usize,
    /// Whether a beginning-of-sequence token is put first.
    pub bos: Presence,
    /// Whether an end-of-sequence token is put last.
    pub eos: Presence,
    /// Whether a space is put before a text (SentencePiece only).
    pub space_prefix: Presence,
    roles: [Option<u32>; Role::ALL.len()],
    end_tokens: [u32; END_TOKENS_MAX],
    end_token_count: usize,
}

impl Facts {
    /// Reads the source and keeps its facts. Needs no memory but a few names on the stack.
    ///
    /// # Errors
    /// Any [`TableError`] about the file's data.
    pub fn measure<S: VocabularySource>(source: &S) -> Result<Self, TableError> {
        let name = source.model().ok_or(TableError::ModelMissing)?;
        let kind = VocabularyKind::from_name(name)
            .ok_or_else(|| TableError::ModelUnknown { name: shortened(name) })?;
        let (pre_tokenizer, normalization) = match kind {
            VocabularyKind::SentencePiece => (PreTokenizer::Gpt2, Normalization::None),
            VocabularyKind::BytePair => {
                let name = source.pre_tokenizer().unwrap_or("default");
                let pre_tokenizer = PreTokenizer::from_name(name)
                    .ok_or_else(|| TableError::PreTokenizerUnknown { name: shortened(name) })?;
                (pre_tokenizer, normalization_of(name))
            }
        };
        let mut facts = Self {
            kind,
            pre_tokenizer,
            normalization,
            merge_form: MergeForm::ScoreById,
            token_count: 0,
            text_len_bytes: 0,
            token_len_bytes_max: 0,
            merge_count: 0,
            bos: Presence::from_flag(source.flag(Flag::AddBos).unwrap_or(match kind {
                VocabularyKind::SentencePiece => true,
                VocabularyKind::BytePair => pre_tokenizer == PreTokenizer::Llama3,
            })),
            eos: Presence::from_flag(source.flag(Flag::AddEos).unwrap_or(false)),
            space_prefix: Presence::from_flag(
                kind == VocabularyKind::SentencePiece
                    && source.flag(Flag::AddSpacePrefix).unwrap_or(true),
            ),
            roles: [None; Role::ALL.len()],
            end_tokens: [0; END_TOKENS_MAX],
            end_token_count: 0,
        };
        facts.measure_tokens(source)?;
        facts.measure_roles(source)?;
        if kind == VocabularyKind::BytePair {
            facts.measure_merges(source)?;
        }
        Ok(facts)
    }

    /// The token that has a role, if any.
    pub fn role(&self, role: Role) -> Option<u32> {
        self.roles[role as usize]
    }

    /// The tokens that end a generation, in increasing order.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens[..self.end_token_count]
    }

    fn measure_tokens<S: VocabularySource>(&mut self, source: &S) -> Result<(), TableError> {
        let mut score_previous = f32::INFINITY;
        for entry in source.tokens() {
            if self.token_count == TOKEN_COUNT_MAX {
                return Err(TableError::TooMany { what: "tokens", count_max: TOKEN_COUNT_MAX });
            }
            let id = self.token_count as u32;
            let kind = TokenKind::from_type_code(entry.type_code)
                .ok_or(TableError::TokenTypeUnknown { id, code: entry.type_code })?;
            let mut len_bytes = 0_usize;
            plain_bytes(self.kind, id, kind, entry.text, &mut |_| len_bytes += 1)?;
            if len_bytes > TOKEN_LEN_BYTES_MAX {
                let len_bytes_max = TOKEN_LEN_BYTES_MAX;
                return Err(TableError::TokenTooLong { id, len_bytes, len_bytes_max });
            }
            if !entry.score.is_finite() {
                return Err(TableError::ScoreNotFinite { id });
            }
            if self.kind == VocabularyKind::SentencePiece && kind.is_mergeable() {
                if entry.score >= score_previous {
                    self.merge_form = MergeForm::ScoreTable;
                }
                score_previous = entry.score;
            }
            if ends_generation(entry.text) && kind != TokenKind::Byte {
                self.add_end_token(id)?;
            }
            self.text_len_bytes += len_bytes;
            self.token_len_bytes_max = self.token_len_bytes_max.max(len_bytes);
            self.token_count += 1;
        }
        if self.token_count == 0 { Err(TableError::Empty) } else { Ok(()) }
    }

    fn measure_roles<S: VocabularySource>(&mut self, source: &S) -> Result<(), TableError> {
        for role in Role::ALL {
            let token_count = self.token_count;
            let id = match source.special_token(role) {
                // A disabled role is written as the largest number.
                None | Some(u32::MAX) => continue,
                Some(id) if id as usize >= token_count => {
                    let key = role.key();
                    return Err(TableError::SpecialOutOfRange { key, id, token_count });
                }
                Some(id) => id,
            };
            self.roles[role as usize] = Some(id);
            match role {
                Role::Eos | Role::Eot | Role::Eom => self.add_end_token(id)?,
                Role::Bos | Role::Unknown | Role::Padding => {}
            }
        }
        Ok(())
    }

    /// Walks merges and tokens in step: while each merge's text is found further on in the list
    /// of tokens, merges are numbered as their results are.
    fn measure_merges<S: VocabularySource>(&mut self, source: &S) -> Result<(), TableError> {
        self.merge_form = MergeForm::SplitById;
        let mut tokens = source.tokens();
        for (rank, merge) in source.merges().enumerate() {
            if rank == MERGE_COUNT_MAX {
                return Err(TableError::TooMany { what: "merges", count_max: MERGE_COUNT_MAX });
            }
            let (left, right) = split_merge(merge).ok_or(TableError::MergeMalformed { rank })?;
            if self.merge_form == MergeForm::SplitById
                && !tokens.any(|entry| is_merge_of(&entry, left, right))
            {
                self.merge_form = MergeForm::PairIndex;
            }
            self.merge_count += 1;
        }
        Ok(())
    }

    fn add_end_token(&mut self, id: u32) -> Result<(), TableError> {
        let Err(at) = self.end_tokens().binary_search(&id) else { return Ok(()) };
        if self.end_token_count == END_TOKENS_MAX {
            return Err(TableError::TooManyEndTokens { count_max: END_TOKENS_MAX });
        }
        self.end_tokens.copy_within(at..self.end_token_count, at + 1);
        self.end_tokens[at] = id;
        self.end_token_count += 1;
        Ok(())
    }
}

/// Files do not say how text is normalised; the name of the splitter tells the family.
fn normalization_of(pre_tokenizer: &str) -> Normalization {
    match pre_tokenizer {
        "qwen2" | "stablelm2" => Normalization::FormC,
        _ => Normalization::None,
    }
}

/// Whether a token is what merging `left` and `right` makes.
fn is_merge_of(entry: &TokenEntry<'_>, left: &[u8], right: &[u8]) -> bool {
    entry.text.strip_prefix(left) == Some(right)
        && TokenKind::from_type_code(entry.type_code).is_some_and(TokenKind::is_mergeable)
        && is_byte_alphabet(entry.text)
}

/// The two texts of a merge. The alphabet has no space, so the first space parts them.
pub(crate) fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = merge.iter().skip(1).position(|&byte| byte == b' ')? + 1;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// Texts that end a turn or a text whatever role the metadata gives them.
pub(crate) fn ends_generation(text: &[u8]) -> bool {
    const NAMES: [&str; 29] = [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
        // Code models end an infilled text with these.
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ];
    NAMES.iter().any(|name| name.as_bytes() == text)
}

/// A name from a file, short enough for a message.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
