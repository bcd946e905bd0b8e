//! Processes that disturb others, the same way each time.
//!
//! Bursts allocate and free: they cost others processor time and bandwidth. They do not make memory
//! short unless they are given as much as there is; shortage is what memory groups are for.
//!
//! Churn reads a file that is larger than the page cache can be, from its beginning to its end
//! again and again. The kernel keeps what was read last, so that each pass finds little of the one
//! before and takes a page of the cache for each page that it reads. The file has no blocks: its
//! pages are allocated and filled with zeros as those of another file are, but no device is waited
//! for, so that memory is disturbed and storage is not, at the same rate on every machine. (A file
//! system in memory, such as tmpfs, has no such pages; the file has to be elsewhere.)
//!
//! They run until their standard input ends, so that none outlives who started it, and say
//! `{"ready": true}` when they begin.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::memory::Block;

/// What a neighbour does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Allocates and touches so many bytes, holds them for a moment, gives them back, rests.
    Bursts {
        /// Bytes of a burst.
        bytes: usize,
    },
    /// Reads a file again and again; one as large as memory turns the page cache over.
    Churn {
        /// The file.
        file: std::path::PathBuf,
    },
    /// Keeps one processor busy.
    Burner,
}

/// A burst is held for so long, and followed by as long a rest.
const HOLD: Duration = Duration::from_millis(200);
/// Bytes that churn reads at once.
const READ_BYTES: usize = 4 << 20;

/// Disturbs until standard input ends, which ends the process.
///
/// # Errors
/// A file that cannot be read.
pub fn run(neighbour: &Neighbour) -> std::io::Result<()> {
    println!("{{\"ready\": true}}");
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        match neighbour {
            Neighbour::Bursts { bytes } => burst(*bytes),
            Neighbour::Churn { file } => {
                read_whole(file)?;
            }
            Neighbour::Burner => {
                std::hint::black_box(burn(Duration::from_secs(1)));
            }
        }
    }
}

/// One burst and its rest.
fn burst(bytes: usize) {
    // Freed at once as a block of its own: larger than any threshold of the allocator.
    let block = Block::touched(bytes);
    std::thread::sleep(HOLD);
    drop(block);
    std::thread::sleep(HOLD);
}

/// Reads a file from its beginning to its end; gives its length.
fn read_whole(file: &Path) -> std::io::Result<u64> {
    let mut file = std::fs::File::open(file)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut len = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(len);
        }
        len += count as u64;
    }
}

/// Integer work for so long; the result is of no meaning.
fn burn(time: Duration) -> u64 {
    let start = Instant::now();
    let mut state = 1u64;
    while start.elapsed() < time {
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_holds_and_rests_and_reading_reads_all() {
        let start = Instant::now();
        burst(1 << 20);
        assert!(start.elapsed() >= 2 * HOLD);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert_eq!(read_whole(&path).unwrap(), std::fs::metadata(&path).unwrap().len());
        assert_ne!(burn(Duration::from_millis(1)), 1);
    }
}
