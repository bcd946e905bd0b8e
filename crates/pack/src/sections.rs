//! A problem as the complete search sees it: *sections*, sets of buffers that conflict pairwise,
//! such that every conflict lies in one of them. Each buffer spans the sections that hold it.
//!
//! Intervals have a natural choice: the maximal sets live at one step, in order of time, so that
//! a buffer spans a run of them. Sets contained in another add nothing and are left out, hence
//! there are at most as many sections as buffers. For other relations (`cover.rs`) sections have
//! no order.

use crate::problem::Interval;
use crate::relation::Relation;

/// Do the sections stand in a line?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In order of time: a buffer spans a run of sections.
    Line,
    /// In no order.
    Free,
}

/// Sections and what each buffer spans. Buffers are those that occupy bytes, renumbered.
pub(crate) struct Sections {
    pub shape: Shape,
    /// Number of each buffer in the problem.
    pub ids: Vec<usize>,
    /// Reserved bytes of each buffer.
    pub sizes: Vec<u64>,
    /// Alignment of each buffer.
    pub alignments: Vec<u64>,
    /// Pinned offset, or `u64::MAX`.
    pub pins: Vec<u64>,
    /// Duration of each buffer, in any unit.
    pub durations: Vec<u64>,
    /// Members of section `s` are `members[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    members: Vec<u32>,
    /// Sections of buffer `b`, ascending, are `spans[span_starts[b]..span_starts[b + 1]]`.
    span_starts: Vec<u32>,
    spans: Vec<u32>,
}

impl Sections {
    /// Sections from a list of their members, or `None` beyond `members_max` of these.
    pub fn new(
        shape: Shape,
        relation: &Relation,
        pinned: &[u64],
        durations: impl Fn(usize) -> u64,
        lists: impl Iterator<Item = Vec<usize>>,
        members_max: usize,
    ) -> Option<Self> {
        let ids: Vec<usize> = (0..relation.count()).filter(|&b| relation.sizes[b] > 0).collect();
        let mut numbers = vec![0_u32; relation.count()];
        for (number, &b) in ids.iter().enumerate() {
            numbers[b] = number as u32;
        }
        let (mut starts, mut members) = (vec![0], Vec::new());
        for list in lists {
            members.extend(list.into_iter().map(|b| numbers[b]));
            starts.push(members.len() as u32);
            if members.len() > members_max {
                return None;
            }
        }
        let (span_starts, spans) = transpose(ids.len(), &starts, &members);
        Some(Self {
            shape,
            sizes: ids.iter().map(|&b| relation.sizes[b]).collect(),
            alignments: ids.iter().map(|&b| relation.alignments[b]).collect(),
            pins: ids.iter().map(|&b| pinned[b]).collect(),
            durations: ids.iter().map(|&b| durations(b)).collect(),
            ids,
            starts,
            members,
            span_starts,
            spans,
        })
    }

    /// Number of sections.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Memberships in all sections.
    pub fn members_count(&self) -> usize {
        self.members.len()
    }

    /// Buffers of section `s`.
    pub fn members(&self, s: usize) -> &[u32] {
        &self.members[self.starts[s] as usize..self.starts[s + 1] as usize]
    }

    /// Place of the first member of section `s` among the members of all.
    pub fn start(&self, s: usize) -> usize {
        self.starts[s] as usize
    }

    /// Sections that hold buffer `b`, ascending.
    pub fn span(&self, b: usize) -> &[u32] {
        &self.spans[self.span_starts[b] as usize..self.span_starts[b + 1] as usize]
    }

    /// Place of the first section of buffer `b` among the spans of all.
    pub fn span_start(&self, b: usize) -> usize {
        self.span_starts[b] as usize
    }

    /// First section of buffer `b`.
    pub fn first(&self, b: usize) -> usize {
        self.spans[self.span_starts[b] as usize] as usize
    }

    /// Last section of buffer `b`.
    pub fn last(&self, b: usize) -> usize {
        self.spans[self.span_starts[b + 1] as usize - 1] as usize
    }
}

/// For each of `count` buffers the sections that hold it.
fn transpose(count: usize, starts: &[u32], members: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut span_starts = vec![0_u32; count + 1];
    for &b in members {
        span_starts[b as usize + 1] += 1;
    }
    for b in 0..count {
        span_starts[b + 1] += span_starts[b];
    }
    let mut next = span_starts.clone();
    let mut spans = vec![0_u32; members.len()];
    for s in 0..starts.len() - 1 {
        for &b in &members[starts[s] as usize..starts[s + 1] as usize] {
            spans[next[b as usize] as usize] = s as u32;
            next[b as usize] += 1;
        }
    }
    (span_starts, spans)
}

/// The maximal sets of intervals that are live together, in order of time. Intervals of no bytes
/// are left out.
pub(crate) struct Cliques {
    /// (step, is it a birth, buffer), deaths before births.
    events: std::vec::IntoIter<(u64, bool, usize)>,
    live: Vec<usize>,
    grown: bool,
}

impl Cliques {
    pub fn new(sizes: &[u64], intervals: &[Interval]) -> Self {
        let mut events = Vec::with_capacity(2 * sizes.len());
        for (b, life) in intervals.iter().enumerate().filter(|(b, _)| sizes[*b] > 0) {
            events.push((life.lower, true, b));
            events.push((life.upper, false, b));
        }
        events.sort_unstable();
        Self { events: events.into_iter(), live: Vec::new(), grown: false }
    }
}

impl Iterator for Cliques {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        loop {
            let (_, birth, b) = self.events.next()?;
            if birth {
                self.live.push(b);
                self.grown = true;
                continue;
            }
            let section = self.grown.then(|| self.live.clone());
            self.grown = false;
            self.live.retain(|&other| other != b);
            if section.is_some() {
                return section;
            }
        }
    }
}
