//! Parallel regions: work cut into parts, one a lane, and the caller goes on when all are done.
//!
//! This is the fork and join of common runtimes, with the product's threads underneath: the same
//! pinning, the same patience of a waiter. Parts are owned values (a slice to fill, a range to
//! work on), so lanes share nothing that is written.

use std::ops::Range;
use std::sync::Mutex;

use dctms_system::SystemError;
use dctms_system::lanes::{Lanes, LanesConfig};

/// Elements below which an operation is not worth a region: that of PyTorch.
pub const SERIAL_ELEMENTS: usize = 32_768;

/// The lanes.
pub struct Pool {
    lanes: Lanes,
}

impl Pool {
    /// Starts the lanes.
    ///
    /// # Errors
    /// An operating system that makes no thread.
    pub fn start(config: &LanesConfig) -> Result<Pool, SystemError> {
        Ok(Pool { lanes: Lanes::start(config)? })
    }

    /// Lanes in all.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.count()
    }

    /// Lanes for an operation on so many elements.
    #[must_use]
    pub fn lanes_for(&self, elements: usize) -> usize {
        if elements < SERIAL_ELEMENTS { 1 } else { self.lanes() }
    }

    /// Runs `work` on every part, one a lane; a single part runs here.
    ///
    /// # Panics
    /// With more parts than lanes, or when a part panicked.
    pub fn each<P: Send>(&mut self, parts: Vec<P>, work: &(dyn Fn(P) + Sync)) {
        assert!(parts.len() <= self.lanes(), "{} parts", parts.len());
        if parts.len() < 2 {
            return parts.into_iter().for_each(work);
        }
        let parts: Vec<Mutex<Option<P>>> =
            parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
        let ran = self.lanes.run(&|lane| {
            let part = parts.get(lane.index).and_then(|part| part.lock().ok()?.take());
            if let Some(part) = part {
                work(part);
            }
        });
        ran.expect("no lane panicked");
    }
}

/// `units` in grains of `grain`, shared out over at most `lanes`: ranges that are not empty.
#[must_use]
pub fn shares(units: usize, grain: usize, lanes: usize) -> Vec<Range<usize>> {
    let grain = grain.max(1);
    let grains = units.div_ceil(grain);
    let bound = |share: usize| (share * grains / lanes * grain).min(units);
    let ranges = (0..lanes).map(|lane| bound(lane)..bound(lane + 1));
    ranges.filter(|range| !range.is_empty()).collect()
}

/// A slice cut at the ranges, `stride` elements a unit; the ranges follow each other from 0.
#[must_use]
pub fn cut<'a, T>(
    mut whole: &'a mut [T],
    ranges: &[Range<usize>],
    stride: usize,
) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (part, rest) = whole.split_at_mut(range.len() * stride);
        parts.push(part);
        whole = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use dctms_system::lanes::Pinning;
    use dctms_system::spin::SpinPolicy;

    #[test]
    fn shares_cover_every_unit_once() {
        assert_eq!(shares(9, 1, 2), [0..4, 4..9]);
        assert_eq!(shares(9, 4, 2), [0..4, 4..9]);
        assert_eq!(shares(3, 4, 2), vec![0..3; 1]);
        assert_eq!(shares(8, 1, 1), vec![0..8; 1]);
        assert!(shares(0, 1, 3).is_empty());
    }

    #[test]
    fn every_part_runs_once_and_writes_its_own() {
        let config = LanesConfig {
            lanes: 3,
            stack_bytes: 128 << 10,
            events: 0,
            spin: SpinPolicy::SLEEP,
            pinning: Pinning::Free,
        };
        let mut pool = Pool::start(&config).unwrap();
        for units in [1, 2, 7] {
            let mut out = vec![0; units * 4];
            let ranges = shares(units, 1, pool.lanes());
            let parts = cut(&mut out, &ranges, 4).into_iter().zip(ranges.iter()).collect();
            pool.each(parts, &|(part, range): (&mut [usize], &Range<usize>)| {
                for (index, value) in part.iter_mut().enumerate() {
                    *value += range.start * 4 + index;
                }
            });
            assert_eq!(out, (0..units * 4).collect::<Vec<_>>());
        }
    }
}
