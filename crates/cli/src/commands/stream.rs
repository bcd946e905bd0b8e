//! Text to the standard streams through small fixed buffers, so that it takes no heap, and a
//! reader that has gone away is no failure.

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
    pub fn finish(self) -> Result<(), Failure> {
        match self.end() {
            None | Some(SystemError::ReaderGone) => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    /// Writes what is left; gives why it could not be written, if it could not.
    #[must_use]
    pub fn end(mut self) -> Option<SystemError> {
        self.flush();
        self.error
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = Stream::Output.write_all(&self.buffer[..self.len]).err();
        }
        self.len = 0;
    }
}

/// Says something on standard error; nobody listening is no failure (`eprintln!` would panic).
/// Allocates nothing.
pub fn note(text: fmt::Arguments<'_>) {
    let mut line = Note { buffer: [0; NOTE_BYTES], len: 0 };
    let _ = fmt::Write::write_fmt(&mut line, text);
    line.flush();
}

/// Bytes of a note that are written at once: most notes are one write.
const NOTE_BYTES: usize = 512;

struct Note {
    buffer: [u8; NOTE_BYTES],
    len: usize,
}

impl Note {
    fn flush(&mut self) {
        let _ = Stream::Error.write_all(&self.buffer[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Note {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.as_bytes().chunks(NOTE_BYTES) {
            if self.len + piece.len() > NOTE_BYTES {
                self.flush();
            }
            self.buffer[self.len..self.len + piece.len()].copy_from_slice(piece);
            self.len += piece.len();
        }
        Ok(())
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
