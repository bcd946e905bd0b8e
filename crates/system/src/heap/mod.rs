//! The bounded heap: a global allocator with up to three regions, hard limits, and a latch.
//!
//! ```text
//! time    start ──────── compile stage ──────────┬── load ── seal ── tokens … ── end
//! compile        [ parse, plan, verify ]  given back
//! run     [ start-up, results that live on, lanes, sessions … at most heap_limit_bytes ]
//! image                                               [ picture ]     [ picture ]
//! ```
//!
//! The *run region* holds whatever lives as long as the process. It starts with a small boot
//! limit and gets its final limit once, from the plan; its address range ends there. The *compile
//! region* is opened for a stage that needs much and leaves little: a thread inside
//! `scope(Region::Compile)` allocates from it. Results are copied to the run region inside a
//! nested `scope(Region::Run)`; then the compile region is closed, which fails while anything in
//! it is alive, and gives every page back to the system before the arena is touched. So
//! `max(compile limit + boot limit, heap limit + arena + …)` bounds the process, and the planner
//! asks that the first is no more than the second. A block stays in its region when it is
//! reallocated, and is freed by address, whoever frees it.
//!
//! The *image region* is for decoders of pictures, whose needs no plan knows one by one but whose
//! worst case one does: it is as long as that, resident from the moment it is opened, and never
//! given back. A process without eyes has none. Work that needs more is given up where somebody
//! stands guard (`guarded`); else it ends the process at any time, with the same exit code: a
//! decoder could not go on.
//!
//! Nothing grows past a limit. While *loading* a request beyond it ends the process with a
//! message and the exit code for "does not fit"; later the request is refused (null).
//!
//! Believes: the mappings of `sys`; that it is the only global allocator. Works from the first
//! instruction of the process, in every thread, never calls itself. Must not know: who allocates.

mod escape;
mod latch;
mod lock;
#[cfg(test)]
mod tests;
mod tlsf;

pub use escape::GivenUp;
pub use latch::{LatchScope, LookingAway, OnViolation, look_away, watch_this_thread};

use crate::error::SystemError;
use crate::limits::HEAP_REGION_BYTES_MAX;
use crate::sys::{self, Advice};
use crate::text::StackText;
use latch::{Latch, Verdict};
use lock::HeapLock;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::fmt::Write;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tlsf::Tlsf;

/// What a heap is born with.
#[derive(Clone, Copy, Debug)]
pub struct HeapConfig {
    /// Limit of the run region until `set_run_limit`, in bytes, whole pages of 4 KiB.
    pub boot_limit_bytes: usize,
    /// Address space kept for the run region until its limit is known, in bytes, whole pages:
    /// no later limit can be larger.
    pub run_reserve_bytes: usize,
    /// Exit code when a limit is reached while loading.
    pub exit_code: i32,
}

/// Which region new blocks of a thread come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// For what lives on.
    Run,
    /// For what is gone before the arena is touched.
    Compile,
    /// For decoding a picture: resident from the start, empty between pictures.
    Image,
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhaustion {
    /// A message on standard error and `_exit` with the configured code: while loading.
    Exit,
    /// Null, and the caller decides: after sealing.
    Refuse,
}

/// The figures of one region, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapFigures {
    /// The limit, 0 for a region that is not open.
    pub limit_bytes: usize,
    /// Blocks in use, with their headers and rounding.
    pub live_bytes: usize,
    /// The most that `live_bytes` was.
    pub live_peak_bytes: usize,
    /// Bytes from the start of the region that were ever touched: what it costs when small pages
    /// come on first use. At most `limit_bytes`.
    pub touched_bytes: usize,
}

/// The allocator; see the module's text. Use it as a `static` with `#[global_allocator]`.
pub struct BoundedHeap {
    config: HeapConfig,
    lock: HeapLock,
    regions: UnsafeCell<Regions>,
    exhaustion: AtomicU8,
    allocations: AtomicU64,
    latch: Latch,
}

/// Back to the region before, for this thread, when dropped.
#[must_use = "the region changes back when the scope is dropped"]
pub struct RegionScope {
    before: Region,
    /// The scope belongs to its thread.
    not_send: PhantomData<*const ()>,
}

