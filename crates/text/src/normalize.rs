//! Unicode's normalisation form C, for the tokenisers that were trained on it.
//!
//! Text is taken in segments: a character and the characters after it that may change it. A
//! segment is decomposed, its marks are put in canonical order, and it is composed again, in a
//! small fixed buffer. Most segments are one character that stays as it is, and text below
//! U+0300 is not looked at at all. A segment of more than [`NORMALIZED_SEGMENT_CHARS_MAX`]
//! characters (no writing has one) stays as it is, so that no input needs memory.

use crate::limits::NORMALIZED_SEGMENT_CHARS_MAX;
use crate::unicode::decode;
use crate::unicode_compositions::{COMPOSITIONS, EXTENDERS};
use crate::unicode_decompositions::DECOMPOSITIONS;

/// Whether `text` is normalised for the reason that all of it is below U+0300.
pub fn is_trivially_normalized(text: &[u8]) -> bool {
    text.iter().all(|&byte| byte < 0xCC)
}

/// Writes the normal form of `text` into `out`, as far as it fits, and returns its length in
/// bytes, which may be larger than that of `out`. Bytes that are no UTF-8 stay.
pub fn normalize(text: &[u8], out: &mut [u8]) -> usize {
    let mut writer = Writer { out, len: 0 };
    let mut start = 0;
    while start < text.len() {
        let (first, mut end) = char_at(text, start);
        let mut is_single = true;
        while end < text.len() {
            let (code, next) = char_at(text, end);
            if extender_class(code).is_none() {
                break;
            }
            (end, is_single) = (next, false);
        }
        let segment = &text[start..end];
        if !(is_single && stays_alone(first)) {
            normalize_segment(segment, &mut writer);
        } else {
            writer.push_bytes(segment);
        }
        start = end;
    }
    writer.len
}

/// A code point that stands for a byte that is no UTF-8.
const NO_CHARACTER: u32 = u32::MAX;

/// The character at `at` and where the next begins.
fn char_at(text: &[u8], at: usize) -> (u32, usize) {
    if text[at] < 0x80 {
        return (u32::from(text[at]), at + 1);
    }
    decode(&text[at..]).map_or((NO_CHARACTER, at + 1), |(code, len)| (code, at + len))
}

/// Output that counts what does not fit.
struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn push_bytes(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.out.get_mut(self.len..self.len + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
        self.len += bytes.len();
    }
}

/// Characters of one segment.
struct Segment {
    codes: [u32; NORMALIZED_SEGMENT_CHARS_MAX],
    len: usize,
}

