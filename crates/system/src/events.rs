//! Events between lanes: counters that only grow, one cache line each.
//!
//! An event has a number of *signals per step* (the tasks that name it). A waiter of step `s`
//! waits for `s × signals`; the counters are never reset, so no lane can see a half-reset one.
//!
//! Believes: `protocol` (which says why no wake is lost), `spin` (how long to look). Must not know: what the tasks are.

pub use crate::spin::SpinPolicy;

use crate::protocol::{self, Poisoned, Word};
use crate::spin::Spinner;
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The flag that ends every wait after a lane has panicked.
#[derive(Debug, Default)]
pub struct PoisonFlag(AtomicBool);

impl PoisonFlag {
    /// A flag that is not set.
    pub const fn new() -> PoisonFlag {
        PoisonFlag(AtomicBool::new(false))
    }

    /// Whether a lane has panicked.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the flag and makes every waiter of `events` look at it. Cannot be taken back.
    pub fn poison(&self, events: &[Event]) {
        self.0.store(true, Ordering::Release);
        for event in events {
            protocol::poison(&event.word);
        }
    }
}

/// One event: see the module's text. 64 bytes, aligned, so that no two share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Event {
    word: Futex,
}

impl Event {
    /// An event that nothing has signalled.
    pub const fn new() -> Event {
        Event { word: Futex(AtomicU32::new(0)) }
    }

    /// The count to wait for so that `steps` whole steps of `signals_per_step` signals are over.
    pub const fn target(steps: u32, signals_per_step: u32) -> u32 {
        steps.wrapping_mul(signals_per_step) & (u32::MAX >> 1)
    }

    /// One task has finished. What this thread wrote before is visible after the wait.
    pub fn signal(&self) {
        protocol::signal(&self.word);
    }

    /// Whether `target` signals were given since the event was made (modulo 2³¹).
    pub(crate) fn has_reached(&self, target: u32) -> bool {
        protocol::reached(self.word.load(Ordering::Relaxed), target)
    }

    /// Waits until `target` signals were given since the event was made (modulo 2³¹).
    ///
    /// # Errors
    /// `Poisoned` once a lane has panicked.
    pub(crate) fn wait(
        &self,
        target: u32,
        spinner: &Spinner,
        poison: &PoisonFlag,
    ) -> Result<(), Poisoned> {
        let waited = protocol::wait(&self.word, target, spinner.looks(), || poison.is_set())?;
        spinner.learn(waited);
        Ok(())
    }

    /// As `wait`, for an event that is never poisoned.
    pub(crate) fn wait_always(&self, target: u32, spinner: &Spinner) {
        match protocol::wait(&self.word, target, spinner.looks(), || false) {
            Ok(waited) => spinner.learn(waited),
            Err(Poisoned) => unreachable!("nothing poisons this event"),
        }
    }

    /// Signals so far, modulo 2³¹.
    pub fn count(&self) -> u32 {
        protocol::count(self.word.load(Ordering::Acquire))
    }
}

/// A word over the kernel's futexes.
#[derive(Debug, Default)]
struct Futex(AtomicU32);

impl Word for Futex {
    fn load(&self, ordering: Ordering) -> u32 {
        self.0.load(ordering)
    }
    fn fetch_add(&self, value: u32, ordering: Ordering) -> u32 {
        self.0.fetch_add(value, ordering)
    }
    fn fetch_and(&self, value: u32, ordering: Ordering) -> u32 {
        self.0.fetch_and(value, ordering)
    }
    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn sleep(&self, expected: u32) {
        sys::futex_wait(&self.0, expected);
    }
    fn wake_all(&self) {
        sys::futex_wake(&self.0, i32::MAX);
    }
    fn pause(&self) {
        std::hint::spin_loop();
    }
}
