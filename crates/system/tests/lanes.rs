//! The lanes as a caller sees them: steps, events, barriers, panics.

use dctms_system::SystemError;
use dctms_system::events::{Event, SpinPolicy};
use dctms_system::lanes::{Lanes, LanesConfig, Pinning};
use std::sync::atomic::{AtomicU64, Ordering};

fn config(lanes: usize, spin: SpinPolicy) -> LanesConfig {
    LanesConfig { lanes, stack_bytes: 128 << 10, events: 4, spin, pinning: Pinning::Free }
}

#[test]
fn every_lane_runs_every_step_once() {
    for lanes in [1, 2, 3, 8] {
        for spin in [SpinPolicy::SLEEP, SpinPolicy::SPIN] {
            let mut threads = Lanes::start(&config(lanes, spin)).unwrap();
            let runs: Vec<AtomicU64> = (0..lanes).map(|_| AtomicU64::new(0)).collect();
            for step in 1..=300 {
                threads
                    .run(&|lane| {
                        assert_eq!(lane.count(), lanes);
                        runs[lane.index].fetch_add(1, Ordering::Relaxed);
                    })
                    .unwrap();
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == step));
            }
        }
    }
}

/// Lane i writes cell i, waits for its neighbour's event, reads the neighbour's cell.
#[test]
fn events_order_writes_before_reads() {
    for (lanes, spin) in [(2, SpinPolicy::SPIN), (2, SpinPolicy::SLEEP), (4, SpinPolicy::SLEEP)] {
        let mut threads = Lanes::start(&config(lanes, spin)).unwrap();
        let cells: Vec<AtomicU64> = (0..lanes).map(|_| AtomicU64::new(0)).collect();
        for step in 1..=2000_u32 {
            threads
                .run(&|lane| {
                    cells[lane.index].store(u64::from(step), Ordering::Relaxed);
                    lane.signal(lane.index);
                    let neighbour = (lane.index + 1) % lanes;
                    lane.wait(neighbour, Event::target(step, 1)).unwrap();
                    assert_eq!(cells[neighbour].load(Ordering::Relaxed), u64::from(step));
                })
                .unwrap();
        }
    }
}

#[test]
fn barriers_separate_the_parts_of_a_step() {
    for lanes in [1, 2, 5] {
        let spin = SpinPolicy { longest_us: 2, between_us: 2 };
        let mut threads = Lanes::start(&config(lanes, spin)).unwrap();
        let arrived = AtomicU64::new(0);
        for _ in 0..50 {
            threads
                .run(&|lane| {
                    for _ in 0..7 {
                        arrived.fetch_add(1, Ordering::Relaxed);
                        lane.barrier().unwrap();
                        assert_eq!(arrived.load(Ordering::Relaxed) % lanes as u64, 0);
                        lane.barrier().unwrap();
                    }
                })
                .unwrap();
        }
        assert_eq!(arrived.load(Ordering::Relaxed), 350 * lanes as u64);
    }
}

#[test]
fn a_panic_ends_every_wait_and_is_reported() {
    std::panic::set_hook(Box::new(|_| ()));
    for spin in [SpinPolicy::SLEEP, SpinPolicy::SPIN] {
        let mut threads = Lanes::start(&config(4, spin)).unwrap();
        let result = threads.run(&|lane| match lane.index {
            2 => panic!("expected"),
            3 => assert!(lane.barrier().is_err()),
            _ => assert!(lane.wait(0, 1).is_err()),
        });
        assert_eq!(result, Err(SystemError::LanePanicked { lane: 2 }));
        let again = threads.run(&|_| unreachable!("poisoned lanes run nothing"));
        assert_eq!(again, Err(SystemError::LanePanicked { lane: 2 }));
    }
}

#[test]
fn a_step_of_the_caller_alone_runs_on_no_other_lane_and_poisons_too() {
    std::panic::set_hook(Box::new(|_| ()));
    let mut threads = Lanes::start(&config(3, SpinPolicy::SPIN)).unwrap();
    let ran = AtomicU64::new(0);
    for _ in 0..20 {
        threads
            .run_alone(|lane| _ = ran.fetch_add(1 + lane.index as u64, Ordering::Relaxed))
            .unwrap();
        threads.run(&|_| _ = ran.fetch_add(100, Ordering::Relaxed)).unwrap();
    }
    assert_eq!(ran.load(Ordering::Relaxed), 20 * 301);
    let alone = || threads.run_alone(|_| panic!("expected")).unwrap();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(alone)).is_err());
    let again = threads.run(&|_| unreachable!("poisoned lanes run nothing"));
    assert_eq!(again, Err(SystemError::LanePanicked { lane: 0 }));
}

#[test]
fn impossible_configurations_are_refused() {
    for lanes in [0, 257] {
        let error = Lanes::start(&config(lanes, SpinPolicy::SLEEP)).unwrap_err();
        assert!(matches!(error, SystemError::Bound { what: "lanes", value, .. } if value == lanes));
    }
    let small = LanesConfig { stack_bytes: 4096, ..config(2, SpinPolicy::SLEEP) };
    assert!(matches!(Lanes::start(&small), Err(SystemError::Bound { value: 4096, .. })));
}
