//! SHA-256 of a model's files, read once from front to back through a small window.

use dctms_engine::{Class, EngineError};
use dctms_format::Checkpoint;
use sha2::{Digest, Sha256};

use crate::machine::hexadecimal;

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// The digest of all files of a model in shard order, lower-case hexadecimal.
///
/// # Errors
/// Class `File`: a file that cannot be read.
pub fn of_files(checkpoint: &Checkpoint) -> Result<String, EngineError> {
    let mut hash = Sha256::new();
    let mut window = vec![0; WINDOW_BYTES];
    for shard in 0..checkpoint.shard_count() {
        let source = checkpoint.source(shard);
        let mut offset = 0;
        while offset < source.len() {
            let piece = (source.len() - offset).min(WINDOW_BYTES as u64);
            // At most the window's length.
            let buffer = &mut window[..piece as usize];
            source.read_at(offset, buffer).map_err(|error| {
                let file = crate::show::printable(checkpoint.file_name(shard));
                EngineError::new(Class::File, format!("{file}, offset {offset}: {error}"))
            })?;
            hash.update(&*buffer);
            offset += piece;
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}
