//! Shadow memory: for each byte of a span, the stamp of who wrote it last.
//!
//! Kept as sorted runs of equal stamps, so that a span of gigabytes costs what its distinct
//! writes cost.

use std::collections::BTreeMap;
use std::ops::Range;

/// Who wrote a byte. 0 is nobody.
pub type Stamp = u32;

/// Runs of equal stamps, in order.
pub type Runs = Vec<(u64, Stamp)>;

/// Stamps of a span of bytes.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    /// Start of each run → its end and stamp. Bytes in no run have stamp 0.
    runs: BTreeMap<u64, (u64, Stamp)>,
}

impl Shadow {
    /// Stamps every byte of a range.
    pub fn write(&mut self, range: Range<u64>, stamp: Stamp) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let inside: Vec<u64> = self.runs.range(range.clone()).map(|(start, _)| *start).collect();
        for start in inside {
            self.runs.remove(&start);
        }
        self.runs.insert(range.start, (range.end, stamp));
    }

    /// The stamps of a range as runs (length, stamp), neighbours of one stamp joined.
    #[must_use]
    pub fn read(&self, range: Range<u64>) -> Runs {
        let mut result: Runs = Vec::new();
        let mut push = |length: u64, stamp: Stamp| match result.last_mut() {
            _ if length == 0 => {}
            Some((last, same)) if *same == stamp => *last += length,
            _ => result.push((length, stamp)),
        };
        let mut at = range.start;
        let before = self.runs.range(..=at).next_back().map(|(start, _)| *start).unwrap_or(at);
        for (start, (end, stamp)) in self.runs.range(before..) {
            if *start >= range.end {
                break;
            }
            if *end <= at {
                continue;
            }
            let from = (*start).max(at);
            push(from - at, 0);
            let to = (*end).min(range.end);
            push(to - from, *stamp);
            at = to;
        }
        push(range.end.saturating_sub(at), 0);
        result
    }

    /// Makes `at` a boundary between runs.
    fn split(&mut self, at: u64) {
        let Some((start, (end, stamp))) = self.runs.range(..at).next_back() else { return };
        let (start, end, stamp) = (*start, *end, *stamp);
        if at < end {
            self.runs.insert(start, (at, stamp));
            self.runs.insert(at, (end, stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn shadow_is_an_array_of_stamps() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            let mut shadow = Shadow::default();
            let mut plain = [0u32; 40];
            for stamp in 1..12 {
                let start = random.below(40);
                let end = start + random.below(41 - start);
                shadow.write(start as u64..end as u64, stamp);
                plain[start..end].fill(stamp);
                let start = random.below(40);
                let end = start + random.below(41 - start);
                let read = shadow.read(start as u64..end as u64);
                let bytes: Vec<u32> =
                    read.iter().flat_map(|(n, stamp)| vec![*stamp; *n as usize]).collect();
                assert_eq!(bytes, plain[start..end]);
                assert!(read.windows(2).all(|pair| pair[0].1 != pair[1].1));
            }
        }
    }
}
