//! Bounds on a template's shape, checked before the template engine sees it.
//!
//! The engine bounds the nesting of brackets and blocks, but not the length of chains (`1+1+1…`,
//! `a.b.b…`, `{% elif %}…`), which its compiler walks by recursion: a hostile file could overflow
//! the stack. Both kinds of chain are bounded here by their length in the source. The scan follows
//! the engine's lexer: strings, comments, raw blocks, and tags that end only outside brackets.

use crate::limits::{TEMPLATE_ELIF_COUNT_MAX, TEMPLATE_TAG_BYTES_MAX};

/// What is too long, and the line where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// One tag has too many bytes outside strings and white space.
    Tag {
        /// The line, from one.
        line: usize,
    },
    /// There are too many `elif`s.
    Elifs {
        /// The line, from one.
        line: usize,
    },
}

/// The first excess of a template, if any.
pub fn excess(source: &str) -> Option<Excess> {
    let text = source.as_bytes();
    let line_of = |at: usize| 1 + text[..at].iter().filter(|&&byte| byte == b'\n').count();
    let (mut at, mut elif_count) = (0, 0);
    while let Some(start) = find(text, at, b"{") {
        let end_mark = match text.get(start + 1) {
            Some(b'#') => {
                at = find(text, start + 2, b"#}").map_or(text.len(), |end| end + 2);
                continue;
            }
            Some(b'{') => b"}}",
            Some(b'%') => b"%}",
            _ => {
                at = start + 1;
                continue;
            }
        };
        let (end, len_bytes) = tag_end(text, start + 2, end_mark);
        if len_bytes > TEMPLATE_TAG_BYTES_MAX {
            return Some(Excess::Tag { line: line_of(start) });
        }
        at = end;
        match keyword(&text[start + 2..end]) {
            b"elif" => elif_count += 1,
            b"raw" => at = raw_end(text, end),
            _ => {}
        }
        if elif_count > TEMPLATE_ELIF_COUNT_MAX {
            return Some(Excess::Elifs { line: line_of(start) });
        }
    }
    None
}

/// Where the tag whose inside begins at `at` ends, and its bytes outside strings and white space.
fn tag_end(text: &[u8], mut at: usize, end_mark: &[u8]) -> (usize, usize) {
    let (mut balance, mut len_bytes) = (0_isize, 0);
    while at < text.len() {
        if balance == 0 && text[at..].starts_with(end_mark) {
            return (at + end_mark.len(), len_bytes);
        }
        match text[at] {
            b'(' | b'[' | b'{' => balance += 1,
            b')' | b']' | b'}' => balance -= 1,
            quote @ (b'\'' | b'"') => at = string_end(text, at + 1, quote),
            _ => {}
        }
        if text.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            len_bytes += 1;
        }
        at += 1;
    }
    (text.len(), len_bytes)
}

/// Where the closing quote of a string is.
fn string_end(text: &[u8], mut at: usize, quote: u8) -> usize {
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at.min(text.len())
}

/// The first word of a tag's inside.
fn keyword(inside: &[u8]) -> &[u8] {
    let inside = inside.strip_prefix(b"-").or(inside.strip_prefix(b"+")).unwrap_or(inside);
    let inside = inside.trim_ascii_start();
    let len = inside.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    &inside[..len]
}

/// Where the tag begins that ends a raw block.
fn raw_end(text: &[u8], mut at: usize) -> usize {
    while let Some(start) = find(text, at, b"{%") {
        if keyword(&text[start + 2..]) == b"endraw" {
            return start;
        }
        at = start + 2;
    }
    text.len()
}

fn find(text: &[u8], from: usize, pattern: &[u8]) -> Option<usize> {
    let rest = text.get(from..)?;
    rest.windows(pattern.len()).position(|window| window == pattern).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: Option<Excess>) {
        assert_eq!(excess(source), expected, "{source:.60}");
    }

    #[test]
    fn chains_are_bounded_and_strings_are_not() {
        let half = TEMPLATE_TAG_BYTES_MAX / 2;
        let (short, long) = ("+1".repeat(half - 1), "+1".repeat(half + 1));
        check(&format!("a\n{{{{ 1{short} }}}}{{{{ 1{short} }}}}"), None);
        check(&format!("a\n{{{{ 1{long} }}}}"), Some(Excess::Tag { line: 2 }));
        check(&format!("\n\n{{%- set x = 1{long} %}}"), Some(Excess::Tag { line: 3 }));
        let text = "x+\\\"}}".repeat(half);
        check(&format!("{{{{ \"{text}\" }}}}"), None);
        check(&format!("{{# {long} #}} {long}"), None);
        // Ends inside brackets, strings and raw blocks hide nothing.
        check(&format!("{{{{ {{1:{{2:3}}}}{long} }}}}"), Some(Excess::Tag { line: 1 }));
        check(&format!("{{{{ '}}}}'{long} }}}}"), Some(Excess::Tag { line: 1 }));
        let raw = "{% raw %}{{ \" {%- endraw -%}";
        check(&format!("{raw}{{{{ 1{long} }}}}"), Some(Excess::Tag { line: 1 }));
        check(&format!("{{% raw %}} {{{{ 1{long} }}}}{{% endraw %}}"), None);
    }

    #[test]
    fn elifs_are_bounded() {
        let elifs =
            |count: usize| format!("{{% if 0 %}}{}{{% endif %}}", "{%-elif 0%}".repeat(count));
        check(&elifs(TEMPLATE_ELIF_COUNT_MAX), None);
        check(&elifs(TEMPLATE_ELIF_COUNT_MAX + 1), Some(Excess::Elifs { line: 1 }));
    }
}
