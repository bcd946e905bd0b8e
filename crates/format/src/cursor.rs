//! A forward cursor over a source through a bounded window.
//!
//! ```text
//!   source  ├───────────────┬────────[ window ]──────────────┬───────┤
//!           0               position ▲                       end     len
//! ```
//!
//! The window is refilled at the position when a field does not lie in it wholly; skipped bytes
//! are never read. The cursor knows lengths and offsets, not the format. Its two refusals are a
//! field that passes the source's end ([`Defect::Truncated`]) and one that passes the bound set
//! by the caller ([`Defect::HeaderTooLong`]).

use crate::fault::{Defect, Fault, Field};
use crate::source::Source;

/// Reads little-endian fields one after the other.
pub(crate) struct Cursor<'s, 'w> {
    source: &'s dyn Source,
    window: &'w mut [u8],
    /// Source offset of the window's first byte.
    window_offset: u64,
    /// Valid bytes in the window.
    filled: usize,
    /// Next byte, relative to the window; at most `filled`.
    position: usize,
    /// No field may pass this offset, though the source goes on.
    bound: u64,
}

impl<'s, 'w> Cursor<'s, 'w> {
    /// A cursor at `offset` that may not pass `bound`.
    pub(crate) fn new(
        source: &'s dyn Source,
        window: &'w mut [u8],
        offset: u64,
        bound: u64,
    ) -> Self {
        Self { source, window, window_offset: offset, filled: 0, position: 0, bound }
    }

    /// Offset of the next byte in the source.
    pub(crate) fn offset(&self) -> u64 {
        self.window_offset + self.position as u64
    }

    /// Bytes between the next one and the source's end.
    pub(crate) fn remaining(&self) -> u64 {
        self.source.len().saturating_sub(self.offset())
    }

    /// Bytes that [`Cursor::take`] can give at once.
    pub(crate) fn window_len_bytes(&self) -> u64 {
        self.window.len() as u64
    }

    /// The next `len` bytes, which must fit in the window.
    pub(crate) fn take(&mut self, len: usize, field: Field) -> Result<&[u8], Fault> {
        if self.filled - self.position < len {
            self.refill(len, field)?;
        }
        let start = self.position;
        self.position += len;
        Ok(&self.window[start..start + len])
    }

    /// Steps over `len` bytes without reading them.
    pub(crate) fn skip(&mut self, len: u64, field: Field) -> Result<(), Fault> {
        if len <= (self.filled - self.position) as u64 {
            self.position += len as usize;
            return Ok(());
        }
        self.check(len, field)?;
        self.window_offset = self.offset() + len;
        self.filled = 0;
        self.position = 0;
        Ok(())
    }

    /// Refuses `len` bytes at the cursor that pass the source's end or the bound.
    pub(crate) fn check(&self, len: u64, field: Field) -> Result<(), Fault> {
        let available = self.remaining();
        if len > available {
            return Err(self.fault(field, Defect::Truncated { needed: len, available }));
        }
        if len > self.bound.saturating_sub(self.offset()) {
            return Err(self.fault(field, Defect::HeaderTooLong { bound: self.bound }));
        }
        Ok(())
    }

    /// A fault of the field that begins at the cursor.
    pub(crate) fn fault(&self, field: Field, defect: Defect) -> Fault {
        Fault { field, offset: self.offset(), defect }
    }

    /// The next 4 bytes, little endian.
    pub(crate) fn u32(&mut self, field: Field) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// The next 8 bytes, little endian.
    pub(crate) fn u64(&mut self, field: Field) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn array<const N: usize>(&mut self, field: Field) -> Result<[u8; N], Fault> {
        Ok(self.take(N, field)?.try_into().expect("take gives what was asked for"))
    }

    #[cold]
    fn refill(&mut self, len: usize, field: Field) -> Result<(), Fault> {
        assert!(len <= self.window.len(), "a field larger than the window");
        self.check(len as u64, field)?;
        self.window_offset = self.offset();
        self.position = 0;
        self.filled = 0;
        let readable = self.remaining().min(self.bound - self.window_offset);
        let wanted = readable.min(self.window.len() as u64) as usize;
        self.source
            .read_at(self.window_offset, &mut self.window[..wanted])
            .map_err(|error| self.fault(field, Defect::Io(error)))?;
        self.filled = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cross_window_borders_and_skips_do_not_read() {
        let bytes: Vec<u8> = (0..64).collect();
        let mut window = [0; 8];
        let mut cursor = Cursor::new(&bytes, &mut window, 0, 64);
        assert_eq!(cursor.take(3, Field::Magic).unwrap(), [0, 1, 2]);
        assert_eq!(cursor.u64(Field::Magic).unwrap(), 0x0a09_0807_0605_0403);
        cursor.skip(40, Field::Magic).unwrap();
        assert_eq!(cursor.offset(), 51);
        assert_eq!(cursor.take(1, Field::Magic).unwrap(), [51]);
        assert_eq!(cursor.remaining(), 12);
        cursor.skip(12, Field::Magic).unwrap();
        assert_eq!(cursor.take(0, Field::Magic).unwrap(), [0; 0]);
    }

    #[test]
    fn the_end_and_the_bound_are_told_apart() {
        let bytes = vec![0; 32];
        let mut window = [0; 8];
        let mut cursor = Cursor::new(&bytes, &mut window, 0, 16);
        cursor.skip(14, Field::Magic).unwrap();
        let fault = cursor.u32(Field::Version).unwrap_err();
        assert!(matches!(fault.defect, Defect::HeaderTooLong { bound: 16 }));
        assert_eq!((fault.field, fault.offset), (Field::Version, 14));
        let fault = cursor.skip(19, Field::Value).unwrap_err();
        assert!(matches!(fault.defect, Defect::Truncated { needed: 19, available: 18 }));
        let fault = cursor.skip(u64::MAX, Field::Value).unwrap_err();
        assert!(matches!(fault.defect, Defect::Truncated { available: 18, .. }));
    }
}
