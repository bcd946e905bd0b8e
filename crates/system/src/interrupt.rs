//! Stopping on request: a signal sets a flag, and whoever works looks at it between two steps.
//!
//! Believes: a handler may only touch atomics, `pthread_kill` and `_exit`. The kernel gives a
//! signal to any thread; the handler passes it on to the thread that asked, so that a call which
//! blocks there is interrupted. A second request while the first has not been taken ends the
//! process at once, in case nobody looks. Must not know: who works.

use crate::error::SystemError;
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The thread that asked, as its `pthread_t`; it must live as long as the process.
static ASKER: AtomicUsize = AtomicUsize::new(0);

/// Signals that ask a program to stop: the exit code of a process that one of them ended.
const EXIT_CODE_BASE: i32 = 128;

/// From now on Ctrl-C (`SIGINT`) and `SIGTERM` set the flag instead of ending the process. A
/// call that blocks on the calling thread is interrupted (`EINTR`); that thread must not end before
/// the process does.
///
/// # Errors
/// `Call` when the handler cannot be installed.
pub fn catch_stop_requests() -> Result<(), SystemError> {
    // SAFETY: always succeeds.
    ASKER.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zero is a valid action; the handler touches atomics, may pass the signal on
        // and may `_exit`, all safe in a signal handler. Without SA_RESTART, so that blocked reads
        // return.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        if result != 0 {
            let errno = sys::errno();
            let what = "stop requests";
            return Err(SystemError::Call { call: "sigaction", what, len_bytes: 0, errno });
        }
    }
    Ok(())
}

/// Whether a stop was requested and not yet taken.
pub fn stop_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Takes the request: whether there was one; the next signal is a new request.
pub fn take_stop_request() -> bool {
    REQUESTED.swap(false, Ordering::Relaxed)
}

extern "C" fn on_signal(signal: libc::c_int) {
    let asker = ASKER.load(Ordering::Relaxed);
    // SAFETY: both calls are safe in a handler; the asker lives as long as the process.
    unsafe {
        if libc::pthread_self() as usize != asker {
            libc::pthread_kill(asker as libc::pthread_t, signal);
            return;
        }
    }
    if REQUESTED.swap(true, Ordering::Relaxed) {
        sys::exit_now(EXIT_CODE_BASE + signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_sets_the_flag_once() {
        catch_stop_requests().unwrap();
        assert!(!stop_requested());
        // SAFETY: the handler for this signal was just installed.
        unsafe { libc::raise(libc::SIGTERM) };
        assert!(stop_requested() && take_stop_request() && !stop_requested());
    }
}
