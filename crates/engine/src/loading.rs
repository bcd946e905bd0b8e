//! What loading asks of the host: bytes of the files, tokeniser tables, progress.

use std::sync::atomic::{AtomicU64, Ordering};

use dctms_exec::{Constant, LoadHost};

use crate::model::{ModelFiles, Vocabulary};

/// The files and the vocabulary of a model that is being loaded.
pub struct Loader<'a> {
    files: &'a ModelFiles,
    vocabulary: Option<&'a Vocabulary>,
    loaded_bytes: AtomicU64,
    progress: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl<'a> Loader<'a> {
    /// A loader; `progress` hears the bytes loaded so far.
    #[must_use]
    pub fn new(
        files: &'a ModelFiles,
        vocabulary: Option<&'a Vocabulary>,
        progress: Option<&'a (dyn Fn(u64) + Sync)>,
    ) -> Loader<'a> {
        Loader { files, vocabulary, loaded_bytes: AtomicU64::new(0), progress }
    }
}

impl LoadHost for Loader<'_> {
    fn read(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), String> {
        if dctms_system::interrupt::stop_requested() {
            return Err("stopped".to_string());
        }
        self.files.read(file, offset, buffer)
    }

    fn build_tokenizer(&self, _: u64, text: &[u8], tables: &mut [u8]) -> Result<(), String> {
        let vocabulary = self.vocabulary.ok_or("the model has no vocabulary")?;
        dctms_text::build(&vocabulary.layout, &vocabulary.info.view(text), tables)
            .map_err(|error| error.to_string())
    }

    fn constant(&self, arena_offset: usize, out: &mut [u8]) -> Result<Constant, String> {
        self.files.constant(arena_offset, out)
    }

    fn loaded(&self, bytes: u64) {
        let so_far = self.loaded_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = self.progress {
            progress(so_far);
        }
    }
}
