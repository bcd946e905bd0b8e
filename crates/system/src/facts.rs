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

/// Shows every line of a text file to `look` until it returns something; lines longer than the
/// buffer are cut. Allocates nothing, however long the file.
pub(crate) fn find_line<T>(path: &str, mut look: impl FnMut(&str) -> Option<T>) -> Option<T> {
    let mut file = File::open(path).ok()?;
    let mut buffer = [0_u8; LINE_BUFFER_BYTES];
    let mut filled = 0;
    let mut is_rest_of_cut_line = false;
    loop {
        let read = file.read(&mut buffer[filled..]).ok()?;
        filled += read;
        let mut start = 0;
        while let Some(len) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            let line = &buffer[start..start + len];
            start += len + 1;
            if std::mem::take(&mut is_rest_of_cut_line) {
                continue;
            }
            if let Some(found) = look(std::str::from_utf8(line).unwrap_or("")) {
                return Some(found);
            }
        }
        if start == 0 && filled == buffer.len() {
            let found = match is_rest_of_cut_line {
                true => None,
                false => look(std::str::from_utf8(&buffer).unwrap_or("")),
            };
            if found.is_some() {
                return found;
            }
            is_rest_of_cut_line = true;
            filled = 0;
        } else {
            buffer.copy_within(start..filled, 0);
            filled -= start;
        }
        if read == 0 {
            return None;
        }
    }
}

/// Longer than any line that matters; paths of mapped files may be cut.
const LINE_BUFFER_BYTES: usize = 2048;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_across_reads_and_long_ones_are_cut() {
        let path = std::env::temp_dir().join(format!("dctms-lines-{}", std::process::id()));
        let long = "x".repeat(3 * LINE_BUFFER_BYTES);
        let text = format!("first\n{long}\n{}last\n", "middle line\n".repeat(1000));
        std::fs::write(&path, text).unwrap();
        let path_text = path.to_str().unwrap();
        let mut count = 0;
        let found = find_line(path_text, |line| {
            count += 1;
            (line == "last").then_some(count)
        });
        assert_eq!(found, Some(1 + 1 + 1000 + 1));
        assert_eq!(find_line(path_text, |line| (line == "absent").then_some(())), None);
        std::fs::remove_file(&path).unwrap();
    }
}
