//! A machine profile: what `dctms doctor` measures and `--machine` plans with, as JSON.
//!
//! `lanes`, `isa` and `memory_bytes` must be there; every rate that is missing is taken from the
//! built-in table of the instruction set. A rate that is there must be a number above zero. A
//! plan names the SHA-256 of the profile's bytes.

use std::fmt::Write as _;

use dctms_ir::Dtype;
use dctms_planner::Balance;
use dctms_planner::rates::{Element, ProductRates, TOKEN_POINTS};
use serde_json::{Map, Value};

/// What a profile says.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Lanes that worked together.
    pub lanes: u32,
    /// Instruction set.
    pub isa: String,
    /// Memory limit, bytes.
    pub memory_bytes: u64,
    /// Rates.
    pub balance: Balance,
}

/// Longest profile that is read, bytes.
pub const PROFILE_BYTES_MAX: u64 = 64 * 1024;

/// The name of the form.
const FORMAT: &str = "dctms-machine";
/// Its version.
const VERSION: u32 = 1;

/// The single rates, in the order of the file.
const RATES: [&str; 13] = [
    "integer_ops_per_s",
    "float_ops_per_s",
    "read_bytes_per_s",
    "lane_read_bytes_per_s",
    "cache_read_bytes_per_s",
    "cache_bytes",
    "beside_read_bytes_per_s",
    "beside_products_ratio",
    "cut_ps",
    "wait_ratio",
    "pause_ps",
    "task_ps",
    "run_ps",
];

/// Where a single rate stands.
fn rate_of<'a>(balance: &'a mut Balance, name: &str) -> &'a mut f64 {
    match name {
        "integer_ops_per_s" => &mut balance.integer_ops_per_s,
        "float_ops_per_s" => &mut balance.float_ops_per_s,
        "read_bytes_per_s" => &mut balance.read_bytes_per_s,
        "lane_read_bytes_per_s" => &mut balance.lane_read_bytes_per_s,
        "cache_read_bytes_per_s" => &mut balance.cache_read_bytes_per_s,
        "cache_bytes" => &mut balance.cache_bytes,
        "beside_read_bytes_per_s" => &mut balance.beside_read_bytes_per_s,
        "beside_products_ratio" => &mut balance.beside_products_ratio,
        "cut_ps" => &mut balance.cut_ps,
        "wait_ratio" => &mut balance.wait_ratio,
        "pause_ps" => &mut balance.pause_ps,
        "task_ps" => &mut balance.task_ps,
        "run_ps" => &mut balance.run_ps,
        other => unreachable!("{other} is no rate"),
    }
}

/// Reads a profile.
///
/// # Errors
/// What is wrong, with the key.
pub fn read(text: &[u8]) -> Result<Profile, String> {
    let root: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Value::Object(root) = root else { return Err("not a JSON object".to_string()) };
    let whole = |key: &str| match root.get(key) {
        None => Err(format!("{key} is missing")),
        Some(value) => {
            value.as_u64().ok_or_else(|| format!("{key} is {value}, expected a whole number"))
        }
    };
    form(&root)?;
    let lanes = whole("lanes")?;
    if !(1..=64).contains(&lanes) {
        return Err(format!("lanes is {lanes}: 1 to 64"));
    }
    let isa = match root.get("isa").map(|value| (value, value.as_str())) {
        Some((_, Some(isa @ ("scalar" | "avx2" | "avx512")))) => isa.to_string(),
        Some((value, _)) => return Err(format!("isa is {value}, expected scalar, avx2 or avx512")),
        None => return Err("isa is missing".to_string()),
    };
    let memory_bytes = whole("memory_bytes")?;
    let mut balance = Balance::builtin(&isa, lanes as u32);
    for name in RATES {
        if let Some(value) = root.get(name) {
            // One lane waits for nobody, and may never stand still.
            let least_zero = matches!(name, "cut_ps" | "wait_ratio" | "pause_ps");
            *rate_of(&mut balance, name) = rate(name, value, least_zero)?;
        }
    }
    if let Some(table) = table(&root, "element_ps")? {
        for element in Element::ALL {
            if let Some(value) = table.get(element.name()) {
                let name = format!("element_ps.{}", element.name());
                balance.element_ps[element as usize] = rate(&name, value, false)?;
            }
        }
    }
    products(&root, "products", &mut balance.products)?;
    products(&root, "float_products", &mut balance.float_products)?;
    Ok(Profile { lanes: lanes as u32, isa, memory_bytes, balance })
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

/// A number above zero (or zero, where that has a meaning), not absurdly large.
fn rate(name: &str, value: &Value, zero: bool) -> Result<f64, String> {
    value
        .as_f64()
        .filter(|rate| (*rate > 0.0 || (zero && *rate == 0.0)) && *rate < 1e18)
        .ok_or_else(|| format!("{name} is {value}, expected a number above 0"))
}

fn table<'a>(
    root: &'a Map<String, Value>,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>, String> {
    match root.get(key) {
        None => Ok(None),
        Some(Value::Object(table)) => Ok(Some(table)),
        Some(other) => Err(format!("{key} is {other}, expected an object")),
    }
}

