//! Sealing: the kernel refuses every further byte of address space.
//!
//! After sealing `RLIMIT_AS`, `RLIMIT_DATA` and `RLIMIT_STACK` stand at what is mapped now, so a
//! new mapping, a growing `brk` heap, a new thread and a deeper main stack all fail. Only the soft
//! limits move: a re-plan may lift the seal and seal again.
//!
//! Believes: the kernel's own counts. Must not know: what was mapped.

use crate::error::SystemError;
use crate::process::memory_facts;
use crate::sys;

/// A sealed process, and the limits that were in force before.
#[derive(Debug)]
#[must_use = "a seal that is dropped cannot be lifted any more"]
pub struct Seal {
    /// Address space, in bytes: `RLIMIT_AS`.
    pub mapped_bytes: u64,
    /// Private writable memory, in bytes: `RLIMIT_DATA`.
    pub data_bytes: u64,
    /// The main thread's stack, in bytes: `RLIMIT_STACK`.
    pub main_stack_bytes: u64,
    before: [libc::rlimit; 3],
}

#[cfg(target_os = "linux")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_os = "linux"))]
type Resource = libc::c_int;

const RESOURCES: [Resource; 3] = [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_STACK];

/// Seals the process at what it has mapped now.
///
/// # Errors
/// `Fact` when the kernel does not state the sizes, `Call` when it refuses a limit; limits that
/// were set before the failing one stay.
pub fn seal() -> Result<Seal, SystemError> {
    let facts = memory_facts()?;
    let sizes = [facts.mapped_bytes, facts.data_bytes, facts.main_stack_bytes];
    let mut before = RESOURCES.map(|_| libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    for (index, (&resource, &size)) in RESOURCES.iter().zip(&sizes).enumerate() {
        // SAFETY: the call fills the limit.
        check(unsafe { libc::getrlimit(resource, &raw mut before[index]) }, "getrlimit")?;
        let rlim_max = before[index].rlim_max;
        let limit = libc::rlimit { rlim_cur: size.min(rlim_max), rlim_max };
        // SAFETY: the limit is initialised; nothing that is mapped already is affected.
        check(unsafe { libc::setrlimit(resource, &raw const limit) }, "setrlimit")?;
    }
    let [mapped_bytes, data_bytes, main_stack_bytes] = sizes;
    Ok(Seal { mapped_bytes, data_bytes, main_stack_bytes, before })
}

impl Seal {
    /// Restores the limits that were in force before.
    ///
    /// # Errors
    /// `Call` when the kernel refuses.
    pub fn lift(self) -> Result<(), SystemError> {
        for (&resource, before) in RESOURCES.iter().zip(&self.before) {
            // SAFETY: the limit was filled by getrlimit.
            check(unsafe { libc::setrlimit(resource, before) }, "setrlimit")?;
        }
        Ok(())
    }
}

fn check(result: i32, call: &'static str) -> Result<(), SystemError> {
    match result {
        0 => Ok(()),
        _ => Err(SystemError::Call { call, what: "the seal", len_bytes: 0, errno: sys::errno() }),
    }
}
