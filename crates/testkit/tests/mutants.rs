//! The checker against the simulator: right plans are accepted and compute right; whatever the
//! checker accepts among mutants, no interleaving corrupts.
//!
//! `DCTMS_MUTANTS=12000 cargo test --release -p dctms-testkit` makes 40,000 mutants; without it
//! each test stops at its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dctms_ir::join::Steps;
use dctms_ir::{Plan, json};
use dctms_testkit::generate::{Extent, Level};
use dctms_testkit::mutate::{Kind, mutate};
use dctms_testkit::{Policy, Random, arrange, generate, simulate};
use dctms_verifier::{Rule, verify};

/// Seeds to try and the time to take for them: a fixed count when asked for, else a budget.
fn seeds(default: u64, seconds: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var("DCTMS_MUTANTS").ok().and_then(|text| text.parse::<u64>().ok());
    let start = Instant::now();
    (0..asked.unwrap_or(default))
        .take_while(move |_| asked.is_some() || start.elapsed() < Duration::from_secs(seconds))
}

fn random_plan(random: &mut Random) -> Plan {
    let extent = Extent {
        level: Level::Legal,
        phases: random.between(1, 3) as usize,
        ops: random.between(2, 8) as usize,
    };
    let lanes = random.between(1, 4) as usize;
    // Every fourth program is several, resident together; every fourth has regions.
    let program = match random.below(8) {
        2 | 3 => generate::with_regions(random, extent),
        0 => generate::joined(random, 2, extent, Steps::Exclusive),
        1 => generate::joined(random, 2, extent, Steps::Overlapping),
        _ => generate::program(random, extent),
    };
    arrange::plan(random, program, lanes)
}

#[test]
fn right_plans_are_accepted_and_compute_right() {
    for seed in seeds(400, 3) {
        let mut random = Random::new(seed);
        let plan = random_plan(&mut random);
        if let Err(violations) = verify(&plan.program, &plan) {
            for violation in violations.iter().take(5) {
                println!("{violation}");
            }
            panic!("seed {seed}: a right plan is refused");
        }
        for policy in Policy::ALL {
            if let Err(corruption) = simulate(&plan, &mut random, policy, 6) {
                panic!("seed {seed}, {policy:?}: {corruption:?}");
            }
        }
        assert!(json::read(&json::write(&plan)).expect("reads back") == plan, "seed {seed}");
    }
}

/// Mutants by kind: made, accepted, and of those refused, corrupted by the simulator.
#[derive(Default)]
struct Tally {
    made: usize,
    accepted: usize,
    refused: usize,
    corrupted: usize,
}

#[test]
fn no_accepted_mutant_can_be_corrupted() {
    let mut tally: BTreeMap<Kind, Tally> = BTreeMap::new();
    for seed in seeds(12_000, 5) {
        let mut random = Random::new(seed ^ 0x5EED_0000_0000);
        let original = random_plan(&mut random);
        for _ in 0..4 {
            let mut plan = original.clone();
            let kind = *random.pick(&Kind::ALL);
            let mut what = Vec::new();
            for _ in 0..=random.below(2) {
                what.extend(mutate(&mut random, &mut plan, kind));
            }
            if what.is_empty() || plan == original {
                continue;
            }
            judge(&mut random, &plan, seed, &what, tally.entry(kind).or_default());
        }
    }
    for (kind, row) in &tally {
        println!(
            "{kind:?}: {} mutants, {} accepted, {} refused of which {} corrupted",
            row.made, row.accepted, row.refused, row.corrupted
        );
    }
    assert_eq!(tally.len(), Kind::ALL.len(), "every kind of mutation was tried");
}

fn judge(random: &mut Random, plan: &Plan, seed: u64, what: &[String], row: &mut Tally) {
    row.made += 1;
    match verify(&plan.program, plan) {
        Ok(_) => {
            row.accepted += 1;
            for round in 0..12 {
                let policy = Policy::ALL[round % Policy::ALL.len()];
                if let Err(corruption) = simulate(plan, random, policy, 8) {
                    panic!("seed {seed}, {what:?}, accepted, but {policy:?}: {corruption:?}");
                }
            }
        }
        Err(violations) => {
            row.refused += 1;
            let runs = violations
                .iter()
                .all(|violation| !matches!(violation.rule, Rule::Form | Rule::Contract | Rule::R5));
            // A sample shows that the simulator has teeth.
            let corrupted = runs
                && row.refused < 100
                && (0..8).any(|round| simulate(plan, random, Policy::ALL[round % 4], 8).is_err());
            row.corrupted += usize::from(corrupted);
        }
    }
}
