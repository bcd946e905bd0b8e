//! Where each table lies in the one buffer, from the facts alone.
//!
//! ```text
//!  0         texts           plain bytes of all tokens, in order of identifiers
//!            offset bases    u32 a block of 64 tokens: where its first text begins
//!            offset deltas   u16 a token: distance from its block's base
//!            kinds           4 bits a token
//!            byte tokens     256 × u32: identifier + 1 of the token of a byte, 0 for none
//!            text buckets    where each hash bucket of the text index begins (one more at the end)
//!            text entries    identifier and fingerprint, bucket by bucket, no free slot
//!            order           split positions, or pair buckets and entries, or scores, or nothing
//!            special lengths a bit for each text length that a special token has
//!            special starts  a bit for each pair of bytes that a special token begins with
//!            inner pairs     a bit for each pair of neighbouring bytes inside a mergeable token
//!  len − 8   padding         so that a field is one 8-byte read
//! ```
//!
//! The indexes are sorted by bucket (compressed rows), not open addressing: they have no free
//! slot, look up as fast, cannot fail to build, and a hostile pile-up in one bucket is seen.

use crate::bits::{bits_for, bytes_for};
use crate::facts::{Facts, MergeForm};
use crate::limits::{
    FINGERPRINT_BITS_MIN, MERGE_BUCKET_MEAN, OFFSET_BLOCK_TOKENS, TAIL_PAD_BYTES, TEXT_BUCKET_MEAN,
    TOKEN_LEN_BYTES_MAX,
};
use crate::source::VocabularyKind;

/// Length of one bit a pair of bytes.
const PAIR_BITS_BYTES: usize = 65536 / 8;

/// Offsets and field widths of all tables, and the facts that they follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLayout {
    facts: Facts,
    pub(crate) offset_bases: usize,
    pub(crate) offset_deltas: usize,
    pub(crate) kinds: usize,
    pub(crate) byte_tokens: usize,
    pub(crate) text_index: IndexLayout,
    pub(crate) order: OrderLayout,
    pub(crate) special_lengths: usize,
    pub(crate) special_starts: usize,
    pub(crate) inner_pairs: Option<usize>,
    len_bytes: usize,
}

/// One hash index sorted by bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexLayout {
    pub buckets: usize,
    pub bucket_count: usize,
    pub bucket_width: usize,
    pub entries: usize,
    pub entry_count: usize,
    pub entry_width: usize,
}

/// What the order of merges is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderLayout {
    /// The identifier itself.
    Id,
    /// Split positions of `width` bytes a token.
    Splits { at: usize, width: usize },
    /// f32 scores, one a token.
    Scores { at: usize },
    /// Pairs; an entry is left | right << id_bits | rank << 2·id_bits.
    Pairs(IndexLayout),
}

impl TableLayout {
    /// The layout of the tables of a vocabulary with these facts.
    pub fn new(facts: Facts) -> Self {
        let mut place = Place { end: facts.text_len_bytes };
        let tokens = facts.token_count;
        let id_bits = bits_for(tokens);
        let offset_bases = place.take(4 * tokens.div_ceil(OFFSET_BLOCK_TOKENS));
        let offset_deltas = place.take(2 * tokens);
        let kinds = place.take(tokens.div_ceil(2));
        let byte_tokens = place.take(4 * 256);
        let entry_width = (id_bits + FINGERPRINT_BITS_MIN).div_ceil(8) as usize;
        let text_index = place.index(tokens, tokens.div_ceil(TEXT_BUCKET_MEAN), entry_width);
        let order = match facts.merge_form {
            MergeForm::ScoreById => OrderLayout::Id,
            MergeForm::ScoreTable => OrderLayout::Scores { at: place.take(4 * tokens) },
            MergeForm::SplitById => {
                let width = bytes_for(facts.token_len_bytes_max + 1);
                OrderLayout::Splits { at: place.take(width * tokens), width }
            }
            MergeForm::PairIndex => {
                let (merges, rank_bits) = (facts.merge_count, bits_for(facts.merge_count));
                let width = (2 * id_bits + rank_bits).div_ceil(8).max(1) as usize;
                let bucket_count = merges.div_ceil(MERGE_BUCKET_MEAN).max(1);
                OrderLayout::Pairs(place.index(merges, bucket_count, width))
            }
        };
        let special_lengths = place.take(TOKEN_LEN_BYTES_MAX.div_ceil(8) + 1);
        let special_starts = place.take(PAIR_BITS_BYTES);
        let inner_pairs = match facts.kind {
            VocabularyKind::SentencePiece => Some(place.take(PAIR_BITS_BYTES)),
            VocabularyKind::BytePair => None,
        };
        Self {
            facts,
            offset_bases,
            offset_deltas,
            kinds,
            byte_tokens,
            text_index,
            order,
            special_lengths,
            special_starts,
            inner_pairs,
            len_bytes: place.end + TAIL_PAD_BYTES,
        }
    }

    /// Exact length in bytes of the buffer that the tables need. No alignment is needed.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The facts that the layout was made from.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Bits of an identifier in an index entry.
    pub(crate) fn id_bits(&self) -> u32 {
        bits_for(self.facts.token_count)
    }
}

/// The first byte not yet given away.
struct Place {
    end: usize,
}

impl Place {
    fn take(&mut self, len_bytes: usize) -> usize {
        let at = self.end;
        self.end += len_bytes;
        at
    }

    fn index(
        &mut self,
        entry_count: usize,
        bucket_count: usize,
        entry_width: usize,
    ) -> IndexLayout {
        let bucket_width = bytes_for(entry_count + 1);
        let buckets = self.take(bucket_width * (bucket_count + 1));
        let entries = self.take(entry_width * entry_count);
        IndexLayout { buckets, bucket_count, bucket_width, entries, entry_count, entry_width }
    }
}
