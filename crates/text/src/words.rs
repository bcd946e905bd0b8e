//! Splitting text into words: the tokenisers' regular expressions, written out as matchers.
//!
//! Each function tries the alternatives of its expression in their order at one position and
//! returns where the match ends; every position matches, so words tile the text. Backtracking is
//! resolved by hand and noted at each place. Time is linear: no alternative looks further than
//! the word that it returns, but for runs of white space, which are taken once or twice.

use crate::source::PreTokenizer;
use crate::unicode::{Class, class_at};

/// The end of the word that begins at `start`, which must lie inside the text.
#[inline]
pub fn word_end(splitter: PreTokenizer, text: &[u8], start: usize) -> usize {
    match splitter {
        PreTokenizer::Gpt2 => gpt2_word_end(Cursor { text, digits: Digits::Inside }, start),
        PreTokenizer::SmolLm => match class_at(text, start) {
            Some((Class::Number, len)) => start + len,
            _ => gpt2_word_end(Cursor { text, digits: Digits::Outside }, start),
        },
        PreTokenizer::Llama3 => llama3_word_end(text, start, 3),
        PreTokenizer::Qwen2 => llama3_word_end(text, start, 1),
    }
}

/// Whether numbers belong to the text seen, or end it (they were split off before).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digits {
    Inside,
    Outside,
}

/// A text as one expression sees it.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    text: &'a [u8],
    digits: Digits,
}

