//! Descriptors: writing all of a buffer, terminals, and the page cache of a file.
//!
//! Believes: the descriptors that it is given. Must not know: what is written. Nothing allocates.

use crate::error::SystemError;
use crate::sys;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl Stream {
    fn descriptor(self) -> i32 {
        match self {
            Stream::Input => libc::STDIN_FILENO,
            Stream::Output => libc::STDOUT_FILENO,
            Stream::Error => libc::STDERR_FILENO,
        }
    }

    /// Whether a person looks at this stream.
    pub fn is_terminal(self) -> bool {
        // SAFETY: isatty asks about a number and touches no memory of ours.
        unsafe { libc::isatty(self.descriptor()) == 1 }
    }

    /// Writes all of `bytes` without buffering: one call when the reader keeps up.
    ///
    /// # Errors
    /// `ReaderGone` when the other end of the pipe is closed; `Call` for all else.
    pub fn write_all(self, bytes: &[u8]) -> Result<(), SystemError> {
        write_all(self.descriptor(), bytes)
    }
}

/// A closed pipe shall be an error of `write_all`, not the end of the process. (The standard
/// library does the same before `main`; a program that embeds us may not have it.)
pub fn ignore_broken_pipe_signal() {
    // SAFETY: SIG_IGN is a valid disposition and installs no code.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Whether reading a file would give something at once: bytes, or its end.
#[must_use]
pub fn is_readable(file: &File) -> bool {
    sys::is_readable(file.as_raw_fd(), 0)
}

/// As [`is_readable`], but waits a second for it, or until a signal comes. A signal that comes just
/// before is no end of the waiting: whoever asks again and again sees it a second later.
#[must_use]
pub fn wait_readable(file: &File) -> bool {
    const WAIT_MS: i32 = 1000;
    sys::is_readable(file.as_raw_fd(), WAIT_MS)
}

/// Opens a file for reading, a named pipe without waiting for somebody who writes. Until there is
/// one it is not readable ([`wait_readable`]), and reading it would give its end.
///
/// # Errors
/// What the operating system said.
pub fn open_at_once(path: &Path) -> std::io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    sys::make_blocking(file.as_raw_fd()).map_err(std::io::Error::other)?;
    Ok(file)
}

/// What tells one content of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The device.
    pub device: u64,
    /// The file on the device.
    pub inode: u64,
    /// Its length, in bytes.
    pub len_bytes: u64,
    /// Its last change, in nanoseconds since 1970.
    pub modified_ns: i128,
}

/// The identity of an open file.
///
/// # Errors
/// `Call` when the kernel does not tell.
pub fn file_identity(file: &File) -> Result<FileIdentity, SystemError> {
    let data = file.metadata().map_err(|error| SystemError::Call {
        call: "fstat",
        what: "a model file",
        len_bytes: 0,
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    Ok(FileIdentity {
        device: data.dev(),
        inode: data.ino(),
        len_bytes: data.len(),
        modified_ns: i128::from(data.mtime()) * 1_000_000_000 + i128::from(data.mtime_nsec()),
    })
}

/// Lets the kernel forget its cached pages of `[offset, offset + len_bytes)` of a file, 0 bytes
/// meaning to the end. Advice: a failure changes nothing.
///
/// # Errors
/// `Call` or `Unsupported` when the advice is not taken.
#[cfg(target_os = "linux")]
pub fn drop_page_cache(file: &File, offset: u64, len_bytes: u64) -> Result<(), SystemError> {
    advise_file(file, offset, len_bytes, libc::POSIX_FADV_DONTNEED)
}

/// Tells the kernel that a file will be read once, front to back.
///
/// # Errors
/// `Call` or `Unsupported` when the advice is not taken.
#[cfg(target_os = "linux")]
pub fn expect_sequential_reads(file: &File) -> Result<(), SystemError> {
    advise_file(file, 0, 0, libc::POSIX_FADV_SEQUENTIAL)
}

#[cfg(target_os = "linux")]
fn advise_file(file: &File, offset: u64, len_bytes: u64, advice: i32) -> Result<(), SystemError> {
    let clamp = |value| i64::try_from(value).unwrap_or(i64::MAX);
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is open as long as `file`; the call touches no memory of ours.
    match unsafe { libc::posix_fadvise(descriptor, clamp(offset), clamp(len_bytes), advice) } {
        0 => Ok(()),
        errno => Err(SystemError::Call {
            call: "posix_fadvise",
            what: "a model file",
            len_bytes: usize::try_from(len_bytes).unwrap_or(0),
            errno,
        }),
    }
}

/// No such advice here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn drop_page_cache(_: &File, _: u64, _: u64) -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "dropping the page cache of a file" })
}

/// No such advice here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn expect_sequential_reads(_: &File) -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "advice about reads" })
}

/// Writes all of `bytes` to a descriptor; waits when it is full and does not block.
fn write_all(descriptor: i32, mut bytes: &[u8]) -> Result<(), SystemError> {
    while !bytes.is_empty() {
        match sys::write_once(descriptor, bytes) {
            Ok(written) => bytes = &bytes[written.min(bytes.len())..],
            Err(libc::EINTR) => {}
            Err(libc::EPIPE) => return Err(SystemError::ReaderGone),
            Err(libc::EAGAIN) => sys::wait_writable(descriptor),
            Err(errno) => {
                let len_bytes = bytes.len();
                return Err(SystemError::Call { call: "write", what: "output", len_bytes, errno });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    #[cfg(not(target_os = "linux"))]
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pipe_takes_everything_and_says_when_its_reader_is_gone() {
        ignore_broken_pipe_signal();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let bytes: Vec<u8> = (0..300_000).map(|i| (i % 251) as u8).collect();
        let expected = bytes.clone();
        let thread = std::thread::spawn(move || {
            let mut read = vec![0; expected.len()];
            reader.read_exact(&mut read).unwrap();
            assert!(read == expected);
        });
        write_all(writer.as_raw_fd(), &bytes).unwrap();
        thread.join().unwrap();
        assert_eq!(write_all(writer.as_raw_fd(), b"more"), Err(SystemError::ReaderGone));
        let closed = write_all(-1, b"x");
        assert!(matches!(closed, Err(SystemError::Call { errno: libc::EBADF, .. })));
    }

    #[test]
    fn a_named_pipe_is_opened_before_its_writer() {
        let path = std::env::temp_dir().join(format!("dctms-pipe-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut file = open_at_once(&path).unwrap();
        assert!(!is_readable(&file));
        let mut writer = File::options().write(true).open(&path).unwrap();
        assert!(!is_readable(&file));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::io::Write::write_all(&mut writer, b"late").unwrap();
        });
        // It waits again, as if it had been opened like any other.
        let mut read = [0; 4];
        file.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"late");
        thread.join().unwrap();
        assert!(wait_readable(&file) && file.read(&mut read).unwrap() == 0);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_has_an_identity_and_a_cache() {
        let path = std::env::temp_dir().join(format!("dctms-identity-{}", std::process::id()));
        std::fs::write(&path, b"twelve bytes").unwrap();
        let file = File::open(&path).unwrap();
        let identity = file_identity(&file).unwrap();
        assert_eq!(identity.len_bytes, 12);
        assert_eq!(identity, file_identity(&File::open(&path).unwrap()).unwrap());
        drop_page_cache(&file, 0, 0).unwrap();
        expect_sequential_reads(&file).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
