//! An interval problem as the complete search sees it: *sections*, the maximal sets of buffers
//! that are live together, in order of time. A buffer's life is a range of sections, and two
//! buffers conflict iff their ranges meet. Sets contained in another add nothing and are left
//! out, so there are at most as many sections as buffers.

use crate::limits;
use crate::problem::Interval;

/// Sections and the range that each buffer spans.
pub(crate) struct Sections {
    /// Reserved bytes of each buffer.
    pub sizes: Vec<u64>,
    /// Alignment of each buffer.
    pub alignments: Vec<u64>,
    /// Pinned offset, or `u64::MAX`.
    pub pins: Vec<u64>,
    /// Duration of each buffer in steps.
    pub durations: Vec<u64>,
    /// First section of each buffer.
    pub first: Vec<u32>,
    /// One past its last section.
    pub end: Vec<u32>,
    /// Members of section `s` are `members[starts[s]..starts[s + 1]]`.
    pub starts: Vec<u32>,
    /// See `starts`.
    pub members: Vec<u32>,
}

impl Sections {
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn members(&self, s: usize) -> &[u32] {
        &self.members[self.starts[s] as usize..self.starts[s + 1] as usize]
    }

    pub fn span(&self, b: usize) -> std::ops::Range<usize> {
        self.first[b] as usize..self.end[b] as usize
    }

    /// Sections of the given buffers, or `None` beyond [`limits::MEMBERS_MAX`].
    pub fn new(
        sizes: Vec<u64>,
        alignments: Vec<u64>,
        pins: Vec<u64>,
        intervals: &[Interval],
    ) -> Option<Self> {
        let n = sizes.len();
        let mut events: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * n);
        for (b, life) in intervals.iter().enumerate() {
            events.push((life.lower, true, b as u32));
            events.push((life.upper, false, b as u32));
        }
        events.sort_unstable();
        let (mut first, mut end) = (vec![0; n], vec![0; n]);
        let mut live: Vec<u32> = Vec::new();
        let (mut starts, mut members) = (vec![0], Vec::new());
        let mut grown = false;
        for (_, birth, b) in events {
            if birth {
                first[b as usize] = starts.len() as u32 - 1;
                live.push(b);
            } else {
                if grown {
                    members.extend_from_slice(&live);
                    starts.push(members.len() as u32);
                    if members.len() > limits::MEMBERS_MAX {
                        return None;
                    }
                }
                end[b as usize] = starts.len() as u32 - 1;
                live.retain(|&other| other != b);
            }
            grown = birth;
        }
        let durations = intervals.iter().map(|i| i.upper - i.lower).collect();
        Some(Self { sizes, alignments, pins, durations, first, end, starts, members })
    }
}
