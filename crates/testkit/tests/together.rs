//! Models that are resident together: the real planner's joint plans are accepted by the checker
//! and by the stranger's rules, compute right in every interleaving, alone and at the same time,
//! and take no more than they must.

mod support;

use std::time::{Duration, Instant};

use dctms_ir::join::{JoinError, Steps, join};
use dctms_ir::{Plan, Program, Residence, json};
use dctms_testkit::generate::{self, Extent, Level};
use dctms_testkit::mutate::{Kind, mutate};
use dctms_testkit::{Policy, Random, arrange, simulate};
use dctms_verifier::{Rule, verify};
use support::{GEMMA3, LLAMA, LLAMA_70B, QWEN2, QWEN3, Shape};

/// Few layers: what is asked here does not depend on depth.
fn small(shape: Shape) -> Program {
    support::program(Shape { layers: 2, ..shape }, 1)
}

fn accepted(plan: &Plan, what: &str) {
    if let Err(violations) = verify(&plan.program, plan) {
        let first: Vec<String> = violations.iter().take(5).map(ToString::to_string).collect();
        panic!("{what}: {first:#?}");
    }
}

/// Bytes of a plan's terms: weights, caches, persistent, intermediate.
fn terms(plan: &Plan) -> [u64; 4] {
    let envelope = &plan.envelope;
    [envelope.weights, envelope.kv, envelope.persistent, envelope.intermediate]
}

#[test]
fn joint_plans_are_accepted_and_add_up() {
    for shapes in [vec![LLAMA, GEMMA3], vec![QWEN2, QWEN2], vec![LLAMA, QWEN3, GEMMA3]] {
        let programs: Vec<Program> = shapes.iter().map(|shape| small(*shape)).collect();
        let alone = |program: &Program| {
            support::together(std::slice::from_ref(program), 2, Steps::Exclusive)
        };
        let alone: Vec<[u64; 4]> = programs.iter().map(alone).map(|plan| terms(&plan)).collect();
        let sum = |term: usize| alone.iter().map(|terms| terms[term]).sum::<u64>();
        let most = alone.iter().map(|terms| terms[3]).max().unwrap();
        for lanes in [1, 2, 4, 8] {
            for steps in [Steps::Exclusive, Steps::Overlapping] {
                let plan = support::together(&programs, lanes, steps);
                accepted(&plan, &format!("{} models on {lanes} lanes, {steps:?}", shapes.len()));
                let text = json::write(&plan);
                assert!(json::read(&text).expect("reads back") == plan);
                let arena = &plan.arena;
                if steps == Steps::Exclusive {
                    assert_eq!(arena.transient_bytes, arena.transient_live_peak_bytes);
                    assert!(arena.live_peak_bytes * 100 > arena.bytes * 99);
                }
                if lanes != 2 {
                    continue;
                }
                let joint = terms(&plan);
                assert_eq!([joint[0], joint[1]], [sum(0), sum(1)]);
                assert!(joint[2] <= sum(2) + 4096);
                match steps {
                    Steps::Exclusive => assert_eq!(joint[3], most),
                    Steps::Overlapping => assert!(joint[3] > most && joint[3] <= sum(3)),
                }
            }
        }
    }
}

#[test]
fn every_tensor_says_whose_it_is() {
    let plan = support::together(&[small(LLAMA), small(GEMMA3)], 2, Steps::Exclusive);
    assert_eq!(plan.program.models.len(), 2);
    for tensor in &plan.program.tensors {
        let label = if tensor.model == 0 { "a:" } else { "b:" };
        assert!(tensor.name.starts_with(label), "{}", tensor.name);
    }
    let names: Vec<&str> = plan.program.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names[..4], ["a:load", "a:prefill", "a:decode", "a:sample"]);
    assert_eq!(names[4..], ["b:load", "b:prefill", "b:decode", "b:sample"]);
    // One program stays as it is.
    let single = small(LLAMA);
    assert_eq!(join(std::slice::from_ref(&single), Steps::Overlapping), Ok(single));
}

#[test]
fn a_program_has_only_so_many_phases() {
    let programs = vec![support::program(Shape { layers: 1, ..LLAMA }, 1); 17];
    assert_eq!(join(&programs, Steps::Exclusive), Err(JoinError::Phases { count: 68 }));
    accepted(&support::together(&programs[..16], 1, Steps::Overlapping), "sixteen models");
}

#[test]
fn no_interleaving_corrupts_joint_plans() {
    let mut random = Random::new(7);
    for steps in [Steps::Exclusive, Steps::Overlapping] {
        let plan = support::together(&[small(LLAMA), small(QWEN3)], 2, steps);
        for policy in Policy::ALL {
            assert_eq!(simulate(&plan, &mut random, policy, 8), Ok(()), "{steps:?}");
        }
    }
}

