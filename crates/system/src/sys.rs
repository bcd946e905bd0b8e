//! Thin shells over the calls of the operating system: one function a call, error numbers turned
//! into `SystemError`, nothing remembered.
//!
//! Believes: the C library's wrappers. Must not know: why anybody calls. Everything here is
//! usable before `main`, inside the allocator and (where noted) inside a signal handler, so
//! nothing allocates.

use crate::error::SystemError;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// What the kernel is told about a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Use huge pages where they fit.
    HugePages,
    /// Use no huge pages, so that only touched pages become resident.
    SmallPages,
    /// Make every page resident for reading now (Linux 5.14).
    #[cfg(target_os = "linux")]
    PopulateRead,
    /// Make every page resident and writable now (Linux 5.14).
    PopulateWrite,
}

/// The last error number of this thread.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn failed(call: &'static str, what: &'static str, len_bytes: usize) -> SystemError {
    SystemError::Call { call, what, len_bytes, errno: errno() }
}

/// The page size, in bytes.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the process and touches no memory of ours.
    let value = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(value).unwrap_or(crate::limits::PAGE_BYTES_MIN)
}

/// `len_bytes` rounded up to whole pages, or `None` on overflow.
pub(crate) fn round_up_to_pages(len_bytes: usize) -> Option<usize> {
    len_bytes.checked_next_multiple_of(page_bytes())
}

/// Reserves private anonymous address space that can be neither read nor written and costs no
/// memory.
pub(crate) fn map_reserved(
    len_bytes: usize,
    what: &'static str,
) -> Result<NonNull<u8>, SystemError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no existing memory changes.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(failed("mmap", what, len_bytes));
    }
    NonNull::new(base.cast::<u8>()).ok_or(failed("mmap", what, len_bytes))
}

/// Gives a mapping back.
///
/// # Safety
/// `[base, base + len_bytes)` is a range of mappings that the caller owns and no longer uses.
pub(crate) unsafe fn unmap(base: *mut u8, len_bytes: usize) -> Result<(), SystemError> {
    // SAFETY: by this function's contract nobody uses the range any more.
    match unsafe { libc::munmap(base.cast(), len_bytes) } {
        0 => Ok(()),
        _ => Err(failed("munmap", "a mapping", len_bytes)),
    }
}

/// Makes a reserved range readable and writable.
///
/// # Safety
/// `[base, base + len_bytes)` is page-aligned and inside a mapping that the caller owns.
pub(crate) unsafe fn make_writable(base: *mut u8, len_bytes: usize) -> Result<(), SystemError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the caller's own, and more access invalidates no reference.
    match unsafe { libc::mprotect(base.cast(), len_bytes, protection) } {
        0 => Ok(()),
        _ => Err(failed("mprotect", "a reserved range", len_bytes)),
    }
}

/// Takes all access to a range away.
///
/// # Safety
/// `[base, base + len_bytes)` is page-aligned, inside mappings of the caller, and nobody reads or
/// writes it before it is given access again.
pub(crate) unsafe fn withhold(base: *mut u8, len_bytes: usize) -> Result<(), SystemError> {
    // SAFETY: by this function's contract nobody uses the range.
    match unsafe { libc::mprotect(base.cast(), len_bytes, libc::PROT_NONE) } {
        0 => Ok(()),
        _ => Err(failed("mprotect", "a range of the arena", len_bytes)),
    }
}

/// Puts pages of a file in the place of a range, for reading.
///
/// # Safety
/// `[base, base + len_bytes)` is page-aligned, inside mappings of the caller, and nobody has used
/// it; from now on nobody writes it.
pub(crate) unsafe fn map_file(
    base: *mut u8,
    len_bytes: usize,
    file: &std::fs::File,
    at: u64,
) -> Result<(), SystemError> {
    use std::os::fd::AsRawFd;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let (protection, at) = (libc::PROT_READ, at as libc::off_t);
    // SAFETY: the range is the caller's own, whose old pages nobody needs.
    let mapped =
        unsafe { libc::mmap(base.cast(), len_bytes, protection, flags, file.as_raw_fd(), at) };
    match mapped == base.cast() {
        true => Ok(()),
        false => Err(failed("mmap", "a file in the arena", len_bytes)),
    }
}

/// Tells the kernel how a range will be used. Contents do not change.
///
/// # Safety
/// `[base, base + len_bytes)` is page-aligned and inside mappings of the caller.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn advise(
    base: *mut u8,
    len_bytes: usize,
    advice: Advice,
) -> Result<(), SystemError> {
    let (number, what) = match advice {
        Advice::HugePages => (libc::MADV_HUGEPAGE, "huge pages"),
        Advice::SmallPages => (libc::MADV_NOHUGEPAGE, "small pages"),
        Advice::PopulateRead => (libc::MADV_POPULATE_READ, "resident pages"),
        Advice::PopulateWrite => (libc::MADV_POPULATE_WRITE, "resident pages"),
    };
    loop {
        // SAFETY: no kind of advice here changes the contents of the range.
        if unsafe { libc::madvise(base.cast(), len_bytes, number) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR => continue,
            _ => return Err(failed("madvise", what, len_bytes)),
        }
    }
}

