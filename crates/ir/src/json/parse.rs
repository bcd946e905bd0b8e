//! Text to a tree of values, for bytes that nobody vouches for.
//!
//! Depth, number of values and length are bounded before anything is kept; numbers stay text, so
//! that each field decides its own type and range; a key may stand once in an object. Every value
//! knows its path, so that an error can name it.

use std::borrow::Cow;
use std::ops::Range;

use super::JsonError;
use crate::limits::{JSON_BYTES_MAX, JSON_DEPTH_MAX, JSON_VALUES_MAX};

/// A value of the tree; strings and numbers borrow the text.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Number(&'a str),
    /// The text and where its bytes stand, quotes excluded.
    Text(Cow<'a, str>, Range<usize>),
    Array(Vec<Value<'a>>),
    /// Sorted by key.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// The tree of a whole text.
///
/// # Errors
/// [`JsonError::Syntax`] with the byte offset.
pub(super) fn parse(text: &str) -> Result<Value<'_>, JsonError> {
    let mut parser = Parser { text, at: 0, values: 0 };
    if text.len() > JSON_BYTES_MAX {
        return parser.fail("longer than a plan may be");
    }
    let value = parser.value(0)?;
    parser.blank();
    if parser.at < text.len() {
        return parser.fail("more text after the object");
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    values: usize,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, what: &'static str) -> Result<T, JsonError> {
        Err(JsonError::Syntax { offset_bytes: self.at, what })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8, what: &'static str) -> Result<(), JsonError> {
        self.blank();
        if self.peek() != Some(byte) {
            return self.fail(what);
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        self.values += 1;
        if self.values > JSON_VALUES_MAX {
            return self.fail("more values than a plan may have");
        }
        if depth > JSON_DEPTH_MAX {
            return self.fail("nested too deeply");
        }
        self.blank();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                let (text, range) = self.string()?;
                Ok(Value::Text(text, range))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(_) => self.fail("not a value"),
            None => self.fail("ends where a value should stand"),
        }
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> Result<Value<'a>, JsonError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return self.fail("not a value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                Some(_) | None => return self.fail("expected , or ] in an array"),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(items));
        }
        loop {
            self.blank();
            if self.peek() != Some(b'"') {
                return self.fail("expected a key");
            }
            let (key, _) = self.string()?;
            self.take(b':', "expected : after a key")?;
            items.push((key, self.value(depth + 1)?));
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                Some(_) | None => return self.fail("expected , or } in an object"),
            }
        }
        self.at += 1;
        items.sort_by(|(a, _), (b, _)| a.cmp(b));
        if items.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return self.fail("a key stands twice in an object");
        }
        Ok(Value::Object(items))
    }

    fn number(&mut self) -> Result<Value<'a>, JsonError> {
        let start = self.at;
        let digits = |parser: &mut Self| {
            let from = parser.at;
            while let Some(b'0'..=b'9') = parser.peek() {
                parser.at += 1;
            }
            parser.at - from
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let leading_zero = self.peek() == Some(b'0');
        let whole = digits(self);
        if whole == 0 || (leading_zero && whole > 1) {
            return self.fail("not a number");
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if digits(self) == 0 {
                return self.fail("not a number");
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if digits(self) == 0 {
                return self.fail("not a number");
            }
        }
        Ok(Value::Number(&self.text[start..self.at]))
    }

    /// A string from its opening quote on: borrowed unless it has escapes.
    fn string(&mut self) -> Result<(Cow<'a, str>, Range<usize>), JsonError> {
        self.at += 1;
        let start = self.at;
        let mut owned: Option<String> = None;
        loop {
            let run = self.at;
            while let Some(byte) = self.peek() {
                if byte == b'"' || byte == b'\\' || byte < 0x20 {
                    break;
                }
                self.at += 1;
            }
            // Both ends stand at ASCII bytes or the text's end, so they are character boundaries.
            let plain = &self.text[run..self.at];
            match self.peek() {
                Some(b'"') => {
                    let range = start..self.at;
                    self.at += 1;
                    let text = match owned {
                        Some(mut text) => {
                            text.push_str(plain);
                            Cow::Owned(text)
                        }
                        None => Cow::Borrowed(plain),
                    };
                    return Ok((text, range));
                }
                Some(b'\\') => {
                    let text = owned.get_or_insert_with(String::new);
                    text.push_str(plain);
                    self.at += 1;
                    let letter = self.escape()?;
                    owned.get_or_insert_with(String::new).push(letter);
                }
                Some(_) => return self.fail("a control character in a string"),
                None => return self.fail("a string without an end"),
            }
        }
    }

    /// The character of an escape, the backslash already taken.
    fn escape(&mut self) -> Result<char, JsonError> {
        let letter = self.peek();
        self.at += 1;
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.hexadecimal()?;
                let code = if (0xD800..0xDC00).contains(&unit) {
                    if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                        return self.fail("half of a surrogate pair");
                    }
                    self.at += 2;
                    let low = self.hexadecimal()?;
                    if !(0xDC00..0xE000).contains(&low) {
                        return self.fail("half of a surrogate pair");
                    }
                    0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
                } else {
                    unit
                };
                match char::from_u32(code) {
                    Some(letter) => letter,
                    None => return self.fail("half of a surrogate pair"),
                }
            }
            Some(_) | None => {
                self.at -= 1;
                return self.fail("not an escape");
            }
        })
    }

    fn hexadecimal(&mut self) -> Result<u32, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else { return self.fail("not four hexadecimal digits") };
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// A value and how it was reached.
#[derive(Clone, Copy)]
pub(super) struct Node<'n, 'a> {
    value: &'n Value<'a>,
    parent: Option<&'n Node<'n, 'a>>,
    step: Step<'n>,
}

