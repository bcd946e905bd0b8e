//! From tokens to text, in whole characters.
//!
//! A token may hold part of a character. The stream decoder keeps at most three bytes back until
//! the character is whole, and gives out exactly what decoding everything at once would give:
//! bytes that can no longer become a character turn into U+FFFD as the Unicode standard
//! recommends (one for each maximal part), the rest when the stream ends.

use crate::source::TokenKind;
use crate::tokenizer::Tokenizer;

/// Whether tokens that mark structure are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTokens {
    /// Control and unknown tokens give no text.
    Hidden,
    /// They give their names.
    Shown,
}

/// What becomes of a space that the first token begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadingSpace {
    /// It stays: the text goes on from a prompt.
    Kept,
    /// It goes: the text was encoded with a space put first.
    Stripped,
}

/// Turns a stream of tokens into a stream of whole characters.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    control_tokens: ControlTokens,
    leading_space: LeadingSpace,
    /// The beginning of a character: a proper prefix of some valid sequence.
    held: [u8; 4],
    held_len: usize,
}

impl StreamDecoder {
    /// A decoder at the beginning of a stream.
    pub fn new(control_tokens: ControlTokens, leading_space: LeadingSpace) -> Self {
        Self { control_tokens, leading_space, held: [0; 4], held_len: 0 }
    }

    /// Decodes one token, calling `emit` with the text that became whole. Allocates nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer<'_>, token: u32, emit: &mut dyn FnMut(&str)) {
        let is_hidden = match tokenizer.token_kind(token) {
            TokenKind::Control | TokenKind::Unknown => self.control_tokens == ControlTokens::Hidden,
            TokenKind::Undefined
            | TokenKind::Normal
            | TokenKind::UserDefined
            | TokenKind::Unused
            | TokenKind::Byte
            | TokenKind::Verbatim => false,
        };
        if is_hidden {
            return;
        }
        let mut bytes = tokenizer.token_bytes(token);
        if self.leading_space == LeadingSpace::Stripped {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.leading_space = LeadingSpace::Kept;
        }
        self.push_bytes(bytes, emit);
    }

    /// Decodes bytes that are no token, for text put into the stream from elsewhere.
    pub fn push_bytes(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(&str)) {
        while self.held_len > 0 {
            // Complete the held character byte by byte; at most three turns.
            let Some((&first, rest)) = bytes.split_first() else { return };
            self.held[self.held_len] = first;
            match std::str::from_utf8(&self.held[..=self.held_len]) {
                Ok(text) => {
                    emit(text);
                    (self.held_len, bytes) = (0, rest);
                }
                Err(error) if error.error_len().is_none() => {
                    (self.held_len, bytes) = (self.held_len + 1, rest);
                }
                // The byte does not continue the character: it begins anew.
                Err(_) => {
                    emit("\u{FFFD}");
                    self.held_len = 0;
                }
            }
        }
        while !bytes.is_empty() {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return emit(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            if !valid.is_empty() {
                emit(std::str::from_utf8(valid).expect("valid up to here"));
            }
            match error.error_len() {
                Some(len) => {
                    emit("\u{FFFD}");
                    bytes = &rest[len..];
                }
                None => {
                    self.held[..rest.len()].copy_from_slice(rest);
                    self.held_len = rest.len();
                    return;
                }
            }
        }
    }

    /// Ends the stream: a character begun and not finished becomes U+FFFD.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&str)) {
        if self.held_len > 0 {
            emit("\u{FFFD}");
            self.held_len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_any_bytes_gives_the_lossy_text() {
        let mut state = 1_u64;
        let mut random = move |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let parts: [&[u8]; 9] = [
            b"a",
            "é".as_bytes(),
            "漢".as_bytes(),
            "😀".as_bytes(),
            b"\xF0\x9F",
            b"\x80",
            b"\xED\xA0\x80",
            b"\xE2\x82",
            b"\xFF",
        ];
        for _ in 0..5000 {
            let bytes: Vec<u8> =
                (0..random(8)).flat_map(|_| parts[random(parts.len())]).copied().collect();
            let mut decoder = StreamDecoder::new(ControlTokens::Shown, LeadingSpace::Kept);
            let (mut out, mut rest) = (String::new(), bytes.as_slice());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + random(rest.len()));
                decoder.push_bytes(now, &mut |text| out.push_str(text));
                rest = later;
            }
            decoder.finish(&mut |text| out.push_str(text));
            assert_eq!(out, String::from_utf8_lossy(&bytes), "{bytes:x?}");
        }
    }
}