impl Cursor<'_> {
    #[inline]
    fn class_at(self, at: usize) -> Option<(Class, usize)> {
        match class_at(self.text, at) {
            Some((Class::Number, _)) if self.digits == Digits::Outside => None,
            class => class,
        }
    }

    /// The end of the run of characters at `at` whose class is accepted.
    #[inline]
    fn run_end(self, mut at: usize, accept: impl Fn(Class) -> bool) -> usize {
        while let Some((class, len)) = self.class_at(at) {
            if !accept(class) {
                break;
            }
            at += len;
        }
        at
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2_word_end(cursor: Cursor<'_>, start: usize) -> usize {
    if let Some(len) = contraction_len(&cursor.text[start..], Case::Exact) {
        return start + len;
    }
    let Some((first, first_len)) = cursor.class_at(start) else { return cursor.text.len() };
    // ` ?`: a space is taken when one of the three runs follows it.
    let after_space = if cursor.text[start] == b' ' { start + 1 } else { start };
    let run = match cursor.class_at(after_space) {
        Some((class @ (Class::Letter | Class::Number | Class::Other), _)) => Some(class),
        Some((Class::Space | Class::Newline, _)) | None => None,
    };
    match run {
        Some(class) => cursor.run_end(after_space, |other| other == class),
        None => {
            debug_assert!(matches!(first, Class::Space | Class::Newline));
            space_run_end(cursor, start, first_len)
        }
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,d}| ?[^\s\p{L}\p{N}]+[\r\n]*`
/// `|\s*[\r\n]+|\s+(?!\S)|\s+`, where d is `digits_max`.
fn llama3_word_end(text: &[u8], start: usize, digits_max: usize) -> usize {
    if let Some(len) = contraction_len(&text[start..], Case::Ignored) {
        return start + len;
    }
    let cursor = Cursor { text, digits: Digits::Inside };
    let Some((first, first_len)) = cursor.class_at(start) else { return text.len() };
    let is_letter = |class| class == Class::Letter;
    let is_newline = |class| class == Class::Newline;
    match first {
        Class::Letter => return cursor.run_end(start, is_letter),
        Class::Number => {
            let mut end = start + first_len;
            for _ in 1..digits_max {
                match cursor.class_at(end) {
                    Some((Class::Number, len)) => end += len,
                    _ => break,
                }
            }
            return end;
        }
        Class::Newline => {}
        Class::Space | Class::Other => {
            let after = start + first_len;
            let end = cursor.run_end(after, is_letter);
            if end > after {
                return end;
            }
        }
    }
    let after_space = if text[start] == b' ' { start + 1 } else { start };
    if let Some((Class::Other, _)) = cursor.class_at(after_space) {
        let end = cursor.run_end(after_space, |class| class == Class::Other);
        return cursor.run_end(end, is_newline);
    }
    // `\s*[\r\n]+`: the run of white space, given back as far as its last newline.
    let (mut at, mut newline_end) = (start, None);
    while let Some((class @ (Class::Space | Class::Newline), len)) = cursor.class_at(at) {
        at += len;
        if class == Class::Newline {
            newline_end = Some(at);
        }
    }
    newline_end.unwrap_or_else(|| space_run_end(cursor, start, first_len))
}

/// `\s+(?!\S)|\s+`: a run of white space without its last character, when something follows.
fn space_run_end(cursor: Cursor<'_>, start: usize, first_len: usize) -> usize {
    let (mut at, mut last) = (start + first_len, start);
    while let Some((class, len)) = cursor.class_at(at) {
        match class {
            Class::Space | Class::Newline => (last, at) = (at, at + len),
            Class::Letter | Class::Number | Class::Other => {
                return if last > start { last } else { at };
            }
        }
    }
    at
}

/// Whether contractions are matched without regard to case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Exact,
    Ignored,
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, as a length in bytes.
fn contraction_len(text: &[u8], case: Case) -> Option<usize> {
    let (b'\'', rest) = text.split_first()? else { return None };
    let fold = |byte: &u8| match case {
        Case::Exact => *byte,
        Case::Ignored => byte.to_ascii_lowercase(),
    };
    match (rest.first().map(fold)?, rest.get(1).map(fold)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r', Some(b'e')) | (b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        // Case folding takes the long s (U+017F) for an s.
        (0xC5, Some(0xBF)) if case == Case::Ignored => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(splitter: PreTokenizer, text: &str, expected: &[&str]) {
        let (mut start, mut words) = (0, Vec::new());
        while start < text.len() {
            let end = word_end(splitter, text.as_bytes(), start);
            assert!(end > start, "{text:?} at {start}");
            words.push(&text[start..end]);
            start = end;
        }
        assert_eq!(words, expected, "{splitter:?} {text:?}");
    }

    #[test]
    fn gpt2() {
        let check = |text, expected: &[&str]| check(PreTokenizer::Gpt2, text, expected);
        check("Hello world's", &["Hello", " world", "'s"]);
        check("don'T 've", &["don", "'", "T", " '", "ve"]);
        check("a  b\n\n c  ", &["a", " ", " b", "\n\n", " c", "  "]);
        check("x=1234;\t\ty", &["x", "=", "1234", ";", "\t", "\t", "y"]);
        check("e\u{301}a", &["e", "\u{301}", "a"]);
    }

    #[test]
    fn smollm_splits_digits_first() {
        let check = |text, expected: &[&str]| check(PreTokenizer::SmolLm, text, expected);
        check("ab 12", &["ab", " ", "1", "2"]);
        check("  7  x", &["  ", "7", " ", " x"]);
        check("3½ y", &["3", "½", " y"]);
    }

    #[test]
    fn llama3_and_qwen2() {
        let check3 = |text, expected: &[&str]| check(PreTokenizer::Llama3, text, expected);
        check3("I'LL go'S", &["I", "'LL", " go", "'S"]);
        check3("12345 67", &["123", "45", " ", "67"]);
        check3("a\n\n  b \n c", &["a", "\n\n", " ", " b", " \n", " c"]);
        check3(" !!\n\nx \t", &[" !!\n\n", "x", " \t"]);
        check3("\"quoted\" 'tis", &["\"quoted", "\"", " '", "tis"]);
        check3("\u{301}a \u{301}", &["\u{301}a", " \u{301}"]);
        check(PreTokenizer::Qwen2, "v12\t\t(x)", &["v", "1", "2", "\t", "\t", "(x", ")"]);
    }
}
