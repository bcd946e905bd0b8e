//! The state of the complete search: for each section the *floor*, below which nothing more may
//! be placed, and for each unplaced buffer the lowest offset that it can still have. Every change
//! is on a trail and can be taken back. `propagate` draws the conclusions that hold in every
//! completion within the capacity.

use crate::place::align_up;
use crate::sections::{Sections, Shape};

enum Undo {
    Floor(u32, u64),
    Lower(u32, u64),
    Front(u32, Front),
    Placed(u32),
}

/// What the last look at a section's unplaced members found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    /// Those whose lowest offset is the floor: the candidates.
    pub choices: u32,
    /// Least end of those that may come first, and the next least.
    ends: [u64; 2],
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
    /// Per section: what was found when it was last looked at.
    pub front: Vec<Front>,
    /// Per buffer: its offset if placed, else its lowest possible offset.
    pub lower: Vec<u64>,
    pub placed: Vec<bool>,
    /// Per boundary between section `s - 1` and `s`: unplaced buffers across it.
    pub across: Vec<u32>,
    /// Per section: a sum of hashes of its floor and of its unplaced buffers born in it.
    pub hash: Vec<u128>,
    /// Per section: how often it was the one that failed.
    pub failures: Vec<u64>,
    /// Members of each section, the unplaced ones first, and of each the place of this section
    /// among the spans of all.
    members: Vec<(u32, u32)>,
    /// For each section of each span, the place of the buffer among the section's members.
    places: Vec<u32>,
    trail: Vec<Undo>,
    queue: Vec<u32>,
    queued: Vec<bool>,
    /// Members looked at.
    pub steps: u64,
}

/// What distinguishes a buffer's hash from a section's.
fn key(b: usize) -> u64 {
    1 << 40 | b as u64
}

/// Mixes a value and the key of its place into 128 bits. States are summed up from these; that
/// two different states of one search meet in all 128 bits is not to be expected in any run.
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
        if sections.shape == Shape::Line {
            for b in 0..buffers {
                for &s in &sections.span(b)[1..] {
                    across[s as usize] += 1;
                }
            }
        }
        let (members, places) = cross_index(sections);
        let mut hash: Vec<u128> = (0..count).map(|s| mix(0, s as u64)).collect();
        for b in 0..buffers {
            let h = &mut hash[sections.first(b)];
            *h = h.wrapping_add(mix(0, key(b)));
        }
        Self {
            sections,
            capacity,
            floor: vec![0; count],
            total,
            left: (0..count).map(|s| sections.members(s).len() as u32).collect(),
            front: vec![Front { choices: 0, ends: [u64::MAX; 2] }; count],
            lower: vec![0; buffers],
            placed: vec![false; buffers],
            across,
            hash,
            failures: vec![0; count],
            members,
            places,
            trail: Vec::new(),
            queue: Vec::new(),
            queued: vec![false; count],
            steps: 0,
        }
    }

    /// Unplaced members of a section.
    pub fn unplaced(&self, s: usize) -> impl Iterator<Item = usize> {
        let start = self.sections.start(s);
        self.members[start..start + self.left[s] as usize].iter().map(|&(b, _)| b as usize)
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
                Undo::Front(s, front) => self.front[s as usize] = front,
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
        let h = &mut self.hash[self.sections.first(b)];
        *h = h.wrapping_sub(mix(self.lower[b], key(b))).wrapping_add(mix(v, key(b)));
    }

    fn unplace(&mut self, b: usize) {
        self.placed[b] = false;
        let sections = self.sections;
        let size = sections.sizes[b];
        let h = &mut self.hash[sections.first(b)];
        *h = h.wrapping_add(mix(self.lower[b], key(b)));
        for &s in sections.span(b) {
            self.total[s as usize] += size;
            self.left[s as usize] += 1;
        }
        if sections.shape == Shape::Line {
            for &s in &sections.span(b)[1..] {
                self.across[s as usize] += 1;
            }
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
        let sections = self.sections;
        if v + sections.sizes[b] > self.capacity || v > sections.pins[b] {
            for &s in sections.span(b) {
                self.failures[s as usize] += 1;
            }
            return false;
        }
        for &s in sections.span(b) {
            self.left_behind(s as usize, old, old + sections.sizes[b]);
        }
        true
    }

    /// A member's lowest offset has risen from `old`, its end from `end`. Looks at the section
    /// again only if that can change a conclusion.
    fn left_behind(&mut self, s: usize, old: u64, end: u64) {
        if self.queued[s] || old + self.total[s] > self.capacity {
            return;
        }
        let front = self.front[s];
        if end <= front.ends[1] || (old == self.floor[s] && front.choices == 1) {
            self.enqueue(s);
        } else if old == self.floor[s] {
            self.trail.push(Undo::Front(s as u32, front));
            self.front[s].choices -= 1;
        }
    }

    /// Places `b` at its lowest offset and draws the conclusions. False if they contradict.
    pub fn place(&mut self, b: usize) -> bool {
        let sections = self.sections;
        let size = sections.sizes[b];
        let end = self.lower[b] + size;
        self.placed[b] = true;
        self.trail.push(Undo::Placed(b as u32));
        let h = &mut self.hash[sections.first(b)];
        *h = h.wrapping_sub(mix(self.lower[b], key(b)));
        for (slot, &s) in (sections.span_start(b)..).zip(sections.span(b)) {
            self.total[s as usize] -= size;
            self.left[s as usize] -= 1;
            self.swap_out(slot, s as usize);
        }
        if sections.shape == Shape::Line {
            for &s in &sections.span(b)[1..] {
                self.across[s as usize] -= 1;
            }
        }
        sections.span(b).iter().all(|&s| self.raise_floor(s as usize, end)) && self.propagate()
    }

    /// Moves the buffer at a place among the spans behind the unplaced members of `s`, whose
    /// number is already reduced. Taking it back needs no move: the number alone grows again.
    fn swap_out(&mut self, slot: usize, s: usize) {
        let start = self.sections.start(s);
        let (place, last) = (self.places[slot], self.left[s]);
        let (from, to) = (start + place as usize, start + last as usize);
        self.members.swap(from, to);
        self.places[self.members[from].1 as usize] = place;
        self.places[slot] = last;
    }

    /// Concludes from *no candidate of section `s` stands on its floor*: each must rest on a
    /// buffer that is not placed yet, at the least end of one. False if that contradicts.
    pub fn leave(&mut self, s: usize) -> bool {
        let floor = self.floor[s];
        if self.slack(s) == 0 {
            return false;
        }
        let mut rests: Vec<(usize, u64)> = Vec::new();
        for b in self.unplaced(s).filter(|&b| self.lower[b] == floor) {
            let end = |c: usize| self.lower[c] + self.sections.sizes[c];
            let mut rest = u64::MAX;
            for &t in self.sections.span(b) {
                let others = self.unplaced(t as usize).filter(|&c| c != b);
                rest = others.map(end).fold(rest, u64::min);
            }
            if rest > self.capacity {
                return false;
            }
            rests.push((b, rest));
        }
        let spans = rests.iter().map(|&(b, _)| self.sections.span(b));
        self.steps += spans.flatten().map(|&t| u64::from(self.left[t as usize])).sum::<u64>();
        rests.into_iter().all(|(b, rest)| self.raise_lower(b, rest)) && self.propagate()
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
        let start = self.sections.start(s);
        let range = start..start + self.left[s] as usize;
        let latest = self.capacity - self.total[s];
        let mut seen = Seen::default();
        for &(b, _) in &self.members[range.clone()] {
            let lower = self.lower[b as usize].max(self.floor[s]);
            seen.add(b, lower, self.sections.sizes[b as usize], self.floor[s], latest);
        }
        let Seen { minimum, first, ends: [first_end, second_end], .. } = seen;
        if minimum > latest || !seen.above.fit(self.capacity) || !seen.later.fit(self.capacity) {
            return false;
        }
        let front = Front { choices: seen.choices, ends: seen.ends };
        if self.front[s] != front {
            self.trail.push(Undo::Front(s as u32, self.front[s]));
            self.front[s] = front;
        }
        if minimum > self.floor[s] && !self.raise_floor(s, minimum) {
            return false;
        }
        let only = second_end == u64::MAX;
        for k in range {
            let (b, _) = self.members[k];
            let later = self.lower[b as usize] > latest || (only && b != first);
            let bound = if later { first_end } else { minimum };
            if bound > self.lower[b as usize] && !self.raise_lower(b as usize, bound) {
                return false;
            }
        }
        true
    }
}

