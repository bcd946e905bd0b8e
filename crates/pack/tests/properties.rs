//! Random problems of every form: a packing is always valid, never below its bound, and its
//! witness is what it claims to be. The generator is seeded, so a failure can be replayed.

use dctms_pack::{
    Budget, Buffer, Clocks, Conflicts, Goal, Interval, Packing, Problem, Proof, Status, pack,
    validate,
};

/// SplitMix64, as in the crate, which does not export it.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn buffers(&mut self, count: usize) -> Vec<Buffer> {
        let alignment = 1 << self.below(4);
        (0..count).map(|_| Buffer::aligned(self.below(40), alignment)).collect()
    }

    fn conflicts(&mut self, count: usize) -> Conflicts {
        let span = 1 + self.below(2 * count as u64 + 1);
        match self.below(3) {
            0 => Conflicts::Intervals((0..count).map(|_| self.interval(span)).collect()),
            1 => {
                let mut clocks = Clocks::new(1 + self.below(4) as usize);
                for _ in 0..count {
                    self.push_clock(&mut clocks, span);
                }
                Conflicts::Clocks(clocks)
            }
            _ => {
                let pair = |random: &mut Self| {
                    (random.below(count as u64) as usize, random.below(count as u64) as usize)
                };
                let pairs = (0..span).map(|_| pair(self)).filter(|(a, b)| a != b);
                Conflicts::Graph(pairs.collect())
            }
        }
    }

    fn interval(&mut self, span: u64) -> Interval {
        let lower = self.below(span);
        Interval { lower, upper: lower + 1 + self.below(span) }
    }

    fn push_clock(&mut self, clocks: &mut Clocks, span: u64) {
        let base = self.below(span) as u32;
        let lower: Vec<u32> = (0..clocks.lanes()).map(|_| base + self.below(3) as u32).collect();
        let mut upper: Vec<u32> = lower.iter().map(|l| l + self.below(4) as u32).collect();
        upper[0] += 1;
        clocks.push(&lower, &upper);
    }
}

fn conflict(problem: &Problem, a: usize, b: usize) -> bool {
    match &problem.conflicts {
        Conflicts::Intervals(i) => i[a].lower < i[b].upper && i[b].lower < i[a].upper,
        Conflicts::Clocks(clocks) => !clocks.precedes(a, b) && !clocks.precedes(b, a),
        Conflicts::Graph(pairs) => pairs.contains(&(a, b)) || pairs.contains(&(b, a)),
    }
}

fn check(problem: &Problem, packing: &Packing) {
    let arena = validate(problem, &packing.offsets).expect("a packing");
    assert_eq!(arena, packing.arena_bytes);
    assert!(packing.lower_bound <= arena, "bound above the arena");
    assert!(packing.witness_bytes <= packing.lower_bound);
    let reserved = |b: &usize| problem.buffers[*b].reserved_bytes();
    assert_eq!(packing.witness.iter().map(reserved).sum::<u64>(), packing.witness_bytes);
    for (i, &a) in packing.witness.iter().enumerate() {
        for &b in &packing.witness[i + 1..] {
            assert!(a < b && conflict(problem, a, b), "the witness holds {a} and {b}");
        }
    }
    match packing.status {
        Status::Optimal(Proof::Witness) => assert_eq!(packing.witness_bytes, arena),
        Status::Optimal(Proof::Pinned | Proof::Exhausted) => {
            assert_eq!(packing.lower_bound, arena);
        }
        Status::Gap => assert!(packing.lower_bound < arena),
    }
}

#[test]
fn packings_are_valid_and_bounds_are_bounds() {
    let mut random = Random(7);
    for _ in 0..2000 {
        let count = 1 + random.below(40) as usize;
        let buffers = random.buffers(count);
        let conflicts = random.conflicts(count);
        let problem = Problem { buffers, conflicts, capacity: None };
        let budget = Budget { steps: random.below(20_000), ..Budget::QUICK };
        let packing = pack(&problem, &budget).expect("well formed");
        check(&problem, &packing);
        assert_eq!(pack(&problem, &budget), Ok(packing), "same input, same packing");
    }
}

#[test]
fn pins_are_kept() {
    let mut random = Random(8);
    for _ in 0..1000 {
        let count = 2 + random.below(30) as usize;
        let mut buffers = random.buffers(count);
        let pinned = random.below(count as u64) as usize;
        buffers[pinned].pinned = Some(buffers[pinned].alignment * random.below(20));
        let conflicts = random.conflicts(count);
        let problem = Problem { buffers, conflicts, capacity: None };
        let packing = pack(&problem, &Budget { steps: 5000, ..Budget::QUICK });
        check(&problem, &packing.expect("one pin contradicts nothing"));
    }
}

#[test]
fn nothing_to_place_is_an_empty_arena() {
    let conflicts = Conflicts::Intervals(Vec::new());
    let problem = Problem { buffers: Vec::new(), conflicts, capacity: None };
    let packing = pack(&problem, &Budget::PLAN).expect("well formed");
    assert_eq!((packing.arena_bytes, packing.lower_bound), (0, 0));
}