fn products(
    root: &Map<String, Value>,
    key: &str,
    rates: &mut [ProductRates; Dtype::ALL.len()],
) -> Result<(), String> {
    let Some(table) = table(root, key)? else { return Ok(()) };
    for (name, entry) in table {
        let path = format!("{key}.{name}");
        let index = Dtype::ALL.iter().position(|dtype| dtype.name() == name);
        let index = index.ok_or_else(|| format!("{path}: no such type of weights"))?;
        let known = &mut rates[index];
        if let Some(stream) = entry.get("stream_bytes_per_s") {
            known.stream_bytes_per_s = rate(&format!("{path}.stream_bytes_per_s"), stream, false)?;
        }
        if let Some(beside) = entry.get("beside_bytes_per_s") {
            known.beside_bytes_per_s = rate(&format!("{path}.beside_bytes_per_s"), beside, false)?;
        }
        let Some(points) = entry.get("weight_ps") else { continue };
        let points = points.as_array().filter(|list| list.len() == TOKEN_POINTS.len());
        let points = points.ok_or_else(|| {
            format!("{path}.weight_ps: {} numbers are expected", TOKEN_POINTS.len())
        })?;
        for (known, value) in known.weight_ps.iter_mut().zip(points) {
            *known = rate(&format!("{path}.weight_ps"), value, false)?;
        }
    }
    Ok(())
}

/// Prints a profile. `extra` are facts for people: keys and JSON values, ignored when read.
#[must_use]
pub fn write(profile: &Profile, extra: &[(&str, String)]) -> String {
    let mut out = String::from("{\n");
    let _ = writeln!(out, "\"format\":\"{FORMAT}\",\"version\":{VERSION},");
    let _ = writeln!(out, "\"lanes\":{},\"isa\":\"{}\",", profile.lanes, profile.isa);
    let _ = writeln!(out, "\"memory_bytes\":{},", profile.memory_bytes);
    let mut balance = profile.balance;
    for name in RATES {
        let value = *rate_of(&mut balance, name);
        let digits = if name.ends_with("_ratio") { 4 } else { 0 };
        let _ = writeln!(out, "\"{name}\":{value:.digits$},");
    }
    let points: Vec<String> = TOKEN_POINTS.iter().map(u64::to_string).collect();
    let _ = writeln!(out, "\"token_points\":[{}],", points.join(","));
    let elements: Vec<String> = Element::ALL
        .iter()
        .map(|element| format!("\"{}\":{:.2}", element.name(), balance.element(*element)))
        .collect();
    let _ = writeln!(out, "\"element_ps\":{{{}}},", elements.join(","));
    for (key, rates) in
        [("products", &balance.products), ("float_products", &balance.float_products)]
    {
        let rows: Vec<String> = Dtype::ALL
            .iter()
            .zip(rates)
            .filter(|(dtype, _)| is_weight(**dtype, key == "products"))
            .map(|(dtype, rates)| {
                let points: Vec<String> =
                    rates.weight_ps.iter().map(|value| format!("{value:.3}")).collect();
                format!(
                    "\"{}\":{{\"stream_bytes_per_s\":{:.0},\"beside_bytes_per_s\":{:.0},\
                     \"weight_ps\":[{}]}}",
                    dtype.name(),
                    rates.stream_bytes_per_s,
                    rates.beside_bytes_per_s,
                    points.join(",")
                )
            })
            .collect();
        let _ = writeln!(out, "\"{key}\":{{\n{}\n}},", rows.join(",\n"));
    }
    for (key, value) in extra {
        let _ = writeln!(out, "\"{key}\":{value},");
    }
    out.truncate(out.len() - 2);
    out.push_str("\n}\n");
    out
}

