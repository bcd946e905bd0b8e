//! How long a waiter looks before it sleeps: bounded in time, and learnt from how waits end.
//!
//! With a processor for each lane, nearly every wait is over within microseconds, and sleeping
//! would cost more than the wait. When somebody else wants the processors too, the lane that is
//! waited for may itself wait for a processor: then looking only burns what it needs, most of
//! all when both lanes were put on one processor. A waiter cannot ask which case it is in
//! without a system call, but it sees how its waits end:
//!
//! ```text
//! looked and found        budget × 2, up to the longest
//! looked, then slept      budget ÷ 4, down to the shortest
//! every 16th wait         looks for the longest time; found: the budget is the longest again
//! ```
//!
//! The trial keeps a pair of lanes from putting each other to sleep for ever after a disturbance
//! that has passed. Budgets are numbers of looks; how many looks a microsecond has is measured
//! once, when lanes start, so that no wait asks a clock.
//!
//! A lane waits inside a step, where gaps are short, and between steps, where the host or one lane
//! alone does what cannot be shared: it has a budget for each, of different lengths, or the long
//! gaps would teach it to sleep in the short ones.
//!
//! Believes: the monotonic clock. Must not know: events, lanes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// How long waiters may look before they sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// The longest time that one wait inside a step looks, in microseconds; 0 sleeps at once.
    pub longest_us: u32,
    /// The longest time that one wait for the next step looks, in microseconds.
    pub between_us: u32,
}

impl SpinPolicy {
    /// Sleep at once: for more lanes than processors, and under a quota, where looking burns the
    /// very time that the signaller needs.
    pub const SLEEP: SpinPolicy = SpinPolicy { longest_us: 0, between_us: 0 };

    /// Look for at most this long: some times what falling asleep and waking up costs, and longer
    /// than the usual gap between two tasks; between steps, longer than one lane takes to choose a
    /// token from a large vocabulary.
    pub const SPIN: SpinPolicy = SpinPolicy { longest_us: 50, between_us: 300 };
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The event had been signalled before.
    Not,
    /// It was signalled while the waiter looked.
    Looked,
    /// The waiter slept.
    Slept,
}

/// The budget of one waiter. Only that thread uses it; 64 bytes, so that no two share a line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Spinner {
    longest: u32,
    budget: AtomicU32,
    waits: AtomicU32,
}

/// The shortest budget is this part of the longest: one microsecond of fifty inside a step.
const SHORTEST_PART: u32 = 50;
/// Every so many waits are trials.
const TRIAL_EVERY: u32 = 16;

impl Spinner {
    /// A waiter's budget, at first the longest: `longest_us` microseconds. `looks_per_us` is
    /// `looks_per_microsecond()`.
    pub(crate) fn new(longest_us: u32, looks_per_us: u32) -> Spinner {
        let longest = longest_us.saturating_mul(looks_per_us);
        Spinner { longest, budget: AtomicU32::new(longest), waits: AtomicU32::new(0) }
    }

    /// Looks that the next wait may take.
    pub(crate) fn looks(&self) -> u32 {
        match self.is_trial() {
            true => self.longest,
            false => self.budget.load(Ordering::Relaxed),
        }
    }

    /// Learns from the wait that `looks` was for.
    pub(crate) fn learn(&self, waited: Waited) {
        let budget = self.budget.load(Ordering::Relaxed);
        let next = match waited {
            Waited::Not => return,
            Waited::Looked if self.is_trial() => self.longest,
            Waited::Looked => budget.saturating_mul(2).min(self.longest),
            Waited::Slept => (budget / 4).max(self.longest / SHORTEST_PART),
        };
        self.budget.store(next, Ordering::Relaxed);
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
    }

    fn is_trial(&self) -> bool {
        self.waits.load(Ordering::Relaxed) % TRIAL_EVERY == TRIAL_EVERY - 1
    }
}

/// How many looks (a pause and a load) this processor takes in a microsecond: the most of a few
/// tries, since whatever disturbs a try makes it slower. Takes some tens of microseconds.
pub(crate) fn looks_per_microsecond() -> u32 {
    const LOOKS: u32 = 200;
    const TRIES: usize = 8;
    let word = AtomicU32::new(0);
    let mut shortest_ns = u128::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            std::hint::black_box(word.load(Ordering::Acquire));
        }
        shortest_ns = shortest_ns.min(start.elapsed().as_nanos());
    }
    let per_us = u128::from(LOOKS) * 1000 / shortest_ns.max(1);
    u32::try_from(per_us).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_whose_waits_end_in_sleep_soon_looks_little() {
        let spinner = Spinner::new(SpinPolicy::SPIN.longest_us, 20);
        assert_eq!(spinner.looks(), 1000);
        (0..4).for_each(|_| spinner.learn(Waited::Slept));
        assert_eq!(spinner.looks(), 20);
        let looked: u32 = (0..160)
            .map(|_| {
                let looks = spinner.looks();
                spinner.learn(Waited::Slept);
                looks
            })
            .sum();
        assert_eq!(looked, 150 * 20 + 10 * 1000, "one trial in sixteen waits");
    }

    #[test]
    fn a_trial_that_finds_ends_the_caution() {
        let spinner = Spinner::new(SpinPolicy::SPIN.longest_us, 20);
        (0..15).for_each(|_| spinner.learn(Waited::Slept));
        assert_eq!(spinner.looks(), 1000, "the sixteenth is a trial");
        spinner.learn(Waited::Looked);
        assert_eq!(spinner.looks(), 1000);
    }

    #[test]
    fn waits_that_find_double_the_budget_and_no_wait_teaches_nothing() {
        let spinner = Spinner::new(SpinPolicy::SPIN.longest_us, 20);
        (0..3).for_each(|_| spinner.learn(Waited::Slept));
        (0..40).for_each(|_| spinner.learn(Waited::Not));
        assert_eq!(spinner.looks(), 20);
        spinner.learn(Waited::Looked);
        assert_eq!(spinner.looks(), 40);
    }

    #[test]
    fn sleepers_never_look() {
        let spinner = Spinner::new(SpinPolicy::SLEEP.longest_us, looks_per_microsecond());
        for waited in [Waited::Looked, Waited::Slept, Waited::Not] {
            (0..20).for_each(|_| spinner.learn(waited));
            assert_eq!(spinner.looks(), 0);
        }
    }

    #[test]
    fn looks_are_nanoseconds_not_milliseconds() {
        let per_us = looks_per_microsecond();
        assert!((1..=10_000).contains(&per_us), "{per_us} looks a microsecond");
    }
}
