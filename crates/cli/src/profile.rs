//! A machine profile: what `dctms doctor` measures and `--machine` plans with, as JSON.
//!
//! `lanes`, `isa` and `memory_bytes` must be there; every rate that is missing is taken from the
//! built-in table of the instruction set. Whatever else is there must be known and within its bounds
//! (`read`). A plan names the SHA-256 of the profile's bytes.

mod entries;
mod read;

use std::fmt::Write as _;

use dctms_ir::Dtype;
use dctms_planner::Balance;
use dctms_planner::rates::{Element, TOKEN_POINTS};

pub use read::read;

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

/// Prints a profile.
#[must_use]
pub fn write(profile: &Profile) -> String {
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
        assert_eq!(read(write(&profile).as_bytes()).unwrap(), profile);
        let least = br#"{"lanes":4,"isa":"avx2","memory_bytes":1073741824}"#;
        assert_eq!(read(least).unwrap(), profile);
    }

    #[test]
    fn every_table_is_within_the_bounds_of_a_profile() {
        for isa in ["scalar", "avx2", "avx512", "amx"] {
            for lanes in [1, 2, 64] {
                let balance = Balance::builtin(isa, lanes);
                let profile = Profile { lanes, isa: isa.to_string(), memory_bytes: 0, balance };
                assert_eq!(read(write(&profile).as_bytes()).unwrap(), profile);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |extra: &str| {
            let text = format!(r#"{{"lanes":2,"isa":"avx512","memory_bytes":9{extra}}}"#);
            read(text.as_bytes()).unwrap_err()
        };
        let cases = [
            (
                r#","read_bytes_per_s":0"#,
                "read_bytes_per_s is 0, expected a number from 1e6 to 1e15",
            ),
            (r#","read_bytes_per_s":1e-300"#, "read_bytes_per_s is 1e-300, expected"),
            (r#","read_bytes_per_s":1e17"#, "expected a number from 1e6 to 1e15"),
            (r#","float_ops_per_s":1e19"#, "expected a number from 1e6 to 1e18"),
            (r#","beside_products_ratio":0.5"#, "is 0.5, expected a number from 1 to 1000"),
            (r#","wait_ratio":1e17"#, "expected a number from 0 to 1000"),
            (r#","cut_ps":1e400"#, "cut_ps: number out of range"),
            (r#","cut_ps":NaN"#, "cut_ps: expected value"),
            (r#","cut_ps":-1"#, "cut_ps is -1"),
            (r#","cut_pss":1"#, "cut_pss: no such entry, there are format, version, lanes"),
            (r#","lanes":2"#, "lanes stands there twice"),
            (r#","products":{"q8_0":{},"q8_0":{}}"#, "products.q8_0 stands there twice"),
            (r#","products":{"q8_0":5}"#, "products.q8_0 is 5, expected an object"),
            (r#","products":{"q8_0":{"ps":5}}"#, "products.q8_0.ps: no such entry"),
            (r#","products":{"f16":{}}"#, "products.f16: no such type of weights, there are"),
            (
                r#","float_products":{"f16":{"weight_ps":[1,1,1,1,1,1,0]}}"#,
                "float_products.f16.weight_ps[6] is 0, expected a number from 0.001 to 1e7",
            ),
            (r#","element_ps":{"ropes":3}"#, "element_ps.ropes: no such entry, there are norm_sum"),
            (r#","cut_ps":"fast""#, "cut_ps is \"fast\""),
            (r#","element_ps":3"#, "element_ps is 3, expected an object"),
            (r#","element_ps":{"rope":null}"#, "element_ps.rope is null"),
            (r#","format":"dctms-plan""#, "format is \"dctms-plan\", this program reads"),
            (r#","version":2"#, "version is 2, this program reads 1"),
            (r#","token_points":[1,2]"#, "token_points is [1,2], this program reads [1,"),
            (r#","products":{"q9":{}}"#, "products.q9: no such type of weights"),
            (r#","products":{"q8_0":{"weight_ps":[1]}}"#, "products.q8_0.weight_ps: 7 numbers"),
        ];
        for (extra, expected) in cases {
            let message = with(extra);
            assert!(message.contains(expected), "{extra}: {message}");
        }
        let wrong: [(&[u8], &str); 6] = [
            (b"[]", "not a JSON object"),
            (b"{", "EOF"),
            (br#"{"isa":"avx2","memory_bytes":1}"#, "lanes is missing"),
            (
                br#"{"lanes":0,"isa":"avx2","memory_bytes":1}"#,
                "lanes is 0, expected a whole number",
            ),
            (br#"{"lanes":1,"isa":"avx2","memory_bytes":-1}"#, "memory_bytes is -1, expected"),
            (br#"{"lanes":1,"isa":"mmx","memory_bytes":1}"#, "isa is \"mmx\""),
        ];
        for (text, expected) in wrong {
            let message = read(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
