//! Lines of standard input or of a file, each within a bound.
//!
//! Buffers are the caller's, made once. A line that is too long is read to its end and refused.
//! Whoever has other things to do asks for what is there already ([`Wait::Not`]); what came of a
//! line so far stays in its buffer.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;

use dctms_engine::{Class, EngineError};
use dctms_system::interrupt::stop_requested;
use dctms_system::output::{is_readable, open_at_once, wait_readable};

use crate::commands::files::named;

/// Bytes that are read of a file at once, like those of standard input.
const READ_BYTES: usize = 8 << 10;

/// Where lines come from.
pub enum Source {
    /// Standard input, which others may read too.
    Standard,
    /// A file, a pipe with a name, or standard input that is ours alone.
    File(BufReader<File>),
}

/// Whether a reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until a line is whole.
    ForLine,
    /// No longer than there are bytes.
    Not,
}

/// What reading a line gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A line that is not blank, of so many bytes without its end.
    Line(usize),
    /// There are no more.
    End,
    /// It is not whole yet.
    NotYet,
}

impl Source {
    /// A file, or standard input for `-`. Nobody is waited for: who writes into a named pipe may
    /// come later.
    ///
    /// # Errors
    /// Class `Usage` for a file that cannot be opened, or that has no lines: a folder.
    pub fn open(path: &Path) -> Result<Source, EngineError> {
        let fault = |what: String| {
            EngineError::new(Class::Usage, format!("--requests {}: {what}", named(path)))
        };
        let file = match path.as_os_str() == "-" {
            true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
            false => open_at_once(path),
        };
        let file = file.map_err(|error| fault(error.to_string()))?;
        let facts = file.metadata().map_err(|error| fault(error.to_string()))?;
        if facts.is_dir() {
            let what = "is a folder: a file of lines is expected, a pipe, or - (standard input)";
            return Err(fault(what.to_string()));
        }
        Ok(Source::File(BufReader::with_capacity(READ_BYTES, file)))
    }
}

/// A reader of lines.
pub struct Input {
    source: Source,
    /// What a line is, for its refusal.
    what: &'static str,
    bytes_max: usize,
    /// Lines so far, blank ones too.
    lines: u64,
    /// Bytes of a line that is not whole yet.
    begun: usize,
}

impl Input {
    /// Lines of at most `bytes_max` bytes, each a `what`.
    #[must_use]
    pub fn new(source: Source, what: &'static str, bytes_max: usize) -> Input {
        Input { source, what, bytes_max, lines: 0, begun: 0 }
    }

    /// A buffer for a line.
    #[must_use]
    pub fn buffer(&self) -> Vec<u8> {
        Vec::with_capacity(self.bytes_max)
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
    /// Class `OverBound` for a line that is too long, `Usage` for one that is no text; class `System` when nothing can be read.
    pub fn next<'l>(&mut self, line: &'l mut Vec<u8>) -> Result<Option<&'l mut [u8]>, EngineError> {
        Ok(match self.take(line, Wait::ForLine)? {
            Taken::Line(len) => Some(&mut line[..len]),
            Taken::End | Taken::NotYet => None,
        })
    }

    /// As [`Input::next`], waiting or not: `line` is the same until it is whole.
    ///
    /// # Errors
    /// As [`Input::next`].
    pub fn take(&mut self, line: &mut Vec<u8>, wait: Wait) -> Result<Taken, EngineError> {
        loop {
            let read = match &mut self.source {
                Source::Standard => {
                    let input = &mut std::io::stdin().lock();
                    read_line(input, (line, &mut self.begun, self.bytes_max), |_| true)
                }
                Source::File(file) => {
                    let more = |file: &mut BufReader<File>| match wait {
                        // A pipe that nobody has written to yet would be read as if it had ended.
                        Wait::ForLine => {
                            while file.buffer().is_empty()
                                && !stop_requested()
                                && !wait_readable(file.get_ref())
                            {}
                            true
                        }
                        Wait::Not => !file.buffer().is_empty() || is_readable(file.get_ref()),
                    };
                    read_line(file, (line, &mut self.begun, self.bytes_max), more)
                }
            };
            let whole = read.map_err(|error| {
                EngineError::new(Class::System, format!("reading a {}: {error}", self.what))
            })?;
            if !whole {
                return Ok(Taken::NotYet);
            }
            let bytes = std::mem::take(&mut self.begun);
            if bytes == 0 {
                return Ok(Taken::End);
            }
            self.lines += 1;
            if bytes > self.bytes_max {
                return Err(EngineError::new(
                    Class::OverBound,
                    format!("the {} has {bytes} bytes, at most {}", self.what, self.bytes_max),
                ));
            }
            match std::str::from_utf8(line) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => return Ok(Taken::Line(text.trim_end_matches(['\n', '\r']).len())),
                Err(_) => {
                    let message = format!("the {} is not UTF-8", self.what);
                    return Err(EngineError::new(Class::Usage, message));
                }
            }
        }
    }
}

/// Reads up to a line's end, as long as there is `more`, and keeps what the bound allows. Counts
/// the bytes of the line; says whether it is whole. At the end of the input, or when a signal asks
/// to stop while nothing comes, it is what it is: of no bytes.
fn read_line<R: BufRead>(
    input: &mut R,
    (line, bytes, bytes_max): (&mut Vec<u8>, &mut usize, usize),
    more: impl Fn(&mut R) -> bool,
) -> std::io::Result<bool> {
    if *bytes == 0 {
        line.clear();
    }
    while more(input) {
        // Asked for each piece and not only when waiting: input without an end never waits.
        if stop_requested() {
            *bytes = 0;
            return Ok(true);
        }
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = available.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
        let count = end.unwrap_or(available.len());
        let room = bytes_max - line.len();
        line.extend_from_slice(&available[..count.min(room)]);
        input.consume(count);
        *bytes += count;
        if end.is_some() || count == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