struct Regions {
    run: Mapped,
    run_limit_is_final: bool,
    compile: Mapped,
    image: Mapped,
}

struct Mapped {
    heap: Tlsf,
    base: usize,
    /// Bytes that blocks may use.
    limit_bytes: usize,
    /// Bytes of address space, at least the limit.
    reserved_bytes: usize,
}

thread_local! {
    // Without a destructor and with a constant start, so that reading it never allocates.
    static REGION: Cell<Region> = const { Cell::new(Region::Run) };
}

// SAFETY: `regions` is accessed only while `lock` is held; all else is atomic.
unsafe impl Sync for BoundedHeap {}

impl BoundedHeap {
    /// A heap that maps its run region at the first allocation.
    pub const fn new(config: HeapConfig) -> BoundedHeap {
        assert!(config.boot_limit_bytes <= config.run_reserve_bytes);
        assert!(config.run_reserve_bytes <= HEAP_REGION_BYTES_MAX);
        assert!(config.boot_limit_bytes.is_multiple_of(crate::limits::PAGE_BYTES_MIN));
        assert!(config.run_reserve_bytes.is_multiple_of(crate::limits::PAGE_BYTES_MIN));
        BoundedHeap {
            config,
            lock: HeapLock::new(),
            regions: UnsafeCell::new(Regions {
                run: Mapped::none(),
                run_limit_is_final: false,
                compile: Mapped::none(),
                image: Mapped::none(),
            }),
            exhaustion: AtomicU8::new(0),
            allocations: AtomicU64::new(0),
            latch: Latch::new(),
        }
    }

    /// Maps the compile region with its limit, rounded up to pages. It may be opened again after
    /// it was closed (for a new plan).
    ///
    /// # Errors
    /// `Bound` when it is open or the limit is over 16 GiB; `Call` when the kernel has no room.
    pub fn open_compile_region(&self, limit_bytes: usize) -> Result<(), SystemError> {
        self.open_compile_region_within(limit_bytes, limit_bytes)
    }

    /// As `open_compile_region`, but with less, down to `least_bytes`, where the address space
    /// that the process may have is less.
    ///
    /// # Errors
    /// As `open_compile_region`, when there is no room for the least either.
    pub fn open_compile_region_at_most(
        &self,
        limit_bytes: usize,
        least_bytes: usize,
    ) -> Result<(), SystemError> {
        let opened = self.open_compile_region(limit_bytes);
        match opened {
            Err(SystemError::Call { .. }) if limit_bytes / 2 >= least_bytes => {
                self.open_compile_region_at_most(limit_bytes / 2, least_bytes)
            }
            done => done,
        }
    }

    /// As `open_compile_region`, in `reserve_bytes` of address space, so that
    /// `set_compile_limit` can raise the limit once it is known what the stage needs. Where the
    /// process may not have so much, it is less, down to the limit.
    ///
    /// # Errors
    /// As `open_compile_region`.
    pub fn open_compile_region_within(
        &self,
        limit_bytes: usize,
        reserve_bytes: usize,
    ) -> Result<(), SystemError> {
        let bound = SystemError::Bound {
            what: "compile region bytes",
            bound: HEAP_REGION_BYTES_MAX,
            value: limit_bytes,
        };
        let len_bytes = sys::round_up_to_pages(limit_bytes)
            .filter(|&len| len > 0 && len <= HEAP_REGION_BYTES_MAX)
            .ok_or(bound)?;
        let reserved = sys::round_up_to_pages(reserve_bytes)
            .filter(|&len| len >= len_bytes && len <= HEAP_REGION_BYTES_MAX)
            .ok_or(bound)?;
        self.with_regions(|regions| {
            if regions.compile.limit_bytes > 0 {
                return Err(SystemError::Bound { what: "compile regions", bound: 1, value: 2 });
            }
            regions.compile.map_at_most(reserved, len_bytes, "the compile region")
        })
    }

    /// Sets the final limit of the open compile region, rounded up to pages.
    ///
    /// # Errors
    /// `Bound` when more is touched already, or when it is over the reserve.
    pub fn set_compile_limit(&self, limit_bytes: usize) -> Result<(), SystemError> {
        self.with_regions(|regions| regions.compile.set_final_limit(limit_bytes))
    }

