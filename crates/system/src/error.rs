//! The one error type of this crate: what was asked of the operating system, and why it said no.
//!
//! Believes: an error may be raised while the heap is exhausted or latched, so it holds numbers
//! and static text only and never allocates. Must not know: exit codes.

use std::fmt;

/// Why the operating system, or a bound of this crate, refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemError {
    /// A system call failed.
    Call {
        /// The call, by its usual name.
        call: &'static str,
        /// What it was for.
        what: &'static str,
        /// The size asked for, in bytes, or 0 where there is none.
        len_bytes: usize,
        /// The error number of the operating system.
        errno: i32,
    },
    /// A value is over a bound (or under a minimum) of this crate.
    Bound {
        /// What is bounded.
        what: &'static str,
        /// The bound.
        bound: usize,
        /// The value that was asked for.
        value: usize,
    },
    /// A file of the operating system does not say what was expected.
    Fact {
        /// The file or its kind.
        file: &'static str,
        /// What was looked for.
        what: &'static str,
    },
    /// A lane panicked; the lanes cannot be used again.
    LanePanicked {
        /// The first lane that did.
        lane: usize,
    },
    /// Blocks of the compile region are still in use where it should be given back.
    CompileRegionInUse {
        /// Bytes of the blocks still in use.
        live_bytes: usize,
    },
    /// The reader of our output is gone (`EPIPE`).
    ReaderGone,
    /// The operating system has no such facility here.
    Unsupported {
        /// What is missing.
        what: &'static str,
    },
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SystemError::Call { call, what, len_bytes, errno } => {
                write!(f, "{call} failed for {what}")?;
                if len_bytes > 0 {
                    write!(f, " ({len_bytes} bytes)")?;
                }
                write!(f, ": {} ({errno})", errno_text(errno))
            }
            SystemError::Bound { what, bound, value } => {
                write!(f, "{what}: {value} is outside the bound {bound}")
            }
            SystemError::Fact { file, what } => write!(f, "{file} does not state {what}"),
            SystemError::LanePanicked { lane } => write!(f, "lane {lane} panicked"),
            SystemError::CompileRegionInUse { live_bytes } => {
                write!(f, "the compile region still holds {live_bytes} live bytes")
            }
            SystemError::ReaderGone => write!(f, "the reader of the output is gone"),
            SystemError::Unsupported { what } => write!(f, "{what}: not supported here"),
        }
    }
}

impl std::error::Error for SystemError {}

/// The reason behind the error numbers that mappings, locks and limits give.
fn errno_text(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "not permitted",
        libc::ENOENT => "no such file",
        libc::EINTR => "interrupted",
        libc::EIO => "input or output failed",
        libc::EBADF => "no such descriptor",
        libc::EAGAIN => "a resource limit is reached",
        libc::ENOMEM => "out of memory or address space",
        libc::EACCES => "access denied",
        libc::EINVAL => "argument not accepted",
        libc::ENOSPC => "no space left",
        libc::EPIPE => "the reader is gone",
        libc::ENOSYS => "not supported by this kernel",
        _ => "operating system error",
    }
}
