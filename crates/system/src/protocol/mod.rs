//! The protocol of events: a counter that only grows, and one bit that says that somebody sleeps.
//!
//! A word is `count << 1 | sleeping`. *Signal* adds one to the count; if it found the bit set it
//! clears the bit and wakes every sleeper. *Wait for t* returns once `count ≥ t`; it looks a
//! bounded number of times, then sets the bit (compare-and-exchange, so the count cannot have
//! moved) and sleeps while the word still holds exactly what it saw.
//!
//! No wake is lost: a signal after the bit was set sees the bit, and a sleeper whose word moved
//! before it slept does not sleep. A signaller that clears the bit for another's sleeper wakes
//! everybody afterwards, and who is not yet asleep finds the word changed. Counts are compared
//! by their distance modulo 2³¹, so they may wrap: waiter and signaller are never more than a
//! few steps apart.
//!
//! Believes: nothing about the machine; the word is a trait, so the same code runs over real
//! futexes and, in the tests, over a model that tries every interleaving. Must not know: threads.

#[cfg(test)]
mod model;
#[cfg(test)]
mod scenarios;

use crate::spin::Waited;
use std::sync::atomic::Ordering;

/// What one signal adds to the word.
const ONE: u32 = 2;
/// The bit that says that at least one waiter sleeps.
const SLEEPING: u32 = 1;

/// A 32-bit atomic word on which threads can sleep.
pub(crate) trait Word {
    /// Reads the word.
    fn load(&self, ordering: Ordering) -> u32;
    /// Adds, wrapping, and returns the value before.
    fn fetch_add(&self, value: u32, ordering: Ordering) -> u32;
    /// Ands and returns the value before.
    fn fetch_and(&self, value: u32, ordering: Ordering) -> u32;
    /// Replaces `current` by `new`, relaxed, or returns what stands there instead.
    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32>;
    /// Sleeps while the word equals `expected`; may return at any time.
    fn sleep(&self, expected: u32);
    /// Wakes all sleepers.
    fn wake_all(&self);
    /// A short pause between two looks.
    fn pause(&self);
}

/// Why a wait ended without its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned;

/// One task has finished: adds one, and wakes whoever sleeps. Everything that this thread wrote
/// before is visible to a waiter that returns because of it.
pub(crate) fn signal<W: Word>(word: &W) {
    if word.fetch_add(ONE, Ordering::AcqRel) & SLEEPING != 0 {
        wake(word);
    }
}

/// Wakes every waiter so that it looks at its poison flag. The flag must be set before.
pub(crate) fn poison<W: Word>(word: &W) {
    word.fetch_add(ONE, Ordering::AcqRel);
    wake(word);
}

fn wake<W: Word>(word: &W) {
    word.fetch_and(!SLEEPING, Ordering::AcqRel);
    word.wake_all();
}

/// Waits until the count has reached `target`. Looks `spins` times before it sleeps. Says how the
/// wait ended; `Poisoned` if `poisoned` says so after the count was reached or before any sleep.
pub(crate) fn wait<W: Word>(
    word: &W,
    target: u32,
    spins: u32,
    poisoned: impl Fn() -> bool,
) -> Result<Waited, Poisoned> {
    let mut spins_left = spins;
    let mut waited = Waited::Not;
    let mut seen = word.load(Ordering::Acquire);
    loop {
        if reached(seen, target) {
            return if poisoned() { Err(Poisoned) } else { Ok(waited) };
        }
        if spins_left > 0 {
            spins_left -= 1;
            waited = Waited::Looked;
            word.pause();
            seen = word.load(Ordering::Acquire);
            continue;
        }
        if poisoned() {
            return Err(Poisoned);
        }
        if seen & SLEEPING == 0
            && let Err(now) = word.compare_exchange(seen, seen | SLEEPING)
        {
            // Relaxed is not enough to return upon: look again with Acquire.
            let _ = now;
            seen = word.load(Ordering::Acquire);
            continue;
        }
        waited = Waited::Slept;
        word.sleep(seen | SLEEPING);
        seen = word.load(Ordering::Acquire);
    }
}

/// The count of a word.
pub(crate) fn count(word: u32) -> u32 {
    word >> 1
}

/// Whether the count in `word` is at or past `target`, modulo 2³¹.
pub(crate) fn reached(word: u32, target: u32) -> bool {
    let distance = count(word).wrapping_sub(target) & (u32::MAX >> 1);
    distance < 1 << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_compare_across_the_wrap() {
        for (count, target, expected) in [
            (0, 0, true),
            (0, 1, false),
            (5, 4, true),
            (5, 6, false),
            (0, u32::MAX >> 1, true),
            (u32::MAX >> 1, 0, false),
            (3, (u32::MAX >> 1) - 2, true),
            ((u32::MAX >> 1) - 2, 3, false),
        ] {
            assert_eq!(reached(count << 1, target), expected, "count {count}, target {target}");
            assert_eq!(reached(count << 1 | SLEEPING, target), expected);
        }
    }
}
