//! A two-level segregated-fit heap over one range of addresses: constant time, no growth of its
//! own, and a *top* below which everything ever handed out lies.
//!
//! ```text
//! base                                             top            limit
//! │ 8 │h│payload…│h│payload…│h│free links…│h│payload│ never touched │
//!       block i      block j    block k
//! ```
//!
//! A block is a header of 8 bytes and a payload that begins at a multiple of 16; its size is a
//! whole number of *units* of 16 bytes, header included. Block indices and links are units from
//! the base. The header says the own size, whether the block is free, and the size of the block
//! before, so both neighbours are found at once and no two free neighbours ever exist. Free blocks
//! hang in lists by size class: 16 classes for each power of two; bitmaps find the first list
//! that is long enough. When no list serves, the top moves up, never past the limit: bytes above
//! the top were never touched, so the top is what the heap costs.
//!
//! Believes: that its range is mapped up to the limit and its caller holds a lock. Must not know:
//! threads, stages, who asks.

#[cfg(test)]
mod check;

use crate::limits::{HEAP_CLASS_SCAN_BLOCKS_MAX, HEAP_HEADER_BYTES, HEAP_UNIT_BYTES};

/// Classes for each power of two.
const SECOND_LEVEL: u32 = 16;
/// Powers of two from 16 units up to 2³⁰ units, and one row for all smaller sizes.
const FIRST_LEVEL: usize = 28;
/// No block: block indices are stored plus one, so that an all-zero heap is an empty one.
const NONE: u32 = 0;
const FREE: u32 = 1 << 31;

/// The state of one heap, apart from the memory that it hands out. All zero is a valid start.
pub(super) struct Tlsf {
    base: usize,
    top_units: u32,
    limit_units: u32,
    /// Size of the last block below the top, in units, 0 if there is none.
    last_units: u32,
    live_units: u32,
    live_peak_units: u32,
    first_level: u32,
    second_level: [u32; FIRST_LEVEL],
    heads: [[u32; SECOND_LEVEL as usize]; FIRST_LEVEL],
}

/// A header as it stands in memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    /// Units of the block before, 0 for the first block.
    previous_units: u32,
    /// Units of this block, and the `FREE` bit.
    units: u32,
}

/// The links of a free block, where a used block has its payload.
#[derive(Clone, Copy)]
#[repr(C)]
struct Links {
    next: u32,
    previous: u32,
}

/// Whether a block is handed out or in a list.
#[derive(Clone, Copy)]
enum Use {
    Live,
    Free,
}

impl Tlsf {
    /// A heap without memory.
    pub(super) const fn new() -> Tlsf {
        Tlsf {
            base: 0,
            top_units: 0,
            limit_units: 0,
            last_units: 0,
            live_units: 0,
            live_peak_units: 0,
            first_level: 0,
            second_level: [0; FIRST_LEVEL],
            heads: [[NONE; SECOND_LEVEL as usize]; FIRST_LEVEL],
        }
    }

    /// Takes a range over and forgets everything else.
    ///
    /// # Safety
    /// `[base, base + len_bytes)` is readable and writable, aligned to 16, at most 16 GiB, used
    /// by nobody else until `take` is called again.
    pub(super) unsafe fn take(&mut self, base: *mut u8, len_bytes: usize) {
        *self = Tlsf::new();
        self.base = base.expose_provenance();
        self.set_limit(len_bytes);
    }

    /// Moves the limit. The range up to it must be usable as `take` says.
    pub(super) fn set_limit(&mut self, len_bytes: usize) {
        debug_assert!(len_bytes >= self.touched_bytes());
        // The first header begins 8 bytes after the base, so that payloads are aligned.
        let units = len_bytes.saturating_sub(HEAP_HEADER_BYTES) / HEAP_UNIT_BYTES;
        self.limit_units = u32::try_from(units).unwrap_or(0).min(1 << 30);
    }

    /// Bytes of blocks in use, headers included.
    pub(super) fn live_bytes(&self) -> usize {
        self.live_units as usize * HEAP_UNIT_BYTES
    }

    /// The most that `live_bytes` ever was.
    pub(super) fn live_peak_bytes(&self) -> usize {
        self.live_peak_units as usize * HEAP_UNIT_BYTES
    }

    /// Bytes from the base that were ever touched.
    pub(super) fn touched_bytes(&self) -> usize {
        match self.top_units {
            0 => 0,
            units => HEAP_HEADER_BYTES + units as usize * HEAP_UNIT_BYTES,
        }
    }