/// No such advice on this system.
///
/// # Safety
/// As on Linux; nothing is done here.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn advise(_: *mut u8, _: usize, _: Advice) -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "advice about pages" })
}

/// Makes a range resident by writing one byte of each page back to itself, atomically, so that
/// contents survive even while other threads write.
///
/// # Safety
/// `[base, base + len_bytes)` is inside writable mappings of the caller.
pub(crate) unsafe fn touch_pages(base: *mut u8, len_bytes: usize) {
    let page_bytes = page_bytes();
    let mut offset = 0;
    while offset < len_bytes {
        // SAFETY: offset < len_bytes, so the byte is inside the range; AtomicU8 has alignment 1.
        let byte = unsafe { &*base.add(offset).cast::<std::sync::atomic::AtomicU8>() };
        byte.fetch_or(0, std::sync::atomic::Ordering::Relaxed);
        offset += page_bytes;
    }
}

/// Keeps a range in memory.
///
/// # Safety
/// `[base, base + len_bytes)` is inside mappings of the caller.
pub(crate) unsafe fn lock(base: *const u8, len_bytes: usize) -> Result<(), SystemError> {
    // SAFETY: locking changes neither contents nor access.
    match unsafe { libc::mlock(base.cast(), len_bytes) } {
        0 => Ok(()),
        _ => Err(failed("mlock", "the arena", len_bytes)),
    }
}

/// Frees the pages of a range, locked or not; it reads as zero afterwards.
///
/// # Safety
/// The range is whole pages of the caller's own anonymous mapping, and its contents are not
/// needed any more.
pub(crate) unsafe fn discard(base: *mut u8, len_bytes: usize) -> Result<(), SystemError> {
    // SAFETY: the caller's promise; locked pages cannot be dropped, so they are unlocked first.
    let dropped = unsafe {
        libc::munlock(base.cast(), len_bytes);
        libc::madvise(base.cast(), len_bytes, libc::MADV_DONTNEED)
    };
    match dropped {
        0 => Ok(()),
        _ => Err(failed("madvise", "the arena", len_bytes)),
    }
}

/// Keeps everything that is mapped now in memory.
pub(crate) fn lock_all_current() -> Result<(), SystemError> {
    // SAFETY: locking changes neither contents nor access.
    match unsafe { libc::mlockall(libc::MCL_CURRENT) } {
        0 => Ok(()),
        _ => Err(failed("mlockall", "every mapping", 0)),
    }
}

/// Sleeps while `*word == expected`; returns on a wake, on a changed value, or for no reason.
#[cfg(target_os = "linux")]
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the kernel only reads the aligned word, which outlives the call; no time limit.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes at most `count` sleepers on `word`.
#[cfg(target_os = "linux")]
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: the kernel uses the address as a name only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
        );
    }
}

/// Without futexes a sleeper gives its time slice away and looks again.
#[cfg(not(target_os = "linux"))]
pub(crate) fn futex_wait(_: &AtomicU32, _: u32) {
    std::thread::yield_now();
}

/// Without futexes nobody sleeps.
#[cfg(not(target_os = "linux"))]
pub(crate) fn futex_wake(_: &AtomicU32, _: i32) {}

/// Writes what it can of `bytes` to a descriptor once. Safe in a signal handler.
pub(crate) fn write_once(descriptor: i32, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: the pointer and length are of one live slice.
    let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| errno())
}

/// Ends the process at once: no destructors, no flush.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and runs no code of ours.
    unsafe { libc::_exit(code) }
}

/// Whether reading a descriptor would give something: bytes, or its end. Waits for it at most so
/// long, or until a signal comes.
pub(crate) fn is_readable(descriptor: i32, wait_ms: i32) -> bool {
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: the one entry outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, wait_ms) > 0 }
}

/// From now on reading a descriptor waits for bytes.
pub(crate) fn make_blocking(descriptor: i32) -> Result<(), SystemError> {
    // SAFETY: both calls ask for and change flags of a descriptor, and touch no memory of ours.
    let result = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    match result {
        0 => Ok(()),
        _ => Err(failed("fcntl", "a file", 0)),
    }
}

/// Waits until a descriptor takes bytes, or is broken, or a signal came.
pub(crate) fn wait_writable(descriptor: i32) {
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the one entry outlives the call; without a time limit.
    unsafe {
        libc::poll(&raw mut entry, 1, -1);
    }
}
