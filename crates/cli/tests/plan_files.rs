//! Plans on disk: verified, compared with their model, compared with each other.

mod common;

use std::path::{Path, PathBuf};

use common::{Folder, code, dctms, errors, json, long_context_model, model, number, plan, text};

const LLAMA: &str = "llama-legacy-mixed.gguf";

fn planned(folder: &Folder, name: &str, words: &[&str]) -> PathBuf {
    planned_of(&model(LLAMA), folder, name, words)
}

fn planned_of(model: &Path, folder: &Folder, name: &str, words: &[&str]) -> PathBuf {
    let file = folder.file(name);
    let output = plan(model, &[words, &["-o", file.to_str().unwrap()]].concat());
    assert_eq!(code(&output), 0, "{}", errors(&output));
    file
}

/// Replaces text in a plan and prints a right digest into it again.
fn forged(plan: &str, from: &str, to: &str) -> String {
    let text = plan.replacen(from, to, 1);
    assert_ne!(text, plan, "{from} is in the plan");
    digested(&text)
}

/// The text with the digest of what it says now.
fn digested(text: &str) -> String {
    use sha2::Digest;
    let start = text.rfind("\"digest\":\"").unwrap() + "\"digest\":\"".len();
    let without = format!("{}\"}}", &text[..start]);
    let digest: String =
        sha2::Sha256::digest(&without).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}{digest}\"}}", &text[..start])
}

#[test]
fn a_plan_is_verified_alone_and_against_its_model() {
    let folder = Folder::new("verify");
    for (name, words) in [
        ("quantised.json", &[][..]),
        ("float.json", &["--activations", "f32"]),
        ("hashed.json", &["--hash"]),
        ("lanes.json", &["--lanes", "3", "--sequences", "3", "--kv-type", "f32"]),
    ] {
        let file = planned(&folder, name, words);
        let alone = dctms(["verify".as_ref(), file.as_os_str()]);
        assert_eq!(code(&alone), 0, "{name} {}", errors(&alone));
        assert!(text(&alone).contains("internally consistent only"), "{}", text(&alone));
        let of = |other: &str| {
            let model = model(other);
            dctms(["verify".as_ref(), file.as_os_str(), "--model".as_ref(), model.as_os_str()])
        };
        let right = of(LLAMA);
        assert_eq!(code(&right), 0, "{name} {}", errors(&right));
        assert!(text(&right).contains("the graph is the one of"), "{}", text(&right));
        let wrong = of("gemma3-f16.gguf");
        assert_eq!(code(&wrong), 2, "{name}");
        assert!(errors(&wrong).contains("header_sha256"), "{}", errors(&wrong));
        assert!(errors(&wrong).lines().count() <= 60);
        assert!(wrong.stdout.is_empty());
    }
}

#[test]
fn a_spoiled_plan_is_refused() {
    let folder = Folder::new("spoiled");
    let right = std::fs::read_to_string(planned(&folder, "plan.json", &[])).unwrap();
    let file = folder.file("spoiled.json");
    let refused = |text: &str, expected: &str| {
        std::fs::write(&file, text).unwrap();
        let output = dctms(["verify".as_ref(), file.as_os_str()]);
        assert_eq!(code(&output), 2, "{expected}");
        assert!(errors(&output).contains(expected), "{expected}: {}", errors(&output));
        assert!(output.stdout.is_empty());
    };
    refused(&right.replacen("\"sequences\":1", "\"sequences\":2", 1), "digest");
    refused(&right[..right.len() / 2], "plan JSON");
    refused("", "plan JSON");
    refused("{}", "plan JSON");
    refused(&"[".repeat(1 << 20), "plan JSON");
    let weights = right.find("\"weights\":").unwrap() + "\"weights\":".len();
    let stated = &right[weights..weights + right[weights..].find(',').unwrap()];
    let smaller = (stated.parse::<u64>().unwrap() - 64).to_string();
    let (from, to) = (format!("\"weights\":{stated}"), format!("\"weights\":{smaller}"));
    refused(&forged(&right, &from, &to), "R8");
    // A right digest over a dropped wait: the order is gone.
    refused(&forged(&right, "\"waits\":[0]", "\"waits\":[]"), "R2");
    std::fs::write(&file, b"\xff\xfe").unwrap();
    let output = dctms(["verify".as_ref(), file.as_os_str()]);
    assert_eq!(code(&output), 2);
}

#[test]
fn a_plan_of_a_changed_model_is_refused() {
    let folder = Folder::new("changed");
    let right = std::fs::read_to_string(planned(&folder, "plan.json", &[])).unwrap();
    let file = folder.file("forged.json");
    // Consistent in itself, but the model's epsilon is another.
    let at = right.find("\"epsilon\":").unwrap();
    let value: String = right[at..].chars().take_while(|c| *c != '}' && *c != ',').collect();
    std::fs::write(&file, forged(&right, &value, "\"epsilon\":0.5")).unwrap();
    assert_eq!(code(&dctms(["verify".as_ref(), file.as_os_str()])), 0);
    let llama = model(LLAMA);
    let words = ["verify".as_ref(), file.as_os_str(), "--model".as_ref(), llama.as_os_str()];
    let output = dctms(words);
    assert_eq!(code(&output), 2);
    assert!(errors(&output).contains("kind"), "{}", errors(&output));
}

