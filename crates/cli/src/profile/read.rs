//! A profile's text to a profile: hostile text too.
//!
//! Nothing of it is passed over: an entry that is not known, stands twice or is beyond its bounds
//! would otherwise be a plan for another machine than the one that was meant. What is wrong is said
//! with the path of its entry and with what would do.

use std::ops::RangeInclusive;

use dctms_ir::Dtype;
use dctms_planner::Balance;
use dctms_planner::rates::{Element, ProductRates, TOKEN_POINTS};
use serde_json::{Map, Value};

use super::entries::scan;
use super::{FORMAT, Profile, RATES, VERSION, is_weight, rate_of};

/// Lanes that a machine may have.
const LANES: RangeInclusive<u64> = 1..=64;

/// Bytes a second that weights may come at.
const BYTES_PER_S: RangeInclusive<f64> = 1e6..=1e15;

/// Picoseconds that an element of work may take, one lane.
const ELEMENT_PS: RangeInclusive<f64> = 1e-3..=1e7;

/// What a single rate may be.
fn bounds_of(name: &str) -> RangeInclusive<f64> {
    match name {
        "integer_ops_per_s" | "float_ops_per_s" => 1e6..=1e18,
        "cache_bytes" => 1.0..=1e12,
        // Products beside others are never faster.
        "beside_products_ratio" => 1.0..=1e3,
        // One lane waits for nobody, and may never stand still.
        "wait_ratio" => 0.0..=1e3,
        "cut_ps" | "pause_ps" => 0.0..=1e15,
        "task_ps" | "run_ps" => 1.0..=1e15,
        _ => BYTES_PER_S,
    }
}

/// Reads a profile.
///
/// # Errors
/// What is wrong, with the entry, and what it may be.
pub fn read(text: &[u8]) -> Result<Profile, String> {
    let root: Value = serde_json::from_slice(text).map_err(|error| broken(text, &error))?;
    let Value::Object(root) = root else { return Err("not a JSON object".to_string()) };
    if let Some(path) = scan(text).repeated {
        return Err(format!("{path} stands there twice"));
    }
    form(&root)?;
    let lanes = whole(&root, "lanes", LANES)?;
    let isa = match root.get("isa").map(|value| (value, value.as_str())) {
        Some((_, Some(isa @ ("scalar" | "avx2" | "avx512" | "amx")))) => isa.to_string(),
        Some((value, _)) => {
            return Err(format!("isa is {value}, expected scalar, avx2, avx512 or amx"));
        }
        None => return Err("isa is missing: scalar, avx2, avx512 or amx".to_string()),
    };
    let memory_bytes = whole(&root, "memory_bytes", 0..=u64::MAX)?;
    let mut balance = Balance::builtin(&isa, lanes as u32);
    for (key, value) in &root {
        match key.as_str() {
            "format" | "version" | "token_points" | "lanes" | "isa" | "memory_bytes" => {}
            "element_ps" => elements(table(key, value)?, &mut balance.element_ps)?,
            "products" => products(key, table(key, value)?, &mut balance.products)?,
            "float_products" => products(key, table(key, value)?, &mut balance.float_products)?,
            name if RATES.contains(&name) => {
                *rate_of(&mut balance, name) = rate(name, value, bounds_of(name))?;
            }
            other => return Err(unknown(other, &root_keys())),
        }
    }
    Ok(Profile { lanes: lanes as u32, isa, memory_bytes, balance })
}

/// What the parser said, with the entry that it stopped at.
fn broken(text: &[u8], error: &serde_json::Error) -> String {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let end = before.saturating_add(error.column()).min(text.len());
    match scan(&text[..end]).path {
        path if path.is_empty() => error.to_string(),
        path => format!("{path}: {error}"),
    }
}

