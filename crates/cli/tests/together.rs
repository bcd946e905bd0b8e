//! Several models planned together, as a child process: the numbers, the table, verification,
//! comparison, refusals.

mod common;

use std::path::PathBuf;
use std::process::Output;

use common::{FIXED, Folder, code, command, dctms, errors, json, model, number, plan, text};
use serde_json::Value;

const NAMES: [&str; 2] = ["llama-legacy-mixed.gguf", "gemma3-f16.gguf"];

/// Plans models together with the fixed machine and more words.
fn together(names: &[&str], words: &[&str]) -> Output {
    let models: Vec<PathBuf> = names.iter().map(|name| model(name)).collect();
    command().arg("plan").args(models).args(FIXED).args(words).output().unwrap()
}

fn envelope(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", errors(output));
    json(output)["envelope"].clone()
}

#[test]
fn weights_and_caches_add_and_transients_are_shared() {
    let bounds = ["--max-input", "100", "--max-output", "28", "--json"];
    let alone = NAMES.map(|name| envelope(&plan(&model(name), &bounds)));
    let of = |envelope: &Value, term: &str| number(envelope, &[term]);
    let sum = |term: &str| of(&alone[0], term) + of(&alone[1], term);
    let output = together(&NAMES, &bounds);
    let exclusive = envelope(&output);
    assert_eq!(of(&exclusive, "weights"), sum("weights"));
    assert_eq!(of(&exclusive, "kv"), sum("kv"));
    let most = of(&alone[0], "intermediate").max(of(&alone[1], "intermediate"));
    assert_eq!(of(&exclusive, "intermediate"), most);
    let overlapping = envelope(&together(&NAMES, &[&bounds[..], &["--overlap"]].concat()));
    assert!(of(&overlapping, "intermediate") > most);
    assert!(of(&overlapping, "intermediate") <= sum("intermediate"));
    for joint in [&exclusive, &overlapping] {
        assert!(of(joint, "total") < sum("total"), "one process is smaller than two");
        let terms = ["weights", "kv", "persistent", "intermediate"].map(|term| of(joint, term));
        let runtime = number(joint, &["runtime", "total"]);
        assert_eq!(terms.iter().sum::<i64>() + runtime, of(joint, "total"));
        // One image, one set of stacks.
        for term in ["image", "stacks"] {
            assert_eq!(number(joint, &["runtime", term]), number(&alone[0], &["runtime", term]));
        }
    }
    let planned = json(&output);
    assert_eq!(planned["models"].as_array().unwrap().len(), 2);
    let tensors = planned["tensors"].as_array().unwrap();
    for id in 0..2 {
        assert!(tensors.iter().any(|tensor| tensor["model"] == id));
    }
    assert_eq!(together(&NAMES, &bounds).stdout, output.stdout, "the same bytes again");
}

#[test]
fn the_table_has_a_column_for_each_model() {
    let output = together(&[NAMES[0], NAMES[1], NAMES[0]], &[]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let said = text(&output);
    for part in [
        "a = llama-legacy-mixed.gguf",
        "c = llama-legacy-mixed.gguf",
        "3 models resident together (one step at a time)",
        "apart",
        "together",
        "one arena takes",
        "c:decode",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let said = text(&together(&NAMES, &["--overlap"]));
    assert!(said.contains("may run at the same time"), "{said}");
    // A single model has no such section.
    assert!(!text(&together(&NAMES[..1], &[])).contains("resident together"));
}

#[test]
fn joint_plans_are_verified_compared_and_shown() {
    let folder = Folder::new("together");
    let (one, other) = (folder.file("one.json"), folder.file("other.json"));
    let page = folder.file("page.html");
    let html = ["--html", page.to_str().unwrap(), "-o", one.to_str().unwrap()];
    assert_eq!(code(&together(&NAMES, &html)), 0);
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("2 models resident together") && page.contains("gemma3-f16.gguf"));
    let overlap = ["--overlap", "--hash", "-o", other.to_str().unwrap()];
    assert_eq!(code(&together(&NAMES, &overlap)), 0);
    let of = |file: &PathBuf, names: &[&str]| {
        let mut command = command();
        command.arg("verify").arg(file);
        for name in names {
            command.arg("--model").arg(model(name));
        }
        command.output().unwrap()
    };
    for file in [&one, &other] {
        for names in [&[][..], &NAMES] {
            let output = of(file, names);
            assert_eq!(code(&output), 0, "{names:?} {}", errors(&output));
        }
        // One model less, or in another order, is another plan.
        assert_eq!(code(&of(file, &NAMES[..1])), 2);
        assert_eq!(code(&of(file, &[NAMES[1], NAMES[0]])), 2);
    }
    let words = ["plan".as_ref(), "--diff".as_ref(), one.as_os_str(), other.as_os_str()];
    let difference = text(&dctms(words));
    assert!(difference.contains("steps of different models"), "{difference}");
    assert!(difference.contains("intermediate"), "{difference}");
}

#[test]
fn more_phases_than_a_plan_may_have_are_said_with_what_would_fit() {
    let together = |count: usize, words: &[&str]| {
        let output = together(&vec!["llama-f16.gguf"; count], words);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let bounds = ["--max-input", "256", "--max-output", "16", "--family"];
    let family = |members| [&bounds[..], &[members]].concat();
    for (count, members, expected) in [
        (12, "3", "the 12 models have 72 phases with --family 3, at most 64: --family 2 fits"),
        (16, "3", "the 16 models have 96 phases with --family 3, at most 64: --family 1 fits"),
        (17, "2", "at most 64: with --family 1 the first 16 fit"),
        (17, "1", "the 17 models have 68 phases with --family 1, at most 64: with --family 1"),
    ] {
        let (code, said) = together(count, &family(members));
        assert!(code == Some(64) && said.contains(expected), "{said}");
    }
    let (code, said) = together(12, &family("2"));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_does_not_fit_together_says_what_each_asks_for() {
    let total = number(&envelope(&together(&NAMES, &["--json"])), &["total"]);
    let limit = total.to_string();
    assert_eq!(code(&together(&NAMES, &["--memory-limit", &limit])), 0);
    let refused = together(&NAMES, &["--memory-limit", "2M"]);
    assert_eq!(code(&refused), 3);
    let said = errors(&refused);
    assert!(said.contains("what each model asks for"), "{said}");
    for name in NAMES {
        assert!(said.contains(name), "{said}");
    }
    let fitted = together(&NAMES, &["--fit", &limit, "--json"]);
    assert!(number(&envelope(&fitted), &["total"]) <= total);
    assert_eq!(code(&together(&NAMES, &["--fit", "2M"])), 3);
    // A defect says whose it is; words that make no sense are refused.
    let missing = command().arg("plan").arg(model(NAMES[0])).arg("none.gguf").output().unwrap();
    assert_eq!(code(&missing), 2);
    assert!(errors(&missing).contains("none.gguf"), "{}", errors(&missing));
    assert_eq!(code(&together(&NAMES[..1], &["--overlap"])), 64);
}