#[test]
fn files_beyond_the_limits_are_refused_unread() {
    let folder = Folder::new("huge");
    let file = folder.file("huge.json");
    let handle = std::fs::File::create(&file).unwrap();
    handle.set_len(1 << 33).unwrap();
    for command in ["verify", "pack"] {
        let output = dctms([command.as_ref(), file.as_os_str()]);
        assert_eq!(code(&output), 2, "{command} {}", errors(&output));
    }
    let endless = dctms(["verify", "/dev/zero"]);
    assert_eq!(code(&endless), 2, "{}", errors(&endless));
}

#[test]
fn a_difference_is_told_with_its_reasons() {
    let folder = Folder::new("diff");
    let long = long_context_model(&folder);
    let words = ["--max-input", "6000", "--max-output", "64"];
    let old = planned_of(&long, &folder, "old.json", &words);
    let words = ["--max-input", "6000", "--max-output", "192", "--kv-type", "f32"];
    let new = planned_of(&long, &folder, "new.json", &words);
    let diff = |old: &PathBuf, new: &PathBuf, more: &[&str]| {
        let mut words = vec!["plan".as_ref(), "--diff".as_ref(), old.as_os_str(), new.as_os_str()];
        words.extend(more.iter().map(std::ffi::OsStr::new));
        dctms(words)
    };
    let output = diff(&old, &new, &[]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let said = text(&output);
    for expected in ["max output tokens  64   → 192", "kv type            f16  → f32", "kv.*.k"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(text(&diff(&old, &old, &[])).contains("no difference"));
    let told = json(&diff(&old, &new, &["--json"]));
    let rows = told["bytes"].as_array().unwrap();
    let row = |what: &str| {
        let row = rows.iter().find(|row| row["what"] == what).unwrap();
        (number(row, &["old"]), number(row, &["new"]), number(row, &["change"]))
    };
    for what in ["M_max", "keys and values"] {
        let (old, new, change) = row(what);
        assert_eq!(new - old, change, "{what}");
        assert!(change > 0, "{what}");
    }
    // The groups of a term that nothing shares explain it exactly.
    let bytes = |row: &serde_json::Value, side: &str| row[side]["bytes"].as_i64().unwrap_or(0);
    let groups = told["tensors"].as_array().unwrap();
    let kv = groups.iter().filter(|row| row["term"] == "kv");
    let explained: i64 = kv.map(|row| bytes(row, "new") - bytes(row, "old")).sum();
    assert_eq!(explained, row("keys and values").2);
}

/// A small generator, seeded, so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }
}

/// Where the whole numbers of a text are.
fn numbers(text: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let is_start = |at: usize| {
        bytes[at].is_ascii_digit() && matches!(bytes[at - 1], b':' | b'[' | b',' | b' ')
    };
    let end =
        |start: usize| start + bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    (1..bytes.len()).filter(|at| is_start(*at)).map(|start| start..end(start)).collect()
}

#[test]
fn no_number_in_a_plan_can_crash_the_checker() {
    let folder = Folder::new("numbers");
    let right = std::fs::read_to_string(planned(&folder, "plan.json", &[])).unwrap();
    let places = numbers(&right);
    let file = folder.file("forged.json");
    let llama = model(LLAMA);
    let mut random = Random(7);
    let mut refused = 0;
    for round in 0..120 {
        let place = places[random.below(places.len())].clone();
        let old = right[place.clone()].to_string();
        let value: u128 = old.parse().unwrap();
        let new = match random.below(6) {
            0 => value + 1,
            1 => value.saturating_sub(1),
            2 => 0,
            3 => u128::from(u64::MAX),
            4 => u128::from(u32::MAX) + 1,
            _ => value * 2 + 64,
        };
        let mut text = right.clone();
        text.replace_range(place.clone(), &new.to_string());
        std::fs::write(&file, digested(&text)).unwrap();
        let output =
            dctms(["verify".as_ref(), file.as_os_str(), "--model".as_ref(), llama.as_os_str()]);
        let at = &right[place.start.saturating_sub(40)..place.end];
        assert!(matches!(code(&output), 0 | 2), "round {round}: {at} → {new}: {}", errors(&output));
        refused += usize::from(code(&output) == 2);
    }
    // Costs and a few reported figures are free; the rest is not.
    assert!(refused > 60, "{refused}");
}

/// A plan whose proof holds, but whose stated bounds are not those of its graph.
#[test]
fn claims_that_the_graph_does_not_bear_out_are_refused() {
    let folder = Folder::new("claims");
    let words = ["--max-input", "100", "--max-output", "28", "--sequences", "2"];
    let right = std::fs::read_to_string(planned(&folder, "plan.json", &words)).unwrap();
    let file = folder.file("forged.json");
    for (from, to, expected) in [
        ("\"max_input_tokens\":100", "\"max_input_tokens\":4000", "positions, the bounds need"),
        ("\"prefill_chunk\":100", "\"prefill_chunk\":101", "dim tokens ends at 100"),
        ("\"sequences\":2", "\"sequences\":3", "dim sequences ends at 2"),
        ("\"kv_type\":\"f16\"", "\"kv_type\":\"f32\"", "bounds.kv_type is f32"),
        ("\"lanes\":2,\"isa\"", "\"lanes\":3,\"isa\"", "machine.lanes is 3"),
        ("\"isa\":\"avx2\"", "\"isa\":\"neon\"", "machine.isa is \"neon\""),
    ] {
        std::fs::write(&file, forged(&right, from, to)).unwrap();
        let output = dctms(["verify".as_ref(), file.as_os_str()]);
        assert_eq!(code(&output), 2, "{to}: {}", errors(&output));
        assert!(errors(&output).contains(expected), "{to}: {}", errors(&output));
        assert!(output.stdout.is_empty());
    }
}
