//! `dctms bench` as a child process: its report can be read, and its figures fit together.
//!
//! Believes the fixtures' tiny models. No speed is asserted: only what holds on any machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
        "/kv_bytes_per_step",
        "/prompt_integer_ops",
        "/integer_ops_per_s",
        "/peak_bytes",
    ] {
        assert!(number(positive) > 0.0, "{positive}");
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
    let other = bench(&[&SMALL[..], &["--depth", "9", "--compare", old]].concat());
    assert_eq!(other.status.code(), Some(64), "{other:?}");
    let _ = std::fs::remove_file(&path);
}
