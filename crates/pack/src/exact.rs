//! Complete search for a packing of intervals within a capacity, bottom up.
//!
//! A *valley* is a run of sections of equal floor whose neighbours are higher. In a valley every
//! buffer whose lowest offset is the floor lies wholly inside it. So, for one section of one
//! valley, either one of these *candidates* stands on the floor in this section, or none does;
//! then each of them must rest on a buffer that is not placed yet, and its lowest offset rises to
//! the least end of one. These alternatives are complete. The section is chosen where they are
//! fewest, so that forced moves come first.
//!
//! What prunes: the conclusions of `skyline.rs`; equal buffers are tried once; over an even floor
//! a buffer that spans the whole piece goes to the bottom without an alternative; parts of time
//! that no unplaced buffer connects are solved one after the other, and when one has no solution
//! the others are not tried again; states that failed are remembered by a 128-bit hash.
//!
//! A search within a step limit is one *dive* of a series that differ in how candidates are
//! ranked; memory of failed states carries over. The stack is explicit: depth is data.

use std::cmp::Reverse;

use crate::sections::{Sections, Shape};
use crate::skyline::Skyline;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A packing within the capacity; the offsets are in the skyline's `lower`.
    Found,
    /// There is none.
    Failed,
    /// The step limit came first.
    Undecided,
}

/// Which valley's section is decided next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Fewest alternatives, then least slack.
    Fewest,
    /// Fewest alternatives for the number of failures seen there.
    FewestPerFailure,
    /// Forced ones, then most failures seen.
    MostFailures,
}

/// Does it raise a candidate's rank that it closes a valley evenly?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walls {
    /// No.
    Ignore,
    /// The rank doubles for each wall of the valley that the candidate touches, and again for
    /// each beyond which the floor is level with the candidate's end.
    Prefer,
}

/// One decision: the alternatives at one section of one piece.
struct Frame {
    /// The piece: sections `from..to`.
    from: u32,
    to: u32,
    /// Frame whose alternative made this piece, or `ROOT`.
    parent: u32,
    /// The section at which alternatives are tried.
    section: u32,
    /// Trail, pending pieces and candidate pool at the decision.
    mark: usize,
    pending: usize,
    next: usize,
    pool_end: usize,
    /// Hash of the piece's state.
    key: u128,
    /// What follows the candidates.
    rest: Rest,
}

/// The alternative after all candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// No candidate stands on the floor.
    Leave,
    /// Nothing: tried already, or one candidate is enough.
    Nothing,
}

const ROOT: u32 = u32::MAX;

/// The search and what it remembers between dives.
pub(crate) struct Search<'a> {
    /// The partial packing.
    pub sky: Skyline<'a>,
    /// Candidates of higher rank are tried first.
    pub ranks: Vec<u64>,
    /// Which section is decided next.
    pub choice: Choice,
    /// What raises a rank.
    pub walls: Walls,
    frames: Vec<Frame>,
    pending: Vec<(u32, u32, u32)>,
    pool: Vec<u32>,
    failed: Vec<u128>,
    /// May buffers across a flat piece be moved to the bottom? Shifting what lies below them
    /// must keep alignments and pins.
    shiftable: bool,
}

impl<'a> Search<'a> {
    /// A search that remembers up to `memory` failed states, a power of two.
    pub fn new(sections: &'a Sections, memory: usize) -> Self {
        let alignment = sections.alignments.first().copied().unwrap_or(1);
        let even = sections.alignments.iter().all(|&a| a == alignment);
        Self {
            sky: Skyline::new(sections, 0),
            ranks: vec![0; sections.sizes.len()],
            choice: Choice::Fewest,
            walls: Walls::Ignore,
            frames: Vec::new(),
            pending: Vec::new(),
            pool: Vec::new(),
            failed: vec![0; memory],
            shiftable: even && sections.pins.iter().all(|&p| p == u64::MAX),
        }
    }

    /// Searches for a packing within `capacity` until it has made `decisions_max` decisions or the
    /// skyline has done `steps_max` steps.
    pub fn dive(&mut self, capacity: u64, decisions_max: u64, steps_max: u64) -> Outcome {
        self.sky.undo(0);
        self.sky.capacity = capacity;
        self.frames.clear();
        self.pending.clear();
        self.pool.clear();
        if !self.sky.begin() {
            return Outcome::Failed;
        }
        self.split(0, self.sky.sections.count() as u32, ROOT);
        let mut decisions = 0;
        while let Some((from, to, parent)) = self.pending.pop() {
            decisions += 1;
            if decisions > decisions_max || self.sky.steps > steps_max {
                return Outcome::Undecided;
            }
            let opened = self.open(from, to, parent);
            if !opened && !self.retreat(parent) {
                return Outcome::Failed;
            }
            while !self.advance() {
                let frame = self.frames.last().expect("a frame that cannot advance");
                let (key, parent) = (frame.key, frame.parent);
                let slot = self.slot(key);
                self.failed[slot] = key;
                if !self.retreat(parent) {
                    return Outcome::Failed;
                }
            }
        }
        Outcome::Found
    }

