//! The state of the complete search: for each section the *floor*, below which nothing more may
//! be placed, and for each unplaced buffer the lowest offset that it can still have. Every change
//! is on a trail and can be taken back. `propagate` draws the conclusions that hold in every
//! completion within the capacity.

use crate::place::align_up;
use crate::sections::Sections;

enum Undo {
    Floor(u32, u64),
    Lower(u32, u64),
    Choices(u32, u32),
    Placed(u32),
}

/// A partial packing, built bottom up.
pub(crate) struct Skyline<'a> {
    pub sections: &'a Sections,
    /// Arena that must not be exceeded.
    pub capacity: u64,
    /// Per section: bytes below this are decided.
    pub floor: Vec<u64>,
    /// Per section: bytes still to be placed.
    pub total: Vec<u64>,
    /// Per section: buffers still to be placed.
    pub left: Vec<u32>,
    /// Per section: unplaced buffers whose lowest offset is the floor.
    pub choices: Vec<u32>,
    /// Per buffer: its offset if placed, else its lowest possible offset.
    pub lower: Vec<u64>,
    pub placed: Vec<bool>,
    /// Per boundary between section `s - 1` and `s`: unplaced buffers across it.
    pub across: Vec<u32>,
    /// Per section: a sum of hashes of its floor and of its unplaced buffers born in it.
    pub hash: Vec<u128>,
    /// Per section: how often it was the one that failed.
    pub failures: Vec<u64>,
    /// Members of each section, the unplaced ones first.
    members: Vec<u32>,
    /// Place of a buffer in `members`, per section of its span from `place_starts[b]` on.
    places: Vec<u32>,
    place_starts: Vec<u32>,
    trail: Vec<Undo>,
    queue: Vec<u32>,
    queued: Vec<bool>,
    /// Members looked at.
    pub steps: u64,
}

fn mix(a: u64, b: u64) -> u128 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(0xd6e8_feb8_6659_fd93_9e37_79b9_7f4a_7c15)
        ^ u128::from(b).wrapping_mul(0xbf58_476d_1ce4_e5b9_94d0_49bb_1331_11eb);
    let folded = product ^ (product >> 61);
    folded.wrapping_mul(0xda94_2042_e4dd_58b5_2545_f491_4f6c_dd1d)
}

impl<'a> Skyline<'a> {
    pub fn new(sections: &'a Sections, capacity: u64) -> Self {
        let (count, buffers) = (sections.count(), sections.sizes.len());
        let size = |b: &u32| sections.sizes[*b as usize];
        let total = (0..count).map(|s| sections.members(s).iter().map(size).sum()).collect();
        let mut across = vec![0; count + 1];
        let mut place_starts = vec![0];
        for b in 0..buffers {
            let span = sections.span(b);
            place_starts.push(place_starts[b] + span.len() as u32);
            across[span.start + 1..span.end].iter_mut().for_each(|count| *count += 1);
        }
        let mut places = vec![0; sections.members.len()];
        for s in 0..count {
            for (k, &b) in sections.members(s).iter().enumerate() {
                let at = place_starts[b as usize] + s as u32 - sections.first[b as usize];
                places[at as usize] = k as u32;
            }
        }
        let mut hash: Vec<u128> = (0..count).map(|s| mix(0, s as u64)).collect();
        for b in 0..buffers {
            let h = &mut hash[sections.first[b] as usize];
            *h = h.wrapping_add(mix(0, (b as u64) << 32 | 1 << 31));
        }
        Self {
            sections,
            capacity,
            floor: vec![0; count],
            total,
            left: (0..count).map(|s| sections.members(s).len() as u32).collect(),
            choices: vec![0; count],
            lower: vec![0; buffers],
            placed: vec![false; buffers],
            across,
            hash,
            failures: vec![0; count],
            members: sections.members.clone(),
            places,
            place_starts,
            trail: Vec::new(),
            queue: Vec::new(),
            queued: vec![false; count],
            steps: 0,
        }
    }

    /// Unplaced members of a section.
    pub fn unplaced(&self, s: usize) -> &[u32] {
        &self.members[self.sections.starts[s] as usize..][..self.left[s] as usize]
    }