/// The plan for one step at a time, declared to overlap: the checker sees it, and the simulator
/// shows what would come of it.
#[test]
fn a_shared_region_is_not_for_steps_that_overlap() {
    let programs = [small(LLAMA), small(QWEN3)];
    let mut plan = support::together(&programs, 2, Steps::Exclusive);
    plan.program.flow.overlap =
        support::together(&programs, 2, Steps::Overlapping).program.flow.overlap;
    let violations = verify(&plan.program, &plan).expect_err("refused");
    assert!(violations.iter().all(|violation| violation.rule == Rule::R2), "{violations:?}");
    assert!(violations.iter().any(|violation| violation.at.contains("beside")));
    let mut random = Random::new(8);
    let caught =
        (0..20).filter(|round| simulate(&plan, &mut random, Policy::ALL[round % 4], 8).is_err());
    assert!(caught.count() > 10);
}

/// The weights of one model over those of another, and its transients over the other's weights.
#[test]
fn nothing_of_a_resting_model_is_overwritten() {
    let right = support::together(&[small(LLAMA), small(QWEN3)], 2, Steps::Exclusive);
    let find = |model: u32, residence: Residence| {
        let tensors = right.program.tensors.iter();
        let mut found = tensors.zip(0..).filter(move |(tensor, _)| {
            tensor.model == model && tensor.residence == residence && !tensor.name.contains("load")
        });
        found.next().expect("there is one").1
    };
    for residence in [Residence::Constant, Residence::State, Residence::Transient] {
        for kept in [Residence::Constant, Residence::State, Residence::External] {
            let mut plan = right.clone();
            let (onto, moved): (usize, usize) = (find(0, kept), find(1, residence));
            plan.placements[moved].offset = plan.placements[onto].offset;
            let violations = verify(&plan.program, &plan).expect_err("refused");
            let broken = |rule: Rule| violations.iter().any(|violation| violation.rule == rule);
            assert!(broken(Rule::R3) || broken(Rule::R2), "{residence:?} over {kept:?}");
        }
    }
}

/// Random programs joined, by the real planner and at random; with carried values too.
#[test]
fn random_joins_are_planned_right() {
    let start = Instant::now();
    let mut planned = 0;
    for seed in 0..600 {
        if start.elapsed() > Duration::from_secs(4) {
            break;
        }
        let mut random = Random::new(seed ^ 0x10_0000);
        let steps = *random.pick(&[Steps::Exclusive, Steps::Overlapping]);
        let count = random.between(2, 3) as usize;
        let extent = Extent {
            level: Level::Logical,
            phases: random.between(1, 3) as usize,
            ops: random.between(2, 6) as usize,
        };
        let mut programs: Vec<Program> =
            (0..count).map(|_| generate::program(&mut random, extent)).collect();
        if random.once_in(2) {
            programs.iter_mut().for_each(support::carry_as_weights);
        }
        let plan = support::together(&programs, random.between(1, 4) as u32, steps);
        accepted(&plan, &format!("seed {seed}"));
        for policy in Policy::ALL {
            assert_eq!(simulate(&plan, &mut random, policy, 8), Ok(()), "seed {seed}");
        }
        planned += 1;
    }
    println!("{planned} joins planned, accepted and simulated");
}

/// Mutants of joint plans: what is accepted, no interleaving corrupts.
#[test]
fn no_accepted_mutant_of_a_join_can_be_corrupted() {
    let asked = std::env::var("DCTMS_MUTANTS").ok().and_then(|text| text.parse::<usize>().ok());
    let start = Instant::now();
    let (mut made, mut accepted) = (0, 0);
    let mut seed = 0;
    while made < asked.unwrap_or(usize::MAX)
        && (asked.is_some() || start.elapsed() < Duration::from_secs(4))
    {
        seed += 1;
        let mut random = Random::new(seed ^ 0x20_0000);
        let extent = Extent { level: Level::Legal, phases: 2, ops: random.between(2, 4) as usize };
        let program = generate::joined(&mut random, 2, extent, Steps::Overlapping);
        let lanes = random.between(1, 2) as usize;
        let original = arrange::plan(&mut random, program, lanes);
        for _ in 0..8 {
            let mut plan = original.clone();
            let kinds = [Kind::Offset, Kind::SwapOffsets, Kind::Overlap, Kind::Flow];
            let kind = match random.once_in(3) {
                true => *random.pick(&Kind::ALL),
                false => *random.pick(&kinds),
            };
            let what = mutate(&mut random, &mut plan, kind);
            if what.is_none() || plan == original {
                continue;
            }
            made += 1;
            if verify(&plan.program, &plan).is_err() {
                continue;
            }
            accepted += 1;
            for round in 0..8 {
                let policy = Policy::ALL[round % 4];
                if let Err(corruption) = simulate(&plan, &mut random, policy, 8) {
                    panic!("seed {seed}, {what:?}: accepted, but {policy:?}: {corruption:?}");
                }
            }
        }
    }
    println!("{made} mutants of joins, {accepted} accepted, none corrupted");
}

#[test]
#[ignore = "timing: run with --release"]
fn large_joint_plans_are_made_and_checked_quickly() {
    let programs = [LLAMA_70B, QWEN2, GEMMA3].map(|shape| support::program(shape, 1));
    for steps in [Steps::Exclusive, Steps::Overlapping] {
        let start = Instant::now();
        let plan = support::together(&programs, 8, steps);
        println!("{steps:?}: planned in {:?}", start.elapsed());
        let start = Instant::now();
        accepted(&plan, "large");
        println!("{steps:?}: verified in {:?}", start.elapsed());
    }
}