    /// Returns to the decision that made a piece without a solution. False if none did.
    fn retreat(&mut self, parent: u32) -> bool {
        if parent == ROOT {
            return false;
        }
        self.frames.truncate(parent as usize + 1);
        let frame = &self.frames[parent as usize];
        self.pending.truncate(frame.pending);
        self.pool.truncate(frame.pool_end);
        self.sky.undo(frame.mark);
        true
    }

    /// Appends the pieces of `from..to` that unplaced buffers still connect. Sections in no order
    /// stay in one piece.
    fn split(&mut self, from: u32, to: u32, parent: u32) {
        if self.sky.sections.shape == Shape::Free {
            if self.sky.left.iter().any(|&left| left > 0) {
                self.pending.push((from, to, parent));
            }
            return;
        }
        let mut start = from;
        for s in from..to {
            if self.sky.left[s as usize] == 0 {
                if start < s {
                    self.pending.push((start, s, parent));
                }
                start = s + 1;
            } else if s > start && self.sky.across[s as usize] == 0 {
                self.pending.push((start, s, parent));
                start = s;
            }
        }
        if start < to {
            self.pending.push((start, to, parent));
        }
    }

    /// Makes a decision for a piece. False if its state is known to have no solution.
    fn open(&mut self, from: u32, to: u32, parent: u32) -> bool {
        let survey = match self.sky.sections.shape {
            Shape::Line => self.survey_line(from as usize, to as usize),
            Shape::Free => self.survey_free(),
        };
        if self.failed[self.slot(survey.key)] == survey.key {
            return false;
        }
        let start = self.pool.len();
        let bottom = if survey.flat && self.shiftable { self.across(from, to) } else { None };
        match bottom {
            Some(b) => self.pool.push(b),
            None => self.candidates(survey.section, survey.valley),
        }
        self.frames.push(Frame {
            from,
            to,
            parent,
            section: survey.section as u32,
            mark: self.sky.mark(),
            pending: self.pending.len(),
            next: start,
            pool_end: self.pool.len(),
            key: survey.key,
            rest: if bottom.is_some() { Rest::Nothing } else { Rest::Leave },
        });
        true
    }

    fn slot(&self, key: u128) -> usize {
        (key >> 64) as usize & (self.failed.len() - 1)
    }

    /// Looks at every section of a piece once: hash, valleys, and the best section to decide.
    fn survey_line(&mut self, from: usize, to: usize) -> Survey {
        let sky = &mut self.sky;
        sky.steps += (to - from) as u64 / 4 + 1;
        let mut survey = Survey::new(sky.capacity_hash(), from);
        let mut best = (u64::MAX, u64::MAX, u64::MAX);
        let mut start = from;
        while start < to {
            let floor = sky.floor[start];
            let mut end = start;
            while end < to && sky.floor[end] == floor {
                survey.key = survey.key.wrapping_add(sky.hash[end]);
                end += 1;
            }
            let walled_below = start == from || sky.floor[start - 1] > floor;
            let walled_above = end == to || sky.floor[end] > floor;
            if walled_below && walled_above {
                survey.flat = start == from && end == to;
                for s in start..end {
                    let weight = weigh(sky, s, self.choice);
                    if weight < best {
                        (best, survey.section) = (weight, s);
                        survey.valley = Some((start, end));
                    }
                }
            }
            start = end;
        }
        survey
    }

    /// The same for sections in no order. Those of the lowest floor are valleys: a candidate there
    /// has no section of a higher floor, and one of a lower floor does not exist.
    fn survey_free(&mut self) -> Survey {
        let sky = &mut self.sky;
        sky.steps += sky.sections.count() as u64 / 4 + 1;
        let mut survey = Survey::new(sky.capacity_hash(), 0);
        let mut best = (u64::MAX, (u64::MAX, u64::MAX, u64::MAX));
        for s in (0..sky.sections.count()).filter(|&s| sky.left[s] > 0) {
            survey.key = survey.key.wrapping_add(sky.hash[s]);
            if sky.floor[s] <= best.0 {
                let weight = (sky.floor[s], weigh(sky, s, self.choice));
                if weight < best {
                    (best, survey.section) = (weight, s);
                }
            }
        }
        survey
    }

