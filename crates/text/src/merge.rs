//! Merging the symbols of one word: the common core of both families.
//!
//! A word begins as its smallest symbols (bytes, or characters). While some pair of neighbours
//! has an order key, the pair with the smallest key, leftmost among equals, becomes one symbol.
//! Short words are scanned; long ones keep their keys in a [`MinTree`], so that a hostile word of
//! a megabyte costs n·log n. Both give the same symbols: the order of merges is the same.
//!
//! A word that is itself the text of a token almost always merges to that token. Whether it does
//! is found out once a token and remembered in a small cache, which changes the time only.

use crate::limits::{SHORT_WORD_BYTES_MAX, VERDICT_SLOTS};
use crate::scratch::WordScratch;
use crate::tokenizer::{NO_KEY, Tokenizer};
use crate::tree::MinTree;
use crate::unicode::char_len;

/// A symbol that is no token.
pub const NO_TOKEN: u32 = u32::MAX;

/// What one family does differently.
pub trait Family {
    /// Whether symbols must remember their tokens while merging.
    const KEEPS_TOKENS: bool;
    /// Length in bytes of the smallest symbol that begins `text`.
    fn first_symbol_len(text: &[u8]) -> usize;
    /// The token of a smallest symbol.
    fn first_token(tokenizer: &Tokenizer<'_>, text: &[u8]) -> u32;
    /// The order key of a pair of neighbours, [`NO_KEY`] when they do not merge.
    fn key(tokenizer: &Tokenizer<'_>, left: u32, right: u32, left_len: usize, text: &[u8]) -> u32;
    /// The token of a symbol that was merged by this key.
    fn merged_token(tokenizer: &Tokenizer<'_>, key: u32, text: &[u8]) -> u32;
    /// Calls `emit` for the tokens of a symbol that merging left; returns the bytes lost.
    fn emit(tokenizer: &Tokenizer<'_>, token: u32, text: &[u8], emit: &mut dyn FnMut(u32))
    -> usize;
}

/// Byte pair: symbols begin as bytes and are tokens throughout.
pub enum BytePair {}

/// SentencePiece: symbols begin as characters; a key needs the joined text only.
pub enum SentencePiece {}

/// Encodes one word; returns the number of its bytes that have no token.
pub fn encode_word<F: Family>(
    tokenizer: &Tokenizer<'_>,
    word: &[u8],
    scratch: &mut WordScratch,
    emit: &mut dyn FnMut(u32),
) -> usize {
    let Some(token) = tokenizer.mergeable_token_of(word) else {
        return merge_word::<F>(tokenizer, word, scratch, emit);
    };
    let slot = token as usize % VERDICT_SLOTS;
    let verdict = scratch.verdicts[slot];
    // A verdict is the token, shifted, with the answer in bit 0; zero is none.
    if verdict >> 1 != token + 1 {
        let (mut count, mut first) = (0, NO_TOKEN);
        merge_word::<F>(tokenizer, word, scratch, &mut |id| {
            first = if count == 0 { id } else { first };
            count += 1;
        });
        let is_itself = count == 1 && first == token;
        scratch.verdicts[slot] = (token + 1) << 1 | u32::from(is_itself);
    }
    if scratch.verdicts[slot] & 1 == 1 {
        emit(token);
        return 0;
    }
    merge_word::<F>(tokenizer, word, scratch, emit)
}

fn merge_word<F: Family>(
    tokenizer: &Tokenizer<'_>,
    word: &[u8],
    scratch: &mut WordScratch,
    emit: &mut dyn FnMut(u32),
) -> usize {
    if word.len() <= SHORT_WORD_BYTES_MAX {
        merge_short::<F>(tokenizer, word, emit)
    } else {
        merge_long::<F>(tokenizer, word, scratch, emit)
    }
}

/// A symbol of a short word.
#[derive(Clone, Copy, Default)]
struct Symbol {
    start: usize,
    end: usize,
    token: u32,
    /// Of the pair that this symbol forms with the next.
    key: u32,
}

fn merge_short<F: Family>(
    tokenizer: &Tokenizer<'_>,
    word: &[u8],
    emit: &mut dyn FnMut(u32),
) -> usize {
    let mut symbols = [Symbol::default(); SHORT_WORD_BYTES_MAX];
    let (mut count, mut start) = (0, 0);
    while start < word.len() {
        let end = start + F::first_symbol_len(&word[start..]);
        let token = F::first_token(tokenizer, &word[start..end]);
        symbols[count] = Symbol { start, end, token, key: NO_KEY };
        (count, start) = (count + 1, end);
    }
    let key = |left: &Symbol, right: &Symbol| {
        let text = &word[left.start..right.end];
        F::key(tokenizer, left.token, right.token, left.end - left.start, text)
    };
    for at in 1..count {
        symbols[at - 1].key = key(&symbols[at - 1], &symbols[at]);
    }
    loop {
        let (mut min, mut min_at) = (NO_KEY, 0);
        for (at, symbol) in symbols[..count].iter().enumerate() {
            if symbol.key < min {
                (min, min_at) = (symbol.key, at);
            }
        }
        if min == NO_KEY {
            break;
        }
        let merged = &mut symbols[min_at..];
        merged[0].end = merged[1].end;
        let text = &word[merged[0].start..merged[0].end];
        merged[0].token = F::merged_token(tokenizer, min, text);
        symbols.copy_within(min_at + 2..count, min_at + 1);
        count -= 1;
        symbols[min_at].key =
            if min_at + 1 < count { key(&symbols[min_at], &symbols[min_at + 1]) } else { NO_KEY };
        if min_at > 0 {
            symbols[min_at - 1].key = key(&symbols[min_at - 1], &symbols[min_at]);
        }
    }
    let texts = symbols[..count].iter();
    texts.map(|s| F::emit(tokenizer, s.token, &word[s.start..s.end], emit)).sum()
}

fn merge_long<F: Family>(
    tokenizer: &Tokenizer<'_>,
    word: &[u8],
    scratch: &mut WordScratch,
    emit: &mut dyn FnMut(u32),
) -> usize {
    let len = word.len();
    let starts = &mut scratch.starts[..len.div_ceil(64)];
    let tokens = &mut scratch.symbols;
    starts.fill(0);
    let mut at = 0;
    while at < len {
        let end = at + F::first_symbol_len(&word[at..]);
        starts[at / 64] |= 1 << (at % 64);
        if F::KEEPS_TOKENS {
            tokens[at] = F::first_token(tokenizer, &word[at..end]);
        }
        at = end;
    }
    let key = |starts: &[u64], tokens: &[u32], left: usize, right: usize| {
        if right == len {
            return NO_KEY;
        }
        let end = next_start(starts, right, len);
        let (left_token, right_token) =
            if F::KEEPS_TOKENS { (tokens[left], tokens[right]) } else { (NO_TOKEN, NO_TOKEN) };
        F::key(tokenizer, left_token, right_token, right - left, &word[left..end])
    };
    let mut tree = MinTree::new(&mut scratch.tree, len, |at| {
        if starts[at / 64] >> (at % 64) & 1 == 0 {
            return NO_KEY;
        }
        key(starts, tokens, at, next_start(starts, at, len))
    });
    while let Some((min, left)) = tree.min() {
        let right = next_start(starts, left, len);
        let end = next_start(starts, right, len);
        starts[right / 64] &= !(1 << (right % 64));
        if F::KEEPS_TOKENS {
            tokens[left] = F::merged_token(tokenizer, min, &word[left..end]);
        }
        tree.set(right, NO_KEY);
        tree.set(left, key(starts, tokens, left, end));
        if let Some(before) = previous_start(starts, left) {
            tree.set(before, key(starts, tokens, before, left));
        }
    }
    let (mut start, mut lost_bytes) = (0, 0);
    while start < len {
        let end = next_start(starts, start, len);
        let token = if F::KEEPS_TOKENS { tokens[start] } else { NO_TOKEN };
        lost_bytes += F::emit(tokenizer, token, &word[start..end], emit);
        start = end;
    }
    lost_bytes
}

/// The first symbol start after `at`, or `len`. Symbols are no longer than tokens: a short walk.
fn next_start(starts: &[u64], at: usize, len: usize) -> usize {
    let from = at + 1;
    let Some(&first) = starts.get(from / 64) else { return len };
    let first = first & (u64::MAX << (from % 64));
    if first != 0 {
        return from / 64 * 64 + first.trailing_zeros() as usize;
    }
    for (index, &word) in starts.iter().enumerate().skip(from / 64 + 1) {
        if word != 0 {
            return index * 64 + word.trailing_zeros() as usize;
        }
    }
    len
}

/// The last symbol start before `at`.
fn previous_start(starts: &[u64], at: usize) -> Option<usize> {
    let last = starts[at / 64] & !(u64::MAX << (at % 64));
    if last != 0 {
        return Some(at / 64 * 64 + 63 - last.leading_zeros() as usize);
    }
    (0..at / 64)
        .rev()
        .find(|&index| starts[index] != 0)
        .map(|index| index * 64 + 63 - starts[index].leading_zeros() as usize)
}

impl Family for BytePair {
    const KEEPS_TOKENS: bool = true;

    #[inline]
    fn first_symbol_len(_text: &[u8]) -> usize {
        1
    }

    #[inline]
    fn first_token(tokenizer: &Tokenizer<'_>, text: &[u8]) -> u32 {
        tokenizer.byte_token(text[0]).unwrap_or(NO_TOKEN)
    }

    #[inline]
    fn key(tokenizer: &Tokenizer<'_>, left: u32, right: u32, left_len: usize, text: &[u8]) -> u32 {
        if left == NO_TOKEN || right == NO_TOKEN {
            return NO_KEY;
        }
        tokenizer.pair_key(left, right, left_len, text)
    }

    #[inline]
    fn merged_token(tokenizer: &Tokenizer<'_>, key: u32, text: &[u8]) -> u32 {
        tokenizer.merged_token(key, text)
    }

    #[inline]
    fn emit(
        _tokenizer: &Tokenizer<'_>,
        token: u32,
        text: &[u8],
        emit: &mut dyn FnMut(u32),
    ) -> usize {
        if token == NO_TOKEN {
            return text.len();
        }
        emit(token);
        0
    }
}

impl Family for SentencePiece {
    const KEEPS_TOKENS: bool = false;

    #[inline]
    fn first_symbol_len(text: &[u8]) -> usize {
        char_len(text)
    }

    #[inline]
    fn first_token(_tokenizer: &Tokenizer<'_>, _text: &[u8]) -> u32 {
        NO_TOKEN
    }

    #[inline]
    fn key(tokenizer: &Tokenizer<'_>, _: u32, _: u32, _: usize, text: &[u8]) -> u32 {
        tokenizer.piece_key(text)
    }

    #[inline]
    fn merged_token(_tokenizer: &Tokenizer<'_>, _key: u32, _text: &[u8]) -> u32 {
        NO_TOKEN
    }

    fn emit(
        tokenizer: &Tokenizer<'_>,
        _token: u32,
        text: &[u8],
        emit: &mut dyn FnMut(u32),
    ) -> usize {
        if let Some(token) = tokenizer.mergeable_token_of(text) {
            emit(token);
            return 0;
        }
        if text.iter().all(|&byte| tokenizer.byte_token(byte).is_some()) {
            text.iter().filter_map(|&byte| tokenizer.byte_token(byte)).for_each(emit);
            return 0;
        }
        if let Some(unknown) = tokenizer.role(crate::source::Role::Unknown) {
            emit(unknown);
        }
        text.len()
    }
}