    /// A block of at least `size` bytes at a multiple of `align`, or null.
    ///
    /// # Safety
    /// `take` was called with a range that is still good.
    pub(super) unsafe fn allocate(&mut self, size: usize, align: usize) -> *mut u8 {
        let Some(units) = units_for(size) else { return std::ptr::null_mut() };
        // SAFETY: the range is good by contract; every block index below comes from its lists.
        let payload = unsafe {
            if align <= HEAP_UNIT_BYTES {
                match self.find(units) {
                    Some(block) => self.use_block(block, units),
                    None => return std::ptr::null_mut(),
                }
            } else {
                match self.find_aligned(units, align) {
                    Some(block) => self.use_block(block, units),
                    None => return std::ptr::null_mut(),
                }
            }
        };
        std::ptr::with_exposed_provenance_mut(payload)
    }

    /// Takes a block back and joins it with its free neighbours.
    ///
    /// # Safety
    /// `payload` came from `allocate` of this heap and was not freed since.
    pub(super) unsafe fn free(&mut self, payload: *mut u8) {
        let block = self.block_of(payload);
        // SAFETY: the block is a live block of this heap by contract.
        unsafe {
            let units = self.units(block);
            if self.is_free(block) {
                super::fatal("a heap block was freed twice\n");
            }
            self.live_units -= units;
            self.release(block, units);
        }
    }

    /// Changes a block's size where it stands, or says that it cannot.
    ///
    /// # Safety
    /// As for `free`.
    pub(super) unsafe fn resize_in_place(&mut self, payload: *mut u8, size: usize) -> bool {
        let Some(wanted) = units_for(size) else { return false };
        let block = self.block_of(payload);
        // SAFETY: the block is a live block of this heap; its neighbours are found from it.
        unsafe {
            let units = self.units(block);
            if wanted > units {
                let next = block + units;
                let free_after = match next < self.top_units {
                    true if self.is_free(next) => self.units(next),
                    true | false => 0,
                };
                let at_top = next + free_after == self.top_units;
                let missing = (wanted - units).saturating_sub(free_after);
                let can_grow = at_top && missing <= self.limit_units - self.top_units;
                if missing > 0 && !can_grow {
                    return false;
                }
                if free_after > 0 {
                    self.unlink(next);
                }
                let joined = units + free_after + missing;
                self.top_units += missing;
                self.set_size(block, joined, Use::Live);
                self.live_units += joined - units;
                self.trim(block, joined, wanted);
            } else {
                self.trim(block, units, wanted);
            }
        }
        self.live_peak_units = self.live_peak_units.max(self.live_units);
        true
    }

    /// A block, out of the lists, of at least `units`, marked used, its size still whole.
    unsafe fn find(&mut self, units: u32) -> Option<u32> {
        // SAFETY: blocks in the lists are blocks of this heap.
        unsafe {
            if let Some(block) = self.first_in_lists(round_up_to_class(units)?) {
                self.unlink(block);
                return Some(block);
            }
            if let Some(block) = self.extend(units) {
                return Some(block);
            }
            // The class of `units` itself may hold a block that is long enough.
            let (row, column) = class_of(units);
            let mut at = self.heads[row][column as usize];
            for _ in 0..HEAP_CLASS_SCAN_BLOCKS_MAX {
                let block = at.checked_sub(1)?;
                if self.units(block) >= units {
                    self.unlink(block);
                    return Some(block);
                }
                at = self.links(block).next;
            }
            None
        }
    }

    /// As `find`, with the payload at a multiple of `align` and the front given back.
    unsafe fn find_aligned(&mut self, units: u32, align: usize) -> Option<u32> {
        let align_units = u32::try_from(align / HEAP_UNIT_BYTES).ok()?;
        let room = units.checked_add(align_units)?;
        // SAFETY: as in `find`; the front and the rest are parts of the block found.
        unsafe {
            let block = self.find(room)?;
            let payload = self.payload_of(block);
            let front = (payload.next_multiple_of(align) - payload) / HEAP_UNIT_BYTES;
            let front = u32::try_from(front).ok()?;
            if front == 0 {
                return Some(block);
            }
            self.split(block, front);
            self.release(block, front);
            Some(block + front)
        }
    }

    /// Marks a block used, gives back what is too much, and returns its payload's address.
    unsafe fn use_block(&mut self, block: u32, units: u32) -> usize {
        // SAFETY: `block` was just taken from the lists or from above the top.
        unsafe {
            let whole = self.units(block);
            self.live_units += whole;
            self.trim(block, whole, units);
        }
        self.live_peak_units = self.live_peak_units.max(self.live_units);
        self.payload_of(block)
    }

