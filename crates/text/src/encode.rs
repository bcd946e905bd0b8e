//! From text to tokens: special tokens first, then words, then merging.
//!
//! The text is cut at special tokens (leftmost, longest at one place), what lies between is
//! encoded alone. With [`SpecialText::PlainText`] the texts of control tokens are ordinary
//! text; user-defined tokens are always cut out, as the model was trained with them.

use crate::alphabet::spaces_unmarked;
use crate::error::EncodeError;
use crate::facts::{Normalization, Presence};
use crate::merge::{BytePair, SentencePiece, encode_word};
use crate::normalize::{is_trivially_normalized, normalize};
use crate::scratch::{Scratch, WordScratch};
use crate::source::{PreTokenizer, Role, TokenKind, VocabularyKind};
use crate::tokenizer::Tokenizer;
use crate::words::word_end;

/// What the texts of control tokens mean in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialText {
    /// They stand for the tokens: for rendered chat templates.
    Parse,
    /// They are text like any other: for what users write.
    PlainText,
}

/// Whether the tokens of beginning and end are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// As the metadata says.
    AsMetadata,
    /// For rendered chat templates: a beginning as the metadata says, unless the text begins
    /// with that token already; no end.
    Template,
    /// Never.
    None,
}

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// What the texts of control tokens mean.
    pub special_text: SpecialText,
    /// Whether ends are added.
    pub ends: Ends,
}

/// What an encoding amounted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Number of tokens.
    pub token_count: usize,
    /// Bytes of the text that the vocabulary cannot express (dropped, or one unknown token each).
    pub lost_bytes: usize,
}