    /// New blocks of this thread come from `region` until the scope is dropped. Scopes nest. In
    /// `Compile` while that region is not open, blocks come from `Run`.
    pub fn scope(&self, region: Region) -> RegionScope {
        RegionScope { before: REGION.replace(region), not_send: PhantomData }
    }

    /// Gives every page of the compile region back and returns its last figures.
    ///
    /// # Errors
    /// `CompileRegionInUse` with the live bytes; nothing is given back then.
    pub fn close_compile_region(&self) -> Result<HeapFigures, SystemError> {
        self.with_regions(|regions| {
            let figures = regions.compile.figures();
            if figures.live_bytes > 0 {
                return Err(SystemError::CompileRegionInUse { live_bytes: figures.live_bytes });
            }
            if figures.limit_bytes > 0 {
                regions.compile.give_back()?;
            }
            Ok(figures)
        })
    }

    /// Maps the image region, rounded up to pages, and makes it resident. Once only.
    ///
    /// # Errors
    /// `Bound` when it is open or over 16 GiB; `Call` when the kernel has no room.
    pub fn open_image_region(&self, limit_bytes: usize) -> Result<(), SystemError> {
        let what = "image region bytes";
        let len_bytes = sys::round_up_to_pages(limit_bytes)
            .filter(|&len| len > 0 && len <= HEAP_REGION_BYTES_MAX)
            .ok_or(SystemError::Bound { what, bound: HEAP_REGION_BYTES_MAX, value: limit_bytes })?;
        self.with_regions(|regions| {
            if regions.image.limit_bytes > 0 {
                return Err(SystemError::Bound { what: "image regions", bound: 1, value: 2 });
            }
            regions.image.map(len_bytes, len_bytes, "the image region")?;
            regions.image.make_resident();
            Ok(())
        })
    }

    /// Sets the final limit of the run region, rounded up to pages, and gives the rest of its
    /// address space back. Once only.
    ///
    /// # Errors
    /// `Bound` when it was set before, when more is touched already, or when it is over the
    /// reserve; `Call` when the kernel refuses.
    pub fn set_run_limit(&self, limit_bytes: usize) -> Result<(), SystemError> {
        self.with_regions(|regions| {
            if regions.run_limit_is_final {
                return Err(SystemError::Bound { what: "final heap limits", bound: 1, value: 2 });
            }
            self.map_run_region(regions)?;
            regions.run.set_final_limit(limit_bytes)?;
            regions.run_limit_is_final = true;
            Ok(())
        })
    }

    /// What happens from now on when a limit is reached. At first: `Exit`.
    pub fn set_exhaustion(&self, exhaustion: Exhaustion) {
        let state = match exhaustion {
            Exhaustion::Exit => 0,
            Exhaustion::Refuse => 1,
        };
        self.exhaustion.store(state, Ordering::SeqCst);
    }

    /// The figures of one region.
    pub fn figures(&self, region: Region) -> HeapFigures {
        self.with_regions(|regions| match region {
            Region::Run => regions.run.figures(),
            Region::Compile => regions.compile.figures(),
            Region::Image => regions.image.figures(),
        })
    }

    /// Allocations (and reallocations) since the start; take the difference of two.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Closes the latch: from now on allocating is a violation.
    pub fn close_latch(&self, scope: LatchScope, on_violation: OnViolation) {
        self.latch.close(scope, on_violation);
    }

    /// Opens the latch and returns the violations while it was closed.
    pub fn open_latch(&self) -> u64 {
        self.latch.open()
    }

    /// Violations since the latch was closed last.
    pub fn violations(&self) -> u64 {
        self.latch.violations()
    }

    fn with_regions<T>(&self, work: impl FnOnce(&mut Regions) -> T) -> T {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held, and `work` never allocates or comes back here.
        work(unsafe { &mut *self.regions.get() })
    }

    fn map_run_region(&self, regions: &mut Regions) -> Result<(), SystemError> {
        if regions.run.limit_bytes > 0 {
            return Ok(());
        }
        let HeapConfig { boot_limit_bytes, run_reserve_bytes, .. } = self.config;
        regions.run.map_at_most(run_reserve_bytes, boot_limit_bytes, "the run region")
    }