#[derive(Clone, Copy)]
enum Step<'n> {
    Root,
    Key(&'n str),
    Index(usize),
}

impl<'n, 'a> Node<'n, 'a> {
    pub(super) fn root(value: &'n Value<'a>) -> Self {
        Node { value, parent: None, step: Step::Root }
    }

    /// An error at this value.
    pub(super) fn error(&self, what: impl Into<String>) -> JsonError {
        JsonError::Field { path: self.path(), what: what.into() }
    }

    fn path(&self) -> String {
        let mut path = self.parent.map_or_else(String::new, Node::path);
        match self.step {
            Step::Root => path.push('$'),
            // A key of the text may be long; the start names it well enough.
            Step::Key(key) => {
                path.push('.');
                path.extend(key.chars().take(64));
            }
            Step::Index(index) => path.push_str(&format!("[{index}]")),
        }
        path
    }

    /// A member of an object, `None` when it is missing.
    pub(super) fn find(&'n self, key: &'n str) -> Result<Option<Node<'n, 'a>>, JsonError> {
        let Value::Object(items) = self.value else { return Err(self.error("not an object")) };
        let found = items.binary_search_by(|(item, _)| item.as_ref().cmp(key)).ok();
        Ok(found.map(|i| Node { value: &items[i].1, parent: Some(self), step: Step::Key(key) }))
    }

    /// A member of an object.
    pub(super) fn get(&'n self, key: &'n str) -> Result<Node<'n, 'a>, JsonError> {
        self.find(key)?.ok_or_else(|| self.error(format!("has no {key}")))
    }

    /// The number of members.
    pub(super) fn keys(&self) -> Result<usize, JsonError> {
        match self.value {
            Value::Object(items) => Ok(items.len()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(..) | Value::Array(_) => {
                Err(self.error("not an object"))
            }
        }
    }

    /// Applies a function to every item of an array of at most `max` items.
    pub(super) fn list<T>(
        &self,
        max: usize,
        mut item: impl FnMut(&Node<'_, 'a>) -> Result<T, JsonError>,
    ) -> Result<Vec<T>, JsonError> {
        let Value::Array(items) = self.value else { return Err(self.error("not an array")) };
        if items.len() > max {
            return Err(self.error(format!("{} items, at most {max}", items.len())));
        }
        items
            .iter()
            .enumerate()
            .map(|(i, value)| item(&Node { value, parent: Some(self), step: Step::Index(i) }))
            .collect()
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    pub(super) fn flag(&self) -> Result<bool, JsonError> {
        match self.value {
            Value::Bool(flag) => Ok(*flag),
            Value::Null
            | Value::Number(_)
            | Value::Text(..)
            | Value::Array(_)
            | Value::Object(_) => Err(self.error("not true or false")),
        }
    }

    pub(super) fn text(&self) -> Result<&'n str, JsonError> {
        match self.value {
            Value::Text(text, _) => Ok(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Err(self.error("not a string")),
        }
    }

    /// Where a string stands in the text, quotes excluded.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        match self.value {
            Value::Text(_, range) => Some(range.clone()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    /// The digits of a number.
    pub(super) fn digits(&self) -> Result<&'a str, JsonError> {
        match self.value {
            Value::Number(digits) => Ok(digits),
            Value::Null | Value::Bool(_) | Value::Text(..) | Value::Array(_) | Value::Object(_) => {
                Err(self.error("not a number"))
            }
        }
    }

    pub(super) fn number(&self) -> Result<u64, JsonError> {
        self.digits()?.parse().map_err(|_| self.error("not a whole number below 2^64"))
    }

    pub(super) fn small(&self) -> Result<u32, JsonError> {
        self.digits()?.parse().map_err(|_| self.error("not a whole number below 2^32"))
    }

    /// A finite number, rounded once from its decimal form.
    pub(super) fn float(&self) -> Result<f32, JsonError> {
        match self.digits()?.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            Ok(_) | Err(_) => Err(self.error("not a finite 32-bit float")),
        }
    }

    /// A whole number below `len`: an index.
    pub(super) fn index(&self, len: usize) -> Result<u32, JsonError> {
        let index = self.small()?;
        if (index as usize) < len {
            return Ok(index);
        }
        Err(self.error(format!("{index} names nothing: there are {len}")))
    }

    /// A number that the rest of the plan fixes.
    pub(super) fn must_be(&self, expected: u64) -> Result<(), JsonError> {
        match self.number()? {
            value if value == expected => Ok(()),
            value => Err(self.error(format!("{value}, but the plan says {expected}"))),
        }
    }
}
