//! Filling the tables: one buffer in, one buffer out, no other memory.
//!
//! The source is read twice (tokens once, merges at most twice). Every index is built in place:
//! count the entries of each bucket, turn counts into ends, place entries from the last to the
//! first while moving the ends down. Afterwards each "end" is its bucket's beginning.

use crate::alphabet::{decode_byte_alphabet, plain_bytes};
use crate::bits;
use crate::error::TableError;
use crate::facts::split_merge;
use crate::layout::{IndexLayout, OrderLayout, TableLayout};
use crate::limits::{BUCKET_ENTRIES_MAX, OFFSET_BLOCK_TOKENS, TOKEN_LEN_BYTES_MAX};
use crate::source::{TokenKind, VocabularyKind, VocabularySource};
use crate::tokenizer::{NO_KEY, Tokenizer, fingerprint};

/// Fills `table` (any content, length [`TableLayout::len_bytes`]) from the measured source.
///
/// Temporary memory: about 4 KiB of stack, no heap.
///
/// # Errors
/// Any [`TableError`] about the data, [`TableError::BufferLen`] for a buffer of another length,
/// [`TableError::SourceChanged`] when the source no longer has the layout's facts.
pub fn build<S: VocabularySource>(
    layout: &TableLayout,
    source: &S,
    table: &mut [u8],
) -> Result<(), TableError> {
    if table.len() != layout.len_bytes() {
        let (len_bytes, wanted_bytes) = (table.len(), layout.len_bytes());
        return Err(TableError::BufferLen { len_bytes, wanted_bytes });
    }
    table.fill(0);
    write_tokens(layout, source, table)?;
    write_text_index(layout, table)?;
    write_byte_tokens(layout, table);
    write_specials(layout, table);
    write_inner_pairs(layout, table);
    match layout.order {
        OrderLayout::Id => Ok(()),
        OrderLayout::Scores { at } => {
            for (index, entry) in source.tokens().take(layout.facts().token_count).enumerate() {
                bits::write(table, at + 4 * index, 4, u64::from(entry.score.to_bits()));
            }
            Ok(())
        }
        OrderLayout::Splits { at, width } => write_splits(layout, source, table, at, width),
        OrderLayout::Pairs(index) => write_pairs(layout, source, table, &index),
    }
}

fn write_tokens<S: VocabularySource>(
    layout: &TableLayout,
    source: &S,
    table: &mut [u8],
) -> Result<(), TableError> {
    let facts = layout.facts();
    let (mut end, mut base, mut index) = (0_usize, 0_usize, 0_usize);
    for entry in source.tokens() {
        if index == facts.token_count {
            return Err(TableError::SourceChanged);
        }
        if index % OFFSET_BLOCK_TOKENS == 0 {
            base = end;
            let at = layout.offset_bases + 4 * (index / OFFSET_BLOCK_TOKENS);
            bits::write(table, at, 4, base as u64);
        }
        bits::write(table, layout.offset_deltas + 2 * index, 2, (end - base) as u64);
        let (id, code) = (index as u32, entry.type_code);
        let kind =
            TokenKind::from_type_code(code).ok_or(TableError::TokenTypeUnknown { id, code })?;
        let start = end;
        let kind = plain_bytes(facts.kind, id, kind, entry.text, &mut |byte| {
            if end < facts.text_len_bytes {
                table[end] = byte;
            }
            end += 1;
        })?;
        if end > facts.text_len_bytes || end - start > TOKEN_LEN_BYTES_MAX {
            return Err(TableError::SourceChanged);
        }
        table[layout.kinds + index / 2] |= (kind as u8) << (index % 2 * 4);
        index += 1;
    }
    let is_whole = index == facts.token_count && end == facts.text_len_bytes;
    if is_whole { Ok(()) } else { Err(TableError::SourceChanged) }
}