    /// Cuts a used block of `whole` units down to `wanted` and gives the rest back.
    unsafe fn trim(&mut self, block: u32, whole: u32, wanted: u32) {
        if whole == wanted {
            return;
        }
        // SAFETY: the rest is inside the block, at least one unit long, and becomes a block.
        unsafe {
            self.split(block, wanted);
            self.live_units -= whole - wanted;
            self.release(block + wanted, whole - wanted);
        }
    }

    /// Moves the top up until a block of `units` fits at its end.
    unsafe fn extend(&mut self, units: u32) -> Option<u32> {
        let last = self.top_units - self.last_units;
        // SAFETY: `last` is the block below the top, if there is any; what lies between the top
        // and the limit is ours and unused.
        unsafe {
            let reused = match self.last_units > 0 && self.is_free(last) {
                true => self.last_units,
                false => 0,
            };
            let added = units.saturating_sub(reused);
            if added > self.limit_units - self.top_units {
                return None;
            }
            let (block, previous_units) = match reused {
                0 => (self.top_units, self.last_units),
                _ => {
                    self.unlink(last);
                    (last, self.header(last).previous_units)
                }
            };
            self.top_units += added;
            self.write_header(block, Header { previous_units, units: reused + added });
            self.tell_next(block, reused + added);
            Some(block)
        }
    }

    /// Puts a used block into the lists, joined with free neighbours.
    unsafe fn release(&mut self, mut block: u32, mut units: u32) {
        // SAFETY: neighbours are found through headers, which this type alone writes.
        unsafe {
            let next = block + units;
            if next < self.top_units && self.is_free(next) {
                units += self.units(next);
                self.unlink(next);
            }
            let previous_units = self.header(block).previous_units;
            if previous_units > 0 && self.is_free(block - previous_units) {
                block -= previous_units;
                units += previous_units;
                self.unlink(block);
            }
            self.set_size(block, units, Use::Free);
            self.link(block, units);
        }
    }

    /// The first block in any list whose blocks all have at least `units` (a class's own size).
    fn first_in_lists(&self, units: u32) -> Option<u32> {
        let (row, column) = class_of(units);
        let in_row = self.second_level.get(row)? & (u32::MAX << column);
        if in_row != 0 {
            return self.heads[row][in_row.trailing_zeros() as usize].checked_sub(1);
        }
        let rows = self.first_level & u32::MAX.checked_shl(row as u32 + 1).unwrap_or(0);
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        self.heads[row][self.second_level[row].trailing_zeros() as usize].checked_sub(1)
    }

    unsafe fn link(&mut self, block: u32, units: u32) {
        let (row, column) = class_of(units);
        let head = &mut self.heads[row][column as usize];
        let next = std::mem::replace(head, block + 1);
        self.first_level |= 1 << row;
        self.second_level[row] |= 1 << column;
        // SAFETY: the block is free, so its payload holds links; so does the list's old head.
        unsafe {
            self.write_links(block, Links { next, previous: NONE });
            if let Some(next) = next.checked_sub(1) {
                let links = self.links(next);
                self.write_links(next, Links { previous: block + 1, ..links });
            }
        }
    }

    /// Takes a free block out of its list and marks it used.
    unsafe fn unlink(&mut self, block: u32) {
        // SAFETY: the block is free and in the list of its class, as are its list neighbours.
        unsafe {
            let Links { next, previous } = self.links(block);
            let units = self.units(block);
            if let Some(next) = next.checked_sub(1) {
                let links = self.links(next);
                self.write_links(next, Links { previous, ..links });
            }
            match previous.checked_sub(1) {
                Some(previous) => {
                    let links = self.links(previous);
                    self.write_links(previous, Links { next, ..links });
                }
                None => {
                    let (row, column) = class_of(units);
                    self.heads[row][column as usize] = next;
                    if next == NONE {
                        self.second_level[row] &= !(1 << column);
                        if self.second_level[row] == 0 {
                            self.first_level &= !(1 << row);
                        }
                    }
                }
            }
            self.set_size(block, units, Use::Live);
        }
    }

    /// Cuts a live block of more than `units` into two live blocks, the first of `units`.
    unsafe fn split(&mut self, block: u32, units: u32) {
        // SAFETY: `units` is less than the block's size, so the rest is a block inside it.
        unsafe {
            let rest = self.units(block) - units;
            self.write_header(block + units, Header { previous_units: units, units: rest });
            self.tell_next(block + units, rest);
            let header = self.header(block);
            self.write_header(block, Header { units, ..header });
        }
    }