    /// An unplaced buffer that spans exactly the flat piece `from..to` and can stand on its floor.
    fn across(&self, from: u32, to: u32) -> Option<u32> {
        let sections = self.sky.sections;
        let (from, last) = (from as usize, to as usize - 1);
        let spans = |b: usize| sections.first(b) == from && sections.last(b) == last;
        let fits = |b: &usize| spans(*b) && self.sky.lower[*b] == self.sky.floor[from];
        self.sky.unplaced(from).filter(fits).min().map(|b| b as u32)
    }

    /// Appends the candidates of a section by rank, one of each kind of equal buffers.
    fn candidates(&mut self, s: usize, valley: Option<(usize, usize)>) {
        let start = self.pool.len();
        let sky = &self.sky;
        let floor = sky.floor[s];
        let at_floor = |b: &usize| sky.lower[*b] == floor;
        self.pool.extend(sky.unplaced(s).filter(at_floor).map(|b| b as u32));
        let kind = |b: u32| {
            let (b, all) = (b as usize, sky.sections);
            (all.sizes[b], all.alignments[b], all.pins[b], all.span(b))
        };
        let valley = if self.walls == Walls::Prefer { valley } else { None };
        let rank = |b: u32| {
            let walls = valley.map_or(0, |valley| walls_met(sky, b as usize, valley));
            self.ranks[b as usize].saturating_mul(1 << walls)
        };
        self.pool[start..].sort_by_cached_key(|&b| (Reverse(rank(b)), kind(b), b));
        let mut kept = start;
        for k in start..self.pool.len() {
            let seen = self.pool[start..kept].iter().any(|&b| kind(b) == kind(self.pool[k]));
            if !seen {
                self.pool[kept] = self.pool[k];
                kept += 1;
            }
        }
        self.pool.truncate(kept);
    }

    /// Takes the next alternative of the newest decision. False if all are spent.
    fn advance(&mut self) -> bool {
        let me = self.frames.len() as u32 - 1;
        loop {
            let frame = &mut self.frames[me as usize];
            let (from, to, mark) = (frame.from, frame.to, frame.mark);
            let consistent = if frame.next < frame.pool_end {
                frame.next += 1;
                let b = self.pool[frame.next - 1];
                self.sky.place(b as usize)
            } else {
                if frame.rest == Rest::Nothing {
                    return false;
                }
                frame.rest = Rest::Nothing;
                let section = frame.section as usize;
                self.sky.leave(section)
            };
            if consistent {
                self.split(from, to, me);
                return true;
            }
            self.sky.undo(mark);
        }
    }
}

/// What one look at a piece tells.
struct Survey {
    key: u128,
    section: usize,
    /// The section's valley, where sections stand in a line.
    valley: Option<(usize, usize)>,
    /// Is the whole piece one valley?
    flat: bool,
}

impl Survey {
    fn new(key: u128, section: usize) -> Self {
        Self { key, section, valley: None, flat: false }
    }
}

/// Sections of least weight are decided first.
fn weigh(sky: &Skyline, s: usize, choice: Choice) -> (u64, u64, u64) {
    let slack = sky.slack(s);
    let alternatives = u64::from(sky.front[s].choices) + u64::from(slack > 0);
    let first = match choice {
        Choice::Fewest => alternatives,
        Choice::FewestPerFailure if alternatives > 1 => {
            (alternatives << 32) / (sky.failures[s] + 10)
        }
        Choice::MostFailures if alternatives > 1 => u64::MAX / 2 - sky.failures[s],
        Choice::FewestPerFailure | Choice::MostFailures => 0,
    };
    (first, slack, sky.floor[s])
}

/// How many walls of its valley a buffer on the floor would touch, and how many it would level.
fn walls_met(sky: &Skyline, b: usize, (start, end): (usize, usize)) -> u32 {
    let top = sky.lower[b] + sky.sections.sizes[b];
    let level = |s: Option<&u64>| u32::from(s == Some(&top));
    let mut met = 0;
    if sky.sections.first(b) == start {
        met += 1 + level(start.checked_sub(1).map(|s| &sky.floor[s]));
    }
    if sky.sections.last(b) + 1 == end {
        met += 1 + level(sky.floor.get(end));
    }
    met
}