impl Tokenizer<'_> {
    /// Encodes `text`, calling `emit` with each token in order. Allocates nothing.
    ///
    /// Bytes that are no UTF-8 are encoded as bytes.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] when the scratch was made for shorter texts, or a part of
    /// the text becomes longer than that when normalised (some tokens were emitted then).
    pub fn encode(
        &self,
        text: &[u8],
        options: EncodeOptions,
        scratch: &mut Scratch,
        emit: &mut dyn FnMut(u32),
    ) -> Result<Encoded, EncodeError> {
        let (len_bytes, len_bytes_max) = (text.len(), scratch.text_len_bytes_max());
        if len_bytes > len_bytes_max {
            return Err(EncodeError::TextTooLong { len_bytes, len_bytes_max });
        }
        let mut token_count = 0;
        let mut emit = |id| {
            token_count += 1;
            emit(id);
        };
        let facts = self.facts();
        if let Some(id) = self.first_end(text, options.ends) {
            emit(id);
        }
        let lost_bytes = match facts.kind {
            VocabularyKind::BytePair => self.encode_byte_pair(text, options, scratch, &mut emit)?,
            VocabularyKind::SentencePiece => {
                self.encode_sentence_piece(text, options, scratch, &mut emit)
            }
        };
        if let Some(id) = self.last_end(options.ends) {
            emit(id);
        }
        Ok(Encoded { token_count, lost_bytes })
    }

    /// Encodes `text` into `out`.
    ///
    /// # Errors
    /// Those of [`Self::encode`], and [`EncodeError::TooManyTokens`] with the exact number.
    pub fn encode_into(
        &self,
        text: &[u8],
        options: EncodeOptions,
        scratch: &mut Scratch,
        out: &mut [u32],
    ) -> Result<Encoded, EncodeError> {
        let mut count = 0;
        let encoded = self.encode(text, options, scratch, &mut |id| {
            if let Some(slot) = out.get_mut(count) {
                *slot = id;
            }
            count += 1;
        })?;
        let count_max = out.len();
        if count > count_max {
            Err(EncodeError::TooManyTokens { count, count_max })
        } else {
            Ok(encoded)
        }
    }

    fn first_end(&self, text: &[u8], ends: Ends) -> Option<u32> {
        let id = match self.facts().bos {
            Presence::Present => self.role(Role::Bos)?,
            Presence::Absent => return None,
        };
        match ends {
            Ends::AsMetadata => Some(id),
            Ends::Template => (!text.starts_with(self.token_bytes(id))).then_some(id),
            Ends::None => None,
        }
    }

    fn last_end(&self, ends: Ends) -> Option<u32> {
        match (ends, self.facts().eos) {
            (Ends::AsMetadata, Presence::Present) => self.role(Role::Eos),
            (Ends::AsMetadata, Presence::Absent) | (Ends::Template | Ends::None, _) => None,
        }
    }

    fn encode_byte_pair(
        &self,
        text: &[u8],
        options: EncodeOptions,
        scratch: &mut Scratch,
        emit: &mut dyn FnMut(u32),
    ) -> Result<usize, EncodeError> {
        let Scratch { word: word_scratch, text: buffer, .. } = scratch;
        let (mut start, mut lost_bytes) = (0, 0);
        loop {
            let special = self.next_special(text, start, options.special_text);
            let fragment = &text[start..special.map_or(text.len(), |found| found.start)];
            let fragment = match self.facts().normalization {
                Normalization::FormC if !is_trivially_normalized(fragment) => {
                    let (len_bytes, len_bytes_max) = (normalize(fragment, buffer), buffer.len());
                    buffer
                        .get(..len_bytes)
                        .ok_or(EncodeError::TextTooLong { len_bytes, len_bytes_max })?
                }
                Normalization::FormC | Normalization::None => fragment,
            };
            lost_bytes += self.encode_words(fragment, word_scratch, emit);
            let Some(special) = special else { return Ok(lost_bytes) };
            emit(special.id);
            start = special.end;
        }
    }

    fn encode_words(
        &self,
        fragment: &[u8],
        scratch: &mut WordScratch,
        emit: &mut dyn FnMut(u32),
    ) -> usize {
        let splitter = self.facts().pre_tokenizer;
        let (mut start, mut lost_bytes) = (0, 0);
        while start < fragment.len() {
            let end = word_end(splitter, fragment, start);
            let word = &fragment[start..end];
            lost_bytes += match (splitter, self.mergeable_token_of(word)) {
                // Llama 3 takes a word that is a token as it is.
                (PreTokenizer::Llama3, Some(id)) => {
                    emit(id);
                    0
                }
                (_, _) => encode_word::<BytePair>(self, word, scratch, emit),
            };
            start = end;
        }
        lost_bytes
    }

    /// Here each fragment is copied, one byte for either spelling of a space, behind the space
    /// that the metadata may ask to put first.
    fn encode_sentence_piece(
        &self,
        text: &[u8],
        options: EncodeOptions,
        scratch: &mut Scratch,
        emit: &mut dyn FnMut(u32),
    ) -> usize {
        let Scratch { word: word_scratch, text: buffer, .. } = scratch;
        buffer[0] = b' ';
        let first = match self.facts().space_prefix {
            Presence::Present => 0,
            Presence::Absent => 1,
        };
        let (mut start, mut lost_bytes) = (0, 0);
        loop {
            let special = self.next_special(text, start, options.special_text);
            let fragment = &text[start..special.map_or(text.len(), |found| found.start)];
            if !fragment.is_empty() {
                let mut end = 1;
                spaces_unmarked(fragment, &mut |byte| {
                    buffer[end] = byte;
                    end += 1;
                });
                lost_bytes += self.encode_pieces(&buffer[first..end], word_scratch, emit);
            }
            let Some(special) = special else { return lost_bytes };
            emit(special.id);
            start = special.end;
        }
    }

    /// Cuts a fragment where no merge can reach across (between two bytes that are neighbours
    /// in no token), and merges each part alone: the same tokens, in far shorter words.
    fn encode_pieces(
        &self,
        fragment: &[u8],
        scratch: &mut WordScratch,
        emit: &mut dyn FnMut(u32),
    ) -> usize {
        let (mut start, mut lost_bytes) = (0, 0);
        for at in 1..=fragment.len() {
            // A character is never cut: it is one symbol, token or not.
            let is_cut = at == fragment.len()
                || (fragment[at] & 0xC0 != 0x80
                    && !self.is_inner_pair(fragment[at - 1], fragment[at]));
            if is_cut {
                let word = &fragment[start..at];
                lost_bytes += encode_word::<SentencePiece>(self, word, scratch, emit);
                start = at;
            }
        }
        lost_bytes
    }

    /// The first special token at or after `from`.
    fn next_special(&self, text: &[u8], from: usize, special_text: SpecialText) -> Option<Special> {
        (from..text.len())
            .filter(|&at| self.special_may_start(text, at))
            .find_map(|at| self.special_at(text, at, special_text))
    }

    /// The longest special token that begins at `start`.
    fn special_at(&self, text: &[u8], start: usize, special_text: SpecialText) -> Option<Special> {
        let len_max = self.facts().token_len_bytes_max.min(text.len() - start);
        (1..=len_max).rev().filter(|&len| self.special_has_len(len)).find_map(|len| {
            let end = start + len;
            let id = self.special_token_of(&text[start..end])?;
            let is_wanted = match special_text {
                SpecialText::Parse => true,
                SpecialText::PlainText => self.token_kind(id) == TokenKind::UserDefined,
            };
            is_wanted.then_some(Special { start, end, id })
        })
    }
}

/// A special token found in a text.
#[derive(Clone, Copy)]
struct Special {
    start: usize,
    end: usize,
    id: u32,
}
