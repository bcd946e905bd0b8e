//! Which processors this process may run on, putting a lane on one of them, and asking the
//! kernel's scheduler to let a lane run promptly.
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

/// One past the greatest number of a processor that can be asked for.
#[cfg(target_os = "linux")]
pub(crate) const PROCESSOR_NUMBERS_MAX: usize = libc::CPU_SETSIZE as usize;

/// A question: may this process run on the processor of this number?
///
/// # Errors
/// `Call` when the kernel does not say.
#[cfg(target_os = "linux")]
pub(crate) fn is_allowed_processor() -> Result<impl Fn(usize) -> bool, SystemError> {
    let allowed = allowed_processors()?;
    // SAFETY: CPU_SETSIZE bounds every index into the set.
    Ok(move |number| number < PROCESSOR_NUMBERS_MAX && unsafe { libc::CPU_ISSET(number, &allowed) })
}

/// Puts this thread on the `index`-th processor that the process may use, modulo their number.
///
/// # Errors
/// `Call` when the kernel refuses.
#[cfg(target_os = "linux")]
pub fn pin_this_thread(index: usize) -> Result<(), SystemError> {
    let is_allowed = is_allowed_processor()?;
    let nth = index % allowed_processor_count()?;
    let mut processors = (0..PROCESSOR_NUMBERS_MAX).filter(|number| is_allowed(*number));
    let Some(chosen) = processors.nth(nth) else { return Ok(()) };
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

/// Asks for short time slices for this thread: the same share of the processor, in smaller
/// pieces, so that a lane that was woken need not wait for the end of somebody else's slice. Other
/// lanes wait for it, and each such wait would cost all of them milliseconds. Linux 6.12 and
/// later; older kernels take the call and ignore it.
///
/// # Errors
/// `Call` when the kernel refuses.
#[cfg(target_os = "linux")]
pub fn ask_for_short_slices() -> Result<(), SystemError> {
    let mut attributes = SchedulingAttributes::default();
    let len_bytes = size_of::<SchedulingAttributes>() as u32;
    // SAFETY: the kernel writes at most len_bytes into the attributes; 0 is this thread.
    let got =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, len_bytes, 0) };
    if got != 0 {
        return Err(failed("sched_getattr", "a lane's scheduling"));
    }
    // Real-time, deadline and idle threads keep what somebody gave them.
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.size = len_bytes;
    attributes.runtime_ns = SLICE_NS;
    // SAFETY: the kernel reads `size` bytes of the attributes; 0 is this thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(failed("sched_setattr", "a lane's time slice")),
    }
}

/// The slice, in nanoseconds: the shortest that the kernel grants.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of the kernel, in its first version.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
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

/// No processor has a number here.
#[cfg(not(target_os = "linux"))]
pub(crate) const PROCESSOR_NUMBERS_MAX: usize = 0;

/// Nothing is known of single processors.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_allowed_processor() -> Result<impl Fn(usize) -> bool, SystemError> {
    Ok(|_| false)
}

/// Slices cannot be asked for here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn ask_for_short_slices() -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "short time slices" })
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
    #[cfg(target_os = "linux")]
    fn short_slices_leave_the_nice_value() {
        assert_eq!(size_of::<SchedulingAttributes>(), 48);
        let nice = || {
            let mut attributes = SchedulingAttributes::default();
            // SAFETY: as in `ask_for_short_slices`.
            let got =
                unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, 48, 0) };
            assert_eq!(got, 0);
            attributes.nice
        };
        let before = nice();
        ask_for_short_slices().unwrap();
        assert_eq!(nice(), before);
    }

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