/// Whether weights of a type take part in products of a path.
#[must_use]
pub fn is_weight(dtype: Dtype, quantised: bool) -> bool {
    match dtype {
        Dtype::U8 | Dtype::I32 => false,
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => !quantised,
        Dtype::Q8_0
        | Dtype::Q4_0
        | Dtype::Q4_1
        | Dtype::Q5_0
        | Dtype::Q5_1
        | Dtype::Q2K
        | Dtype::Q3K
        | Dtype::Q4K
        | Dtype::Q5K
        | Dtype::Q6K => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_reads_back_and_missing_rates_are_the_tables() {
        let balance = Balance::builtin("avx2", 4);
        let profile = Profile { lanes: 4, isa: "avx2".to_string(), memory_bytes: 1 << 30, balance };
        let text = write(&profile, &[("note", "\"quiet\"".to_string())]);
        assert_eq!(read(text.as_bytes()).unwrap(), profile);
        let least = br#"{"lanes":4,"isa":"avx2","memory_bytes":1073741824}"#;
        assert_eq!(read(least).unwrap(), profile);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |extra: &str| {
            let text = format!(r#"{{"lanes":2,"isa":"avx512","memory_bytes":9{extra}}}"#);
            read(text.as_bytes()).unwrap_err()
        };
        let cases = [
            (r#","read_bytes_per_s":0"#, "read_bytes_per_s is 0, expected a number above 0"),
            (r#","cut_ps":-1"#, "cut_ps is -1"),
            (r#","cut_ps":"fast""#, "cut_ps is \"fast\""),
            (r#","element_ps":3"#, "element_ps is 3, expected an object"),
            (r#","element_ps":{"rope":null}"#, "element_ps.rope is null"),
            (r#","format":"dctms-plan""#, "format is \"dctms-plan\", this program reads"),
            (r#","version":2"#, "version is 2, this program reads 1"),
            (r#","token_points":[1,2]"#, "token_points is [1,2], this program reads [1,"),
            (r#","products":{"q9":{}}"#, "products.q9: no such type"),
            (r#","products":{"q8_0":{"weight_ps":[1]}}"#, "products.q8_0.weight_ps: 7 numbers"),
        ];
        for (extra, expected) in cases {
            let message = with(extra);
            assert!(message.contains(expected), "{extra}: {message}");
        }
        let wrong: [(&[u8], &str); 5] = [
            (b"[]", "not a JSON object"),
            (b"{", "EOF"),
            (br#"{"isa":"avx2","memory_bytes":1}"#, "lanes is missing"),
            (br#"{"lanes":0,"isa":"avx2","memory_bytes":1}"#, "lanes is 0"),
            (br#"{"lanes":1,"isa":"mmx","memory_bytes":1}"#, "isa is \"mmx\""),
        ];
        for (text, expected) in wrong {
            let message = read(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
