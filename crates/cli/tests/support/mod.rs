//! What the tests of the command line share: folders of their own, models, and the binary as a
//! child process that is watched from outside.
//!
//! Knows the program by its words, exit codes and outputs only, never by its code.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod child;
pub mod gguf;
pub mod pictures;
pub mod tiny;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use child::dctms;

/// Exit code of a defect or an unsupported feature of a file.
pub const FILE: i32 = 2;
/// Exit code of a plan that does not fit.
pub const DOES_NOT_FIT: i32 = 3;
/// Exit code of a request over a bound.
pub const OVER_BOUND: i32 = 4;
/// Exit code of wrong words.
pub const USAGE: i32 = 64;

/// A folder that goes when its owner goes.
pub struct Folder(PathBuf);

impl Folder {
    /// A new empty folder.
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("dctms-cli-{process}-{count}"));
        std::fs::create_dir_all(&path).expect("a folder for a test");
        Folder(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and gives its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file for a test");
        path
    }

    /// Writes `count` token ids below `below`, seeded.
    pub fn ids(&self, name: &str, count: usize, below: u64) -> PathBuf {
        let mut random = SplitMix64(count as u64);
        let ids: Vec<String> = (0..count).map(|_| (random.next() % below).to_string()).collect();
        self.file(name, ids.join("\n"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A committed tiny model.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// A real model from `DCTMS_MODELS` or the repository's cache; `None`, with a line that says so,
/// when it is not there.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models");
    let folders = std::env::var_os("DCTMS_MODELS").map(PathBuf::from).into_iter().chain([cache]);
    let found = folders.map(|folder| folder.join(file)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no {file} in DCTMS_MODELS or .cache/models (scripts/fetch_models.py)");
    }
    found
}

/// The real model that most tests of this kind use.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// SplitMix64: the tests' only randomness, seeded.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
