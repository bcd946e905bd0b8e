//! The C library's own heap, kept small: it serves only the C library, since every Rust
//! allocation goes to `heap`.
//!
//! Untamed it would reserve 64 MiB of addresses and use 132 KiB of memory for each thread that
//! calls `malloc` once (every thread does, when its stack is looked up), and keep 128 KiB spare.
//!
//! Believes: glibc's tuning calls, where there is glibc. Must not know: who calls `malloc`.

/// Spare bytes that the C library asks for when its heap grows.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TOP_PAD_BYTES: i32 = 4096;

/// One heap for all threads, grown by pages, spare pages given back now. Call before any thread
/// is made.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn bound_its_heap() {
    // SAFETY: these calls change how the C library's heap grows, and lock it while they do.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD_BYTES);
        libc::malloc_trim(TOP_PAD_BYTES as usize);
    }
}

/// Other C libraries have no such calls.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn bound_its_heap() {}
