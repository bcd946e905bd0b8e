//! The real planner's plans of the four architectures: accepted, printed and read back.

mod support;

use std::time::Instant;

use support::{GEMMA3, LLAMA, LLAMA_70B, QWEN2, QWEN3};

#[test]
fn real_plans_are_accepted_and_round_trip() {
    for shape in [LLAMA, QWEN2, QWEN3, GEMMA3] {
        for lanes in [1, 2, 3, 8] {
            let plan = support::plan(shape, lanes, 2);
            let start = Instant::now();
            let verdict = dctms_verifier::verify(&plan.program, &plan);
            println!(
                "{} {lanes} lanes: {} tensors, transient {} / {}, {:?}",
                shape.architecture,
                plan.program.tensors.len(),
                plan.arena.transient_bytes,
                plan.arena.transient_live_peak_bytes,
                start.elapsed()
            );
            if let Err(violations) = &verdict {
                for violation in violations.iter().take(20) {
                    println!("  {violation}");
                }
                panic!("{} on {lanes} lanes: {} violations", shape.architecture, violations.len());
            }
            let text = dctms_ir::json::write(&plan);
            let read = dctms_ir::json::read(&text).expect("reads back");
            assert!(read == plan, "{} on {lanes} lanes", shape.architecture);
            assert!(verdict.expect("accepted").is_of(&read));
        }
    }
}

#[test]
#[ignore = "timing: run with --release"]
fn large_plans_are_checked_quickly() {
    for (shape, lanes) in [(LLAMA, 2), (LLAMA_70B, 8)] {
        let plan = support::plan(shape, lanes, 1);
        let start = Instant::now();
        let text = dctms_ir::json::write(&plan);
        println!("write: {} bytes {:?}", text.len(), start.elapsed());
        let start = Instant::now();
        dctms_ir::json::read(&text).expect("reads back");
        println!("read: {:?}", start.elapsed());
        let start = Instant::now();
        let verdict = dctms_verifier::verify(&plan.program, &plan);
        println!("verify: {:?} {}", start.elapsed(), verdict.is_ok());
    }
}
