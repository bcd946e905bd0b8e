//! One block of the allocator, as the element types that kernels take.
//!
//! Like the `empty` of common frameworks a new block is not cleared: whoever makes one writes all
//! of it, or of the part that is read, before it is read. The allocator is the C library's
//! (`malloc`), with its own policy for large blocks.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use dctms_kernels::quantise::ActBlock;

/// Alignment of every block, bytes: a cache line, and more than any element needs.
const ALIGNMENT: usize = 64;

/// Element types of which any bytes are a value, and whose values are any bytes.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for ActBlock {}

/// Bytes of the allocator, given back when dropped.
#[derive(Debug)]
pub struct Block {
    base: *mut u8,
    len: usize,
}

// SAFETY: a block is the only owner of its bytes, like a boxed slice.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    /// A block of so many bytes, not cleared.
    #[must_use]
    pub fn new(len: usize) -> Block {
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc(layout(len)) };
        if base.is_null() {
            handle_alloc_error(layout(len));
        }
        Block { base, len }
    }

    /// A block whose pages are all written once, so that they are resident.
    #[must_use]
    pub fn touched(len: usize) -> Block {
        let mut block = Block::new(len);
        block.of_mut::<u8>().fill(0);
        block
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block as elements.
    ///
    /// # Panics
    /// Unless it is whole elements.
    #[must_use]
    pub fn of<T: Plain>(&self) -> &[T] {
        let count = count::<T>(self.len);
        // SAFETY: allocated for `len` bytes, aligned to 64, elements are plain, and the block is
        // borrowed; what is read was written (the module's rule).
        unsafe { std::slice::from_raw_parts(self.base.cast(), count) }
    }

    /// The block as elements, to write.
    ///
    /// # Panics
    /// Unless it is whole elements.
    pub fn of_mut<T: Plain>(&mut self) -> &mut [T] {
        let count = count::<T>(self.len);
        // SAFETY: as in `of`, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), count) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made by `alloc` with this layout.
        unsafe { dealloc(self.base, layout(self.len)) }
    }
}

/// Bytes of a file as elements.
///
/// # Panics
/// Unless they are aligned whole elements.
#[must_use]
pub fn elements<T: Plain>(bytes: &[u8]) -> &[T] {
    let count = count::<T>(bytes.len());
    assert!(bytes.as_ptr().addr().is_multiple_of(align_of::<T>()), "bytes are not aligned");
    // SAFETY: in bounds, aligned (both checked above), initialised, and elements are plain.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), count) }
}

fn count<T>(len: usize) -> usize {
    assert!(len.is_multiple_of(size_of::<T>()), "{len} bytes are not whole elements");
    len / size_of::<T>()
}

fn layout(len: usize) -> Layout {
    // A block of no bytes still has an address.
    Layout::from_size_align(len.max(1), ALIGNMENT).expect("less than half of the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_its_elements() {
        let mut block = Block::touched(80);
        assert_eq!(block.of::<f32>().len(), 20);
        assert_eq!(block.of::<ActBlock>(), [ActBlock::ZERO; 2]);
        block.of_mut::<u32>()[19] = 0x0403_0201;
        assert_eq!(block.of::<u8>()[76..], [1, 2, 3, 4]);
        assert_eq!(elements::<u32>(block.of::<u8>())[19], 0x0403_0201);
        assert!(Block::new(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "not whole elements")]
    fn parts_of_elements_are_refused() {
        let _ = Block::touched(6).of::<f32>();
    }
}