/// What says that it is a profile, and of which form: may be missing, must not be another.
fn form(root: &Map<String, Value>) -> Result<(), String> {
    let known = [
        ("format", Value::from(FORMAT)),
        ("version", Value::from(VERSION)),
        ("token_points", Value::from(TOKEN_POINTS.to_vec())),
    ];
    for (key, expected) in known {
        match root.get(key) {
            Some(value) if *value != expected => {
                return Err(format!("{key} is {value}, this program reads {expected}"));
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

fn root_keys() -> Vec<&'static str> {
    let first = ["format", "version", "lanes", "isa", "memory_bytes"];
    let last = ["token_points", "element_ps", "products", "float_products"];
    first.into_iter().chain(RATES).chain(last).collect()
}

fn unknown(path: &str, known: &[&str]) -> String {
    format!("{path}: no such entry, there are {}", known.join(", "))
}

fn whole(root: &Map<String, Value>, key: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let wanted = format!("a whole number from {} to {}", bounds.start(), bounds.end());
    let value = root.get(key).ok_or_else(|| format!("{key} is missing: {wanted}"))?;
    let number = value.as_u64().filter(|number| bounds.contains(number));
    number.ok_or_else(|| format!("{key} is {value}, expected {wanted}"))
}

fn rate(path: &str, value: &Value, bounds: RangeInclusive<f64>) -> Result<f64, String> {
    let number = value.as_f64().filter(|number| bounds.contains(number));
    number.ok_or_else(|| {
        let (least, most) = (shown(*bounds.start()), shown(*bounds.end()));
        format!("{path} is {value}, expected a number from {least} to {most}")
    })
}

/// A bound, short.
fn shown(bound: f64) -> String {
    if (1e-3..1e4).contains(&bound) || bound == 0.0 {
        bound.to_string()
    } else {
        format!("{bound:e}")
    }
}

fn table<'a>(path: &str, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{path} is {value}, expected an object"))
}

fn elements(
    table: &Map<String, Value>,
    rates: &mut [f64; Element::ALL.len()],
) -> Result<(), String> {
    for (name, value) in table {
        let path = format!("element_ps.{name}");
        let known = Element::ALL.into_iter().find(|element| element.name() == name);
        let element = known.ok_or_else(|| unknown(&path, &Element::ALL.map(Element::name)))?;
        rates[element as usize] = rate(&path, value, ELEMENT_PS)?;
    }
    Ok(())
}

/// Rates of products: `key` says with which activations.
fn products(
    key: &str,
    types: &Map<String, Value>,
    rates: &mut [ProductRates; Dtype::ALL.len()],
) -> Result<(), String> {
    let weights = |dtype: &Dtype| is_weight(*dtype, key == "products");
    for (name, entry) in types {
        let path = format!("{key}.{name}");
        let index = Dtype::ALL.iter().position(|dtype| dtype.name() == name && weights(dtype));
        let index = index.ok_or_else(|| {
            let known: Vec<&str> = Dtype::ALL
                .iter()
                .filter(|dtype| weights(dtype))
                .map(|dtype| dtype.name())
                .collect();
            format!("{path}: no such type of weights, there are {}", known.join(", "))
        })?;
        for (name, value) in table(&path, entry)? {
            let path = format!("{path}.{name}");
            let known = &mut rates[index];
            match name.as_str() {
                "stream_bytes_per_s" => {
                    known.stream_bytes_per_s = rate(&path, value, BYTES_PER_S)?;
                }
                "beside_bytes_per_s" => {
                    known.beside_bytes_per_s = rate(&path, value, BYTES_PER_S)?;
                }
                "weight_ps" => weight_ps(&path, value, &mut known.weight_ps)?,
                _ => {
                    let known = ["stream_bytes_per_s", "beside_bytes_per_s", "weight_ps"];
                    return Err(unknown(&path, &known));
                }
            }
        }
    }
    Ok(())
}

fn weight_ps(
    path: &str,
    value: &Value,
    rates: &mut [f64; TOKEN_POINTS.len()],
) -> Result<(), String> {
    let points = value.as_array().filter(|list| list.len() == rates.len());
    let points = points.ok_or_else(|| format!("{path}: {} numbers are expected", rates.len()))?;
    for (index, (known, value)) in rates.iter_mut().zip(points).enumerate() {
        *known = rate(&format!("{path}[{index}]"), value, ELEMENT_PS)?;
    }
    Ok(())
}
