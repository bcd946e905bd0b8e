//! Small text files in which the system states facts, read into a fixed buffer without
//! allocating, so that facts can be taken while the latch is closed.
//!
//! Believes: such files are short and of the form `key value…` or one number. Must not know:
//! which facts.

use std::fs::File;
use std::io::Read;

/// One file, up to `N` bytes of it.
pub(crate) struct FactFile<const N: usize> {
    buffer: [u8; N],
    len_bytes: usize,
}

impl<const N: usize> FactFile<N> {
    /// Reads the file, or `None` when it is missing, unreadable or not text.
    pub(crate) fn read(path: impl AsRef<std::path::Path>) -> Option<FactFile<N>> {
        let mut file = File::open(path).ok()?;
        let mut facts = FactFile { buffer: [0; N], len_bytes: 0 };
        while facts.len_bytes < N {
            match file.read(&mut facts.buffer[facts.len_bytes..]) {
                Ok(0) => break,
                Ok(read) => facts.len_bytes += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(facts)
    }

    /// The text, up to the first byte that is not UTF-8.
    pub(crate) fn text(&self) -> &str {
        let bytes = &self.buffer[..self.len_bytes];
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

/// The value of the line `key: N kB`, in bytes.
pub(crate) fn kib_field_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let number = line.trim().strip_suffix("kB").unwrap_or(line).trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of the line `key N`.
pub(crate) fn plain_field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}
