//! Bytes that will be needed soon, asked for in good time.
//!
//! A hint: no value depends on it, and any address may be named. Must not know what the bytes are.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

use crate::limits::VECTOR_BYTES;

/// Asks the second-level cache for `len` bytes at `at`. Does nothing where there is no such hint.
pub fn prefetch(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for start in (0..len).step_by(VECTOR_BYTES) {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of x86-64; the hint never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(start).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}
