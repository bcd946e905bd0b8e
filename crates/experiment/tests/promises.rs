//! What the product promises, and what an experiment does where it is not kept or not known: a
//! bound that is passed, that changes, that nobody states. The product is a small script here.

mod support;

use std::process::Command;

use dctms_experiment::results::read_results;

use support::{Folder, PROGRAM, calls, ended, experiment};

/// An answer that states a bound, as a line of a script; `$n` is the number of the request.
fn answer(m_max_bytes: &str) -> String {
    format!(r#"echo '{{"text": "yes", "decode_tokens": 2, "m_max_bytes": '"{m_max_bytes}"'}}'"#)
}

#[test]
fn a_bound_that_is_passed_changed_or_unknown_is_told() {
    let folder = Folder::new("promises");
    let words = ["--systems", "dctms", "--rounds", "1", "--dctms"];
    let run = |name: &str, on_request: &str, more: &[&str]| {
        let product = folder.script(&format!("product-{name}"), on_request);
        let out = folder.0.join(name);
        let done = ended(&mut experiment(&out, &[&words[..], &[&product], more].concat()));
        let text = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        (done, text("summary.csv"), text("report.html"), out)
    };
    // No process is as small as that, and none as large.
    let ((code, said, why), table, page, out) = run("passed", &answer("1"), &[]);
    assert!(code == Some(1) && why.contains("5 calls passed M_max"), "{code:?} {why}");
    assert!(said.contains("see why in the report") && page.contains("5 missed envelopes"));
    assert!(table.lines().nth(1).unwrap().contains(",5,"), "{table}");
    let report = ["--systems", "dctms", "--report-only"];
    assert_eq!(ended(&mut experiment(&out, &report)).0, Some(1), "it stays so");

    let ((code, _, why), _, page, _) = run("kept", &answer("900000000000"), &[]);
    assert!(code == Some(0) && page.contains("0 missed envelopes"), "{why}");

    let unknown = r#"echo '{"text": "yes"}'"#;
    let ((code, _, why), table, page, _) = run("unknown", unknown, &[]);
    assert!(code == Some(0) && page.contains("no envelope was checked"), "{why}");
    assert_eq!(table.lines().nth(1).unwrap().split(',').nth(14), Some(""), "{table}");
    assert!(!page.contains("missed envelopes,"), "{page}");

    // The first answer is not counted; the third call states another bound.
    let grows = answer("$((900000000000 + n / 4))");
    let ((code, _, why), _, page, out) = run("changed", &grows, &[]);
    assert!(code == Some(1) && why.contains("stated 900000000000 before"), "{code:?} {why}");
    assert!(page.contains("900000000001"));
    let results = read_results(&out).unwrap();
    assert_eq!((results.calls.len(), &results.cells[0].status[..]), (2, "changed"));
    assert_eq!(results.m_max_bytes, Some(900_000_000_000));
}

#[test]
fn systems_of_others_state_no_bound_of_ours() {
    let folder = Folder::new("strangers");
    let (product, other) = (folder.script("product", &answer("900000000000")), answer("7"));
    let other = format!("other={}", folder.script("other", &other));
    let out = folder.0.join("out");
    let words = ["--systems", "dctms", "--dctms", &product, "--adapter", &other, "--rounds", "1"];
    let (code, _, why) = ended(&mut experiment(&out, &words));
    assert_eq!(code, Some(0), "{why}");
    assert_eq!(read_results(&out).unwrap().m_max_bytes, Some(900_000_000_000));
}

#[test]
fn no_condition_is_begun_after_a_turn_that_would_have_been_cut() {
    let folder = Folder::new("cut");
    let prompts = folder.0.join("prompts.json");
    let prompt = |id: &str| format!(r#"{{"id": "{id}", "category": "c", "prompt": "{id}"}}"#);
    std::fs::write(&prompts, format!("[{}, {}]", prompt("short"), prompt("long"))).unwrap();
    let answer = support::ANSWER;
    let slow = format!("case $line in *long*) sleep 1.2;; esac\n{answer}");
    let slow = format!("slow={}", folder.script("slow", &slow));
    let stays = folder.program("stays", "exec cat > /dev/null");
    let out = folder.0.join("out");
    let prompts = prompts.to_str().unwrap();
    let words = ["--adapter", &slow, "--prompts", prompts, "--baseline", &stays];
    let words = [&words[..], &["--conditions", "none,burner", "--rounds", "9"]].concat();
    let (code, said, why) =
        ended(&mut experiment(&out, &[&words[..], &["--deadline", "2"]].concat()));
    let made = calls(&out);
    assert!(said.contains("not complete") || made.is_empty(), "{code:?} {said} {why}");
    assert!(made.iter().all(|call| call.condition == "none"), "{made:?}");
    assert!(!out.join("logs/burner.log").exists(), "its systems are not started either");
    let long = made.iter().filter(|call| call.prompt == "long").count();
    assert!(long <= 1, "a second one would take longer than there is time");
}

#[test]
fn a_limit_of_what_was_measured_in_part_is_none() {
    let folder = Folder::new("part");
    let compile = "[ \"$1\" = compile ] && { cp \"$0\" \"$4\"; exit; }";
    let product = folder.program("product", compile);
    let baseline = folder.script("baseline", support::ANSWER);
    let out = folder.0.join("out");
    let words = ["--systems", "dynamic", "--dctms", &product, "--baseline", &baseline];
    let none = [&words[..], &["--rounds", "1"]].concat();
    let (code, said, why) = ended(&mut experiment(&out, &none));
    assert!(code == Some(0) && said.contains("5 calls, complete"), "{said} {why}");
    let group = ["--rounds", "2", "--conditions", "group-0.9-dynamic"];
    let (_, _, why) = ended(&mut experiment(&out, &[&words[..], &group].concat()));
    assert!(why.contains("was not run, or not to its end"), "{why}");
    assert_eq!(calls(&out).len(), 5);
}

#[test]
fn a_bound_that_is_not_learnt_in_time_skips_nothing() {
    let folder = Folder::new("late");
    let product = folder.script("product", "sleep 60");
    let out = folder.0.join("out");
    let words = ["--systems", "dctms", "--dctms", &product, "--deadline", "1"];
    let words = [&words[..], &["--conditions", "group-m-max"]].concat();
    let (code, _, why) = ended(&mut experiment(&out, &words));
    assert!(code == Some(1) && why.contains("stopped before its first call"), "{code:?} {why}");
    let results = read_results(&out).unwrap();
    assert!(results.cells.is_empty() && !results.complete, "{:?}", results.cells);
}

#[test]
fn an_envelope_is_measured_once_for_each_model_and_says_what_is_over_a_bound() {
    let folder = Folder::new("envelope");
    let product = folder.program("product", "echo 'context of 7 tokens' >&2; exit 4");
    let out = folder.0.join("out");
    let run = || {
        let mut command = Command::new(PROGRAM);
        command.args(["--envelope", "--model", "m", "--model", "m", "--dctms", &product, "--out"]);
        ended(command.arg(&out).env("TMPDIR", &folder.0))
    };
    let (code, _, why) = run();
    assert!(code == Some(4) && why.contains("12 calls"), "{code:?} {why}");
    assert_eq!(why.matches("over a bound: context of 7 tokens").count(), 12, "{why}");
    // A file of other columns is somebody's results.
    let old = "model,max_input,max_output\nm,1,2\n";
    std::fs::write(out.join("envelope.csv"), old).unwrap();
    let (code, _, why) = run();
    assert!(code == Some(64) && why.contains("its columns are not"), "{code:?} {why}");
    assert_eq!(std::fs::read_to_string(out.join("envelope.csv")).unwrap(), old);
}
