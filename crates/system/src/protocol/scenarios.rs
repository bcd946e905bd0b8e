//! The protocol of events under the model checker, and broken protocols that it must catch.
//!
//! Every run with so many involuntary switches is tried; `DCTMS_MODEL_SWITCHES=n` adds n to each
//! scenario's own number, for a longer search.

use super::model::{Body, Bounds, Handle, ModelWord, explore};
use super::{ONE, SLEEPING, Word, poison, reached, signal, wait};
use crate::events::Event;
use std::sync::atomic::Ordering;

const SMALL: Bounds =
    Bounds { words: 1, cells: 3, preemptions: 99, stale_loads: 1, runs: 4_000_000 };

fn never() -> bool {
    false
}

fn check(bounds: Bounds, bodies: &[Body<'_>]) {
    let more = std::env::var("DCTMS_MODEL_SWITCHES").ok().and_then(|more| more.parse().ok());
    let preemptions = bounds.preemptions + more.unwrap_or(0);
    let runs = explore(Bounds { preemptions, ..bounds }, bodies)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(runs > 1, "nothing was explored");
    println!("{runs} runs");
}

#[test]
fn one_signal_reaches_one_waiter() {
    for spins in [0, 1, 2] {
        let signaller = |h: &Handle<'_>| {
            h.write(0);
            signal(&h.word(0));
        };
        let waiter = |h: &Handle<'_>| {
            wait(&h.word(0), 1, spins, never).unwrap();
            h.read(0);
        };
        check(SMALL, &[&signaller, &waiter]);
    }
}

#[test]
fn a_waiter_sees_the_writes_of_every_signaller() {
    let bounds = Bounds { preemptions: 3, ..SMALL };
    let first = |h: &Handle<'_>| {
        h.write(0);
        signal(&h.word(0));
    };
    let second = |h: &Handle<'_>| {
        h.write(1);
        signal(&h.word(0));
    };
    let waiter = |h: &Handle<'_>| {
        wait(&h.word(0), 2, 0, never).unwrap();
        h.read(0);
        h.read(1);
    };
    check(bounds, &[&first, &second, &waiter]);
}

#[test]
fn two_waiters_of_different_targets_both_wake() {
    let bounds = Bounds { preemptions: 1, ..SMALL };
    let signaller = |h: &Handle<'_>| {
        h.write(0);
        signal(&h.word(0));
        h.write(1);
        signal(&h.word(0));
    };
    let early = |h: &Handle<'_>| {
        wait(&h.word(0), 1, 0, never).unwrap();
        h.read(0);
    };
    let late = |h: &Handle<'_>| {
        wait(&h.word(0), 2, 0, never).unwrap();
        h.read(1);
    };
    check(bounds, &[&signaller, &early, &late]);
}

/// One barrier round: signal, then wait for everybody.
fn cross(h: &Handle<'_>, round: u32, lanes: u32) {
    signal(&h.word(0));
    wait(&h.word(0), Event::target(round, lanes), 0, never).unwrap();
}

#[test]
fn two_lanes_cross_a_barrier_again_and_again() {
    let lane = |own: usize, other: usize| {
        move |h: &Handle<'_>| {
            h.write(own);
            cross(h, 1, 2);
            h.read(other);
            cross(h, 2, 2);
            h.write(own);
        }
    };
    check(Bounds { preemptions: 3, ..SMALL }, &[&lane(0, 1), &lane(1, 0)]);
}

#[test]
fn three_lanes_cross_a_barrier() {
    let lane = |own: usize, other: usize| {
        move |h: &Handle<'_>| {
            h.write(own);
            cross(h, 1, 3);
            h.read(other);
        }
    };
    let bounds = Bounds { preemptions: 1, ..SMALL };
    check(bounds, &[&lane(0, 1), &lane(1, 2), &lane(2, 0)]);
}

