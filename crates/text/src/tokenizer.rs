//! A tokeniser as a view over its tables: the look-ups that encoding and decoding share.
//!
//! The view owns nothing. It trusts the bytes to be what the builder wrote for this layout; a
//! wrong byte can give a wrong answer or a panic, never an access outside the table.

use crate::bits;
use crate::facts::Facts;
use crate::layout::{IndexLayout, OrderLayout, TableLayout};
use crate::limits::{OFFSET_BLOCK_TOKENS, TOKEN_LEN_BYTES_MAX};
use crate::source::{Role, TokenKind};

/// No merge: larger than any order key.
pub(crate) const NO_KEY: u32 = u32::MAX;

/// A tokeniser over tables built by [`crate::build`].
#[derive(Debug, Clone, Copy)]
pub struct Tokenizer<'a> {
    pub(crate) layout: &'a TableLayout,
    pub(crate) table: &'a [u8],
}

impl<'a> Tokenizer<'a> {
    /// A view of `table`, which [`crate::build`] filled for this `layout`.
    ///
    /// # Panics
    /// When the length of `table` is not [`TableLayout::len_bytes`].
    pub fn new(layout: &'a TableLayout, table: &'a [u8]) -> Self {
        assert_eq!(table.len(), layout.len_bytes(), "tables of another layout");
        Self { layout, table }
    }

    /// The facts of the vocabulary.
    pub fn facts(&self) -> &'a Facts {
        self.layout.facts()
    }

    /// Number of tokens.
    pub fn token_count(&self) -> usize {
        self.facts().token_count
    }

    /// The token that has a role, if any.
    pub fn role(&self, role: Role) -> Option<u32> {
        self.facts().role(role)
    }

    /// Whether a token ends a generation: eos, eot, eom, or a text known to (`<|im_end|>`, …).
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.facts().end_tokens().binary_search(&id).is_ok()
    }

    /// The plain bytes of a token; empty when there is no such token.
    pub fn token_bytes(&self, id: u32) -> &'a [u8] {
        let index = id as usize;
        if index >= self.token_count() {
            return &[];
        }
        let end = if index + 1 == self.token_count() {
            self.facts().text_len_bytes
        } else {
            self.text_start(index + 1)
        };
        &self.table[self.text_start(index)..end]
    }

    /// The kind of a token; [`TokenKind::Undefined`] when there is no such token.
    pub fn token_kind(&self, id: u32) -> TokenKind {
        let index = id as usize;
        if index >= self.token_count() {
            return TokenKind::Undefined;
        }
        let pair = self.table[self.layout.kinds + index / 2];
        TokenKind::from_stored(pair >> (index % 2 * 4))
    }

    /// The special token (control, user-defined or unknown) whose text is exactly `text`.
    pub fn special_token_of(&self, text: &[u8]) -> Option<u32> {
        self.find(text, TokenKind::is_special)
    }

    /// The token that merging makes of exactly `text`, were it one piece.
    #[inline]
    pub(crate) fn mergeable_token_of(&self, text: &[u8]) -> Option<u32> {
        self.find(text, TokenKind::is_mergeable)
    }

    /// The token of one byte.
    #[inline]
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        let at = self.layout.byte_tokens + 4 * usize::from(byte);
        (bits::read(self.table, at, 4) as u32).checked_sub(1)
    }

    /// Byte pair: the order key of merging two neighbouring tokens whose joined text is `text`.
    #[inline]
    pub(crate) fn pair_key(&self, left: u32, right: u32, left_len: usize, text: &[u8]) -> u32 {
        match self.layout.order {
            OrderLayout::Splits { at, width } => match self.mergeable_token_of(text) {
                Some(id) => {
                    let split = bits::read(self.table, at + width * id as usize, width);
                    if split as usize == left_len { id } else { NO_KEY }
                }
                None => NO_KEY,
            },
            OrderLayout::Pairs(index) => self.pair_rank(&index, left, right),
            OrderLayout::Id | OrderLayout::Scores { .. } => unreachable!("not a byte-pair order"),
        }
    }

    /// Byte pair: the token made by the merge that has this key, whose text is `text`.
    #[inline]
    pub(crate) fn merged_token(&self, key: u32, text: &[u8]) -> u32 {
        match self.layout.order {
            OrderLayout::Splits { .. } => key,
            OrderLayout::Pairs(_) => {
                self.mergeable_token_of(text).expect("the builder checked that merges make tokens")
            }
            OrderLayout::Id | OrderLayout::Scores { .. } => unreachable!("not a byte-pair order"),
        }
    }

    /// SentencePiece: the order key of merging two neighbours into `text`: higher score first.
    #[inline]
    pub(crate) fn piece_key(&self, text: &[u8]) -> u32 {
        let Some(id) = self.mergeable_token_of(text) else { return NO_KEY };
        match self.layout.order {
            OrderLayout::Id => id,
            OrderLayout::Scores { at } => {
                let bits = bits::read(self.table, at + 4 * id as usize, 4) as u32;
                falling_key(f32::from_bits(bits))
            }
            OrderLayout::Splits { .. } | OrderLayout::Pairs(_) => {
                unreachable!("not a SentencePiece order")
            }
        }
    }

    /// Whether a special token can begin at `at`.
    #[inline]
    pub(crate) fn special_may_start(&self, text: &[u8], at: usize) -> bool {
        let starts = &self.table[self.layout.special_starts..];
        let first = usize::from(text[at]);
        // At the end of the text any second byte is asked: one-byte tokens set them all.
        let second = usize::from(text.get(at + 1).copied().unwrap_or(0));
        bits::bit(starts, first << 8 | second)
    }

    /// Whether some special token has this length.
    #[inline]
    pub(crate) fn special_has_len(&self, len_bytes: usize) -> bool {
        debug_assert!(len_bytes <= TOKEN_LEN_BYTES_MAX);
        bits::bit(&self.table[self.layout.special_lengths..], len_bytes)
    }

    /// SentencePiece: whether a merge may join the bytes `left` and `right`.
    #[inline]
    pub(crate) fn is_inner_pair(&self, left: u8, right: u8) -> bool {
        match self.layout.inner_pairs {
            Some(at) => bits::bit(&self.table[at..], usize::from(left) << 8 | usize::from(right)),
            None => true,
        }
    }

    fn text_start(&self, index: usize) -> usize {
        let block = self.layout.offset_bases + 4 * (index / OFFSET_BLOCK_TOKENS);
        let delta = self.layout.offset_deltas + 2 * index;
        bits::read(self.table, block, 4) as usize + bits::read(self.table, delta, 2) as usize
    }

    /// The smallest identifier with this text and a kind that `accept` takes.
    #[inline]
    fn find(&self, text: &[u8], accept: impl Fn(TokenKind) -> bool) -> Option<u32> {
        if text.len() > self.facts().token_len_bytes_max {
            return None;
        }
        let index = &self.layout.text_index;
        let id_bits = self.layout.id_bits();
        let hash = bits::hash_text(text);
        let wanted = fingerprint(hash, index, id_bits);
        let (first, last) = bucket_range(self.table, index, hash);
        for entry in first..last {
            let at = index.entries + index.entry_width * entry;
            let value = bits::read(self.table, at, index.entry_width);
            if value >> id_bits == wanted {
                let id = (value & ((1 << id_bits) - 1)) as u32;
                if self.token_bytes(id) == text && accept(self.token_kind(id)) {
                    return Some(id);
                }
            }
        }
        None
    }

    fn pair_rank(&self, index: &IndexLayout, left: u32, right: u32) -> u32 {
        let id_bits = self.layout.id_bits();
        let wanted = u64::from(left) | u64::from(right) << id_bits;
        let (first, last) = bucket_range(self.table, index, bits::hash_pair(left, right));
        for entry in first..last {
            let at = index.entries + index.entry_width * entry;
            let value = bits::read(self.table, at, index.entry_width);
            if value & ((1 << (2 * id_bits)) - 1) == wanted {
                return (value >> (2 * id_bits)) as u32;
            }
        }
        NO_KEY
    }
}

