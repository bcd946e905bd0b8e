//! The real planner's plans of the four architectures: accepted, printed and read back.

mod support;

use std::time::{Duration, Instant};

use dctms_ir::op::{Copies, OpKind};
use dctms_ir::plan::Preference;
use dctms_ir::{Dtype, Plan, Size};
use dctms_planner::Activations;
use dctms_testkit::generate::{self, Extent, Level};
use dctms_testkit::mutate::{Kind, mutate};
use dctms_testkit::{Policy, Random, simulate};
use support::{GEMMA3, LLAMA, LLAMA_70B, QWEN2, QWEN2_LARGE, QWEN3, Shape};

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

/// Lanes meet where a product needs all of a value: four times a layer where the heads of keys
/// divide over the lanes.
#[test]
fn a_decode_step_has_no_cut_too_many() {
    for (shape, expected) in [(LLAMA, 6), (QWEN2, 4), (QWEN3, 4)] {
        let cuts = |layers: u64| {
            let plan = support::plan(Shape { layers, ..shape }, 2, 1);
            let decode = plan.program.phase_named("decode").expect("a decoder");
            plan.schedules[decode.index()].events
        };
        assert_eq!(cuts(3) - cuts(2), expected, "{}", shape.architecture);
    }
}

/// What the user prefers makes a difference at a published shape, where there is one to make.
#[test]
fn memory_first_saves_bytes_where_lanes_drift_apart() {
    let bytes = |preference| {
        let plan = support::preferred(QWEN2_LARGE, preference);
        dctms_verifier::verify(&plan.program, &plan).expect("accepted");
        plan.arena.transient_bytes
    };
    let (latency, memory) = (bytes(Preference::LatencyFirst), bytes(Preference::MemoryFirst));
    assert!(memory * 10 < latency * 9, "{memory} of {latency}");
}

/// Where each lane makes a norm's values for itself, there is a copy for each, and it holds them.
#[test]
fn every_shard_has_a_copy_of_its_own() {
    let plan = support::plan(Shape { layers: 1, ..QWEN2 }, 2, 1);
    let phase = plan.program.phase_named("decode").expect("a decoder").index();
    let ops = &plan.program.phases[phase].ops;
    let own = |kind: &OpKind| match kind {
        OpKind::RmsNormQuantise { copies: Copies::Own { blocks }, .. } => Some(*blocks),
        _ => None,
    };
    let norm = ops.iter().position(|op| own(&op.kind).is_some()).expect("a norm of few values");
    let (blocks, xq) = (own(&ops[norm].kind).expect("found"), ops[norm].outputs[0].index());
    assert_eq!(plan.program.tensors[xq].shape[0], Size::Const(2 * blocks));
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        let found = dctms_verifier::verify(&plan.program, &plan).expect_err("no copies");
        let told = |text: String| text.contains("is no copy of");
        assert!(found.iter().any(|violation| told(violation.to_string())), "{found:?}");
    };
    refused(&|plan| plan.program.tensors[xq].shape[0] = Size::Const(blocks));
    refused(&|plan| plan.program.tensors[xq].shape[0] = Size::Const(3 * blocks));
    refused(&|plan| plan.program.tensors[xq].dtype = Dtype::F32);
    refused(&|plan| {
        let copies = Copies::Own { blocks: QWEN2.hidden / 32 - 1 };
        plan.program.phases[phase].ops[norm].kind =
            OpKind::RmsNormQuantise { epsilon: 1e-6, copies };
    });
}

/// Mutants of the real planner's plans: what is accepted, no interleaving corrupts.
#[test]
fn no_accepted_mutant_of_a_real_plan_can_be_corrupted() {
    let asked = std::env::var("DCTMS_MUTANTS").ok().and_then(|text| text.parse::<usize>().ok());
    let mut plans = Vec::new();
    for shape in [LLAMA, QWEN2, QWEN3, GEMMA3] {
        for lanes in [2, 3] {
            // Gemma's windows come every sixth layer; two layers show both neighbours elsewhere.
            let layers = if shape.window > 0 { 7 } else { 2 };
            plans.push(support::plan(Shape { layers, ..shape }, lanes, 2));
        }
    }
    let mut random = Random::new(2026);
    for plan in &plans {
        for policy in Policy::ALL {
            assert_eq!(simulate(plan, &mut random, policy, 6), Ok(()));
        }
    }
    let start = Instant::now();
    let (mut made, mut accepted) = (0, 0);
    while made < asked.unwrap_or(usize::MAX)
        && (asked.is_some() || start.elapsed() < Duration::from_secs(3))
    {
        let original = random.pick(&plans);
        let mut plan = original.clone();
        let kind = *random.pick(&Kind::ALL);
        let what = mutate(&mut random, &mut plan, kind);
        if what.is_none() || plan == *original {
            continue;
        }
        made += 1;
        if dctms_verifier::verify(&plan.program, &plan).is_err() {
            continue;
        }
        accepted += 1;
        for policy in Policy::ALL {
            if let Err(corruption) = simulate(&plan, &mut random, policy, 4) {
                panic!("{kind:?} {what:?}: accepted, but {policy:?}: {corruption:?}");
            }
        }
    }
    println!("{made} mutants of real plans, {accepted} accepted, none corrupted");
}

/// The real planner on random programs that no model would write.
#[test]
fn random_programs_are_planned_right() {
    let start = Instant::now();
    let mut planned = 0;
    for seed in 0..600 {
        if start.elapsed() > Duration::from_secs(3) {
            break;
        }
        let mut random = Random::new(seed);
        let extent = Extent {
            level: Level::Logical,
            phases: random.between(1, 3) as usize,
            ops: random.between(2, 10) as usize,
        };
        let mut program = generate::program(&mut random, extent);
        if random.once_in(2) {
            support::carry_as_weights(&mut program);
        }
        let lanes = random.between(1, 5) as u32;
        let activations = match random.once_in(2) {
            true => Activations::Quantised,
            false => Activations::Float,
        };
        let plan = support::plan_of(&program, support::bounds(1), lanes, activations);
        if let Err(violations) = dctms_verifier::verify(&plan.program, &plan) {
            panic!("seed {seed}: {}", violations[0]);
        }
        for policy in Policy::ALL {
            assert_eq!(simulate(&plan, &mut random, policy, 6), Ok(()), "seed {seed}");
        }
        planned += 1;
    }
    println!("{planned} random programs planned, accepted and simulated");
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