/// Word 0 is `start`, word 1 is `done`; cell 0 is the step, cell 1 its result.
#[test]
fn steps_hand_the_closure_out_and_take_the_result_back() {
    let caller = |h: &Handle<'_>| {
        for step in 1..=2 {
            h.write(0);
            signal(&h.word(0));
            wait(&h.word(1), step, 0, never).unwrap();
            h.read(1);
        }
    };
    let worker = |h: &Handle<'_>| {
        for step in 1..=2 {
            wait(&h.word(0), step, 0, never).unwrap();
            h.read(0);
            h.write(1);
            signal(&h.word(1));
        }
    };
    check(Bounds { words: 2, preemptions: 2, ..SMALL }, &[&caller, &worker]);
}

/// Word 1 is the flag. However the poison falls, the waiter returns, and never as if served.
#[test]
fn poison_ends_every_wait() {
    let signaller = |h: &Handle<'_>| signal(&h.word(0));
    let poisoner = |h: &Handle<'_>| {
        h.word(1).fetch_add(1, Ordering::Release);
        poison(&h.word(0));
    };
    let waiter = |h: &Handle<'_>| {
        let flag = h.word(1);
        // One signal is missing for ever: only the poison's own count can reach the target.
        let waited = wait(&h.word(0), 2, 0, || flag.load(Ordering::Relaxed) != 0);
        assert!(waited.is_err(), "{}", "a poisoned wait reported success");
    };
    check(Bounds { words: 2, preemptions: 2, ..SMALL }, &[&signaller, &poisoner, &waiter]);
}

/// Explores a signaller that passes a cell to a waiter, both given.
fn explore_pair(
    signal: impl Fn(&ModelWord<'_>) + Sync,
    wait: impl Fn(&ModelWord<'_>) + Sync,
) -> Result<usize, String> {
    std::panic::set_hook(Box::new(|_| ()));
    let signaller = |h: &Handle<'_>| {
        h.write(0);
        signal(&h.word(0));
    };
    let waiter = |h: &Handle<'_>| {
        wait(&h.word(0));
        h.read(0);
    };
    explore(SMALL, &[&signaller, &waiter])
}

fn good_signal(word: &ModelWord<'_>) {
    signal(word);
}

fn good_wait(word: &ModelWord<'_>) {
    wait(word, 1, 0, never).unwrap();
}

#[test]
fn the_checker_catches_broken_protocols() {
    let no_wake = |word: &ModelWord<'_>| {
        word.fetch_add(ONE, Ordering::AcqRel);
    };
    let relaxed = |word: &ModelWord<'_>| {
        if word.fetch_add(ONE, Ordering::Relaxed) & SLEEPING != 0 {
            word.fetch_and(!SLEEPING, Ordering::Relaxed);
            word.wake_all();
        }
    };
    let wake_before_count = |word: &ModelWord<'_>| {
        if word.load(Ordering::Relaxed) & SLEEPING != 0 {
            word.wake_all();
        }
        word.fetch_add(ONE, Ordering::AcqRel);
    };
    let sleep_unannounced = |word: &ModelWord<'_>| {
        let mut seen = word.load(Ordering::Acquire);
        while !reached(seen, 1) {
            word.sleep(seen);
            seen = word.load(Ordering::Acquire);
        }
    };
    let trust_relaxed_loads = |word: &ModelWord<'_>| {
        while !reached(word.load(Ordering::Relaxed), 1) {
            let seen = word.load(Ordering::Relaxed);
            if word.compare_exchange(seen, seen | SLEEPING).is_ok() && !reached(seen, 1) {
                word.sleep(seen | SLEEPING);
            }
        }
    };
    for (name, result, expected) in [
        ("no wake", explore_pair(no_wake, good_wait), "deadlock"),
        ("relaxed signal", explore_pair(relaxed, good_wait), "race"),
        ("wake before count", explore_pair(wake_before_count, good_wait), "deadlock"),
        ("sleep unannounced", explore_pair(good_signal, sleep_unannounced), "deadlock"),
        ("relaxed wait", explore_pair(good_signal, trust_relaxed_loads), "race"),
    ] {
        let failure = result.expect_err(name);
        assert!(failure.contains(expected), "{name}: {failure}");
    }
    explore_pair(good_signal, good_wait).unwrap();
}
