//! A lock for the heap: one word, no allocation, no fairness, sleeping in the kernel when held.
//!
//! Believes: critical sections are short and never nest. Must not know: what it guards.

use crate::sys;
use std::sync::atomic::{AtomicU32, Ordering};

const OPEN: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_SLEEPERS: u32 = 2;

/// Looks before sleeping.
const SPINS: u32 = 100;

/// The lock's word.
pub(super) struct HeapLock(AtomicU32);

/// Holds the lock until dropped.
pub(super) struct HeapGuard<'a>(&'a HeapLock);

impl HeapLock {
    pub(super) const fn new() -> HeapLock {
        HeapLock(AtomicU32::new(OPEN))
    }

    /// Waits for the lock and takes it.
    pub(super) fn lock(&self) -> HeapGuard<'_> {
        if !self.try_take() {
            self.lock_slowly();
        }
        HeapGuard(self)
    }

    fn try_take(&self) -> bool {
        self.0.compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.0.load(Ordering::Relaxed) == OPEN && self.try_take() {
                return;
            }
        }
        // From here the lock is taken as "with sleepers": there may be others behind us.
        while self.0.swap(HELD_WITH_SLEEPERS, Ordering::Acquire) != OPEN {
            sys::futex_wait(&self.0, HELD_WITH_SLEEPERS);
        }
    }
}

impl Drop for HeapGuard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(OPEN, Ordering::Release) == HELD_WITH_SLEEPERS {
            sys::futex_wake(&self.0.0, 1);
        }
    }
}
