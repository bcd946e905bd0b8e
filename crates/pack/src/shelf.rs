//! Placed intervals in order of offset, for problems so dense that walking past all of them is
//! cheaper than collecting and sorting the neighbours of one. Kept in short runs, so that an
//! insertion moves little.

/// A placed interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub offset: u64,
    pub end: u64,
    /// Lifetime as ranks of its ends among all ends.
    pub lower: u32,
    pub upper: u32,
}

/// Runs of at most `RUN_MAX` entries, in order.
#[derive(Default)]
pub(crate) struct Shelf {
    runs: Vec<Vec<Entry>>,
}

const RUN_MAX: usize = 512;

impl Shelf {
    pub fn clear(&mut self) {
        self.runs.clear();
    }

    pub fn insert(&mut self, entry: Entry) {
        let after = self.runs.partition_point(|run| run[0].offset <= entry.offset);
        if self.runs.is_empty() {
            self.runs.push(Vec::with_capacity(RUN_MAX));
        }
        let at = after.saturating_sub(1);
        let run = &mut self.runs[at];
        let place = run.partition_point(|e| e.offset <= entry.offset);
        run.insert(place, entry);
        if run.len() == RUN_MAX {
            let mut upper = Vec::with_capacity(RUN_MAX);
            upper.extend_from_slice(&run[RUN_MAX / 2..]);
            run.truncate(RUN_MAX / 2);
            self.runs.insert(at + 1, upper);
        }
    }

    /// All entries, lowest offset first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.runs.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn entries_come_by_offset() {
        let mut random = SplitMix64::new(6);
        let mut shelf = Shelf::default();
        let mut offsets = Vec::new();
        for _ in 0..5000 {
            let offset = random.below(900);
            offsets.push(offset);
            shelf.insert(Entry { offset, end: offset + 1, lower: 0, upper: 1 });
        }
        offsets.sort_unstable();
        assert!(shelf.entries().map(|e| e.offset).eq(offsets));
    }
}
