//! A prefill that is interrupted: it stops inside a chunk, and what comes after it is as if it had
//! not been.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{Setup, tiny};
use dctms_engine::runner::{Prefilled, Runner, Step};

const CONTEXT: usize = 700;

/// Tasks that may still begin, counted down; stop at 0.
static LEFT: AtomicU32 = AtomicU32::new(NEVER);

/// More tasks than any prefill here has.
const NEVER: u32 = 1 << 30;

fn stop_when_none_is_left() -> bool {
    let down = |left: u32| Some(left.saturating_sub(1));
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down) == Ok(0)
}

fn logits(runner: &Runner) -> Vec<u32> {
    (0..runner.vocabulary()).map(|token| runner.logit(0, token).to_bits()).collect()
}

fn prefill(runner: &mut Runner, tokens: &[u32], position: u32) -> Prefilled {
    runner.prefill(0, tokens, position, &mut |_| true).expect("within bounds")
}

#[test]
fn what_follows_is_as_if_it_had_not_been() {
    // With sliding windows rings wrap many times, and an interrupted chunk has overwritten what
    // is no longer seen.
    for file in ["gemma3-f16.gguf", "llama-f16.gguf"] {
        let model = tiny(file);
        let tokens: Vec<u32> = (0..600u32).map(|index| (index * 31 + 7) % 270).collect();
        let (first, second) = tokens.split_at(300);
        for lanes in [1, 2] {
            let mut runner = Setup { chunk: 64, lanes, ..Setup::new(CONTEXT) }.start(&model);
            runner.interrupt_by(stop_when_none_is_left);
            LEFT.store(NEVER, Ordering::Relaxed);
            assert_eq!(prefill(&mut runner, first, 0), Prefilled::Whole);
            LEFT.store(NEVER, Ordering::Relaxed);
            assert_eq!(prefill(&mut runner, second, 300), Prefilled::Whole);
            let all = NEVER - LEFT.load(Ordering::Relaxed);
            let expected = logits(&runner);
            runner.decode(&[Step { slot: 0, token: 5, position: 600 }]).expect("room");
            let decoded = logits(&runner);
            let mut stops = Vec::new();
            for tasks in (0..all).step_by(all as usize / 12).chain([1, 2, 5, all - 1]) {
                assert_eq!(prefill(&mut runner, first, 0), Prefilled::Whole);
                LEFT.store(tasks, Ordering::Relaxed);
                let stopped = prefill(&mut runner, second, 300);
                let Prefilled::Stopped { done } = stopped else { panic!("{tasks} tasks are all") };
                stops.push(done);
                LEFT.store(NEVER, Ordering::Relaxed);
                let rest = prefill(&mut runner, &second[done..], 300 + done as u32);
                assert_eq!(rest, Prefilled::Whole);
                assert_eq!(logits(&runner), expected, "{file}, {lanes} lanes, {tasks} tasks");
                runner.decode(&[Step { slot: 0, token: 5, position: 600 }]).expect("room");
                assert_eq!(logits(&runner), decoded, "{file}, {lanes} lanes, {tasks} tasks");
            }
            assert!(stops.iter().max() > stops.iter().min(), "{stops:?}");
        }
    }
}
