//! A model with a vision file: every mode planned, one picked, plans verified with both files, and
//! runs that give the same logits inside their envelope.

mod common;

use std::path::PathBuf;
use std::process::Output;

use common::{FIXED, Folder, code, command, errors, json, model, number, text};

const TEXT: &str = "vision-lfm2-text-f16.gguf";
const EYES: &str = "vision-lfm2-mmproj-f16.gguf";

fn seeing(verb: &str, words: &[&str]) -> Output {
    let mut command = command();
    command.arg(verb).arg(model(TEXT)).arg("--mmproj").arg(model(EYES)).args(FIXED).args(words);
    command.output().unwrap()
}

#[test]
fn a_plan_shows_every_mode() {
    let output = seeing("plan", &[]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let said = text(&output);
    let line = |mode: &str| {
        let mut lines = said.lines().map(str::trim).filter(|line| line.starts_with(mode));
        lines.next_back().unwrap_or_else(|| panic!("{mode} in {said}")).to_string()
    };
    assert!(line("serial").ends_with("fits, chosen"), "{said}");
    assert!(line("overlapped").ends_with("fits"), "{said}");
    let overlapped = text(&seeing("plan", &["--mode", "overlapped", "--lanes", "2"]));
    assert!(overlapped.contains("its tiles are encoded beside the steps"), "{overlapped}");
    assert!(said.contains("it waits for the end of the answer"), "{said}");
    assert!(line("phase-resident").ends_with("fits"), "{said}");
    let asked = text(&seeing("plan", &["--mode", "phase-resident"]));
    assert!(asked.contains("phase-resident") && asked.contains("fits, chosen"), "{asked}");
    // A text model has no modes.
    let blind = command().arg("plan").arg(model(TEXT)).args(["--mode", "serial"]).output().unwrap();
    assert_eq!(code(&blind), 64, "{}", errors(&blind));
    assert_eq!(code(&seeing("plan", &["--mode", "both"])), 64);
}

#[test]
fn one_set_of_weights_is_in_the_other_modes_place() {
    let planned = |mode: &str| json(&seeing("plan", &["--mode", mode, "--json"]));
    let [serial, resident] = ["serial", "phase-resident"].map(planned);
    // Bytes of each file's weights.
    let weights = |plan: &serde_json::Value, file: i64| -> i64 {
        let tensors = plan["tensors"].as_array().unwrap().iter();
        let own = tensors.filter(|t| t["model"] == file && t["term"] == "weights");
        own.map(|tensor| number(tensor, &["bytes"])).sum()
    };
    let sets = [0, 1].map(|file| weights(&serial, file));
    assert_eq!(sets, [0, 1].map(|file| weights(&resident, file)));
    let arena = |plan: &serde_json::Value| number(plan, &["arena", "bytes"]);
    assert!(arena(&serial) - arena(&resident) >= sets[0].min(sets[1]));
    let alone = json(&{
        let mut command = command();
        command.arg("plan").arg(model(TEXT)).args(FIXED).arg("--json").output().unwrap()
    });
    // What a vision file adds is said tensor by tensor.
    let lasting = |plan: &serde_json::Value| -> i64 {
        let tensors = plan["tensors"].as_array().unwrap().iter();
        let kept = tensors.filter(|tensor| tensor["phase"].is_null());
        kept.map(|tensor| (number(tensor, &["bytes"]) + 63) / 64 * 64).sum()
    };
    let terms = |plan: &serde_json::Value| {
        let of = |term: &str| number(&plan["envelope"], &[term]);
        of("weights") + of("kv") + of("persistent")
    };
    let added = lasting(&serial) - lasting(&alone);
    assert!((terms(&serial) - terms(&alone) - added).abs() < 4096);
}

#[test]
fn plans_of_every_mode_are_verified_with_both_files() {
    let folder = Folder::new("modes");
    for mode in ["serial", "overlapped", "phase-resident"] {
        let file = folder.file(&format!("{mode}.json"));
        let words = ["--mode", mode, "--hash", "-o", file.to_str().unwrap()];
        assert_eq!(code(&seeing("plan", &words)), 0);
        let verify = |files: &[(&str, PathBuf)]| {
            let mut command = command();
            command.arg("verify").arg(&file);
            for (option, path) in files {
                command.arg(option).arg(path);
            }
            command.output().unwrap()
        };
        let (text, eyes) = (("--model", model(TEXT)), ("--mmproj", model(EYES)));
        let right = verify(&[text.clone(), eyes.clone()]);
        assert_eq!(code(&right), 0, "{mode} {}", errors(&right));
        assert_eq!(code(&verify(&[])), 0, "{mode}");
        assert_eq!(code(&verify(&[text])), 2, "{mode}: the vision file is missing");
        assert_eq!(code(&verify(&[eyes])), 64, "{mode}: of which model");
    }
}

#[test]
fn runs_of_every_mode_give_the_same_logits_within_their_envelopes() {
    let folder = Folder::new("mode-runs");
    let ids = folder.file("ids.txt");
    std::fs::write(&ids, "1 2 3 4 5 6 7 8").unwrap();
    let runs = ["serial", "overlapped", "phase-resident"].map(|mode| {
        let words = ["--prompt-ids", ids.to_str().unwrap(), "-n", "8", "--mode", mode, "--json"];
        let bounds = ["--max-input", "64", "--ignore-eos"];
        let output = seeing("run", &[&words[..], &bounds].concat());
        assert_eq!(code(&output), 0, "{mode} {}", errors(&output));
        json(&output)
    });
    let [serial, overlapped, resident] = runs;
    for other in [&overlapped, &resident] {
        assert_eq!(serial["logits_sha256"], other["logits_sha256"]);
        assert_eq!(serial["tokens"], other["tokens"]);
    }
    assert!(serial["reloads"].is_null());
    // A text alone needs the decoder's weights only, and those once.
    assert_eq!(number(&resident, &["reloads", "count"]), 1);
    assert!(number(&resident, &["reloads", "bytes"]) > 0);
    for run in [&serial, &overlapped, &resident] {
        assert!(number(run, &["peak_bytes"]) <= number(run, &["m_max_bytes"]));
        assert_eq!(number(run, &["allocations"]), 0);
    }
}

/// What a region is worth, and what waits for what, is part of the plan; a machine that nobody has
/// is predicted for only where it is asked for, and marked as that.
#[test]
fn an_overlapped_plan_states_its_streams() {
    let plan = json(&seeing("plan", &["--mode", "overlapped", "--json"]));
    let region = &plan["regions"][0];
    assert_eq!(region["phase"], "vision+prefill");
    assert!(number(region, &["together_ns"]) > 0);
    let waits = |name: &str| {
        let segments = region["segments"].as_array().unwrap().iter();
        let segment = segments.clone().find(|segment| segment["name"] == name).unwrap();
        segment["waits_for"].clone()
    };
    assert_eq!(waits("text 0"), serde_json::json!([]));
    assert_eq!(waits("picture 1"), serde_json::json!(["text 0", "vision of picture 1"]));
    assert!(json(&seeing("plan", &["--mode", "serial", "--json"]))["regions"].is_null());
    let plain = text(&seeing("plan", &["--mode", "overlapped"]));
    assert!(plain.contains("streams of vision+prefill") && !plain.contains("PREDICTED"), "{plain}");
    let unit = text(&seeing("plan", &["--mode", "serial", "--second-unit", "8:0.25"]));
    assert!(unit.contains("PREDICTED, not measured"), "{unit}");
    assert!(unit.contains("8 times the lanes' f32 peak, 25 % of the bandwidth"), "{unit}");
    assert_eq!(code(&seeing("plan", &["--second-unit", "0"])), 64);
    assert_eq!(code(&seeing("plan", &["--second-unit", "2:1"])), 64);
}
