//! Lines of standard input or of a file, each within a bound.
//!
//! The buffer is made once. A line that is too long is read to its end and refused.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use dctms_engine::{Class, EngineError};
use dctms_system::interrupt::stop_requested;

/// Bytes that are read of a file at once, like those of standard input.
const READ_BYTES: usize = 8 << 10;

/// Where lines come from.
pub enum Source {
    /// Standard input.
    Standard,
    /// A file, or a pipe with a name.
    File(BufReader<File>),
}

impl Source {
    /// A file, or standard input for `-`.
    ///
    /// # Errors
    /// Class `Usage` for a file that cannot be opened.
    pub fn open(path: &Path) -> Result<Source, EngineError> {
        if path.as_os_str() == "-" {
            return Ok(Source::Standard);
        }
        match File::open(path) {
            Ok(file) => Ok(Source::File(BufReader::with_capacity(READ_BYTES, file))),
            Err(error) => {
                Err(EngineError::new(Class::Usage, format!("{}: {error}", path.display())))
            }
        }
    }
}

/// A reader of lines.
pub struct Input {
    source: Source,
    /// What a line is, for its refusal.
    what: &'static str,
    line: Vec<u8>,
    bytes_max: usize,
    /// Lines so far, blank ones too.
    lines: u64,
}

impl Input {
    /// Lines of at most `bytes_max` bytes, each a `what`.
    #[must_use]
    pub fn new(source: Source, what: &'static str, bytes_max: usize) -> Input {
        Input { source, what, line: Vec::with_capacity(bytes_max), bytes_max, lines: 0 }
    }

    /// The number of the last line, from 1.
    #[must_use]
    pub fn line_number(&self) -> u64 {
        self.lines
    }

    /// The next line that is not blank, without its end; `None` when there are no more. A longer
    /// or broken one is refused.
    ///
    /// # Errors
    /// Class `OverBound` for a line that is refused; class `System` when nothing can be read.
    pub fn next(&mut self) -> Result<Option<&mut [u8]>, EngineError> {
        loop {
            self.line.clear();
            let bytes = match &mut self.source {
                Source::Standard => {
                    read_line(&mut std::io::stdin().lock(), &mut self.line, self.bytes_max)
                }
                Source::File(file) => read_line(file, &mut self.line, self.bytes_max),
            };
            let bytes = bytes.map_err(|error| EngineError::new(Class::System, error))?;
            if bytes == 0 {
                return Ok(None);
            }
            self.lines += 1;
            if bytes > self.bytes_max {
                return Err(EngineError::new(
                    Class::OverBound,
                    format!("the {} has {bytes} bytes, at most {}", self.what, self.bytes_max),
                ));
            }
            match std::str::from_utf8(&self.line) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => {
                    let len = text.trim_end_matches(['\n', '\r']).len();
                    return Ok(Some(&mut self.line[..len]));
                }
                Err(_) => {
                    let message = format!("the {} is not UTF-8", self.what);
                    return Err(EngineError::new(Class::OverBound, message));
                }
            }
        }
    }
}

/// Reads up to a line's end and keeps what the bound allows; gives the bytes of the line, 0 at the
/// end of the input, or when a signal asks to stop while nothing comes.
fn read_line(
    input: &mut impl BufRead,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> std::io::Result<usize> {
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
        let room = bytes_max - line.len();
        line.extend_from_slice(&available[..count.min(room)]);
        input.consume(count);
        bytes += count;
        if end.is_some() || count == 0 {
            return Ok(bytes);
        }
    }
}