/// The bits of a hash that an entry keeps above the identifier.
#[inline]
pub(crate) fn fingerprint(hash: u64, index: &IndexLayout, id_bits: u32) -> u64 {
    let kept = 8 * index.entry_width as u32 - id_bits;
    hash & ((1 << kept) - 1)
}

/// The entries of a hash's bucket: first, and one past the last.
#[inline]
pub(crate) fn bucket_range(table: &[u8], index: &IndexLayout, hash: u64) -> (usize, usize) {
    let at = index.buckets + index.bucket_width * bits::bucket(hash, index.bucket_count);
    let first = bits::read(table, at, index.bucket_width);
    let last = bits::read(table, at + index.bucket_width, index.bucket_width);
    (first as usize, last as usize)
}

/// A key that is smaller for a larger score and equal for equal scores.
fn falling_key(score: f32) -> u32 {
    // Adding zero makes −0 into +0, so that equal scores have equal bits.
    let bits = (score + 0.0).to_bits();
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !rising
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fall_as_scores_rise() {
        let scores = [-1e9_f32, -1000.0, -1.5, -0.0, 0.0, 1e-30, 2.0, 1e30];
        for pair in scores.windows(2) {
            let (low, high) = (falling_key(pair[0]), falling_key(pair[1]));
            assert!(low > high || (pair[0] == pair[1] && low == high), "{pair:?}");
            assert_ne!(low, NO_KEY);
        }
    }
}
