//! Any text as a plan: read with its promises kept and judged, or refused with a typed error.
//!
//! Run with `RUSTC_BOOTSTRAP=1 cargo fuzz run plan`. What is asked of a text is shared with the
//! testkit's own test.
#![no_main]

#[path = "../../crates/testkit/tests/support/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = exercise::read_and_ask(text);
    }
});
