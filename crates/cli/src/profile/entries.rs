//! Where the entries of a JSON text stand: the path of the last one begun, and of one that stands
//! twice in its object. A parsed value says neither: of equal keys it keeps the last.
//!
//! Believes that a parser has read the text, or as much of it as is given here; so a string before
//! a colon is a key, and everything else may be passed over.

use std::collections::BTreeSet;

/// What a scan found.
pub struct Scanned {
    /// Path of the entry at the end of the text, keys joined by dots; empty in none.
    pub path: String,
    /// Path of the first entry whose key stood in its object before.
    pub repeated: Option<String>,
}

/// An object, or an array, that is open.
#[derive(Default)]
struct Open {
    keys: BTreeSet<String>,
    last: String,
}

/// Scans a text that is JSON, or begins like it.
#[must_use]
pub fn scan(text: &[u8]) -> Scanned {
    let (mut open, mut repeated) = (Vec::<Open>::new(), None);
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'{' | b'[' => open.push(Open::default()),
            b'}' | b']' => {
                open.pop();
            }
            b'"' => {
                let end = end_of_string(text, at);
                let behind = text[end..].iter().find(|byte| !byte.is_ascii_whitespace());
                if behind == Some(&b':')
                    && let Some(object) = open.last_mut()
                {
                    // An escape may hide that two keys are the same.
                    let key: String = serde_json::from_slice(&text[at..end]).unwrap_or_default();
                    object.last.clone_from(&key);
                    if !object.keys.insert(key) && repeated.is_none() {
                        repeated = Some(path(&open));
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Scanned { path: path(&open), repeated }
}

/// Behind the closing quote of the string that begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn path(open: &[Open]) -> String {
    let keys = open.iter().map(|object| object.last.as_str()).filter(|key| !key.is_empty());
    keys.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_stand_twice_are_found_by_their_path() {
        let repeated = |text: &str| scan(text.as_bytes()).repeated;
        assert_eq!(repeated(r#"{"a":1,"b":{"a":2},"c":[{"a":3},{"a":4}]}"#), None);
        assert_eq!(repeated(r#"{"a":"b","b":"a"}"#), None);
        assert_eq!(repeated(r#"{"a":1 , "a" : 2}"#).as_deref(), Some("a"));
        assert_eq!(repeated(r#"{"x":{"y":{"a":1,"a":2}}}"#).as_deref(), Some("x.y.a"));
        assert_eq!(repeated(r#"{"a":1,"\u0061":2}"#).as_deref(), Some("a"));
        assert_eq!(repeated(r#"{"q":"\"a\":","a":1,"q\"":1}"#), None);
    }

    #[test]
    fn the_entry_at_the_end_is_the_one_begun_last() {
        let last = |text: &str| scan(text.as_bytes()).path;
        assert_eq!(last(""), "");
        assert_eq!(last(r#"{"a":{"b":1},"c":{"d":"#), "c.d");
        assert_eq!(last(r#"{"a":["x","y"#), "a");
        assert_eq!(last("\"\\"), "");
    }
}
