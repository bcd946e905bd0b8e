//! The simulator itself: it must catch races that are known to be there; and plans small enough
//! to try every interleaving show that neither it nor the checker lets one pass.

use dctms_ir::Plan;
use dctms_testkit::generate::{Extent, Level};
use dctms_testkit::mutate::{Kind, mutate};
use dctms_testkit::{Policy, Random, arrange, exhaust, generate, simulate};
use dctms_verifier::{Rule, verify};

fn plan(random: &mut Random, ops: usize, lanes: usize) -> Plan {
    let program = generate::program(random, Extent { level: Level::Legal, phases: 1, ops });
    arrange::plan(random, program, lanes)
}

/// Whether random interleavings find a corruption.
fn is_caught(random: &mut Random, plan: &Plan, rounds: usize) -> bool {
    (0..rounds).any(|round| simulate(plan, random, Policy::ALL[round % 4], 4).is_err())
}

#[test]
fn seeded_races_are_caught() {
    let (mut races, mut caught) = (0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut plan = plan(&mut random, 6, 3);
        // No order left but the lanes'.
        for schedule in &mut plan.schedules {
            schedule.events = 0;
            for task in schedule.lanes.iter_mut().flatten() {
                task.waits.clear();
                task.signals = None;
            }
        }
        if verify(&plan.program, &plan).is_ok() {
            assert!(!is_caught(&mut random, &plan, 40), "seed {seed}");
            continue;
        }
        races += 1;
        caught += usize::from(is_caught(&mut random, &plan, 40));
    }
    println!("{caught} of {races} races caught");
    assert!(races > 60 && caught * 100 >= races * 98);
}

#[test]
fn a_shared_byte_is_caught_by_name() {
    let mut random = Random::new(3);
    let original = plan(&mut random, 5, 2);
    let transients: Vec<usize> = (0..original.placements.len())
        .filter(|id| original.placements[*id].interval.is_some())
        .collect();
    let (mut wrong, mut caught) = (0, 0);
    for a in &transients {
        for b in &transients {
            let mut plan = original.clone();
            plan.placements[*a].offset = original.placements[*b].offset;
            if let Err(violations) = verify(&plan.program, &plan)
                && violations.iter().any(|v| matches!(v.rule, Rule::R2 | Rule::R3))
            {
                wrong += 1;
                caught += usize::from(is_caught(&mut random, &plan, 40));
            }
        }
    }
    println!("{caught} of {wrong} shared places caught");
    // Some are refused although no run can show it: a shard of no units still counts.
    assert!(wrong > 20 && caught * 10 >= wrong * 8);
}

/// Every interleaving of tiny plans: what the checker accepts is right in all of them. How much
/// of what it refuses is really wrong says how much it gives away.
#[test]
fn every_interleaving_of_tiny_plans() {
    let (mut tried, mut accepted, mut refused, mut wrong) = (0, 0, 0, 0);
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let mut plan = plan(&mut random, 2, 2);
        let phase = 1;
        let tasks = plan.schedules[phase].lanes.iter().map(Vec::len).sum::<usize>();
        if tasks > 10 {
            continue;
        }
        let kinds =
            [Kind::Offset, Kind::SwapOffsets, Kind::DropWait, Kind::SwapTasks, Kind::MoveTask];
        if seed % 4 > 0 {
            mutate(&mut random, &mut plan, kinds[seed as usize % kinds.len()]);
        }
        let verdict = verify(&plan.program, &plan);
        let all = exhaust(&plan, &[0, phase], 600);
        match (verdict, all) {
            (Ok(_), Ok(count)) => {
                accepted += 1;
                tried += count;
            }
            (Ok(_), Err(corruption)) => panic!("seed {seed}: accepted, but {corruption:?}"),
            (Err(violations), all) => {
                // Only order and sharing can be judged by one walk through the flow.
                if violations.iter().all(|violation| violation.rule == Rule::R2) {
                    refused += 1;
                    wrong += usize::from(all.is_err());
                }
            }
        }
    }
    println!("{accepted} accepted ({tried} interleavings), {refused} refused, {wrong} wrong");
    assert!(accepted > 20 && refused > 5 && wrong * 10 >= refused * 5);
}
