//! How fast memory is read here: the limit that decoding is measured against.
//!
//! The lanes sum a buffer that no cache holds, each its own share, by several streams (one stream
//! waits for memory more often than it reads it). The best of a few passes is the figure: whatever
//! disturbs a pass makes it slower, never faster.
//!
//! Believes: `arena`, `lanes`. Must not know: models. The buffer is given back before this returns;
//! it counts in the process's peak unless the caller resets that.

use crate::arena::{Arena, ArenaPages};
use crate::error::SystemError;
use crate::lanes::{Lanes, LanesConfig};
use std::hint::black_box;
use std::time::Instant;

/// Streams of each lane.
const STREAMS: usize = 4;

/// Bytes a second that the lanes read together: the best of `passes` over `buffer_bytes`.
///
/// # Errors
/// As `Arena::map` and `Lanes::start`.
pub fn read_bytes_per_s(
    config: &LanesConfig,
    buffer_bytes: usize,
    passes: usize,
) -> Result<f64, SystemError> {
    let mut arena = Arena::map(buffer_bytes, ArenaPages::Huge)?;
    arena.prefault();
    let words: &[u64] = {
        let words = arena.words_mut();
        words.fill(1);
        words
    };
    let mut lanes = Lanes::start(config)?;
    let share = words.len().div_ceil(lanes.count());
    let mut best_s = f64::INFINITY;
    for _ in 0..passes.max(1) {
        let start = Instant::now();
        lanes.run(&|lane| {
            if let Some(own) = words.chunks(share).nth(lane.index) {
                black_box(sum(own));
            }
        })?;
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    Ok(size_of_val(words) as f64 / best_s)
}

/// The sum of all words, read by as many streams at once.
fn sum(words: &[u64]) -> u64 {
    /// Words that a stream reads in a row: a cache line.
    const LINE: usize = 8;
    let part = (words.len() / STREAMS).next_multiple_of(LINE).max(LINE);
    let mut streams = [words; STREAMS];
    for (index, stream) in streams.iter_mut().enumerate() {
        let (start, end) = (index * part, (index + 1) * part);
        *stream = &words[start.min(words.len())..end.min(words.len())];
    }
    // The last stream takes what is left over.
    streams[STREAMS - 1] = &words[((STREAMS - 1) * part).min(words.len())..];
    let lines = streams.iter().map(|stream| stream.len() / LINE).min().unwrap_or(0);
    let mut sums = [[0u64; LINE]; STREAMS];
    for line in 0..lines {
        for (stream, sums) in streams.iter().zip(&mut sums) {
            let words = &stream[line * LINE..(line + 1) * LINE];
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    let rest = streams.iter().flat_map(|stream| &stream[lines * LINE..]);
    let total = sums.iter().flatten().chain(rest);
    total.fold(0, |total, word| total.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::SpinPolicy;
    use crate::lanes::Pinning;

    #[test]
    fn every_word_is_read_once() {
        for len in [0, 1, 7, 8, 31, 32, 33, 63, 100, 257, 1024, 4099] {
            let words: Vec<u64> = (0..len).map(|i| i * i + 1).collect();
            assert_eq!(sum(&words), words.iter().sum::<u64>(), "{len} words");
        }
    }

    #[test]
    fn a_rate_is_measured() {
        let config = LanesConfig {
            lanes: 2,
            stack_bytes: 128 << 10,
            events: 0,
            spin: SpinPolicy::SLEEP,
            pinning: Pinning::Free,
        };
        let rate = read_bytes_per_s(&config, 4 << 20, 2).unwrap();
        assert!(rate > 1e6 && rate.is_finite(), "{rate} bytes/s");
    }
}
