//! The only place where an offset becomes a pointer.
//!
//! A [`Memory`] is the arena's base and length. Its methods make slices of a [`Place`]; each
//! checks bounds and alignment every time (a few instructions against thousands of a kernel), so
//! that what remains to be believed is *aliasing*, which the certificate proves: tasks that touch
//! common bytes, one of them writing, are ordered by the schedule (clauses C3 and C4).

use dctms_kernels::quantise::ActBlock;
use dctms_kernels::sample::Candidate;

/// A range of bytes of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Place {
    /// A part of this place.
    ///
    /// # Panics
    /// When the part is not inside.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Place {
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "part {start}+{len} of a place of {} bytes", self.len);
        Place { offset: self.offset + start, len }
    }
}

/// The arena as the tasks see it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: a base address and a length; every access through it is an unsafe call whose caller
// answers for ordering.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Types that any bytes are a value of.
trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for f32 {}
impl Plain for ActBlock {}
impl Plain for Candidate {}

impl Memory {
    /// The memory of a mapping.
    ///
    /// # Safety
    /// `[base, base + len)` must stay mapped while this value or any copy of it is used. Whatever
    /// is made a slice of must be readable then, zero-initialised or written, and writable where
    /// the slice is one to write.
    pub unsafe fn new(base: *mut u8, len: usize) -> Memory {
        Memory { base, len }
    }

    fn pointer<T: Plain>(&self, place: Place) -> (*mut T, usize) {
        let inside = place.offset.checked_add(place.len).is_some_and(|end| end <= self.len);
        assert!(inside, "{place:?} in an arena of {} bytes", self.len);
        // SAFETY: the offset is inside the mapping, checked above (C2).
        let pointer = unsafe { self.base.add(place.offset) };
        assert!(pointer.addr().is_multiple_of(align_of::<T>()), "{place:?} is not aligned");
        assert!(place.len.is_multiple_of(size_of::<T>()), "{place:?} is not whole elements");
        (pointer.cast(), place.len / size_of::<T>())
    }

    /// Elements to read.
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    unsafe fn shared<'a, T: Plain>(&self, place: Place) -> &'a [T] {
        let (pointer, count) = self.pointer::<T>(place);
        // SAFETY: in bounds, aligned and plain (checked above); nobody writes it while the slice
        // lives (C4), by this function's contract.
        unsafe { std::slice::from_raw_parts(pointer, count) }
    }

    /// Elements to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    unsafe fn exclusive<'a, T: Plain>(&self, place: Place) -> &'a mut [T] {
        let (pointer, count) = self.pointer::<T>(place);
        // SAFETY: in bounds, aligned and plain (checked above); nobody else touches it while the
        // slice lives (C4), by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(pointer, count) }
    }

    /// Asks for bytes that will be read soon. Reads nothing, so it may run beside any task.
    ///
    /// # Panics
    /// When the place is not inside.
    pub fn prefetch(&self, place: Place) {
        let (pointer, len) = self.pointer::<u8>(place);
        dctms_kernels::prefetch::prefetch(pointer, len);
    }

    /// Bytes to read.
    ///
    /// # Safety
    /// Nobody writes the place while the slice lives: within a task that is C4, and else whoever
    /// lends the slice answers for it.
    pub unsafe fn bytes<'a>(&self, place: Place) -> &'a [u8] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.shared(place) }
    }

    /// Floats to read.
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    pub unsafe fn floats<'a>(&self, place: Place) -> &'a [f32] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.shared(place) }
    }

    /// Integers to read.
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    pub unsafe fn integers<'a>(&self, place: Place) -> &'a [u32] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.shared(place) }
    }

    /// Quantised blocks to read.
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    pub unsafe fn blocks<'a>(&self, place: Place) -> &'a [ActBlock] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.shared(place) }
    }

    /// Bytes to write.
    ///
    /// # Safety
    /// Nobody else touches the place while the slice lives: within a task that is C4, and else
    /// whoever lends the slice answers for it.
    pub unsafe fn bytes_mut<'a>(&self, place: Place) -> &'a mut [u8] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }

    /// Floats to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    pub unsafe fn floats_mut<'a>(&self, place: Place) -> &'a mut [f32] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }

    /// Integers to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    pub unsafe fn integers_mut<'a>(&self, place: Place) -> &'a mut [u32] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }

    /// 64-bit words to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    pub unsafe fn words_mut<'a>(&self, place: Place) -> &'a mut [u64] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }

    /// Quantised blocks to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    pub unsafe fn blocks_mut<'a>(&self, place: Place) -> &'a mut [ActBlock] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }

    /// Sampling candidates to write.
    ///
    /// # Safety
    /// As [`Memory::bytes_mut`].
    pub unsafe fn candidates_mut<'a>(&self, place: Place) -> &'a mut [Candidate] {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { self.exclusive(place) }
    }
}