fn write_text_index(layout: &TableLayout, table: &mut [u8]) -> Result<(), TableError> {
    let index = &layout.text_index;
    let hash_of = |table: &[u8], id| bits::hash_text(Tokenizer::new(layout, table).token_bytes(id));
    let ids = 0..layout.facts().token_count as u32;
    for id in ids.clone() {
        count_entry(table, index, hash_of(table, id));
    }
    finish_counts(table, index, "texts")?;
    let id_bits = layout.id_bits();
    for id in ids.rev() {
        let hash = hash_of(table, id);
        let value = u64::from(id) | fingerprint(hash, index, id_bits) << id_bits;
        place_entry(table, index, hash, value)?;
    }
    Ok(())
}

fn write_byte_tokens(layout: &TableLayout, table: &mut [u8]) {
    for id in (0..layout.facts().token_count as u32).rev() {
        let view = Tokenizer::new(layout, table);
        let is_byte_token = match layout.facts().kind {
            VocabularyKind::BytePair => view.token_kind(id).is_mergeable(),
            VocabularyKind::SentencePiece => view.token_kind(id) == TokenKind::Byte,
        };
        if let (true, &[byte]) = (is_byte_token, view.token_bytes(id)) {
            let at = layout.byte_tokens + 4 * usize::from(byte);
            bits::write(table, at, 4, u64::from(id) + 1);
        }
    }
}

fn write_specials(layout: &TableLayout, table: &mut [u8]) {
    for id in 0..layout.facts().token_count as u32 {
        let view = Tokenizer::new(layout, table);
        if !view.token_kind(id).is_special() {
            continue;
        }
        let text = view.token_bytes(id);
        let len_bytes = text.len();
        match *text {
            [] => continue,
            [first] => {
                for second in 0..256 {
                    let bit = usize::from(first) << 8 | second;
                    bits::set_bit(&mut table[layout.special_starts..], bit);
                }
            }
            [first, second, ..] => {
                let bit = usize::from(first) << 8 | usize::from(second);
                bits::set_bit(&mut table[layout.special_starts..], bit);
            }
        }
        bits::set_bit(&mut table[layout.special_lengths..], len_bytes);
    }
}

fn write_inner_pairs(layout: &TableLayout, table: &mut [u8]) {
    let Some(pairs_at) = layout.inner_pairs else { return };
    let (rest, pairs) = table.split_at_mut(pairs_at);
    // The view needs a table of full length only for its assertion; texts and kinds lie before.
    let view = Tokenizer { layout, table: rest };
    for id in 0..layout.facts().token_count as u32 {
        if view.token_kind(id).is_mergeable() {
            for pair in view.token_bytes(id).windows(2) {
                bits::set_bit(pairs, usize::from(pair[0]) << 8 | usize::from(pair[1]));
            }
        }
    }
}

fn write_splits<S: VocabularySource>(
    layout: &TableLayout,
    source: &S,
    table: &mut [u8],
    at: usize,
    width: usize,
) -> Result<(), TableError> {
    let mut id_previous = None;
    for (rank, merge) in source.merges().enumerate() {
        let merge = resolve(&Tokenizer::new(layout, table), rank, merge)?;
        if Some(merge.result) <= id_previous {
            return Err(TableError::MergeAmbiguous { rank });
        }
        id_previous = Some(merge.result);
        let at = at + width * merge.result as usize;
        bits::write(table, at, width, merge.left_len_bytes as u64);
    }
    Ok(())
}

fn write_pairs<S: VocabularySource>(
    layout: &TableLayout,
    source: &S,
    table: &mut [u8],
    index: &IndexLayout,
) -> Result<(), TableError> {
    let mut count = 0;
    for merge in source.merges() {
        let merge = resolve(&Tokenizer::new(layout, table), count, merge)?;
        count_entry(table, index, bits::hash_pair(merge.left, merge.right));
        count += 1;
    }
    if count != index.entry_count {
        return Err(TableError::SourceChanged);
    }
    finish_counts(table, index, "merges")?;
    let id_bits = layout.id_bits();
    for (rank, merge) in source.merges().take(count).enumerate() {
        let merge = resolve(&Tokenizer::new(layout, table), rank, merge)?;
        let value = u64::from(merge.left)
            | u64::from(merge.right) << id_bits
            | (rank as u64) << (2 * id_bits);
        place_entry(table, index, bits::hash_pair(merge.left, merge.right), value)?;
    }
    sort_buckets(table, index);
    Ok(())
}