fn normalize_segment(text: &[u8], writer: &mut Writer<'_>) {
    let mut segment = Segment { codes: [0; NORMALIZED_SEGMENT_CHARS_MAX], len: 0 };
    let mut at = 0;
    while at < text.len() {
        let (code, next) = char_at(text, at);
        if code == NO_CHARACTER || !segment.push_decomposed(code) {
            return writer.push_bytes(text);
        }
        at = next;
    }
    segment.order();
    segment.compose();
    for &code in &segment.codes[..segment.len] {
        let character = char::from_u32(code).expect("parts of characters are characters");
        writer.push_bytes(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl Segment {
    /// Appends the full decomposition of a character; false when there is no room.
    fn push_decomposed(&mut self, code: u32) -> bool {
        match decomposition(code) {
            Some((first, 0)) => self.push_decomposed(first),
            Some((first, second)) => self.push_decomposed(first) && self.push_decomposed(second),
            None => match self.codes.get_mut(self.len) {
                Some(slot) => {
                    (*slot, self.len) = (code, self.len + 1);
                    true
                }
                None => false,
            },
        }
    }

    /// Sorts each run of marks by combining class, keeping the order of equals.
    fn order(&mut self) {
        for end in 1..self.len {
            let mut at = end;
            while at > 0 {
                let (left, right) = (class(self.codes[at - 1]), class(self.codes[at]));
                if right == 0 || left <= right {
                    break;
                }
                self.codes.swap(at - 1, at);
                at -= 1;
            }
        }
    }

    /// Joins each starter with the marks that compose with it and are not blocked.
    fn compose(&mut self) {
        let (mut len, mut starter, mut class_previous) = (0, None, None);
        for at in 0..self.len {
            let code = self.codes[at];
            let class = class(code);
            let is_blocked = class_previous.is_some_and(|previous| previous >= class);
            if let (Some(starter), false) = (starter, is_blocked)
                && let Some(composed) = composition(self.codes[starter], code)
            {
                self.codes[starter] = composed;
                continue;
            }
            if class == 0 {
                (starter, class_previous) = (Some(len), None);
            } else {
                class_previous = Some(class);
            }
            self.codes[len] = code;
            len += 1;
        }
        self.len = len;
    }
}

const HANGUL: u32 = 0xAC00;
const LEADING: u32 = 0x1100;
const VOWEL: u32 = 0x1161;
/// One below the first trailing consonant: index 0 means none.
const TRAILING: u32 = 0x11A7;
const LEADING_COUNT: u32 = 19;
const VOWEL_COUNT: u32 = 21;
const TRAILING_COUNT: u32 = 28;

/// The parts of a character by one step; the second is 0 when there is one only.
fn decomposition(code: u32) -> Option<(u32, u32)> {
    let index = code.wrapping_sub(HANGUL);
    if index < LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT {
        let trailing = index % TRAILING_COUNT;
        if trailing > 0 {
            return Some((code - trailing, TRAILING + trailing));
        }
        let (leading, vowel) = (index / TRAILING_COUNT / VOWEL_COUNT, index / TRAILING_COUNT);
        return Some((LEADING + leading, VOWEL + vowel % VOWEL_COUNT));
    }
    find_decomposition(code).map(|entry| (first_of(entry), second_of(entry)))
}

/// The character that two others compose to.
fn composition(first: u32, second: u32) -> Option<u32> {
    let (leading, vowel) = (first.wrapping_sub(LEADING), second.wrapping_sub(VOWEL));
    if leading < LEADING_COUNT && vowel < VOWEL_COUNT {
        return Some(HANGUL + (leading * VOWEL_COUNT + vowel) * TRAILING_COUNT);
    }
    let (syllable, trailing) = (first.wrapping_sub(HANGUL), second.wrapping_sub(TRAILING));
    if syllable < LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT
        && syllable % TRAILING_COUNT == 0
        && (1..TRAILING_COUNT).contains(&trailing)
    {
        return Some(first + trailing);
    }
    let parts = |index: &u16| {
        let entry = DECOMPOSITIONS[usize::from(*index)];
        (first_of(entry), second_of(entry))
    };
    let at = COMPOSITIONS.binary_search_by_key(&(first, second), parts).ok()?;
    Some(code_of(DECOMPOSITIONS[usize::from(COMPOSITIONS[at])]))
}

/// Whether a character that nothing follows is its own normal form.
fn stays_alone(code: u32) -> bool {
    code < 0xC0 || code == NO_CHARACTER || find_decomposition(code).is_none_or(|e| e >> 63 == 1)
}

/// The combining class; 0 for what is no mark.
fn class(code: u32) -> u8 {
    extender_class(code).unwrap_or(0)
}

/// The combining class of a character that may change what stands before it.
fn extender_class(code: u32) -> Option<u8> {
    if code < 0x300 {
        return None;
    }
    let after = EXTENDERS.partition_point(|&entry| (entry >> 32) as u32 <= code);
    let entry = EXTENDERS[after.checked_sub(1)?];
    (code <= (entry >> 8) as u32 & 0x1F_FFFF).then_some(entry as u8)
}

fn find_decomposition(code: u32) -> Option<u64> {
    DECOMPOSITIONS.binary_search_by_key(&code, |&e| code_of(e)).ok().map(|at| DECOMPOSITIONS[at])
}

fn code_of(entry: u64) -> u32 {
    (entry >> 42) as u32 & 0x1F_FFFF
}

fn first_of(entry: u64) -> u32 {
    (entry >> 21) as u32 & 0x1F_FFFF
}

fn second_of(entry: u64) -> u32 {
    entry as u32 & 0x1F_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let mut out = [0; 64];
        let len = normalize(text.as_bytes(), &mut out);
        assert_eq!(std::str::from_utf8(&out[..len]), Ok(expected), "{text:?}");
    }

    #[test]
    fn forms() {
        check("abc ÀÉ 漢字 한국어 😀", "abc ÀÉ 漢字 한국어 😀");
        check("cafe\u{301} A\u{30A}", "café Å");
        check("\u{212B}\u{2126}\u{F900}", "Å\u{3A9}\u{8C48}");
        // Marks are ordered; a mark of the same class blocks.
        check("o\u{302}\u{323}", "\u{1ED9}");
        check("a\u{5AE}\u{2DE7}\u{300}b", "a\u{5AE}\u{2DE7}\u{300}b");
        check("\u{1112}\u{1161}\u{11AB} \u{AC00}\u{11A8}", "한 각");
        // Excluded from composition.
        check("\u{958}\u{FB1D}", "\u{915}\u{93C}\u{5D9}\u{5B4}");
        check("\u{9C7}\u{9BE}\u{301}", "\u{9CB}\u{301}");
        check("\u{301}\u{F73}x", "\u{F71}\u{F72}\u{301}x");
        check("", "");
    }

    #[test]
    fn bytes_and_bounds() {
        let mut out = [0; 8];
        assert_eq!(normalize(b"e\xCC\xFFz", &mut out), 4);
        assert_eq!(&out[..4], b"e\xCC\xFFz");
        assert_eq!(normalize("\u{1D160}\u{1D160}".as_bytes(), &mut out), 24, "counts past the end");
        let long = format!("e{}", "\u{301}".repeat(NORMALIZED_SEGMENT_CHARS_MAX));
        let mut out = vec![0; long.len()];
        assert_eq!(normalize(long.as_bytes(), &mut out), long.len());
        assert_eq!(out, long.as_bytes());
    }

    #[test]
    fn composing_undoes_decomposing() {
        for code in (0..0x11_0000).filter_map(char::from_u32) {
            let code = u32::from(code);
            if let Some((first, second)) = decomposition(code) {
                let composed = composition(first, second);
                let is_excluded = find_decomposition(code).is_some_and(|entry| entry >> 63 == 0);
                assert_eq!(composed == Some(code), !is_excluded, "{code:x}");
            }
        }
    }
}
