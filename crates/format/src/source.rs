//! Where bytes come from: a positioned read and a length, nothing else.
//!
//! The parser must not know whether it reads a file, a slice or a test's fault injector. A source
//! never maps memory: a mapping is address space and page cache that the envelope does not count.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A byte container of fixed length that can be read at any offset.
pub trait Source: Send + Sync {
    /// Length in bytes, fixed for the source's life.
    fn len(&self) -> u64;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the range passes the end, and whatever the medium reports.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Whether there is no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The open file behind the source, if there is one: a loader tells the operating system
    /// through it that the page cache of the file is no longer needed.
    fn file(&self) -> Option<&File> {
        None
    }
}

/// A regular file, read with `pread`: no shared position, so several lanes may read at once.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len_bytes: u64,
}

impl FileSource {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// What the operating system reports; `InvalidInput` for a directory, a pipe or a device,
    /// which have no length to check a header against.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Looked at before it is opened: opening a pipe would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let len_bytes = file.metadata()?.len();
        Ok(Self { file, len_bytes })
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

impl Source for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        Source::len(*self)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Source::read_at(*self, offset, buffer)
    }
}

impl Source for Vec<u8> {
    fn len(&self) -> u64 {
        Source::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Source::read_at(self.as_slice(), offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_reads_inside_and_refuses_outside() {
        let bytes: &[u8] = &[1, 2, 3, 4];
        let mut buffer = [0; 2];
        bytes.read_at(2, &mut buffer).unwrap();
        assert_eq!(buffer, [3, 4]);
        for offset in [3, 4, 5, u64::MAX - 1, u64::MAX] {
            let error = bytes.read_at(offset, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        bytes.read_at(4, &mut []).unwrap();
    }

    #[test]
    fn a_directory_and_a_missing_file_are_refused() {
        let error = FileSource::open(Path::new("/")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = FileSource::open(Path::new("/no/such/file.gguf")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
