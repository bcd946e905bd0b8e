//! Concurrent regions: the real planner shares lanes between two random streams, the checker
//! accepts it, and no interleaving corrupts it. Every order between the streams is then taken away,
//! one after the other: the checker refuses what is left, or nothing can go wrong without it.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dctms_ir::region::{Streams, stream_of};
use dctms_ir::{EventId, Plan};
use dctms_planner::Activations;
use dctms_testkit::generate::{self, Extent, Level};
use dctms_testkit::{Policy, Random, simulate};
use dctms_verifier::verify;

fn plan(random: &mut Random) -> Plan {
    let extent = Extent {
        level: Level::Logical,
        phases: random.between(2, 3) as usize,
        ops: random.between(2, 8) as usize,
    };
    let program = generate::with_regions(random, extent);
    let lanes = random.between(2, 5) as u32;
    support::plan_of(&program, support::bounds(1), lanes, Activations::Quantised)
}

/// Phases that are regions.
fn regions(plan: &Plan) -> Vec<usize> {
    let phases = plan.program.phases.iter().enumerate();
    phases.filter(|(_, phase)| Streams::of(phase).is_some()).map(|(index, _)| index).collect()
}

/// Waits by which a task of one stream comes after one of the other: (phase, lane, task, event).
fn orders_across(plan: &Plan) -> Vec<(usize, usize, usize, EventId)> {
    let mut found = Vec::new();
    for phase in regions(plan) {
        let ops = &plan.program.phases[phase].ops;
        let lanes = &plan.schedules[phase].lanes;
        let signalled = |event: EventId| -> BTreeSet<&str> {
            let tasks = lanes.iter().flatten().filter(|task| task.signals == Some(event));
            tasks.map(|task| stream_of(&ops[task.op.index()])).collect()
        };
        for (lane, tasks) in lanes.iter().enumerate() {
            for (index, task) in tasks.iter().enumerate() {
                let own = BTreeSet::from([stream_of(&ops[task.op.index()])]);
                let across = task.waits.iter().filter(|event| signalled(**event) != own);
                found.extend(across.map(|event| (phase, lane, index, *event)));
            }
        }
    }
    found
}

/// Whether each stream of a region has lanes of its own at its start.
fn is_apart(plan: &Plan, phase: usize) -> bool {
    let ops = &plan.program.phases[phase].ops;
    let first = plan.schedules[phase].lanes.iter().filter_map(|tasks| tasks.first());
    let streams: BTreeSet<&str> = first.map(|task| stream_of(&ops[task.op.index()])).collect();
    streams.len() == 2
}

#[test]
fn regions_are_planned_right() {
    let start = Instant::now();
    let (mut planned, mut apart, mut ordered) = (0, 0, 0);
    for seed in 0..600 {
        if start.elapsed() > Duration::from_secs(4) {
            break;
        }
        let mut random = Random::new(seed);
        let plan = plan(&mut random);
        if let Err(violations) = verify(&plan.program, &plan) {
            panic!("seed {seed}: {}", violations[0]);
        }
        for policy in Policy::ALL {
            assert_eq!(simulate(&plan, &mut random, policy, 6), Ok(()), "seed {seed}");
        }
        planned += regions(&plan).len();
        apart += regions(&plan).iter().filter(|phase| is_apart(&plan, **phase)).count();
        ordered += usize::from(!orders_across(&plan).is_empty());
    }
    println!("{planned} regions, {apart} with lanes for each stream, {ordered} plans with order");
    assert!(planned > 20 && apart * 3 > planned && ordered > 5);
}

#[test]
fn no_order_between_streams_can_be_left_out() {
    let start = Instant::now();
    let (mut refused, mut harmless, mut about_embeddings) = (0, 0, 0);
    for seed in 0..2000 {
        if start.elapsed() > Duration::from_secs(4) {
            break;
        }
        let mut random = Random::new(seed ^ 0xACE);
        let plan = plan(&mut random);
        for (phase, lane, index, event) in orders_across(&plan) {
            // A wait less; and the event gone, with all its signals and waits.
            let mut less = plan.clone();
            let task = &mut less.schedules[phase].lanes[lane][index];
            task.waits.retain(|wait| *wait != event);
            let mut gone = plan.clone();
            let last = EventId(gone.schedules[phase].events - 1);
            let renamed = |id: EventId| if id == last { event } else { id };
            for task in gone.schedules[phase].lanes.iter_mut().flatten() {
                task.waits.retain(|wait| *wait != event);
                task.waits.iter_mut().for_each(|wait| *wait = renamed(*wait));
                task.signals = task.signals.filter(|signal| *signal != event).map(renamed);
            }
            gone.schedules[phase].events -= 1;
            for mutant in [less, gone] {
                if let Err(violations) = verify(&mutant.program, &mutant) {
                    refused += 1;
                    // The rows that one stream places and the other takes, as in a model that sees.
                    let is_named = violations.iter().any(|one| one.to_string().contains("images"));
                    about_embeddings += usize::from(is_named);
                    continue;
                }
                harmless += 1;
                for policy in Policy::ALL {
                    let ran = simulate(&mutant, &mut random, policy, 8);
                    assert_eq!(ran, Ok(()), "seed {seed}: event {event:?} was needed");
                }
            }
        }
    }
    println!("{refused} refused ({about_embeddings} about embeddings), {harmless} harmless");
    assert!(refused > 20 && about_embeddings > 0);
}