/// Buffers that all lie at or above some offset.
struct Group {
    lowest: u64,
    bytes: u64,
}

impl Group {
    const NONE: Self = Self { lowest: u64::MAX, bytes: 0 };

    fn add(&mut self, lower: u64, size: u64) {
        self.lowest = self.lowest.min(lower);
        self.bytes += size;
    }

    /// Is there room for them above the lowest?
    fn fit(&self, capacity: u64) -> bool {
        self.bytes == 0 || self.lowest + self.bytes <= capacity
    }
}

/// What one look at a section's unplaced members finds.
struct Seen {
    /// Least of the lowest offsets, and how many have it.
    minimum: u64,
    choices: u32,
    /// Of those that may come first: the one of least end, this end and the next.
    first: u32,
    ends: [u64; 2],
    /// Those that cannot stand on the floor, and those that cannot come first.
    above: Group,
    later: Group,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            minimum: u64::MAX,
            choices: 0,
            first: u32::MAX,
            ends: [u64::MAX; 2],
            above: Group::NONE,
            later: Group::NONE,
        }
    }
}

impl Seen {
    fn add(&mut self, b: u32, lower: u64, size: u64, floor: u64, latest: u64) {
        if lower < self.minimum {
            (self.minimum, self.choices) = (lower, 0);
        }
        self.choices += u32::from(lower == self.minimum);
        if lower > floor {
            self.above.add(lower, size);
        }
        if lower > latest {
            self.later.add(lower, size);
            return;
        }
        let end = lower + size;
        if end < self.ends[0] {
            (self.first, self.ends) = (b, [end, self.ends[0]]);
        } else {
            self.ends[1] = self.ends[1].min(end);
        }
    }
}

/// Members with their places among the spans, and for each place among the spans the member's.
fn cross_index(sections: &Sections) -> (Vec<(u32, u32)>, Vec<u32>) {
    let mut next: Vec<usize> = (0..sections.sizes.len()).map(|b| sections.span_start(b)).collect();
    let mut members = Vec::with_capacity(sections.members_count());
    let mut places = vec![0; sections.members_count()];
    for s in 0..sections.count() {
        for (place, &b) in sections.members(s).iter().enumerate() {
            let slot = next[b as usize];
            next[b as usize] += 1;
            members.push((b, slot as u32));
            places[slot] = place as u32;
        }
    }
    (members, places)
}
