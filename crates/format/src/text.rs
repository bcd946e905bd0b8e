//! One growing table for every short text of a checkpoint: keys, names, short strings.
//!
//! Thousands of separate strings would cost an allocation each; a table costs its bytes. It
//! knows nothing of what the texts mean. It never grows past the bound given to it.

use crate::cursor::Cursor;
use crate::fault::{Defect, Fault, Field};

/// Where a text lies in its [`TextTable`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    start: u32,
    len: u32,
}

/// The bytes of all texts, one after the other.
#[derive(Debug)]
pub(crate) struct TextTable {
    bytes: Vec<u8>,
    bound_bytes: usize,
}

impl TextTable {
    /// An empty table that will hold at most `bound_bytes`.
    pub(crate) fn new(bound_bytes: usize) -> Self {
        Self { bytes: Vec::new(), bound_bytes }
    }

    /// Adds a text, or gives `None` when the table would pass its bound.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<Text> {
        let start = self.bytes.len();
        if text.len() > self.bound_bytes - start {
            return None;
        }
        if self.bytes.capacity() - start < text.len() {
            // Doubling, but never past the bound: the sum in `limits` counts on it.
            let capacity = (start * 2).max(start + text.len()).max(1024).min(self.bound_bytes);
            self.bytes.reserve_exact(capacity - start);
        }
        self.bytes.extend_from_slice(text);
        Some(Text { start: start as u32, len: text.len() as u32 })
    }

    /// Reads and adds a name of `len` bytes (which fit in the cursor's window): UTF-8.
    pub(crate) fn parse_name(
        &mut self,
        cursor: &mut Cursor<'_, '_>,
        len: usize,
        field: Field,
    ) -> Result<Text, Fault> {
        let offset = cursor.offset();
        let name = cursor.take(len, field)?;
        if std::str::from_utf8(name).is_err() {
            return Err(Fault { field, offset, defect: Defect::NotUtf8 });
        }
        self.push(name).ok_or_else(|| Fault { field, offset, defect: self.too_much() })
    }

    /// The refusal of a text for which there is no room.
    pub(crate) fn too_much(&self) -> Defect {
        Defect::TooMuchText { bound: self.bound_bytes as u64 }
    }

    /// The bytes of a text of this table.
    pub(crate) fn bytes(&self, text: Text) -> &[u8] {
        &self.bytes[text.start as usize..][..text.len as usize]
    }

    /// A text that was checked to be UTF-8 when it was added.
    pub(crate) fn str(&self, text: Text) -> &str {
        std::str::from_utf8(self.bytes(text)).expect("names are checked when they are added")
    }
}
