//! `run --trace`: a timeline that tells the truth and costs nothing but its planned room.

mod support;

use serde_json::Value;
use support::{Folder, USAGE, dctms, fixture};

const RUN: &str =
    "run --raw -p hello -n 5 --ignore-eos --json --lanes 2 --max-input 16 --max-output 8";

#[test]
fn the_timeline_has_every_task_of_every_lane_in_order() {
    let folder = Folder::new();
    let path = folder.path().join("out.json");
    let model = fixture("llama-legacy-mixed.gguf");
    let plain = dctms(RUN).arg(&model).json();
    let traced = dctms(RUN).arg(&model).arg("--trace").arg(&path).json();
    assert_eq!(traced.value["logits_sha256"], plain.value["logits_sha256"]);
    assert_eq!(traced.integer("allocations"), 0);
    assert!(traced.integer("peak_bytes") <= traced.integer("m_max_bytes"));
    // The rings are in the plan.
    assert!(traced.integer("heap_peak_bytes") >= plain.integer("heap_peak_bytes") + (1 << 20));
    assert!(traced.integer("heap_peak_bytes") <= traced.integer("heap_bytes"));

    let text = std::fs::read_to_string(&path).expect("the trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(trace["otherData"]["lost"], 0);
    let slices: Vec<&Value> = trace["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|e| e["ph"] == "X")
        .collect();
    for lane in 0..2 {
        let mut end = 0.0;
        for slice in slices.iter().filter(|slice| slice["tid"] == lane) {
            let (start, took) = (slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap());
            assert!(start >= end - 0.002, "{slice} begins before {end}");
            end = start + took;
        }
    }
    let works = |name: &str, phase: &str, step: u64| {
        let of = |slice: &&&Value| {
            let arguments = &slice["args"];
            slice["name"] == name && arguments["phase"] == phase && arguments["step"] == step
        };
        slices.iter().filter(of).count()
    };
    // Of the five tokens the prompt gives the first; the last is not run.
    for step in 1..=4 {
        assert_eq!(works("output", "decode", step), 2, "both shards of step {step}");
    }
    assert_eq!(works("output", "prefill", 1), 2);
    assert_eq!(works("load.token_embd.weight", "load", 1), 1);
}

#[test]
fn a_trace_needs_a_prompt_and_a_place() {
    dctms("run --trace out.json").arg(fixture("llama-f16.gguf")).refused(USAGE, &["--trace"]);
    let child = dctms("run --raw -p a -n 1 --trace /no/such/folder/t.json");
    child.arg(fixture("llama-f16.gguf")).refused(1, &["/no/such/folder/t.json"]);
}
