//! The latch: while it is closed, allocating is a fault that is counted and, if wanted, fatal.
//!
//! Believes: that the heap asks before each allocation. Must not know: regions and limits.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Whose allocations a closed latch minds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchScope {
    /// Those of threads that called `watch_this_thread`: the lanes and the control thread.
    WatchedThreads,
    /// Those of every thread.
    EveryThread,
}

/// What happens to an allocation while the latch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// It is counted and served.
    Count,
    /// It is counted and refused (null), which ends in the caller's out-of-memory path.
    Refuse,
    /// The process says what happened and aborts: for tests and debugging.
    Abort,
}

/// What the heap is to do with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Serve,
    Refuse,
    Abort,
}

/// The latch's state and count.
pub(super) struct Latch {
    state: AtomicU8,
    violations: AtomicU64,
}

const OPEN: u8 = 0;
const EVERY_THREAD: u8 = 1 << 2;

thread_local! {
    // Without a destructor and with a constant start, so that reading it never allocates.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, no closed latch minds this thread's allocations.
#[derive(Debug)]
pub struct LookingAway {
    before: bool,
    not_send: PhantomData<*const ()>,
}

/// This thread does work that is not the token path's beside it: preparing what comes next.
#[must_use]
pub fn look_away() -> LookingAway {
    LookingAway { before: AWAY.replace(true), not_send: PhantomData }
}

impl Drop for LookingAway {
    fn drop(&mut self) {
        AWAY.set(self.before);
    }
}

/// From now on a closed latch minds this thread's allocations.
pub fn watch_this_thread() {
    WATCHED.set(true);
}

impl Latch {
    pub(super) const fn new() -> Latch {
        Latch { state: AtomicU8::new(OPEN), violations: AtomicU64::new(0) }
    }

    /// Closes the latch and forgets earlier violations.
    pub(super) fn close(&self, scope: LatchScope, on_violation: OnViolation) {
        let action = match on_violation {
            OnViolation::Count => 1,
            OnViolation::Refuse => 2,
            OnViolation::Abort => 3,
        };
        let threads = match scope {
            LatchScope::WatchedThreads => 0,
            LatchScope::EveryThread => EVERY_THREAD,
        };
        self.violations.store(0, Ordering::Relaxed);
        self.state.store(action | threads, Ordering::SeqCst);
    }

    /// Opens the latch and returns the violations since it was closed.
    pub(super) fn open(&self) -> u64 {
        self.state.store(OPEN, Ordering::SeqCst);
        self.violations.load(Ordering::Relaxed)
    }

    pub(super) fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// Judges one allocation of this thread.
    pub(super) fn judge(&self) -> Verdict {
        let state = self.state.load(Ordering::Relaxed);
        if state == OPEN || AWAY.get() || (state & EVERY_THREAD == 0 && !WATCHED.get()) {
            return Verdict::Serve;
        }
        self.violations.fetch_add(1, Ordering::Relaxed);
        match state & !EVERY_THREAD {
            2 => Verdict::Refuse,
            3 => Verdict::Abort,
            _ => Verdict::Serve,
        }
    }
}
