//! An overflow of a thread's stack, told by name: for work on what strangers wrote.
//!
//! Some programs of others (a chat template) are run by an interpreter that recurses, and not
//! every depth can be known beforehand. The stack is fixed and ends in a guard page, so too much
//! recursion is a fault, never a write elsewhere. While [`tell_overflow`] runs its work, such a
//! fault ends the process with a message and an exit code, in place of a signal.
//!
//! Believes: the standard library gave this thread an alternate signal stack. Must not know: what
//! the work is.

use crate::stack::current_stack;
use crate::sys;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What is said, and with which exit code.
#[derive(Clone, Copy, Debug)]
pub struct OverflowMessage {
    /// A line for standard error, its end included.
    pub text: &'static str,
    /// The exit code of the process.
    pub exit_code: i32,
}

/// Bytes below a stack in which a fault is taken for an overflow: the guard, and a frame that
/// steps over a part of it.
const GUARD_BYTES: usize = 64 << 10;

static STACK_START: AtomicUsize = AtomicUsize::new(0);
static TEXT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static TEXT_LEN_BYTES: AtomicUsize = AtomicUsize::new(0);
static EXIT_CODE: AtomicI32 = AtomicI32::new(1);

/// Runs `work` on this thread; an overflow of its stack meanwhile ends the process as `message`
/// says. For one thread at a time. Where the stack's bounds are not known, it only runs it.
pub fn tell_overflow<T>(message: OverflowMessage, work: impl FnOnce() -> T) -> T {
    let Some((start, _)) = current_stack() else { return work() };
    STACK_START.store(start, Ordering::Relaxed);
    TEXT.store(message.text.as_ptr().cast_mut(), Ordering::Relaxed);
    TEXT_LEN_BYTES.store(message.text.len(), Ordering::Relaxed);
    EXIT_CODE.store(message.exit_code, Ordering::Relaxed);
    let before = install();
    let result = work();
    if let Some(before) = before {
        // SAFETY: the action was in force before.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, std::ptr::null_mut()) };
    }
    result
}

/// Installs the handler; gives the action before it.
fn install() -> Option<libc::sigaction> {
    // SAFETY: all zero is a valid action; the handler reads atomics, writes a constant text and
    // calls `_exit` or `sigaction`, all safe in a signal handler, on the alternate stack.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let result = libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before);
        (result == 0).then_some(before)
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let start = STACK_START.load(Ordering::Relaxed);
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid record.
    let address = unsafe { (*info).si_addr() }.addr();
    if (start.saturating_sub(GUARD_BYTES)..start + GUARD_BYTES).contains(&address) {
        let text = TEXT.load(Ordering::Relaxed);
        let len_bytes = TEXT_LEN_BYTES.load(Ordering::Relaxed);
        // SAFETY: both were stored from one `&'static str` before the handler was installed.
        let text = unsafe { std::slice::from_raw_parts(text, len_bytes) };
        let _ = sys::write_once(2, text);
        sys::exit_now(EXIT_CODE.load(Ordering::Relaxed));
    }
    // Another fault: back to what the kernel does, and there again.
    // SAFETY: the default disposition installs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
