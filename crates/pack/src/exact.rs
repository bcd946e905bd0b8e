//! Complete search for intervals (see docs).

use crate::place::align_up;
use crate::sections::Sections;
use crate::skyline::Skyline;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Found,
    Failed,
    Out,
}

struct Frame {
    from: u32,
    to: u32,
    parent: u32,
    section: u32,
    mark: usize,
    pending: usize,
    candidates: usize,
    next: usize,
    candidates_end: usize,
    key: u128,
    forced: bool,
    stage: u8,
}

pub struct Search<'a> {
    pub sky: Skyline<'a>,
    frames: Vec<Frame>,
    pending: Vec<(u32, u32, u32)>,
    pool: Vec<u32>,
    memo: Vec<u128>,
    pub nodes: u64,
    pub node_limit: u64,
    pub hits: u64,
    pub rank: Vec<u64>,
    pub sel: u32,
    pub best_depth: usize,
}

const MEMO: usize = 1 << 20;
const ROOT: u32 = u32::MAX;

impl<'a> Search<'a> {
    pub fn new(sections: &'a Sections, capacity: u64) -> Self {
        Self {
            sky: Skyline::new(sections, capacity),
            frames: vec![],
            pending: vec![],
            pool: vec![],
            memo: vec![0; MEMO],
            nodes: 0,
            node_limit: u64::MAX,
            hits: 0,
            rank: vec![0; sections.sizes.len()],
            sel: 0,
            best_depth: 0,
        }
    }

    pub fn run(&mut self) -> Outcome {
        self.frames.clear();
        self.pending.clear();
        self.pool.clear();
        if !self.sky.begin() {
            self.sky.undo(0);
            return Outcome::Failed;
        }
        let count = self.sky.sections.count();
        self.split(0, count as u32, ROOT);
        let mut failed = false;
        loop {
            if !failed {
                let Some((from, to, parent)) = self.pending.pop() else {
                    return Outcome::Found;
                };
                self.nodes += 1;
                if self.nodes > self.node_limit {
                    self.sky.undo(0);
                    return Outcome::Out;
                }
                if !self.open(from, to, parent) {
                    // memo hit: parent fails
                    if parent == ROOT {
                        self.sky.undo(0);
                        return Outcome::Failed;
                    }
                    self.cut(parent);
                }
            }
            // advance top frame
            failed = !self.advance();
            if failed {
                let frame = self.frames.last().unwrap();
                let parent = frame.parent;
                let key = frame.key;
                self.memo[(key >> 70) as usize % MEMO] = key;
                if parent == ROOT {
                    self.sky.undo(0);
                    return Outcome::Failed;
                }
                self.cut(parent);
            }
        }
    }

    fn cut(&mut self, parent: u32) {
        self.frames.truncate(parent as usize + 1);
        let f = self.frames.last().unwrap();
        self.pending.truncate(f.pending);
        self.pool.truncate(f.candidates_end);
        let m = f.mark;
        self.sky.undo(m);
    }

    fn split(&mut self, from: u32, to: u32, parent: u32) {
        let sky = &self.sky;
        let mut start = from;
        for s in from..to {
            if sky.left[s as usize] == 0 {
                if start < s {
                    self.pending.push((start, s, parent));
                }
                start = s + 1;
            } else if s > start && sky.across[s as usize] == 0 {
                self.pending.push((start, s, parent));
                start = s;
            }
        }
        if start < to {
            self.pending.push((start, to, parent));
        }
    }

