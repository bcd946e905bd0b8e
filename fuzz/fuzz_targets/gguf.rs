//! Any bytes as a GGUF file: taken with its promises kept, or refused with a typed error.
//!
//! Run with `RUSTC_BOOTSTRAP=1 cargo fuzz run gguf` (see the README beside this folder's
//! manifest). What is asked of a file is shared with the format crate's mutation test.
#![no_main]

#[path = "../../crates/format/tests/common/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = exercise::open_and_ask(bytes.to_vec());
});