    /// Writes a block's size and use, and tells its neighbour above.
    unsafe fn set_size(&mut self, block: u32, units: u32, in_use: Use) {
        let flag = match in_use {
            Use::Live => 0,
            Use::Free => FREE,
        };
        // SAFETY: a header stands at every block index below the top.
        unsafe {
            let header = self.header(block);
            self.write_header(block, Header { units: units | flag, ..header });
            self.tell_next(block, units);
        }
    }

    /// Tells the block after `block` (or the top) how long `block` is.
    unsafe fn tell_next(&mut self, block: u32, units: u32) {
        let next = block + units;
        if next == self.top_units {
            self.last_units = units;
        } else {
            // SAFETY: no block reaches past the top, so one stands at `next`.
            unsafe {
                let header = self.header(next);
                self.write_header(next, Header { previous_units: units, ..header });
            }
        }
    }

    unsafe fn units(&self, block: u32) -> u32 {
        // SAFETY: the caller's block is below the top.
        unsafe { self.header(block).units & !FREE }
    }

    unsafe fn is_free(&self, block: u32) -> bool {
        // SAFETY: the caller's block is below the top.
        unsafe { self.header(block).units & FREE != 0 }
    }

    unsafe fn header(&self, block: u32) -> Header {
        // SAFETY: headers are aligned to 8, below the top, and written when the block was made.
        unsafe { std::ptr::with_exposed_provenance::<Header>(self.header_of(block)).read() }
    }

    unsafe fn write_header(&mut self, block: u32, header: Header) {
        // SAFETY: the 8 bytes are aligned, below the top, and belong to this heap, not a payload.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<Header>(self.header_of(block)).write(header);
        }
    }

    unsafe fn links(&self, block: u32) -> Links {
        // SAFETY: a free block's payload begins with its links; every block has 8 bytes of it.
        unsafe { std::ptr::with_exposed_provenance::<Links>(self.payload_of(block)).read() }
    }

    unsafe fn write_links(&mut self, block: u32, links: Links) {
        // SAFETY: the block is free, so its payload is the heap's own.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<Links>(self.payload_of(block)).write(links);
        }
    }

    fn header_of(&self, block: u32) -> usize {
        self.base + HEAP_UNIT_BYTES - HEAP_HEADER_BYTES + block as usize * HEAP_UNIT_BYTES
    }

    fn payload_of(&self, block: u32) -> usize {
        self.header_of(block) + HEAP_HEADER_BYTES
    }

    fn block_of(&self, payload: *mut u8) -> u32 {
        let offset = payload.addr() - self.base;
        debug_assert!(offset.is_multiple_of(HEAP_UNIT_BYTES) && offset > 0);
        u32::try_from(offset / HEAP_UNIT_BYTES - 1).unwrap_or(u32::MAX)
    }
}

/// Units of a block whose payload holds `size` bytes.
fn units_for(size: usize) -> Option<u32> {
    let bytes = size.max(size_of::<Links>()).checked_add(HEAP_HEADER_BYTES)?;
    u32::try_from(bytes.div_ceil(HEAP_UNIT_BYTES)).ok().filter(|&units| units < 1 << 30)
}

/// Row and column of the list for blocks of `units`.
fn class_of(units: u32) -> (usize, u32) {
    if units < SECOND_LEVEL {
        return (0, units);
    }
    let log = units.ilog2();
    let shift = log - SECOND_LEVEL.ilog2();
    ((shift + 1) as usize, (units >> shift) - SECOND_LEVEL)
}

/// The least size whose whole class is at least `units` long.
fn round_up_to_class(units: u32) -> Option<u32> {
    if units < SECOND_LEVEL {
        return Some(units);
    }
    let step = 1 << (units.ilog2() - SECOND_LEVEL.ilog2());
    units.checked_next_multiple_of(step)
}

const _: () = {
    // The largest class: 2³⁰ units lie in row 30 − 4 + 1 = 27, the last one.
    assert!(30 - SECOND_LEVEL.ilog2() + 1 < FIRST_LEVEL as u32);
    assert!(FIRST_LEVEL <= 32 && SECOND_LEVEL <= 32);
    assert!(size_of::<Header>() == HEAP_HEADER_BYTES);
    assert!(size_of::<Links>() <= HEAP_UNIT_BYTES - HEAP_HEADER_BYTES);
};
