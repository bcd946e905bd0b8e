//! What a process of ours costs besides its heap, its arena and its buffers: a bound that is true
//! by construction and can be checked against the kernel's own list.
//!
//! What is resident in a static program, and the term that covers it:
//!
//! | mapping | term | why it is a bound |
//! |---|---|---|
//! | program file, zero-initialised data | image | the program's own headers |
//! | `[vdso]` | image | the kernel's code page, counted in each process that calls it |
//! | `[vvar]`, `[vsyscall]` | – | the kernel never counts them |
//! | `[heap]` (`brk`) | C library | serves the C library only; one for all threads |
//! | `[stack]` | stacks | cut to a margin; `seal` forbids growth |
//! | thread stacks | stacks | mapped with their size; thread blocks stand inside |
//! | alternate signal stacks | stacks | one for each thread, the main thread's included |
//! | run region, arena | heap, arena | exact mappings of `heap` and `arena` |
//! | guard pages | – | no access, so never resident |
//!
//! Page tables (8 bytes for each 4 KiB mapped, less with huge pages) and kernel objects are not in
//! `VmHWM`; a memory cgroup counts them: `not_covered_bytes`.
//!
//! Believes: `image`, `limits`. Must not know: plans; the caller adds its own terms.

use crate::error::SystemError;
use crate::image;
use crate::limits::{
    C_LIBRARY_HEAP_BYTES, C_LIBRARY_HEAP_BYTES_PER_THREAD, MAIN_STACK_BYTES, SIGNAL_STACK_BYTES,
    VDSO_BYTES,
};
use crate::process::mapping_named;

/// Bounds of what the process costs apart from heap, arena and buffers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The program image and the kernel's code page.
    pub image_bytes: u64,
    /// The C library's own heap.
    pub c_library_bytes: u64,
    /// Every stack: main, threads, and their alternate signal stacks.
    pub stacks_bytes: u64,
}

impl Footprint {
    /// The sum of the terms.
    pub fn total_bytes(&self) -> u64 {
        self.image_bytes + self.c_library_bytes + self.stacks_bytes
    }
}

/// The bound for a process with these threads besides the main one: the stack size of each, in
/// bytes (one entry for the control thread, one for each further lane or server thread).
///
/// # Errors
/// As `image::image`.
pub fn footprint(thread_stacks_bytes: &[usize]) -> Result<Footprint, SystemError> {
    let threads = thread_stacks_bytes.len();
    let thread_stacks: usize = thread_stacks_bytes.iter().sum();
    let c_library = C_LIBRARY_HEAP_BYTES + threads * C_LIBRARY_HEAP_BYTES_PER_THREAD;
    let stacks = MAIN_STACK_BYTES + thread_stacks + (threads + 1) * SIGNAL_STACK_BYTES;
    Ok(Footprint {
        image_bytes: image::image()?.total_bytes() + VDSO_BYTES as u64,
        c_library_bytes: c_library as u64,
        stacks_bytes: stacks as u64,
    })
}

/// Compares the constants behind `footprint` with what the kernel has mapped: call it on the
/// control thread once all threads run, before sealing.
///
/// # Errors
/// `Bound` with the mapping that is larger than its term. The main stack is, when arguments and
/// environment take more than 32 KiB.
pub fn check_footprint(threads: usize) -> Result<(), SystemError> {
    let c_library = C_LIBRARY_HEAP_BYTES + threads * C_LIBRARY_HEAP_BYTES_PER_THREAD;
    for (name, what, bound) in [
        ("[heap]", "bytes of the C library's heap", c_library),
        ("[stack]", "bytes of the main stack (arguments and environment)", MAIN_STACK_BYTES),
        ("[vdso]", "bytes of the kernel's code page", VDSO_BYTES),
    ] {
        let value = mapping_named(name).map_or(0, |(start, end)| end - start);
        if value > bound {
            return Err(SystemError::Bound { what, bound, value });
        }
    }
    Ok(())
}

/// What a memory cgroup counts for this process and `VmHWM` does not, for `mapped_bytes` of
/// resident memory: page tables at small pages, and kernel stacks and objects of each thread.
pub fn not_covered_bytes(mapped_bytes: u64, threads: usize) -> u64 {
    const TABLE_ENTRY_BYTES: u64 = 8;
    const PAGE_BYTES: u64 = 4096;
    /// Upper levels of the tables, descriptors, the process itself.
    const PROCESS_BYTES: u64 = 512 << 10;
    /// A kernel stack of 16 KiB and the thread's descriptors.
    const THREAD_BYTES: u64 = 32 << 10;
    let tables = mapped_bytes.div_ceil(PAGE_BYTES).saturating_mul(TABLE_ENTRY_BYTES);
    tables.saturating_add(PROCESS_BYTES).saturating_add(threads as u64 * THREAD_BYTES)
}
