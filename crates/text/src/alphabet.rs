//! The texts of tokens, from the file's spelling to plain bytes.
//!
//! Byte-pair files spell each byte as a printable character: printable Latin-1 as itself, the
//! other 68 bytes as U+0100…U+0143 in order. SentencePiece files spell a space as U+2581. The
//! tables hold plain bytes: they are shorter, merging works on the text as it is, and decoding
//! is a copy.

use crate::error::TableError;
use crate::source::{TokenKind, VocabularyKind};

/// U+2581, the spelling of a space in SentencePiece, in UTF-8.
pub const SPACE_MARK: [u8; 3] = [0xE2, 0x96, 0x81];

/// Calls `emit` with each plain byte of a token's text, and returns the kind that it then has.
///
/// Byte tokens (`<0xAB>`) become one byte. A normal byte-pair token with a character outside
/// the alphabet keeps its spelling and becomes [`TokenKind::Verbatim`].
pub fn plain_bytes(
    vocabulary: VocabularyKind,
    id: u32,
    kind: TokenKind,
    text: &[u8],
    emit: &mut dyn FnMut(u8),
) -> Result<TokenKind, TableError> {
    match (vocabulary, kind) {
        (_, TokenKind::Byte) => {
            emit(parse_byte_token(text).ok_or(TableError::ByteTokenMalformed { id })?);
            Ok(kind)
        }
        // Makers of files write spaces into user-defined pieces in either spelling.
        (VocabularyKind::SentencePiece, TokenKind::UserDefined) => {
            spaces_unmarked(text, emit);
            Ok(kind)
        }
        (_, _) if kind.is_special() => {
            text.iter().for_each(|&byte| emit(byte));
            Ok(kind)
        }
        (VocabularyKind::SentencePiece, _) => {
            spaces_unmarked(text, emit);
            Ok(kind)
        }
        (VocabularyKind::BytePair, _) if is_byte_alphabet(text) => {
            decode_byte_alphabet(text, emit);
            Ok(kind)
        }
        (VocabularyKind::BytePair, _) => {
            text.iter().for_each(|&byte| emit(byte));
            Ok(TokenKind::Verbatim)
        }
    }
}

/// Calls `emit` with the bytes of `text`, each U+2581 as one space.
pub fn spaces_unmarked(text: &[u8], emit: &mut dyn FnMut(u8)) {
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(&SPACE_MARK) {
            emit(b' ');
            at += SPACE_MARK.len();
        } else {
            emit(text[at]);
            at += 1;
        }
    }
}

/// Calls `emit` with the bytes that a text in the byte alphabet spells.
pub fn decode_byte_alphabet(text: &[u8], emit: &mut dyn FnMut(u8)) {
    let mut at = 0;
    while let Some((byte, len)) = spelled_byte(&text[at..]) {
        emit(byte);
        at += len;
    }
}

/// Whether every character of `text` is in the byte alphabet.
pub fn is_byte_alphabet(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some((_, len)) = spelled_byte(&text[at..]) {
        at += len;
    }
    at == text.len()
}

/// The byte that the first character of `text` spells, and that character's length in bytes.
fn spelled_byte(text: &[u8]) -> Option<(u8, usize)> {
    match *text {
        [first @ 0x21..=0x7E, ..] => Some((first, 1)),
        [0xC2, second @ (0xA1..=0xAC | 0xAE..=0xBF), ..] => Some((second, 2)),
        [0xC3, second @ 0x80..=0xBF, ..] => Some((second + 0x40, 2)),
        [first @ (0xC4 | 0xC5), second @ 0x80..=0xBF, ..] => {
            let shifted = u32::from(first - 0xC4) * 64 + u32::from(second - 0x80);
            Some((unprintable_byte(shifted)?, 2))
        }
        _ => None,
    }
}

/// The byte spelled U+0100 + `index`: the bytes 0…32, 127…160 and 173, in that order.
fn unprintable_byte(index: u32) -> Option<u8> {
    match index {
        0..=32 => Some(index as u8),
        33..=66 => Some((index - 33) as u8 + 127),
        67 => Some(173),
        _ => None,
    }
}

/// The byte that `<0xAB>` names.
fn parse_byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    match *digits {
        [high, low] => {
            let digit = |byte: u8| (byte as char).to_digit(16);
            Some((digit(high)? * 16 + digit(low)?) as u8)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection_onto_bytes() {
        let mut seen = [0_u32; 256];
        for code in 0..0x150_u32 {
            let mut buffer = [0_u8; 4];
            let text = char::from_u32(code).unwrap().encode_utf8(&mut buffer);
            if is_byte_alphabet(text.as_bytes()) {
                decode_byte_alphabet(text.as_bytes(), &mut |byte| seen[usize::from(byte)] += 1);
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn texts() {
        let check = |kind, text: &str, expected: &[u8], expected_kind| {
            let mut out = Vec::new();
            let got = plain_bytes(VocabularyKind::BytePair, 0, kind, text.as_bytes(), &mut |b| {
                out.push(b)
            });
            assert_eq!((out.as_slice(), got), (expected, Ok(expected_kind)), "{text}");
        };
        check(TokenKind::Normal, "Ġthe", b" the", TokenKind::Normal);
        check(TokenKind::Normal, "ĊĊ", b"\n\n", TokenKind::Normal);
        check(TokenKind::Normal, "Ã©", "é".as_bytes(), TokenKind::Normal);
        check(TokenKind::Normal, "日", "日".as_bytes(), TokenKind::Verbatim);
        check(TokenKind::Control, "<Ġ>", "<Ġ>".as_bytes(), TokenKind::Control);
        check(TokenKind::Byte, "<0x0A>", b"\n", TokenKind::Byte);
        let malformed =
            plain_bytes(VocabularyKind::BytePair, 7, TokenKind::Byte, b"<0xG0>", &mut |_| {});
        assert_eq!(malformed, Err(TableError::ByteTokenMalformed { id: 7 }));
    }
}
