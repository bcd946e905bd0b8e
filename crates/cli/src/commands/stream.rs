//! Text to standard output through a small fixed buffer, so that a long report takes no heap.

use std::fmt;

use dctms_system::SystemError;
use dctms_system::output::Stream;

use crate::failure::Failure;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 4096;

/// A buffered standard output. Call [`Output::finish`] at the end.
pub struct Output {
    buffer: [u8; BUFFER_BYTES],
    len: usize,
    error: Option<SystemError>,
}

impl Output {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Output {
        Output { buffer: [0; BUFFER_BYTES], len: 0, error: None }
    }

    /// Adds bytes.
    pub fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = bytes.len().min(BUFFER_BYTES - self.len);
            self.buffer[self.len..self.len + count].copy_from_slice(&bytes[..count]);
            self.len += count;
            bytes = &bytes[count..];
            if self.len == BUFFER_BYTES {
                self.flush();
            }
        }
    }

    /// Adds a piece of a JSON string, escaped.
    pub fn json_piece(&mut self, piece: &str) {
        for character in piece.chars() {
            match character {
                '"' => self.bytes(b"\\\""),
                '\\' => self.bytes(b"\\\\"),
                '\n' => self.bytes(b"\\n"),
                '\r' => self.bytes(b"\\r"),
                '\t' => self.bytes(b"\\t"),
                control if (control as u32) < 0x20 => {
                    let _ = fmt::Write::write_fmt(self, format_args!("\\u{:04x}", control as u32));
                }
                other => self.bytes(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    /// Writes what is left. A reader that has gone away is no failure.
    ///
    /// # Errors
    /// Any other failure to write.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush();
        match self.error {
            None | Some(SystemError::ReaderGone) => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = Stream::Output.write_all(&self.buffer[..self.len]).err();
        }
        self.len = 0;
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
