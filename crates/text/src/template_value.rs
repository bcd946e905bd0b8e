//! Values of chat templates beyond those of the template engine: maps that keep their order, and
//! JSON written as Python's `json.dumps` writes it (no HTML escapes, `", "` and `": "`).
//!
//! Templates print tool descriptions; the model was trained on that very spelling, so order and
//! spaces matter.

use minijinja::value::{Enumerator, Object, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::sync::Arc;

/// Deepest nesting that is written.
const DEPTH_MAX: usize = 64;

/// A map whose entries keep their order.
pub fn ordered_map(entries: Vec<(String, Value)>) -> Value {
    Value::from_object(OrderedMap(entries))
}

#[derive(Debug)]
struct OrderedMap(Vec<(String, Value)>);

impl Object for OrderedMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Value::from(name.as_str())).collect())
    }
}

/// The JSON text of a value; `indent` spaces a level on lines of their own, if given.
pub fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, indent, 0)?;
    Ok(out)
}

fn write_value(
    out: &mut String,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            let keys = value.try_iter()?.map(|key| value.get_item(&key).map(|item| (key, item)));
            write_items(out, '{', '}', keys, indent, depth, &mut |out, (key, item)| {
                write_text(out, &key.to_string());
                out.push_str(": ");
                write_value(out, &item, indent, depth + 1)
            })?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(Ok);
            write_items(out, '[', ']', items, indent, depth, &mut |out, item| {
                write_value(out, &item, indent, depth + 1)
            })?;
        }
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "a value has no JSON form")),
    }
    Ok(())
}

/// Writes items between brackets, with commas and line breaks.
fn write_items<T>(
    out: &mut String,
    open: char,
    close: char,
    items: impl Iterator<Item = Result<T, Error>>,
    indent: Option<usize>,
    depth: usize,
    write_item: &mut dyn FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let break_line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    let mut count = 0;
    for item in items {
        if count > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        break_line(out, depth + 1);
        write_item(out, item?)?;
        count += 1;
    }
    if count > 0 {
        break_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spelled_as_python_spells_it() {
        let list = Value::from(vec![Value::from(1), Value::from(2.5), Value::from(true)]);
        let value = ordered_map(vec![
            ("z".into(), Value::from("a<b>'\"\n\u{1}é")),
            ("a".into(), list),
            ("n".into(), Value::from(())),
            ("m".into(), ordered_map(Vec::new())),
        ]);
        let expected = r#"{"z": "a<b>'\"\n\u0001é", "a": [1, 2.5, true], "n": null, "m": {}}"#;
        assert_eq!(to_json(&value, None).unwrap(), expected);
        let small = ordered_map(vec![("k".into(), Value::from(vec![1, 2]))]);
        let expected = "{\n  \"k\": [\n    1,\n    2\n  ]\n}";
        assert_eq!(to_json(&small, Some(2)).unwrap(), expected);
    }
}