/// The smallest arena, by first fit in every order. In order of its offsets, first fit puts each
/// buffer of any packing at or below its place, so some order reaches the optimum.
fn optimum(problem: &Problem) -> u64 {
    let count = problem.buffers.len();
    let mut order: Vec<usize> =
        (0..count).filter(|&b| problem.buffers[b].pinned.is_none()).collect();
    let mut best = u64::MAX;
    permute(&mut order, 0, &mut |order| best = best.min(first_fit(problem, order)));
    best
}

fn permute(order: &mut Vec<usize>, from: usize, visit: &mut impl FnMut(&[usize])) {
    if from == order.len() {
        visit(order);
    }
    for k in from..order.len() {
        order.swap(from, k);
        permute(order, from + 1, visit);
        order.swap(from, k);
    }
}

fn first_fit(problem: &Problem, order: &[usize]) -> u64 {
    let reserved = |b: usize| problem.buffers[b].reserved_bytes();
    let mut offsets: Vec<Option<u64>> = problem.buffers.iter().map(|b| b.pinned).collect();
    for &b in order {
        let free = |offset: &u64| {
            (0..offsets.len()).all(|other| match offsets[other] {
                Some(o) if other != b && conflict(problem, b, other) => {
                    o + reserved(other) <= *offset
                        || offset + reserved(b) <= o
                        || reserved(b) == 0
                        || reserved(other) == 0
                }
                Some(_) | None => true,
            })
        };
        let alignment = problem.buffers[b].alignment;
        offsets[b] = (0..).map(|k| k * alignment).find(free);
    }
    let end = |b: usize| offsets[b].expect("placed") + reserved(b);
    (0..offsets.len()).map(end).max().unwrap_or(0)
}

#[test]
fn the_search_is_exact_on_small_problems() {
    let mut random = Random(9);
    let mut above_the_witness = 0;
    for round in 0..700 {
        let count = 1 + random.below(7) as usize;
        let mut buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(random.below(7))).collect();
        if round % 3 == 0 {
            buffers.iter_mut().for_each(|b| b.alignment = 1 << random.below(3));
        }
        if round % 5 == 0 {
            let pinned = random.below(count as u64) as usize;
            buffers[pinned].pinned = Some(buffers[pinned].alignment * random.below(6));
        }
        let conflicts = random.conflicts(count);
        let problem = Problem { buffers, conflicts, capacity: None };
        let packing = pack(&problem, &Budget::PLAN).expect("well formed");
        check(&problem, &packing);
        let expected = optimum(&problem);
        assert_eq!(packing.arena_bytes, expected, "round {round}: {problem:?}");
        assert!(packing.status != Status::Gap, "round {round}: {problem:?} {packing:?}");
        above_the_witness += usize::from(packing.witness_bytes < expected);
    }
    assert!(above_the_witness > 5, "{above_the_witness} rounds needed the complete search");
}

/// Cuts a rectangle of time and offset into pieces: they fit without any waste.
fn partition(random: &mut Random, pieces: usize) -> Problem {
    let mut rectangles = vec![(0_u64, 1_000_u64, 0_u64, 1_000_u64)];
    while rectangles.len() < pieces {
        let at = random.below(rectangles.len() as u64) as usize;
        let (left, right, bottom, top) = rectangles[at];
        if right - left > top - bottom {
            let cut = left + 1 + random.below(right - left - 1);
            rectangles[at] = (left, cut, bottom, top);
            rectangles.push((cut, right, bottom, top));
        } else if top - bottom > 1 {
            let cut = bottom + 1 + random.below(top - bottom - 1);
            rectangles[at] = (left, right, bottom, cut);
            rectangles.push((left, right, cut, top));
        }
    }
    let life = |&(lower, upper, _, _): &(u64, u64, u64, u64)| Interval { lower, upper };
    Problem {
        buffers: rectangles.iter().map(|(_, _, bottom, top)| Buffer::new(top - bottom)).collect(),
        conflicts: Conflicts::Intervals(rectangles.iter().map(life).collect()),
        capacity: None,
    }
}

#[test]
fn partitions_without_waste_are_found_and_proved() {
    let mut random = Random(11);
    for round in 0..20 {
        let problem = partition(&mut random, 60);
        let budget = Budget { steps: 60_000_000, ..Budget::PLAN };
        let packing = pack(&problem, &budget).expect("well formed");
        check(&problem, &packing);
        assert_eq!(packing.arena_bytes, 1_000, "round {round}");
        assert_eq!(packing.status, Status::Optimal(Proof::Witness));
    }
}

#[test]
fn a_capacity_ends_the_work_and_the_impossible_is_said() {
    let mut random = Random(12);
    let mut problem = partition(&mut random, 80);
    problem.capacity = Some(1_100);
    let fit = Budget { steps: 60_000_000, goal: Goal::Fit };
    let packing = pack(&problem, &fit).expect("well formed");
    check(&problem, &packing);
    assert!(packing.arena_bytes <= 1_100);
    problem.capacity = Some(999);
    let packing = pack(&problem, &fit).expect("well formed");
    assert!(packing.lower_bound > 999 && packing.steps < 60_000_000);
}
