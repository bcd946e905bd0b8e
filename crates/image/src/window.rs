//! A file through a window: buffered reading where short steps back cost nothing.
//!
//! Decoders read forwards, and now and then step back by a few bytes. The standard library's
//! buffered reader forgets its buffer at every such step; this one keeps it.
//!
//! Believes: its reader. Must not know: formats.

use crate::limits::WINDOW_BYTES;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// `reader` through a buffer of [`WINDOW_BYTES`].
pub(crate) struct Window<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// Byte of the file at which the buffer begins.
    start: u64,
    /// Bytes of the buffer that are filled.
    filled: usize,
    /// Byte of the buffer that is read next.
    next: usize,
}

impl<R: Read + Seek> Window<R> {
    /// A window at the start of the file.
    pub(crate) fn new(mut reader: R) -> io::Result<Window<R>> {
        reader.seek(SeekFrom::Start(0))?;
        let buffer = vec![0; WINDOW_BYTES].into_boxed_slice();
        Ok(Window { reader, buffer, start: 0, filled: 0, next: 0 })
    }

    /// Byte of the file that is read next.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.next as u64
    }
}

impl<R: Read + Seek> BufRead for Window<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.next >= self.filled {
            // A quarter of what was read stays, for steps back.
            let keep = self.filled.min(WINDOW_BYTES / 4);
            self.buffer.copy_within(self.filled - keep..self.filled, 0);
            self.start += (self.filled - keep) as u64;
            (self.filled, self.next) = (keep, keep);
            let got = loop {
                match self.reader.read(&mut self.buffer[keep..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            self.filled = keep + got;
        }
        Ok(&self.buffer[self.next..self.filled])
    }

    fn consume(&mut self, bytes: usize) {
        self.next = (self.next + bytes).min(self.filled);
    }
}

impl<R: Read + Seek> Read for Window<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let ready = self.fill_buf()?;
        let bytes = ready.len().min(to.len());
        to[..bytes].copy_from_slice(&ready[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }
}

impl<R: Read + Seek> Seek for Window<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "a step before the file");
        let target = match to {
            SeekFrom::Start(target) => target,
            SeekFrom::Current(step) => {
                self.position().checked_add_signed(step).ok_or_else(outside)?
            }
            SeekFrom::End(_) => self.reader.seek(to)?,
        };
        let within = target.checked_sub(self.start).filter(|&at| at <= self.filled as u64);
        match (within, to) {
            (Some(at), SeekFrom::Start(_) | SeekFrom::Current(_)) => self.next = at as usize,
            _ => {
                self.start = self.reader.seek(SeekFrom::Start(target))?;
                (self.filled, self.next) = (0, 0);
            }
        }
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_window_reads_what_the_file_holds() {
        let file: Vec<u8> = (0..100_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut window = Window::new(Cursor::new(&file)).expect("a cursor");
        let mut plain = Cursor::new(&file);
        let mut state = 1_u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(7);
            let draw = state >> 33;
            let step = match draw % 7 {
                0 => SeekFrom::Start(draw % 120_000),
                1 => SeekFrom::Current(-((draw % 300) as i64)),
                2 => SeekFrom::Current((draw % 900) as i64),
                3 => SeekFrom::End(-((draw % 5000) as i64)),
                _ => SeekFrom::Current(0),
            };
            match plain.seek(step) {
                Ok(at) => assert_eq!(window.seek(step).expect("inside"), at),
                Err(_) => assert!(window.seek(step).is_err()),
            }
            let (mut got, mut want) = ([0; 64], [0; 64]);
            let wanted = plain.read(&mut want).expect("a cursor");
            let mut filled = 0;
            while filled < wanted {
                filled += window.read(&mut got[filled..wanted]).expect("bytes");
            }
            assert_eq!(got[..wanted], want[..wanted]);
            assert_eq!(window.position(), plain.position());
        }
    }
}
