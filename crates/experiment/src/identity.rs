//! What tells one file from another: which build of a program made calls, and which model they are
//! of. Names and lengths are not enough; a model that is written anew in place keeps both.

use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom};
use std::path::Path;

/// What tells one build of a program from another: a hash of its file.
///
/// # Errors
/// A file that cannot be read.
pub fn build_of(program: &Path) -> Result<String> {
    Ok(format!("{:016x}", hash(START, &std::fs::read(program)?)))
}

/// What tells a model's file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Its name, without what would be a new line.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// A hash of pieces of it; empty in files that do not tell.
    pub hash: String,
}

/// Pieces that are read of a model, from its first bytes to its last: a whole one of several GiB
/// would be read for seconds, and would take the page cache. Other weights differ in each.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 64 << 10;

impl ModelIdentity {
    /// The identity of a file. What cannot be read is for the product to name; here it is empty.
    #[must_use]
    pub fn of(model: &Path) -> ModelIdentity {
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        ModelIdentity {
            name: name.replace(char::is_control, " "),
            bytes: std::fs::metadata(model).map_or(0, |facts| facts.len()),
            hash: hash_of_pieces(model).map_or(String::new(), |hash| format!("{hash:016x}")),
        }
    }
}

fn hash_of_pieces(path: &Path) -> Result<u64> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let last = bytes.saturating_sub(PIECE_BYTES);
    let mut all = START;
    let mut before = None;
    for piece in 0..PIECES {
        // The product is below 2^64 for files below 2^58 bytes.
        let at = last * piece / (PIECES - 1);
        if before == Some(at) {
            continue;
        }
        before = Some(at);
        file.seek(SeekFrom::Start(at))?;
        let mut read = Vec::new();
        (&mut file).take(PIECE_BYTES).read_to_end(&mut read)?;
        all = hash(all, &read);
    }
    Ok(all)
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a by words of eight bytes.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, byte| (word << 8) | u64::from(*byte));
    bytes.chunks(8).fold(start, |hash, bytes| (hash ^ word(bytes)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_and_length_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("identity-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("m.gguf");
        for length in [1, 1000, 70_000, 9 << 20] {
            let mut bytes = vec![7u8; length];
            std::fs::write(&path, &bytes).unwrap();
            let first = ModelIdentity::of(&path);
            assert_eq!((first.bytes, &first.name[..]), (length as u64, "m.gguf"));
            assert_eq!(ModelIdentity::of(&path), first, "it does not change by itself");
            for at in [0, length - 1] {
                bytes[at] += 1;
                std::fs::write(&path, &bytes).unwrap();
                let other = ModelIdentity::of(&path);
                assert!(other.bytes == first.bytes && other != first, "{at} of {length}");
            }
        }
        assert_ne!(build_of(&path).unwrap(), build_of(Path::new("/bin/sh")).unwrap());
        assert!(build_of(&folder.join("absent")).is_err());
        assert_eq!(ModelIdentity::of(&folder.join("absent")).bytes, 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
