//! The arena: one anonymous mapping of an exact size between two guard pages.
//!
//! ```text
//! ┌ guard page ┬ base ──────────── len_bytes (whole pages) ──────────┬ guard page ┐
//! │ no access  │ readable, writable, zero, then prefaulted and locked │ no access  │
//! └────────────┴──────────────────────────────────────────────────────┴────────────┘
//! ```
//!
//! With huge pages the base is a multiple of their size, so that all but the tail can be huge;
//! the mapping ends where it should, so not a byte more becomes resident.
//!
//! Believes: the size that it is told. Must not know: what lies at which offset; it hands out
//! the base and the length, and whoever turns offsets into pointers proves that they are inside.

use crate::error::SystemError;
use crate::sys::{self, Advice};

/// The size of a huge page on the machines that we know, in bytes: a matter of speed only.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// How the arena asks for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaPages {
    /// Huge pages where the kernel allows them: fewer translation misses.
    Huge,
    /// Small pages only, so that what is resident is what was touched.
    Small,
}

/// How the arena was made resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// By the kernel in one call.
    Populated,
    /// By touching page after page, because this kernel cannot populate.
    Touched,
}

/// One mapping with guard pages, given back when dropped.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    len_bytes: usize,
    guard_bytes: usize,
}

// SAFETY: the arena is a range of addresses; it reads and writes nothing by itself except in
// `prefault`, which keeps all contents. Whoever accesses the bytes answers for the ordering.
unsafe impl Send for Arena {}
// SAFETY: as above; every method takes the range's numbers only.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len_bytes`, rounded up to whole pages, readable, writable and zero.
    ///
    /// # Errors
    /// `Bound` for 0 bytes or an overflow, `Call` when the kernel has no room.
    pub fn map(len_bytes: usize, pages: ArenaPages) -> Result<Arena, SystemError> {
        let guard_bytes = sys::page_bytes();
        let bound = SystemError::Bound { what: "arena bytes", bound: usize::MAX, value: len_bytes };
        let rounded = sys::round_up_to_pages(len_bytes).filter(|&len| len > 0).ok_or(bound)?;
        let align = match pages {
            ArenaPages::Huge if rounded >= HUGE_PAGE_BYTES => HUGE_PAGE_BYTES,
            ArenaPages::Huge | ArenaPages::Small => guard_bytes,
        };
        let base = reserve(rounded, guard_bytes, align).map_err(|error| error.unwrap_or(bound))?;
        let arena = Arena { base, len_bytes: rounded, guard_bytes };
        // SAFETY: [base, base + rounded) is page-aligned, inside the mapping, and nobody else's.
        unsafe { sys::make_writable(base, rounded)? };
        let advice = match pages {
            ArenaPages::Huge => Advice::HugePages,
            ArenaPages::Small => Advice::SmallPages,
        };
        // A kernel without huge pages refuses the advice; the arena works all the same.
        // SAFETY: the same range.
        let _ = unsafe { sys::advise(base, rounded, advice) };
        Ok(arena)
    }

    /// The first byte, aligned to a page.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes between the guards, whole pages.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// All bytes as floats, for an arena that nobody else has pointers into (a session never gives
    /// its own away exclusively).
    pub fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: the range is mapped, writable, zero at first and aligned to a page; any bits are
        // a float; the borrow is exclusive, and whoever made pointers of `base` answers for them.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len_bytes / 4) }
    }

    /// All bytes, for an arena that nobody writes through [`Arena::base`] meanwhile (a session
    /// never gives its own away).
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and readable; any bits are a byte; `floats_mut` needs this
        // borrow to end, and whoever made pointers of `base` answers for them.
        unsafe { std::slice::from_raw_parts(self.base, self.len_bytes) }
    }

    /// Makes every page resident; contents stay as they are.
    pub fn prefault(&self) -> Prefault {
        self.prefault_part(0, 0, 1)
    }

    /// As `prefault` for what begins at byte `from`, the `index`-th of so many parts: for threads
    /// that do it together.
    ///
    /// # Panics
    /// Unless `index` is below `parts`, and `from` is a whole page inside.
    pub fn prefault_part(&self, from: usize, index: usize, parts: usize) -> Prefault {
        assert!(index < parts, "part {index} of {parts}");
        assert!(from <= self.len_bytes && from.is_multiple_of(sys::page_bytes()), "from {from}");
        let share = ((self.len_bytes - from) / parts).next_multiple_of(HUGE_PAGE_BYTES);
        let start = (from + index * share).min(self.len_bytes);
        let end = if index + 1 == parts { self.len_bytes } else { start + share };
        let len_bytes = end.min(self.len_bytes) - start;
        // SAFETY: start ≤ len_bytes, so the pointer is inside the mapping or at its end.
        let base = unsafe { self.base.add(start) };
        // SAFETY: the range is this arena's own; populating keeps its contents.
        if unsafe { sys::advise(base, len_bytes, Advice::PopulateWrite) }.is_ok() {
            return Prefault::Populated;
        }
        // SAFETY: the range is writable, and touching keeps each byte.
        unsafe { sys::touch_pages(base, len_bytes) };
        Prefault::Touched
    }

    /// Takes the first `len_bytes` out of reach, so that they are neither made resident nor
    /// locked: pages of a file will come in their place.
    ///
    /// # Errors
    /// `Bound` unless these are whole pages inside, `Call` when the kernel refuses.
    ///
    /// # Safety
    /// Nobody reads or writes the range, through this arena or through pointers into it, before
    /// `map_file` has given it back.
    pub unsafe fn withhold(&mut self, len_bytes: usize) -> Result<(), SystemError> {
        self.check_first(len_bytes)?;
        // SAFETY: the range is inside this arena's own mapping; by this function's contract nobody
        // uses it.
        unsafe { sys::withhold(self.base, len_bytes) }
    }

    /// Puts pages of a file, from byte `at` on, in the place of the first `len_bytes`: to be read,
    /// and never to be written.
    ///
    /// # Errors
    /// `Bound` unless these are whole pages inside, `Call` when the kernel refuses.
    ///
    /// # Safety
    /// No slice of the range is alive, and from now on nobody writes it. The file holds the range
    /// and stays as it is: nobody shortens or rewrites it while the arena lives.
    pub unsafe fn map_file(
        &mut self,
        len_bytes: usize,
        file: &std::fs::File,
        at: u64,
    ) -> Result<(), SystemError> {
        self.check_first(len_bytes)?;
        // SAFETY: the range is inside this arena's own mapping; the rest is this function's
        // contract.
        unsafe { sys::map_file(self.base, len_bytes, file, at) }
    }

    fn check_first(&self, len_bytes: usize) -> Result<(), SystemError> {
        let whole = len_bytes.is_multiple_of(sys::page_bytes()) && len_bytes <= self.len_bytes;
        let what = "first bytes of the arena, in whole pages";
        match whole {
            true => Ok(()),
            false => Err(SystemError::Bound { what, bound: self.len_bytes, value: len_bytes }),
        }
    }

    /// Gives the whole pages of a range back: their contents become zero, their memory is free.
    ///
    /// # Errors
    /// `Bound` for a range that is not inside, `Call` when the kernel refuses.
    ///
    /// # Safety
    /// No slice of the range is alive, and whoever reads it again, through this arena or through
    /// pointers into it, takes any contents.
    pub unsafe fn discard(&mut self, offset: usize, len_bytes: usize) -> Result<(), SystemError> {
        let page = sys::page_bytes();
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes);
        let bound =
            SystemError::Bound { what: "end of a range", bound: self.len_bytes, value: offset };
        let (start, end) = (offset.next_multiple_of(page), end.ok_or(bound)? / page * page);
        if start >= end {
            return Ok(());
        }
        // SAFETY: the range is inside this arena's own mapping; the rest is this function's
        // contract.
        unsafe { sys::discard(self.base.add(start), end - start) }
    }

    /// Keeps the arena in memory.
    ///
    /// # Errors
    /// `Call` with the reason: `ENOMEM` or `EPERM` when `RLIMIT_MEMLOCK` is too small.
    pub fn lock(&self) -> Result<(), SystemError> {
        // SAFETY: the range is this arena's own.
        unsafe { sys::lock(self.base, self.len_bytes) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let total = self.len_bytes + 2 * self.guard_bytes;
        // SAFETY: the range is the mapping made in `map`; whoever held pointers into it was
        // obliged to outlive none of them beyond the arena.
        let unmapped = unsafe { sys::unmap(self.base.sub(self.guard_bytes), total) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Pages of a file, for reading only. They come from the page cache at first use, and the kernel
/// may take them back.
///
/// As with every mapping, the file is to stay as it is: one that is shortened ends the process
/// that reads beyond its new end, and one that is rewritten changes what was read.
#[derive(Debug)]
pub struct FilePages(Arena);

impl FilePages {
    /// Maps `len_bytes` of a file from byte `at` on.
    ///
    /// # Errors
    /// `Bound` unless these are whole pages, `Call` when the kernel refuses.
    pub fn map(len_bytes: usize, file: &std::fs::File, at: u64) -> Result<FilePages, SystemError> {
        let mut arena = Arena::map(len_bytes, ArenaPages::Small)?;
        // SAFETY: nobody has a pointer into an arena that was just made, and this type only reads
        // it; that the file stays as it is, is asked of whoever owns the file.
        unsafe { arena.map_file(len_bytes, file, at)? };
        Ok(FilePages(arena))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Reserves `len_bytes` and a guard on both sides, the part between the guards aligned. `None` is
/// an overflow.
fn reserve(
    len_bytes: usize,
    guard_bytes: usize,
    align: usize,
) -> Result<*mut u8, Option<SystemError>> {
    let total = len_bytes.checked_add(2 * guard_bytes).ok_or(None)?;
    // The kernel gives whole pages, so an alignment beyond the page needs room to move.
    let spare = align - guard_bytes;
    let reserved = total.checked_add(spare).ok_or(None)?;
    let whole = sys::map_reserved(reserved, "the arena")?.as_ptr();
    let first = whole.addr() + guard_bytes;
    let before = first.next_multiple_of(align) - first;
    // SAFETY: before ≤ spare, so all three parts lie inside the mapping just made, which nobody
    // uses yet; the outer two are given back.
    unsafe {
        if before > 0 {
            sys::unmap(whole, before)?;
        }
        if spare > before {
            sys::unmap(whole.add(before + total), spare - before)?;
        }
        Ok(whole.add(before + guard_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{FaultScope, faults};

    #[test]
    fn an_arena_is_whole_pages_zero_and_writable_to_its_ends() {
        let page_bytes = sys::page_bytes();
        for len_bytes in [1, page_bytes - 1, page_bytes, page_bytes + 1, 10 * page_bytes] {
            for pages in [ArenaPages::Huge, ArenaPages::Small] {
                let arena = Arena::map(len_bytes, pages).unwrap();
                assert_eq!(arena.len_bytes(), len_bytes.next_multiple_of(page_bytes));
                assert!(arena.base().addr().is_multiple_of(page_bytes));
                // SAFETY: both bytes are inside the arena and nobody else uses it.
                unsafe {
                    let last = arena.base().add(arena.len_bytes() - 1);
                    assert_eq!((*arena.base(), *last), (0, 0));
                    (*arena.base(), *last) = (1, 2);
                    arena.prefault();
                    (0..3).for_each(|part| {
                        arena.prefault_part(0, part, 3);
                    });
                    assert_eq!(*last, 2, "prefaulting keeps contents");
                }
            }
        }
    }

    #[test]
    fn a_large_arena_is_aligned_for_huge_pages_and_exact() {
        let len_bytes = 5 * HUGE_PAGE_BYTES / 2 + 1;
        let arena = Arena::map(len_bytes, ArenaPages::Huge).unwrap();
        assert!(arena.base().addr().is_multiple_of(HUGE_PAGE_BYTES));
        arena.prefault();
        let before = faults(FaultScope::Thread).minor;
        // SAFETY: the range is the arena's own.
        unsafe { sys::touch_pages(arena.base(), arena.len_bytes()) };
        assert!(faults(FaultScope::Thread).minor <= before + 2, "prefaulted pages do not fault");
        let mapped = crate::process::mapping_at(arena.base().addr()).unwrap();
        let base = arena.base().addr();
        assert_eq!(mapped, (base, base + arena.len_bytes()));
    }

    /// One byte beyond either end ends the process that touches it.
    #[test]
    fn both_ends_are_guarded() {
        let arena = Arena::map(3 * sys::page_bytes(), ArenaPages::Small).unwrap();
        let dies_at = |address: *mut u8| {
            // SAFETY: between fork and `_exit` the child calls nothing but them: a store that the
            // kernel answers, or not.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: outside of the arena on purpose: the child is to die of it.
                unsafe { address.write_volatile(1) };
                sys::exit_now(0);
            }
            let mut status = 0;
            // SAFETY: the child is ours, and the status is written by the call.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
        };
        let (base, len_bytes) = (arena.base(), arena.len_bytes());
        assert!(dies_at(base.wrapping_sub(1)) && dies_at(base.wrapping_add(len_bytes)));
        assert!(!dies_at(base) && !dies_at(base.wrapping_add(len_bytes - 1)));
    }

    #[test]
    fn impossible_sizes_are_refused_with_the_value() {
        for len_bytes in [0, usize::MAX, usize::MAX - sys::page_bytes()] {
            let error = Arena::map(len_bytes, ArenaPages::Small).unwrap_err();
            assert!(
                matches!(error, SystemError::Bound { value, .. } if value == len_bytes)
                    || matches!(error, SystemError::Call { call: "mmap", .. })
            );
        }
    }
}
