//! Lines of standard input, each within a bound.
//!
//! The buffer is made once. A line that is too long is read to its end and refused.

use std::io::{BufRead, ErrorKind};

use dctms_engine::{Class, EngineError};
use dctms_system::interrupt::stop_requested;

/// A reader of lines.
pub struct Input {
    line: Vec<u8>,
    bytes_max: usize,
}

impl Input {
    /// Lines of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Input {
        Input { line: Vec::with_capacity(bytes_max), bytes_max }
    }

    /// The next line that is not blank; `None` at the end. A longer or broken one is refused.
    ///
    /// # Errors
    /// Class `OverBound` for a line that is refused; class `System` when nothing can be read.
    pub fn next(&mut self) -> Result<Option<String>, EngineError> {
        let mut input = std::io::stdin().lock();
        loop {
            self.line.clear();
            let bytes = self
                .read_line(&mut input)
                .map_err(|error| EngineError::new(Class::System, error))?;
            if bytes == 0 {
                return Ok(None);
            }
            if bytes > self.bytes_max {
                return Err(EngineError::new(
                    Class::OverBound,
                    format!("the turn has {bytes} bytes, at most {}", self.bytes_max),
                ));
            }
            match std::str::from_utf8(&self.line) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => return Ok(Some(text.trim_end_matches(['\n', '\r']).to_string())),
                Err(_) => {
                    return Err(EngineError::new(Class::OverBound, "the turn is not UTF-8"));
                }
            }
        }
    }

    /// Reads up to a line's end and keeps what the bound allows; gives the bytes of the line, 0
    /// at the end of the input, or when a signal asks to stop while nothing comes.
    fn read_line(&mut self, input: &mut impl BufRead) -> std::io::Result<usize> {
        let mut bytes = 0;
        loop {
            let available = match input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    if stop_requested() {
                        return Ok(0);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let end = available.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
            let count = end.unwrap_or(available.len());
            let room = self.bytes_max - self.line.len();
            self.line.extend_from_slice(&available[..count.min(room)]);
            input.consume(count);
            bytes += count;
            if end.is_some() || count == 0 {
                return Ok(bytes);
            }
        }
    }
}
