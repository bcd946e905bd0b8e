//! Text in a fixed buffer, for places that may not allocate.
//!
//! Believes: nothing. Must not know: where the text goes.

use std::fmt;

/// Up to `N` bytes of text; what does not fit is cut off.
pub(crate) struct StackText<const N: usize> {
    buffer: [u8; N],
    len_bytes: usize,
}

impl<const N: usize> StackText<N> {
    pub(crate) const fn new() -> StackText<N> {
        StackText { buffer: [0; N], len_bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len_bytes]
    }
}

impl<const N: usize> fmt::Write for StackText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.buffer[self.len_bytes..];
        let taken = text.len().min(free.len());
        free[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len_bytes += taken;
        Ok(())
    }
}
