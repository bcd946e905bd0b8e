//! What a character is, as the word splitters' regular expressions ask: letter (`\p{L}`), number
//! (`\p{N}`), space (`\s`, Unicode's White_Space), or anything else.
//!
//! Bytes that are no UTF-8 are characters of their own, one each, of the class `Other`.

use crate::unicode_letters::LETTER_RANGES;

/// The class of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
    /// `[\r\n]`, which is also `\s`.
    Newline,
    /// `\s` but `[\r\n]`.
    Space,
    /// None of these.
    Other,
}

/// The class and the length in bytes of the character at `at`; none at the end of the text.
#[inline]
pub fn class_at(text: &[u8], at: usize) -> Option<(Class, usize)> {
    let first = *text.get(at)?;
    if first < 0x80 {
        return Some((ASCII[usize::from(first)], 1));
    }
    match decode(&text[at..]) {
        Some((code, len)) => Some((class_of(code), len)),
        None => Some((Class::Other, 1)),
    }
}

/// The first character of `text`, which begins with a byte ≥ 0x80: code point and length in
/// bytes; none when it is no UTF-8.
#[inline]
pub fn decode(text: &[u8]) -> Option<(u32, usize)> {
    let tail = |at: usize| {
        text.get(at).filter(|&&byte| byte & 0xC0 == 0x80).map(|&byte| u32::from(byte & 0x3F))
    };
    let first = u32::from(*text.first()?);
    match first {
        0xC2..=0xDF => Some(((first & 0x1F) << 6 | tail(1)?, 2)),
        0xE0..=0xEF => {
            let code = (first & 0x0F) << 12 | tail(1)? << 6 | tail(2)?;
            (code >= 0x800 && !(0xD800..0xE000).contains(&code)).then_some((code, 3))
        }
        0xF0..=0xF4 => {
            let code = (first & 0x07) << 18 | tail(1)? << 12 | tail(2)? << 6 | tail(3)?;
            (0x1_0000..0x11_0000).contains(&code).then_some((code, 4))
        }
        _ => None,
    }
}

/// The length in bytes of the character that begins `text`, 1 where it is no UTF-8.
#[inline]
pub fn char_len(text: &[u8]) -> usize {
    match text.first() {
        Some(0x80..) => decode(text).map_or(1, |(_, len)| len),
        Some(_) | None => 1,
    }
}

/// The class of a code point.
pub fn class_of(code: u32) -> Class {
    let Some(character) = char::from_u32(code) else { return Class::Other };
    match character {
        '\r' | '\n' => Class::Newline,
        _ if is_letter(code) => Class::Letter,
        _ if character.is_whitespace() => Class::Space,
        _ if character.is_numeric() => Class::Number,
        _ => Class::Other,
    }
}

/// The classes of ASCII, without a search.
const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut code = 0;
    while code < 128 {
        classes[code] = match code as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\r' | b'\n' => Class::Newline,
            b' ' | b'\t' | 0x0B | 0x0C => Class::Space,
            _ => Class::Other,
        };
        code += 1;
    }
    classes
};

fn is_letter(code: u32) -> bool {
    let after = LETTER_RANGES.partition_point(|&(first, _)| first <= code);
    after > 0 && code <= LETTER_RANGES[after - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let check = |class, text: &str| {
            for character in text.chars() {
                let mut buffer = [0; 4];
                let bytes = character.encode_utf8(&mut buffer).as_bytes();
                let expected = Some((class, bytes.len()));
                assert_eq!(class_at(bytes, 0), expected, "{character:?}");
            }
        };
        check(Class::Letter, "aZªµßǅʰאبกあ漢한𝒜𠀀ﬀ");
        check(Class::Number, "09²½Ⅷ〇①٣৪𝟘");
        check(Class::Space, " \t\u{b}\u{c}\u{85}\u{a0}\u{2003}\u{2028}\u{3000}");
        check(Class::Newline, "\r\n");
        check(Class::Other, "'-_.\u{301}\u{200d}👩🏽€।\u{feff}\u{fffd}\u{e000}");
    }

    #[test]
    fn invalid_bytes_are_single_characters() {
        for bytes in [
            &b"\x80"[..],
            b"\xC0\x80",
            b"\xE0\x80\x80",
            b"\xED\xA0\x80",
            b"\xF4\x90\x80\x80",
            b"\xE2\x82",
            b"\xFF",
        ] {
            assert_eq!(class_at(bytes, 0), Some((Class::Other, 1)), "{bytes:x?}");
        }
        assert_eq!(class_at(b"", 0), None);
    }

    #[test]
    fn letters_are_alphabetic_and_never_numbers() {
        for code in (0..0x11_0000).filter(|&code| is_letter(code)) {
            let character = char::from_u32(code).expect("letters are characters");
            assert!(character.is_alphabetic() && !character.is_numeric(), "{code:x}");
        }
    }

    #[test]
    fn decoding_agrees_with_the_standard_library() {
        for code in (0x80..0x11_0000_u32).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let bytes = code.encode_utf8(&mut buffer).as_bytes();
            assert_eq!(decode(bytes), Some((u32::from(code), bytes.len())));
        }
    }
}