    fn open(&mut self, from: u32, to: u32, parent: u32) -> bool {
        let sky = &self.sky;
        let (f, t) = (from as usize, to as usize);
        let mut key = 1_u128;
        let mut best = (u64::MAX, u64::MAX, u64::MAX);
        let mut best_s = usize::MAX;
        let mut flat = false;
        let mut a = f;
        while a < t {
            let floor = sky.floor[a];
            let mut z = a;
            while z < t && sky.floor[z] == floor {
                key = key.wrapping_add(sky.hash[z]);
                z += 1;
            }
            let valley =
                (a == f || sky.floor[a - 1] > floor) && (z == t || sky.floor[z] > floor);
            if valley {
                flat = a == f && z == t;
                for s in a..z {
                    let count = u64::from(sky.choices[s]);
                    let slack = sky.slack(s);
                    let key = match self.sel {
                        0 => (count + u64::from(slack > 0), slack, floor),
                        1 => (floor, count, slack),
                        2 => (slack, count, floor),
                        3 => {
                            let c = count + u64::from(slack > 0);
                            let w = if c == 1 { 0 } else { (c << 32) / (sky.failures[s] + 10) };
                            (w, slack, floor)
                        }
                        4 => {
                            let c = count + u64::from(slack > 0);
                            let w = if c == 1 { 0 } else { (u64::MAX >> 1) - sky.failures[s] };
                            (w, slack, floor)
                        }
                        _ => (count, slack, floor),
                    };
                    if key < best {
                        best = key;
                        best_s = s;
                    }
                }
            }
            a = z;
        }
        if self.memo[(key >> 70) as usize % MEMO] == key {
            self.hits += 1;
            return false;
        }
        let s = best_s;
        let floor = sky.floor[s];
        let start = self.pool.len();
        let mut forced = false;
        if flat {
            // a buffer across the whole flat piece goes at the bottom, without alternative
            let whole = sky.unplaced(s).iter().copied().filter(|&b| {
                let b = b as usize;
                sky.sections.first[b] == from
                    && sky.sections.end[b] == to
                    && sky.lower[b] == floor
                    && sky.sections.pins[b] == u64::MAX
            });
            if let Some(b) = whole.min() {
                self.pool.push(b);
                forced = true;
            }
        }
        if !forced {
            let at = sky.unplaced(s).iter().copied().filter(|&b| sky.lower[b as usize] == floor);
            self.pool.extend(at);
            let rank = &self.rank;
            let c = &sky.sections;
            self.pool[start..].sort_unstable_by_key(|&b| {
                let b = b as usize;
                (std::cmp::Reverse(rank[b]), c.sizes[b], c.first[b], c.end[b], b)
            });
            // identical
            let same = |a: &mut u32, b: &mut u32| {
                let (a, b) = (*a as usize, *b as usize);
                c.sizes[a] == c.sizes[b]
                    && c.first[a] == c.first[b]
                    && c.end[a] == c.end[b]
                    && c.alignments[a] == c.alignments[b]
                    && c.pins[a] == u64::MAX
                    && c.pins[b] == u64::MAX
            };
            let mut tail: Vec<u32> = self.pool.drain(start..).collect();
            tail.dedup_by(same);
            self.pool.extend(tail);
        }
        self.frames.push(Frame {
            from,
            to,
            parent,
            section: s as u32,
            mark: sky.mark(),
            pending: self.pending.len(),
            candidates: start,
            next: start,
            candidates_end: self.pool.len(),
            key,
            forced,
            stage: 0,
        });
        true
    }

    /// Next alternative of the top frame
    fn advance(&mut self) -> bool {
        let me = self.frames.len() as u32 - 1;
        loop {
            let f = &mut self.frames[me as usize];
            let (from, to) = (f.from, f.to);
            if f.next < f.candidates_end {
                let b = self.pool[f.next];
                f.next += 1;
                let mark = f.mark;
                if self.sky.place(b as usize) {
                    self.split(from, to, me);
                    return true;
                }
                self.sky.undo(mark);
                continue;
            }
            if f.forced || f.stage > 0 {
                return false;
            }
            f.stage = 1;
            let s = f.section as usize;
            if self.sky.slack(s) == 0 {
                return false;
            }
            let (mark, c, e) = (f.mark, f.candidates, f.candidates_end);
            if self.none(s, c, e) {
                self.split(from, to, me);
                return true;
            }
            self.sky.undo(mark);
        }
    }

    fn none(&mut self, s: usize, _c: usize, _e: usize) -> bool {
        let floor = self.sky.floor[s];
        let latest = floor + self.sky.slack(s);
        let cands: Vec<u32> =
            self.sky.unplaced(s).iter().copied().filter(|&b| self.sky.lower[b as usize] == floor).collect();
        let mut raises = vec![];
        let mut possible = cands.len() < self.sky.left[s] as usize;
        for &b in &cands {
            let bb = b as usize;
            let mut next = u64::MAX;
            for t in self.sky.sections.span(bb) {
                self.sky.steps += u64::from(self.sky.left[t]);
                for &c in self.sky.unplaced(t) {
                    if c != b {
                        next = next.min(self.sky.lower[c as usize] + self.sky.sections.sizes[c as usize]);
                    }
                }
            }
            if next == u64::MAX {
                return false;
            }
            if align_up(next, self.sky.sections.alignments[bb]) <= latest {
                possible = true;
            }
            raises.push((bb, next));
        }
        if !possible {
            return false;
        }
        raises.iter().all(|&(b, v)| self.sky.raise_lower(b, v)) && self.sky.propagate()
    }
}
