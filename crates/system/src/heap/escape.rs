//! Giving work up that asks for more than the image region has: back to where it began.
//!
//! A decoder of pictures cannot be told that there is no memory for what a file makes it ask: it
//! would end the process. So the thread goes back to [`BoundedHeap::guarded`], and the frames that
//! stood above are forgotten, like those of a thread that never goes on. What they owned stands in
//! the image region, which is empty again after.
//!
//! ```text
//! guarded ─▶ call ─▶ work ─▶ decoder ─▶ … ─▶ allocator: no room
//!    ▲         └──────── stack and callee-saved registers ◀──┘
//! ```
//!
//! Believes: x86-64 and its calling convention; elsewhere work cannot be given up, and the process
//! ends as before. Must not know: pictures.

use super::{BoundedHeap, REGION, Tlsf};
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;

/// Work was given up: it asked for more than the region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Bytes of the region.
    pub limit_bytes: usize,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than the {} bytes that are planned for any picture", self.limit_bytes)
    }
}

/// Where a thread goes back to.
#[repr(C)]
struct Point {
    stack: usize,
    resume: usize,
}

thread_local! {
    /// Without a destructor and with a constant start, so that reading it never allocates.
    static POINT: Cell<*const Point> = const { Cell::new(std::ptr::null()) };
}

impl BoundedHeap {
    /// Runs work whose blocks come from the image region (see [`BoundedHeap::scope`]), which is
    /// empty before. When it asks for more than the region has, it is given up, and the region is
    /// empty again.
    ///
    /// # Errors
    /// `GivenUp`.
    ///
    /// # Safety
    /// Work that is given up is forgotten in its middle, without any destructor. It must hold no
    /// lock, share nothing of its stack with a thread, and own nothing outside the image region
    /// that must be given back.
    pub unsafe fn guarded<T>(&self, work: impl FnOnce() -> T) -> Result<T, GivenUp> {
        let figures = self.figures(super::Region::Image);
        let (mut work, mut result) = (Some(work), None);
        let mut body = || result = work.take().map(|work| work());
        if figures.live_bytes > 0 {
            body();
        } else {
            let region = REGION.get();
            let given_up = call(&mut body);
            REGION.set(region);
            if given_up {
                self.with_regions(|regions| {
                    let mapped = &mut regions.image;
                    let base = std::ptr::with_exposed_provenance_mut::<u8>(mapped.base);
                    mapped.heap = Tlsf::new();
                    // SAFETY: the region is mapped up to its limit and ours; what stood in it
                    // belonged to work that was forgotten.
                    unsafe { mapped.heap.take(base, mapped.limit_bytes) };
                });
            }
        }
        result.ok_or(GivenUp { limit_bytes: figures.limit_bytes })
    }
}

/// Runs `body`; whether it was given up.
#[cfg(target_arch = "x86_64")]
fn call<F: FnMut()>(body: &mut F) -> bool {
    unsafe extern "sysv64" fn enter<F: FnMut()>(body: *mut c_void) {
        // SAFETY: `call` passes its own exclusive reference, and waits.
        unsafe { (*body.cast::<F>())() }
    }
    let mut point = Point { stack: 0, resume: 0 };
    POINT.set(&raw const point);
    let given_up: u64;
    // SAFETY: one block from the compiler's view, entered once and left once at label 2: with 0
    // after the call, or with 1 from `leave`, which restores the stack to what it was before the
    // call. All registers that the convention asks a callee to save are either pushed here (which
    // keeps the stack aligned) or named as lost. `point` outlives the call.
    unsafe {
        std::arch::asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "mov [rsi], rsp",
            "mov [rsi + 8], rax",
            "call rdx",
            "xor eax, eax",
            "2:",
            "pop rbx",
            "pop rbp",
            in("rdi") (&raw mut *body).cast::<c_void>(),
            in("rsi") &raw mut point,
            in("rdx") enter::<F> as unsafe extern "sysv64" fn(*mut c_void),
            lateout("rax") given_up,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    POINT.set(std::ptr::null());
    given_up != 0
}

/// Runs `body`, which cannot be given up here.
#[cfg(not(target_arch = "x86_64"))]
fn call<F: FnMut()>(body: &mut F) -> bool {
    body();
    false
}

/// Goes back to where this thread's guarded work began, if it is inside of such.
#[cfg(target_arch = "x86_64")]
pub(super) fn leave() {
    let point = POINT.replace(std::ptr::null());
    if point.is_null() {
        return;
    }
    // SAFETY: `call` of this thread is on the stack below and waits, since it takes the point away
    // when it ends; its block goes on at `resume` with this stack. What is forgotten in between
    // is what the caller of `guarded` vouches for.
    unsafe {
        std::arch::asm!(
            "mov rsp, [rcx]",
            "mov eax, 1",
            "jmp qword ptr [rcx + 8]",
            in("rcx") point,
            options(noreturn),
        );
    }
}

/// There is no way back here.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn leave() {
    let _ = POINT.get();
}

#[cfg(test)]
mod tests {
    use super::super::{HeapConfig, Region};
    use super::*;
    use std::alloc::{GlobalAlloc, Layout};

    /// Work that asks for ever more, some calls deep, with registers in use.
    fn greedy(heap: &BoundedHeap, depth: u64, sum: &mut u64) -> u64 {
        let layout = Layout::from_size_align(1000, 8).expect("a layout");
        // SAFETY: the size is not zero.
        let block = unsafe { heap.alloc(layout) };
        assert!(!block.is_null(), "the heap answers or gives up");
        *sum += depth;
        let below = if depth < 10_000 { greedy(heap, depth + 1, sum) } else { 0 };
        below.wrapping_mul(3) + depth
    }

    #[test]
    fn work_that_asks_for_too_much_is_given_up_again_and_again() {
        let heap = BoundedHeap::new(HeapConfig {
            boot_limit_bytes: 4096,
            run_reserve_bytes: 4096,
            exit_code: 3,
        });
        heap.open_image_region(64 << 10).expect("a region");
        let scope = heap.scope(Region::Image);
        for round in 0..50_u64 {
            let kept = [round, round + 1, round + 2, round + 3, round + 4, round + 5];
            let mut sum = 0;
            // SAFETY: the work owns nothing.
            let done = unsafe { heap.guarded(|| greedy(&heap, round, &mut sum)) };
            if cfg!(target_arch = "x86_64") {
                assert_eq!(done, Err(GivenUp { limit_bytes: 64 << 10 }));
            }
            assert_eq!(heap.figures(Region::Image).live_bytes, 0);
            assert_eq!(kept.iter().sum::<u64>(), 6 * round + 15);
            // SAFETY: the work owns nothing.
            let fine = unsafe { heap.guarded(|| kept.map(|x| x * 2)) };
            assert_eq!(fine, Ok(kept.map(|x| x * 2)));
        }
        drop(scope);
    }
}
