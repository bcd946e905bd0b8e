//! An independent check of a packing. It believes the problem's definition and nothing that the
//! packer computed; it shares no code with it but the problem's types.
//!
//! Intervals are checked by a sweep over time: the bytes in use at one step are kept ordered by
//! offset, and a buffer that starts may not touch its neighbours there. Since the set is free of
//! overlaps before each insertion, looking at two neighbours is enough. Other conflicts are
//! checked pair by pair.

use std::collections::BTreeMap;

use crate::problem::{Conflicts, Interval, Problem};

/// What makes a list of offsets no packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Not one offset a buffer, or not one lifetime a buffer.
    Count,
    /// A buffer off its alignment, off its pinned offset, or with an end that overflows.
    Misplaced {
        /// Index of the buffer.
        buffer: usize,
    },
    /// Two conflicting buffers share bytes.
    Shared {
        /// The lower index.
        a: usize,
        /// The higher index.
        b: usize,
    },
}

impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count => write!(f, "offsets and buffers differ in number"),
            Self::Misplaced { buffer } => write!(f, "buffer {buffer} is off its place"),
            Self::Shared { a, b } => write!(f, "buffers {a} and {b} conflict and share bytes"),
        }
    }
}

impl std::error::Error for Overlap {}

/// Checks that `offsets` is a packing and returns its arena in bytes.
///
/// # Errors
/// The first thing found that makes it none.
pub fn validate(problem: &Problem, offsets: &[u64]) -> Result<u64, Overlap> {
    let count = problem.buffers.len();
    if offsets.len() != count {
        return Err(Overlap::Count);
    }
    let mut ends = Vec::with_capacity(count);
    for (index, (buffer, &offset)) in problem.buffers.iter().zip(offsets).enumerate() {
        let size = buffer.size.div_ceil(buffer.alignment).checked_mul(buffer.alignment);
        let end = size.and_then(|size| offset.checked_add(size));
        let aligned = offset.is_multiple_of(buffer.alignment);
        let placed = aligned && buffer.pinned.is_none_or(|p| p == offset);
        match end {
            Some(end) if placed => ends.push(end),
            Some(_) | None => return Err(Overlap::Misplaced { buffer: index }),
        }
    }
    let pair = |a: usize, b: usize| {
        let apart = ends[a] <= offsets[b] || ends[b] <= offsets[a];
        let empty = offsets[a] == ends[a] || offsets[b] == ends[b];
        if apart || empty { Ok(()) } else { Err(Overlap::Shared { a: a.min(b), b: a.max(b) }) }
    };
    match &problem.conflicts {
        Conflicts::Intervals(intervals) => sweep(intervals, offsets, &ends)?,
        Conflicts::Clocks(clocks) => {
            if clocks.count() != count {
                return Err(Overlap::Count);
            }
            for a in 0..count {
                for b in a + 1..count {
                    if !clocks.precedes(a, b) && !clocks.precedes(b, a) {
                        pair(a, b)?;
                    }
                }
            }
        }
        Conflicts::Graph(pairs) => pairs.iter().try_for_each(|&(a, b)| pair(a, b))?,
    }
    Ok(ends.into_iter().max().unwrap_or(0))
}

/// Walks the steps in order, with the bytes in use as a map from offset to (end, buffer).
fn sweep(intervals: &[Interval], offsets: &[u64], ends: &[u64]) -> Result<(), Overlap> {
    if intervals.len() != offsets.len() {
        return Err(Overlap::Count);
    }
    let occupied = |b: &usize| offsets[*b] < ends[*b];
    let mut starts: Vec<usize> = (0..offsets.len()).filter(occupied).collect();
    let mut stops = starts.clone();
    starts.sort_by_key(|&b| intervals[b].lower);
    stops.sort_by_key(|&b| intervals[b].upper);
    let mut stops = stops.into_iter().peekable();
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for b in starts {
        while let Some(gone) = stops.next_if(|&g| intervals[g].upper <= intervals[b].lower) {
            live.remove(&offsets[gone]);
        }
        let below = live.range(..=offsets[b]).next_back().filter(|(_, n)| n.0 > offsets[b]);
        let above = live.range(offsets[b]..ends[b]).next();
        if let Some((_, &(_, other))) = below.or(above) {
            return Err(Overlap::Shared { a: b.min(other), b: b.max(other) });
        }
        live.insert(offsets[b], (ends[b], b));
    }
    Ok(())
}
