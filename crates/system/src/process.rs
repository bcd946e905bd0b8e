//! What this process uses, as the kernel counts it, and keeping it in memory.
//!
//! Believes: `/proc/self/status`, `getrusage`. Must not know: what any of it is for. Reading facts
//! allocates nothing.

use crate::error::SystemError;
use crate::facts::{FactFile, find_line, kib_field_bytes};
use crate::sys;

/// Memory of this process, in bytes, as `/proc/self/status` states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFacts {
    /// `VmHWM`: the most that was ever resident.
    pub peak_resident_bytes: u64,
    /// `VmRSS`: resident now.
    pub resident_bytes: u64,
    /// `RssAnon`: resident and not backed by a file.
    pub anonymous_bytes: u64,
    /// `RssFile`: resident and backed by a file.
    pub file_bytes: u64,
    /// `VmSwap`: swapped out.
    pub swap_bytes: u64,
    /// `VmLck`: locked.
    pub locked_bytes: u64,
    /// `VmSize`: address space.
    pub mapped_bytes: u64,
    /// `VmData`: private writable mappings and stacks' kin, what `RLIMIT_DATA` limits.
    pub data_bytes: u64,
    /// `VmStk`: the main thread's stack mapping.
    pub main_stack_bytes: u64,
    /// `VmPTE`: page tables, which no limit of ours covers.
    pub page_table_bytes: u64,
}

/// Page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Served without input or output.
    pub minor: u64,
    /// Served by reading from storage.
    pub major: u64,
}

/// Whose faults to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// All threads, since the start of the process.
    Process,
    /// This thread only.
    Thread,
}

/// Reads the memory facts of this process.
///
/// # Errors
/// `Fact` when `/proc` is missing or does not state the peak.
pub fn memory_facts() -> Result<MemoryFacts, SystemError> {
    let file = FactFile::<4096>::read("/proc/self/status");
    let missing = SystemError::Fact { file: "/proc/self/status", what: "VmHWM" };
    parse_status(file.as_ref().map_or("", FactFile::text)).ok_or(missing)
}

/// Arguments and environment that the process was started with, in bytes, with 8 for the pointer
/// to each: what they take of the main stack. Zero where the system does not tell.
pub fn words_bytes() -> u64 {
    let mut total = 0;
    for path in ["/proc/self/cmdline", "/proc/self/environ"] {
        let Ok(mut file) = std::fs::File::open(path) else { continue };
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = std::io::Read::read(&mut file, &mut buffer) {
            let words = buffer[..count].iter().filter(|byte| **byte == 0).count();
            total += (count + words * size_of::<usize>()) as u64;
        }
    }
    total
}

/// Makes the kernel forget the peak: `VmHWM` becomes what is resident now. For tests.
///
/// # Errors
/// `Fact` when the kernel does not offer this.
pub fn reset_peak() -> Result<(), SystemError> {
    std::fs::write("/proc/self/clear_refs", "5")
        .map_err(|_| SystemError::Fact { file: "/proc/self/clear_refs", what: "a reset" })
}

/// Page faults so far.
pub fn faults(scope: FaultScope) -> Faults {
    let whose = match scope {
        FaultScope::Process => libc::RUSAGE_SELF,
        #[cfg(target_os = "linux")]
        FaultScope::Thread => libc::RUSAGE_THREAD,
        #[cfg(not(target_os = "linux"))]
        FaultScope::Thread => libc::RUSAGE_SELF,
    };
    // SAFETY: all zero is a valid rusage; the call fills it and cannot fail for these scopes.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &raw mut usage);
        usage
    };
    Faults {
        minor: u64::try_from(usage.ru_minflt).unwrap_or(0),
        major: u64::try_from(usage.ru_majflt).unwrap_or(0),
    }
}

/// Keeps everything that is mapped now in memory, and makes it resident.
///
/// # Errors
/// `Call` with the reason: `ENOMEM` or `EPERM` when `RLIMIT_MEMLOCK` (see
/// `lockable_bytes`) is smaller than the address space.
pub fn lock_all() -> Result<(), SystemError> {
    sys::lock_all_current()
}

/// How much this process may lock without privilege, in bytes; `None` for no limit.
pub fn lockable_bytes() -> Option<u64> {
    // SAFETY: all zero is a valid rlimit; the call fills it.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) != 0 {
            return Some(0);
        }
        limit
    };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Start and end of the first mapping of that name.
pub(crate) fn mapping_named(name: &str) -> Option<(usize, usize)> {
    find_line("/proc/self/maps", |line| line.ends_with(name).then(|| mapping_range(line))?)
}

/// Start and end of the mapping that holds an address.
#[cfg(test)]
pub(crate) fn mapping_at(address: usize) -> Option<(usize, usize)> {
    let holds = |range: &(usize, usize)| (range.0..range.1).contains(&address);
    find_line("/proc/self/maps", |line| mapping_range(line).filter(holds))
}

/// The range at the front of a line of `/proc/self/maps`.
pub(crate) fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

fn parse_status(text: &str) -> Option<MemoryFacts> {
    let field = |key| kib_field_bytes(text, key).unwrap_or(0);
    Some(MemoryFacts {
        peak_resident_bytes: kib_field_bytes(text, "VmHWM")?,
        resident_bytes: field("VmRSS"),
        anonymous_bytes: field("RssAnon"),
        file_bytes: field("RssFile"),
        swap_bytes: field("VmSwap"),
        locked_bytes: field("VmLck"),
        mapped_bytes: field("VmSize"),
        data_bytes: field("VmData"),
        main_stack_bytes: field("VmStk"),
        page_table_bytes: field("VmPTE"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_is_understood() {
        let text =
            "Name:\tx\nVmHWM:\t    1760 kB\nVmRSS:\t 12 kB\nRssAnon:\t  4 kB\nVmSwap:\t0 kB\n";
        let facts = parse_status(text).unwrap();
        assert_eq!(facts.peak_resident_bytes, 1760 << 10);
        assert_eq!((facts.resident_bytes, facts.anonymous_bytes), (12 << 10, 4 << 10));
        assert_eq!(parse_status("Name: x\n"), None);
        assert_eq!(parse_status("VmHWM: 99999999999999999999 kB\n"), None);
    }

    #[test]
    fn this_process_has_facts() {
        let facts = memory_facts().unwrap();
        assert!(facts.resident_bytes > 0 && facts.peak_resident_bytes >= facts.anonymous_bytes);
        assert!(faults(FaultScope::Process).minor >= faults(FaultScope::Thread).minor);
    }
}