    /// One block from the thread's region, or the end of the process, or null.
    fn serve(&self, size: usize, align: usize, region: Region) -> *mut u8 {
        let (block, figures) = self.with_regions(|regions| {
            let mapped = match region {
                Region::Compile if regions.compile.limit_bytes > 0 => &mut regions.compile,
                Region::Image if regions.image.limit_bytes > 0 => &mut regions.image,
                Region::Compile | Region::Image | Region::Run => {
                    if self.map_run_region(regions).is_err() {
                        return (std::ptr::null_mut(), HeapFigures::default());
                    }
                    &mut regions.run
                }
            };
            // SAFETY: the region is mapped up to its limit, and ours alone.
            let block = unsafe { mapped.heap.allocate(size, align) };
            (block, mapped.figures())
        });
        if block.is_null() && region == Region::Image {
            escape::leave();
        }
        let loading = self.exhaustion.load(Ordering::Relaxed) == 0;
        if block.is_null() && (loading || region == Region::Image) {
            self.exit_on_exhaustion(size, region, figures);
        }
        block
    }

    /// Says which limit is reached and ends the process.
    #[cold]
    fn exit_on_exhaustion(&self, size: usize, region: Region, figures: HeapFigures) -> ! {
        let wanted = figures.live_bytes.saturating_add(size);
        let stage = match region {
            Region::Run => "loading or running",
            Region::Compile => "planning",
            Region::Image => "decoding a picture (see --max-image-size)",
        };
        let mut text = StackText::<256>::new();
        let _ = match figures.limit_bytes {
            0 => writeln!(
                text,
                "dctms: no address space for a heap of {} bytes: is there a limit (ulimit -v)?",
                self.config.boot_limit_bytes
            ),
            limit => writeln!(
                text,
                "dctms: heap limit reached while {stage}: {wanted} of {limit} bytes (the last \
                 request is {size})"
            ),
        };
        let _ = sys::write_once(2, text.bytes());
        sys::exit_now(self.config.exit_code)
    }

    /// Counts a request and asks the latch.
    fn admit(&self, size: usize) -> bool {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        match self.latch.judge() {
            Verdict::Serve => true,
            Verdict::Refuse => false,
            Verdict::Abort => {
                let mut text = StackText::<128>::new();
                let _ = writeln!(text, "heap allocation of {size} bytes while the latch is closed");
                let _ = sys::write_once(2, text.bytes());
                std::process::abort()
            }
        }
    }

    fn region_of(&self, block: *mut u8) -> Region {
        self.with_regions(|regions| {
            match (regions.compile.contains(block), regions.image.contains(block)) {
                (true, _) => Region::Compile,
                (false, true) => Region::Image,
                (false, false) => Region::Run,
            }
        })
    }
}