    pub fn slack(&self, s: usize) -> u64 {
        self.capacity - self.floor[s] - self.total[s]
    }

    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Takes back everything since `mark`.
    pub fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop().expect("longer than the mark") {
                Undo::Floor(s, v) => {
                    self.rehash_floor(s as usize, v);
                    self.floor[s as usize] = v;
                }
                Undo::Lower(b, v) => {
                    self.rehash_lower(b as usize, v);
                    self.lower[b as usize] = v;
                }
                Undo::Choices(s, v) => self.choices[s as usize] = v,
                Undo::Placed(b) => self.unplace(b as usize),
            }
        }
        for s in self.queue.drain(..) {
            self.queued[s as usize] = false;
        }
    }

    fn rehash_floor(&mut self, s: usize, v: u64) {
        let h = &mut self.hash[s];
        *h = h.wrapping_sub(mix(self.floor[s], s as u64)).wrapping_add(mix(v, s as u64));
    }

    fn rehash_lower(&mut self, b: usize, v: u64) {
        let key = (b as u64) << 32 | 1 << 31;
        let h = &mut self.hash[self.sections.first[b] as usize];
        *h = h.wrapping_sub(mix(self.lower[b], key)).wrapping_add(mix(v, key));
    }

    fn unplace(&mut self, b: usize) {
        self.placed[b] = false;
        let span = self.sections.span(b);
        let size = self.sections.sizes[b];
        let key = (b as u64) << 32 | 1 << 31;
        let h = &mut self.hash[span.start];
        *h = h.wrapping_add(mix(self.lower[b], key));
        for s in span.clone() {
            self.total[s] += size;
            self.left[s] += 1;
        }
        for s in span.start + 1..span.end {
            self.across[s] += 1;
        }
    }

    /// Queues every section and draws the first conclusions.
    pub fn begin(&mut self) -> bool {
        for s in 0..self.sections.count() {
            if self.floor[s] + self.total[s] > self.capacity {
                return false;
            }
            self.enqueue(s);
        }
        for b in 0..self.sections.sizes.len() {
            if self.sections.pins[b] != u64::MAX && !self.raise_lower(b, self.sections.pins[b]) {
                return false;
            }
        }
        self.propagate()
    }

    fn enqueue(&mut self, s: usize) {
        if !self.queued[s] && self.left[s] > 0 {
            self.queued[s] = true;
            self.queue.push(s as u32);
        }
    }

    fn raise_floor(&mut self, s: usize, v: u64) -> bool {
        if v > self.floor[s] {
            self.trail.push(Undo::Floor(s as u32, self.floor[s]));
            self.rehash_floor(s, v);
            self.floor[s] = v;
            if self.left[s] > 0 && v + self.total[s] > self.capacity {
                self.failures[s] += 1;
                return false;
            }
            self.enqueue(s);
        }
        true
    }

    /// Raises the lowest offset of an unplaced buffer. False if it no longer fits.
    pub fn raise_lower(&mut self, b: usize, v: u64) -> bool {
        let old = self.lower[b];
        let v = align_up(v, self.sections.alignments[b]);
        if v <= old {
            return true;
        }
        self.trail.push(Undo::Lower(b as u32, old));
        self.rehash_lower(b, v);
        self.lower[b] = v;
        let span = self.sections.span(b);
        if v + self.sections.sizes[b] > self.capacity || v > self.sections.pins[b] {
            for s in span {
                self.failures[s] += 1;
            }
            return false;
        }
        for s in span {
            if old + self.total[s] <= self.capacity {
                self.enqueue(s);
            }
        }
        true
    }

    /// Places `b` at its lowest offset and draws the conclusions. False if they contradict.
    pub fn place(&mut self, b: usize) -> bool {
        let span = self.sections.span(b);
        let size = self.sections.sizes[b];
        let end = self.lower[b] + size;
        self.placed[b] = true;
        self.trail.push(Undo::Placed(b as u32));
        let key = (b as u64) << 32 | 1 << 31;
        let h = &mut self.hash[span.start];
        *h = h.wrapping_sub(mix(self.lower[b], key));
        for s in span.clone() {
            self.total[s] -= size;
            self.left[s] -= 1;
            self.swap_out(b, s);
        }
        for s in span.start + 1..span.end {
            self.across[s] -= 1;
        }
        for s in span {
            if !self.raise_floor(s, end) {
                return false;
            }
        }
        self.propagate()
    }

    /// Moves `b` behind the unplaced members of `s`, whose number is already reduced.
    fn swap_out(&mut self, b: usize, s: usize) {
        let base = self.sections.starts[s];
        let at = |b: usize| (self.place_starts[b] + s as u32 - self.sections.first[b]) as usize;
        let last = self.left[s];
        let other = self.members[(base + last) as usize] as usize;
        let (at_b, at_other) = (at(b), at(other));
        let place = self.places[at_b];
        self.members.swap((base + place) as usize, (base + last) as usize);
        self.places[at_other] = place;
        self.places[at_b] = last;
    }

    /// Concludes from *no candidate of section `s` stands on its floor*: each must rest on a
    /// buffer that is not placed yet, at the least end of one. False if that contradicts.
    pub fn leave(&mut self, s: usize) -> bool {
        let floor = self.floor[s];
        if self.slack(s) == 0 {
            return false;
        }
        let mut rests: Vec<(u32, u64)> = Vec::new();
        for k in 0..self.left[s] as usize {
            let b = self.unplaced(s)[k];
            if self.lower[b as usize] != floor {
                continue;
            }
            let mut rest = u64::MAX;
            for t in self.sections.span(b as usize) {
                self.steps += u64::from(self.left[t]);
                for &other in self.unplaced(t).iter().filter(|&&other| other != b) {
                    let other = other as usize;
                    rest = rest.min(self.lower[other] + self.sections.sizes[other]);
                }
            }
            if rest > self.capacity {
                return false;
            }
            rests.push((b, rest));
        }
        rests.into_iter().all(|(b, rest)| self.raise_lower(b as usize, rest)) && self.propagate()
    }

    /// Start of every hash of this capacity.
    pub fn capacity_hash(&self) -> u128 {
        mix(self.capacity, u64::MAX)
    }

    /// Empties the queue. False if some section cannot be completed.
    pub fn propagate(&mut self) -> bool {
        while let Some(s) = self.queue.pop() {
            let s = s as usize;
            self.queued[s] = false;
            if self.left[s] > 0 && !self.conclude(s) {
                self.failures[s] += 1;
                return false;
            }
        }
        true
    }

    /// Conclusions from one section alone: see the module's head and `docs/packing.md`.
    fn conclude(&mut self, s: usize) -> bool {
        self.steps += u64::from(self.left[s]);
        let range = self.sections.starts[s] as usize;
        let range = range..range + self.left[s] as usize;
        let latest = self.capacity - self.total[s];
        let (mut minimum, mut choices) = (u64::MAX, 0);
        let (mut first_end, mut second_end, mut first) = (u64::MAX, u64::MAX, u32::MAX);
        for &b in &self.members[range.clone()] {
            let lower = self.lower[b as usize].max(self.floor[s]);
            if lower < minimum {
                (minimum, choices) = (lower, 0);
            }
            choices += u32::from(lower == minimum);
            if lower <= latest {
                let end = lower + self.sections.sizes[b as usize];
                if end < first_end {
                    (second_end, first_end, first) = (first_end, end, b);
                } else {
                    second_end = second_end.min(end);
                }
            }
        }
        if minimum > latest {
            return false;
        }
        if self.choices[s] != choices {
            self.trail.push(Undo::Choices(s as u32, self.choices[s]));
            self.choices[s] = choices;
        }
        if minimum > self.floor[s] && !self.raise_floor(s, minimum) {
            return false;
        }
        let only = second_end == u64::MAX;
        for k in range {
            let b = self.members[k];
            let later = self.lower[b as usize] > latest || (only && b != first);
            let bound = if later { first_end } else { minimum };
            if bound > self.lower[b as usize] && !self.raise_lower(b as usize, bound) {
                return false;
            }
        }
        true
    }
}