/// A merge in terms of tokens.
struct Merge {
    left: u32,
    right: u32,
    result: u32,
    left_len_bytes: usize,
}

fn resolve(view: &Tokenizer<'_>, rank: usize, merge: &[u8]) -> Result<Merge, TableError> {
    let unknown = TableError::MergeUnknownToken { rank };
    let (left, right) = split_merge(merge).ok_or(TableError::MergeMalformed { rank })?;
    let mut plain = [0_u8; TOKEN_LEN_BYTES_MAX];
    let mut len = 0;
    let left_len_bytes = append_plain(&mut plain, &mut len, left);
    append_plain(&mut plain, &mut len, right);
    let text = plain.get(..len).ok_or(unknown.clone())?;
    let find = |text| view.mergeable_token_of(text).ok_or(unknown.clone());
    Ok(Merge {
        left: find(&text[..left_len_bytes])?,
        right: find(&text[left_len_bytes..])?,
        result: find(text)?,
        left_len_bytes,
    })
}

/// Appends the plain bytes of `text` as far as they fit; `len` counts them all. Returns `len`.
fn append_plain(plain: &mut [u8], len: &mut usize, text: &[u8]) -> usize {
    decode_byte_alphabet(text, &mut |byte| {
        if let Some(slot) = plain.get_mut(*len) {
            *slot = byte;
        }
        *len += 1;
    });
    *len
}

fn count_entry(table: &mut [u8], index: &IndexLayout, hash: u64) {
    let at = bucket_at(index, hash);
    let count = bits::read(table, at, index.bucket_width);
    bits::write(table, at, index.bucket_width, count + 1);
}

/// Turns the counts of buckets into the ends of buckets.
fn finish_counts(
    table: &mut [u8],
    index: &IndexLayout,
    what: &'static str,
) -> Result<(), TableError> {
    let mut end = 0;
    for bucket in 0..=index.bucket_count {
        let at = index.buckets + index.bucket_width * bucket;
        let count = bits::read(table, at, index.bucket_width);
        if count > BUCKET_ENTRIES_MAX as u64 {
            return Err(TableError::Skewed { what, entries_max: BUCKET_ENTRIES_MAX });
        }
        end += count;
        bits::write(table, at, index.bucket_width, end);
    }
    Ok(())
}

fn place_entry(
    table: &mut [u8],
    index: &IndexLayout,
    hash: u64,
    value: u64,
) -> Result<(), TableError> {
    let at = bucket_at(index, hash);
    let slot = bits::read(table, at, index.bucket_width)
        .checked_sub(1)
        .ok_or(TableError::SourceChanged)?;
    bits::write(table, at, index.bucket_width, slot);
    let at = index.entries + index.entry_width * slot as usize;
    bits::write(table, at, index.entry_width, value);
    Ok(())
}

fn bucket_at(index: &IndexLayout, hash: u64) -> usize {
    index.buckets + index.bucket_width * bits::bucket(hash, index.bucket_count)
}

/// Reverses the entries of each bucket, so that of equal pairs the first rank is found first.
fn sort_buckets(table: &mut [u8], index: &IndexLayout) {
    let width = index.entry_width;
    for bucket in 0..index.bucket_count {
        let at = index.buckets + index.bucket_width * bucket;
        let first = bits::read(table, at, index.bucket_width) as usize;
        let last = bits::read(table, at + index.bucket_width, index.bucket_width) as usize;
        for (low, high) in (first..last).zip((first..last).rev()).take((last - first) / 2) {
            let low_at = index.entries + width * low;
            let high_at = index.entries + width * high;
            let (before, after) = table.split_at_mut(high_at);
            before[low_at..low_at + width].swap_with_slice(&mut after[..width]);
        }
    }
}

const _: () = assert!(NO_KEY as usize > crate::limits::MERGE_COUNT_MAX);
