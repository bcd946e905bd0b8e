//! Which processors this process may run on, and putting a lane on one of them.
//!
//! Believes: the main thread is never pinned (it only joins), so its set is the process's. Must
//! not know: quotas (see `processors`).

use crate::error::SystemError;

/// The processors that the main thread, and so the process, may run on.
#[cfg(target_os = "linux")]
fn allowed_processors() -> Result<libc::cpu_set_t, SystemError> {
    // SAFETY: all zero is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let len_bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: the kernel writes at most len_bytes into the set; getpid has no preconditions and
    // names the main thread.
    match unsafe { libc::sched_getaffinity(libc::getpid(), len_bytes, &raw mut set) } {
        0 => Ok(set),
        _ => Err(failed("sched_getaffinity", "the allowed processors")),
    }
}

/// How many processors this process may run on (affinity and cpuset, no quota).
///
/// # Errors
/// `Call` when the kernel does not say.
#[cfg(target_os = "linux")]
pub fn allowed_processor_count() -> Result<usize, SystemError> {
    let set = allowed_processors()?;
    // SAFETY: the set is initialised.
    Ok(usize::try_from(unsafe { libc::CPU_COUNT(&set) }).unwrap_or(1).max(1))
}

/// Puts this thread on the `index`-th processor that the process may use, modulo their number.
///
/// # Errors
/// `Call` when the kernel refuses.
#[cfg(target_os = "linux")]
pub fn pin_this_thread(index: usize) -> Result<(), SystemError> {
    let allowed = allowed_processors()?;
    let nth = index % allowed_processor_count()?;
    // SAFETY: CPU_SETSIZE bounds every index into the set.
    let is_allowed = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &allowed) };
    let processors = 0..libc::CPU_SETSIZE as usize;
    let Some(chosen) = processors.filter(is_allowed).nth(nth) else { return Ok(()) };
    // SAFETY: all zero is a valid, empty set; `chosen` is below CPU_SETSIZE; 0 is this thread.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(chosen, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    match result {
        0 => Ok(()),
        _ => Err(failed("sched_setaffinity", "pinning a lane")),
    }
}

#[cfg(target_os = "linux")]
fn failed(call: &'static str, what: &'static str) -> SystemError {
    SystemError::Call { call, what, len_bytes: 0, errno: crate::sys::errno() }
}

/// How many processors there are, as far as the standard library knows.
///
/// # Errors
/// `Unsupported` when it does not.
#[cfg(not(target_os = "linux"))]
pub fn allowed_processor_count() -> Result<usize, SystemError> {
    std::thread::available_parallelism()
        .map(std::num::NonZero::get)
        .map_err(|_| SystemError::Unsupported { what: "counting processors" })
}

/// Threads cannot be pinned here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn pin_this_thread(_: usize) -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "pinning threads" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_each_allowed_processor() {
        let count = allowed_processor_count().unwrap();
        assert!(count >= 1);
        std::thread::spawn(move || (0..2 * count).for_each(|i| pin_this_thread(i).unwrap()))
            .join()
            .unwrap();
        assert_eq!(allowed_processor_count().unwrap(), count, "the process's set is unchanged");
    }
}
