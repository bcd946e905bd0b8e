//! An allocator that counts, a thread at a time: how much a piece of code had on the heap at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE_LEN_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_LEN_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with counts.
pub struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `work` and gives the largest number of bytes that it had allocated at any moment.
pub fn peak_len_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE_LEN_BYTES.get();
    PEAK_LEN_BYTES.set(before);
    let result = work();
    (result, (PEAK_LEN_BYTES.get() - before) as usize)
}

fn count(change: isize) {
    let live = LIVE_LEN_BYTES.get() + change;
    LIVE_LEN_BYTES.set(live);
    PEAK_LEN_BYTES.set(PEAK_LEN_BYTES.get().max(live));
}

// SAFETY: every call is passed on unchanged to the system's allocator. The counters are
// constant-initialised and need no drop, so touching them neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old and the new block may both exist while the bytes are copied.
        count(new_size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
