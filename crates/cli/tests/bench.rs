//! `dctms bench` as a child process: its report can be read, and its figures fit together.
//!
//! Believes the fixtures' tiny models. No speed is asserted: only what holds on any machine.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::dctms;

use serde_json::Value;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-legacy-mixed.gguf")
}

fn bench(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dctms"));
    command.arg("bench").arg(model()).args(["--lanes", "2"]).args(options);
    command.output().expect("the child runs")
}

fn report(options: &[&str]) -> Value {
    let output = bench(&[options, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

const SMALL: [&str; 6] = ["--prompt-tokens", "20", "--gen-tokens", "6", "--repetitions", "3"];

#[test]
fn the_report_has_its_fields_and_they_fit_together() {
    let report = report(&SMALL);
    let number = |pointer: &str| {
        let value = report.pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{pointer} in {report}"))
    };
    for positive in [
        "/prefill_tokens_per_s",
        "/decode_tokens_per_s",
        "/ttft_ms",
        "/step_ms/p50",
        "/weight_bytes_per_step",
        "/weight_bytes_per_s",
        "/read_bytes_per_s",
        "/weight_share_of_read",
        "/kv_bytes_per_step",
        "/prompt_integer_ops",
        "/integer_ops_per_s",
        "/peak_bytes",
    ] {
        assert!(number(positive) > 0.0, "{positive}");
    }
    // Null on a machine without room for the buffer.
    if let Some(stated) = report["weight_share_of_buffer_read"].as_f64() {
        let share = number("/weight_bytes_per_s") / number("/buffer_read_bytes_per_s");
        assert!((share - stated).abs() < 1e-3, "{share}: {report}");
    }
    assert!(number("/step_ms/p50") <= number("/step_ms/p99"));
    assert!(number("/step_ms/p99") <= number("/step_ms/max"));
    assert!(number("/decode_min_max/0") <= number("/decode_tokens_per_s"));
    assert!(number("/prefill_min_max/1") >= number("/prefill_tokens_per_s"));
    assert!(number("/peak_bytes") <= number("/m_max_bytes"), "{report}");
    assert_eq!(number("/allocations"), 0.0);
    assert_eq!(number("/repetitions"), 3.0);
    assert_eq!(report["logits_sha256"].as_str().map(str::len), Some(64));
}

#[test]
fn the_answer_depends_on_neither_lanes_nor_chunk_and_depth_reads_more() {
    let plain = report(&SMALL);
    let depth = ["--depth", "24"];
    let deep = report(&[&SMALL[..], &depth].concat());
    let chunked = ["--prefill-chunk", "7", "--lanes", "1"];
    let chunked = report(&[&SMALL[..], &depth, &chunked].concat());
    let answer = |report: &Value| report["logits_sha256"].as_str().map(str::to_string);
    assert_eq!(answer(&deep), answer(&chunked));
    assert_ne!(answer(&deep), answer(&plain));
    let kv = |report: &Value| report["kv_bytes_per_step"].as_u64();
    assert!(kv(&deep) > kv(&plain), "{:?} {:?}", kv(&deep), kv(&plain));
}

#[test]
fn a_report_is_compared_with_an_earlier_one_of_the_same_work_only() {
    let first = bench(&[&SMALL[..], &["--json"]].concat());
    let path = std::env::temp_dir().join(format!("dctms-bench-{}.json", std::process::id()));
    std::fs::write(&path, &first.stdout).expect("a file for the report");
    let old = path.to_str().expect("a UTF-8 path");
    let compared = report(&[&SMALL[..], &["--compare", old]].concat());
    assert!(compared["now_by_earlier"]["decode"].as_f64().is_some_and(|ratio| ratio > 0.0));
    let table = bench(&[&SMALL[..], &["--compare", old]].concat());
    assert!(String::from_utf8_lossy(&table.stdout).contains("now / earlier"));
    // It may say that something else ran, but not that the work was another.
    assert!(!String::from_utf8_lossy(&table.stderr).contains(" and was "), "{table:?}");
    let chunked = bench(&[&SMALL[..], &["--prefill-chunk", "7", "--compare", old]].concat());
    let said = String::from_utf8_lossy(&chunked.stderr).into_owned();
    assert!(said.contains("prefill_chunk is 7 and was") && !said.contains("lanes is"), "{said}");
    let other = bench(&[&SMALL[..], &["--depth", "9", "--compare", old]].concat());
    assert_eq!(other.status.code(), Some(64), "{other:?}");
    let _ = std::fs::remove_file(&path);
}

/// A model with eyes: both ways give one answer, inside the envelope, beside what was expected.
#[test]
fn a_picture_is_read_in_both_ways() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dctms"));
        command.arg("bench").arg(fixtures.join("vision-lfm2-text-f16.gguf"));
        command.arg("--mmproj").arg(fixtures.join("vision-lfm2-mmproj-f16.gguf"));
        command.args(["--lanes", "2", "--prefill-chunk", "16", "--repetitions", "3"]).args(words);
        command.output().expect("the child runs")
    };
    let work = ["--prompt-tokens", "40", "--tiles", "2"];
    let output = run(&[&work[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |pointer: &str| {
        let value = report.pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{pointer} in {report}"))
    };
    assert_eq!(number("/chunks_beside"), 2.0);
    for way in ["serial_s", "overlapped_s"] {
        assert!(number(&format!("/{way}/1")) <= number(&format!("/{way}/0")));
        assert!(number(&format!("/{way}/0")) <= number(&format!("/{way}/2")));
        assert!(number(&format!("/expected/{way}")) > 0.0);
    }
    assert!(number("/peak_bytes") <= number("/m_max_bytes"), "{report}");
    assert!(number("/gain_percent/1") <= number("/gain_percent/2"));
    let text = run(&work);
    assert!(String::from_utf8_lossy(&text.stdout).contains("tiles beside chunks"));
    assert_eq!(run(&["--mode", "serial"]).status.code(), Some(64));
}

/// What was not finished is no figure.
#[test]
fn ctrl_c_ends_a_benchmark_within_a_step() {
    let words = "bench --prompt-tokens 8 --gen-tokens 400 --repetitions 1000";
    let running = dctms(words).arg(model()).start();
    running.wait_until_it_catches(libc::SIGINT);
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.signal(libc::SIGINT);
    let output = running.end();
    match output.code() {
        0 => assert!(output.stdout.contains("tokens/s"), "{output:?}"),
        code => {
            assert_eq!(code, 130, "{output:?}");
            assert!(output.stdout.is_empty(), "{output:?}");
        }
    }
}
