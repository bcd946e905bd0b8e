//! Threads whose stacks have a fixed size and are resident before they run anything.
//!
//! The main thread's stack grows on demand, so nothing but joining happens on it: all control
//! work runs on one thread made here, and what the kernel mapped in advance for the main stack is
//! cut down to a margin (`seal` then forbids that it grows). The standard library maps
//! `stack_bytes` and a guard page for each thread (the thread's own block of the C library stands
//! inside), and one small alternate stack for the report of an overflow.
//!
//! Believes: what the C library says of the current thread's stack. Must not know: what the
//! threads do.

use crate::c_library;
use crate::error::SystemError;
use crate::sys;
use std::thread::{Builder, JoinHandle};

/// Runs `control` on a thread with a touched stack of `stack_bytes` and returns its result: the
/// main thread does nothing else. Also bounds the C library's own heap and cuts the main stack.
///
/// # Errors
/// `Call` when the thread cannot be made.
///
/// # Panics
/// With the panic of `control`.
pub fn run_on_control_thread<T: Send + 'static>(
    stack_bytes: usize,
    control: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SystemError> {
    c_library::bound_its_heap();
    let main_frame = main_frame_address();
    let thread = spawn_with_touched_stack("control", stack_bytes, move || {
        cut_main_stack(main_frame);
        control()
    })?;
    thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
}

/// Starts a thread with a stack of `stack_bytes`, resident before `work` begins.
///
/// # Errors
/// `Call` when the thread cannot be made.
pub fn spawn_with_touched_stack<T: Send + 'static>(
    name: &'static str,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, SystemError> {
    let touched_work = move || {
        touch_current_stack();
        work()
    };
    Builder::new().name(name.to_owned()).stack_size(stack_bytes).spawn(touched_work).map_err(
        |error| SystemError::Call {
            call: "pthread_create",
            what: name,
            len_bytes: stack_bytes,
            errno: error.raw_os_error().unwrap_or(0),
        },
    )
}

/// The lowest address and length of the current thread's stack, without its guard.
#[cfg(target_os = "linux")]
pub fn current_stack() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: pthread_getattr_np initialises the attributes when it returns 0; they are read
    // and destroyed only then.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let mut base = std::ptr::null_mut();
        let mut len_bytes = 0;
        let got =
            libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut base, &raw mut len_bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (got == 0).then_some((base.addr(), len_bytes))
    }
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
pub fn current_stack() -> Option<(usize, usize)> {
    None
}

/// An address in the present frame, if this is the main thread.
#[cfg(target_os = "linux")]
fn main_frame_address() -> Option<usize> {
    let here = 0_u8;
    // SAFETY: both calls only return numbers.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    is_main.then_some((&raw const here).addr())
}

/// Unmaps what lies more than a margin below the frame in which the main thread waits. The kernel
/// maps 128 KiB for the main stack in advance, which locking would make resident.
#[cfg(target_os = "linux")]
fn cut_main_stack(main_frame: Option<usize>) {
    let Some(frame) = main_frame else { return };
    let Some((start, end)) = crate::process::mapping_named("[stack]") else { return };
    let keep = frame.saturating_sub(crate::limits::MAIN_STACK_MARGIN_BYTES) / sys::page_bytes();
    let keep = keep * sys::page_bytes();
    if (start..end).contains(&frame) && keep > start {
        let base = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the range is the far end of the main stack, below anything that the main
        // thread, which only waits, or a signal on it can use: the margin covers both. Should it
        // be used all the same, the kernel grows the stack again or ends the process.
        let _ = unsafe { sys::unmap(base, keep - start) };
    }
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
fn main_frame_address() -> Option<usize> {
    None
}

/// Nothing to cut here.
#[cfg(not(target_os = "linux"))]
fn cut_main_stack(_: Option<usize>) {}

/// Makes every page of the current thread's stack resident. Where the bounds are not known, or
/// the kernel cannot populate, nothing happens: pages then come on first use.
fn touch_current_stack() {
    let Some((base, len_bytes)) = current_stack() else { return };
    let page_bytes = sys::page_bytes();
    let start = base.next_multiple_of(page_bytes);
    let end = (base + len_bytes) / page_bytes * page_bytes;
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
    let len_bytes = end.saturating_sub(start.addr());
    // SAFETY: the range is this thread's own stack mapping; populating changes no contents.
    if unsafe { sys::advise(start, len_bytes, sys::Advice::PopulateWrite) }.is_err() {
        // SAFETY: the range is writable, and or-ing zero into a byte keeps it, whoever uses it.
        unsafe { sys::touch_pages(start, len_bytes) };
    }
}