// SAFETY: blocks come from `Tlsf`, which hands out disjoint, aligned blocks of at least the size
// asked for and keeps them until freed; nothing here unwinds.
unsafe impl GlobalAlloc for BoundedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.admit(layout.size()) {
            true => self.serve(layout.size(), layout.align(), REGION.get()),
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        self.with_regions(|regions| match regions.of(block) {
            // SAFETY: the block lies in this region and came from its heap.
            Some(mapped) => unsafe { mapped.heap.free(block) },
            None => fatal("a block was freed that is not of this heap\n"),
        });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.admit(size) {
            return std::ptr::null_mut();
        }
        let resized = self.with_regions(|regions| match regions.of(block) {
            // SAFETY: as in `dealloc`; the block stays where it is.
            Some(mapped) => unsafe { mapped.heap.resize_in_place(block, size) },
            None => fatal("a block was resized that is not of this heap\n"),
        });
        if resized {
            return block;
        }
        let moved = self.serve(size, layout.align(), self.region_of(block));
        if !moved.is_null() {
            // SAFETY: both blocks are live, distinct, and at least as long as the smaller size;
            // the old one came from this heap with this layout.
            unsafe {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

impl Drop for RegionScope {
    fn drop(&mut self) {
        REGION.set(self.before);
    }
}

impl Regions {
    fn of(&mut self, block: *mut u8) -> Option<&mut Mapped> {
        if self.compile.contains(block) {
            return Some(&mut self.compile);
        }
        if self.image.contains(block) {
            return Some(&mut self.image);
        }
        self.run.contains(block).then_some(&mut self.run)
    }
}

impl Mapped {
    const fn none() -> Mapped {
        Mapped { heap: Tlsf::new(), base: 0, limit_bytes: 0, reserved_bytes: 0 }
    }

    fn contains(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.base) < self.reserved_bytes
    }

    fn figures(&self) -> HeapFigures {
        HeapFigures {
            limit_bytes: self.limit_bytes,
            live_bytes: self.heap.live_bytes(),
            live_peak_bytes: self.heap.live_peak_bytes(),
            touched_bytes: self.heap.touched_bytes(),
        }
    }

    /// As `map`, with a quarter of the address space where there is no room, down to the limit:
    /// what is left is for others.
    fn map_at_most(
        &mut self,
        reserved_bytes: usize,
        limit_bytes: usize,
        what: &'static str,
    ) -> Result<(), SystemError> {
        let mut reserved = reserved_bytes;
        loop {
            let less = sys::round_up_to_pages(reserved / 4).unwrap_or(0).max(limit_bytes);
            match self.map(reserved, limit_bytes, what) {
                Err(_) if less < reserved => reserved = less,
                done => return done,
            }
        }
    }

    /// Reserves address space and makes its front usable.
    fn map(
        &mut self,
        reserved_bytes: usize,
        limit_bytes: usize,
        what: &'static str,
    ) -> Result<(), SystemError> {
        let base = sys::map_reserved(reserved_bytes, what)?.as_ptr();
        // SAFETY: the mapping was just made, is ours, and is at least as long as the limit. A
        // kernel without huge pages refuses the advice, which changes nothing.
        unsafe {
            let _ = sys::advise(base, reserved_bytes, Advice::SmallPages);
            if let Err(error) = sys::make_writable(base, limit_bytes) {
                sys::unmap(base, reserved_bytes)?;
                return Err(error);
            }
            self.heap.take(base, limit_bytes);
        }
        self.base = base.addr();
        self.limit_bytes = limit_bytes;
        self.reserved_bytes = reserved_bytes;
        Ok(())
    }

    /// Touches every page of a region that was just mapped.
    fn make_resident(&mut self) {
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.base);
        // SAFETY: the range is this region's own and writable; populating changes no contents.
        if unsafe { sys::advise(base, self.limit_bytes, Advice::PopulateWrite) }.is_err() {
            // SAFETY: as above, and or-ing zero into a byte keeps it.
            unsafe { sys::touch_pages(base, self.limit_bytes) };
        }
    }

    /// Fixes the limit and gives the address space behind it back.
    fn set_final_limit(&mut self, limit_bytes: usize) -> Result<(), SystemError> {
        let limit = sys::round_up_to_pages(limit_bytes).unwrap_or(usize::MAX);
        let what = "heap limit in bytes";
        if limit > self.reserved_bytes {
            let bound = self.reserved_bytes;
            return Err(SystemError::Bound { what, bound, value: limit_bytes });
        }
        if limit < self.heap.touched_bytes() {
            let bound = self.heap.touched_bytes();
            return Err(SystemError::Bound { what, bound, value: limit_bytes });
        }
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.base);
        // SAFETY: the range is this region's own; behind the limit nothing was ever handed out.
        unsafe {
            sys::make_writable(base, limit)?;
            if limit < self.reserved_bytes {
                sys::unmap(base.add(limit), self.reserved_bytes - limit)?;
            }
        }
        self.heap.set_limit(limit);
        self.limit_bytes = limit;
        self.reserved_bytes = limit;
        Ok(())
    }

    /// Unmaps the region, in which nothing is alive.
    fn give_back(&mut self) -> Result<(), SystemError> {
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.base);
        // SAFETY: the range is this region's own, and no block of it is in use.
        unsafe { sys::unmap(base, self.reserved_bytes)? };
        *self = Mapped::none();
        Ok(())
    }
}

/// Says what is wrong and aborts: for broken callers, where unwinding would allocate.
#[cold]
fn fatal(message: &'static str) -> ! {
    let _ = sys::write_once(2, message.as_bytes());
    std::process::abort()
}
