//! Seeded edits of plans as text: whatever the text, the answer is a plan that keeps its promises
//! or a typed error, never a panic. `DCTMS_FUZZ_SECONDS` sets the time; `DCTMS_UPDATE=1` writes
//! the fuzzer's starting files anew.

#[path = "support/exercise.rs"]
mod exercise;

use std::path::Path;
use std::time::{Duration, Instant};

use dctms_ir::json;
use dctms_testkit::generate::{Extent, Level};
use dctms_testkit::{Random, arrange, generate};

/// Numbers at which readers break.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "63",
    "64",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "0.5",
    "null",
    "[]",
];

fn starting_text(seed: u64) -> String {
    let mut random = Random::new(seed);
    let program = generate::program(&mut random, Extent { level: Level::Legal, phases: 1, ops: 2 });
    json::write(&arrange::plan(&mut random, program, 2))
}

/// Start and end of every run of digits outside strings, roughly.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut result = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at].is_ascii_digit() && at > 0 && b":[,".contains(&bytes[at - 1]) {
            let start = at;
            while at < bytes.len() && bytes[at].is_ascii_digit() {
                at += 1;
            }
            result.push((start, at));
        } else {
            at += 1;
        }
    }
    result
}

fn edit(random: &mut Random, text: &str) -> String {
    let spans = numbers(text);
    let (start, end) = spans[random.below(spans.len())];
    let (other_start, other_end) = spans[random.below(spans.len())];
    let mut bytes = text.as_bytes().to_vec();
    match random.below(8) {
        // Numbers most of the time: they reach furthest.
        0..=3 => {
            let number = text[other_start..other_end].to_string();
            drop(bytes.splice(start..end, number.into_bytes()));
        }
        4 | 5 => drop(bytes.splice(start..end, random.pick(&NUMBERS).bytes())),
        6 => {
            let at = random.below(bytes.len());
            let length = random.below(40).min(bytes.len() - at);
            bytes.drain(at..at + length);
        }
        _ => {
            let at = random.below(bytes.len());
            bytes[at] = *random.pick(b"{}[]\",:0189-.eE\\ntfu ");
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

#[test]
fn edited_texts_are_plans_or_errors() {
    let seconds = std::env::var("DCTMS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let start = Instant::now();
    let texts: Vec<String> = (0..8).map(starting_text).collect();
    let mut random = Random::new(5);
    let (mut tried, mut read) = (0, 0);
    while start.elapsed() < Duration::from_secs(seconds.unwrap_or(2)) {
        let mut text = random.pick(&texts).clone();
        for _ in 0..=random.below(3) {
            text = edit(&mut random, &text);
        }
        tried += 1;
        read += usize::from(exercise::read_and_ask(&text).is_some());
    }
    println!("{tried} texts, {read} of them plans");
    assert!(read > 0 && read < tried);
}

#[test]
fn the_fuzzers_starting_files_are_these() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/plan");
    for seed in 0..2 {
        let file = folder.join(format!("random-{seed}.json"));
        let text = starting_text(seed);
        if std::env::var_os("DCTMS_UPDATE").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&file, &text).expect("a file");
        }
        let stored = std::fs::read_to_string(&file).expect("a starting file");
        assert!(stored == text, "{} is out of date: DCTMS_UPDATE=1", file.display());
    }
}
