//! The packing problem as plain data, what may be wrong with it, and what a packing says.
//!
//! A *packing* gives each buffer an offset so that no two conflicting buffers share a byte; the
//! arena is the largest end. Each buffer *reserves* its size rounded up to its alignment: the
//! rounding happens before any bound is taken, so bound and arena speak of the same bytes.
//!
//! Conflicts come in three forms, from the most to the least structured: intervals of one total
//! order, vector clocks of several lanes (a partial order), or an explicit graph. This file knows
//! nothing of tensors, operators or files.

use std::fmt;

use crate::limits;

/// One packing problem.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is to be placed; an index into this list names a buffer everywhere.
    pub buffers: Vec<Buffer>,
    /// Which pairs may not share a byte.
    pub conflicts: Conflicts,
    /// Arena that suffices, in bytes: under [`Goal::Fit`] the search ends once it is met.
    pub capacity: Option<u64>,
}

/// A run of bytes to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes needed; zero is allowed and conflicts with nothing.
    pub size: u64,
    /// The offset is a multiple of this power of two; the size is rounded up to it.
    pub alignment: u64,
    /// Offset in bytes that is already decided, if any.
    pub pinned: Option<u64>,
}

impl Buffer {
    /// A free buffer of `size` bytes with byte alignment.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, alignment: 1, pinned: None }
    }

    /// A free buffer of `size` bytes on a multiple of `alignment`, a power of two.
    #[must_use]
    pub fn aligned(size: u64, alignment: u64) -> Self {
        Self { size, alignment, pinned: None }
    }

    /// Bytes that the buffer reserves: its size rounded up to its alignment.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.size.next_multiple_of(self.alignment.max(1))
    }
}

/// A half-open lifetime `[lower, upper)` in one total order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// First step at which the buffer is live.
    pub lower: u64,
    /// First step at which it is no longer live.
    pub upper: u64,
}

/// Which pairs of buffers may not share a byte.
#[derive(Clone, Debug)]
pub enum Conflicts {
    /// One lane: two buffers conflict iff their half-open intervals meet. One entry a buffer.
    Intervals(Vec<Interval>),
    /// Several lanes: two buffers conflict iff neither precedes the other.
    Clocks(Clocks),
    /// Explicit pairs, in any order, repetitions allowed.
    Graph(Vec<(usize, usize)>),
}

/// Lifetimes under a partial order of tasks on lanes, as two vector clocks a buffer.
///
/// For a task `t` on some lane let `before(t)[l]` be the number of tasks on lane `l` that happen
/// before `t`, and `through(t)` the same with `t` itself counted. A buffer has
/// `lower = min over its writes w of before(w)` and `upper = max over its accesses a of
/// through(a)`, componentwise. Then *every access of `x` happens before every write of `y`* iff
/// `upper(x) ≤ lower(y)` on every lane, because `through(a) ≤ before(w)` iff `a` is before `w`.
/// One lane is the interval case. Since `lower ≤ upper` and they differ, "precedes" is
/// irreflexive and transitive: a partial order, and [`crate::pack`] uses that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    lanes: usize,
    lower: Vec<u32>,
    upper: Vec<u32>,
}

impl Clocks {
    /// No lifetimes yet, clocks of `lanes` components.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self { lanes, lower: Vec::new(), upper: Vec::new() }
    }

    /// Adds the next buffer's lifetime; both slices have one component a lane.
    ///
    /// # Panics
    /// If a slice has not one component a lane: a bug of the caller, not bad input.
    pub fn push(&mut self, lower: &[u32], upper: &[u32]) {
        assert_eq!(lower.len(), self.lanes, "one component a lane");
        assert_eq!(upper.len(), self.lanes, "one component a lane");
        self.lower.extend_from_slice(lower);
        self.upper.extend_from_slice(upper);
    }

    /// Components of each clock.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Buffers that have a lifetime.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lower.len().checked_div(self.lanes).unwrap_or(0)
    }

    /// Componentwise minimum of `before(w)` over the buffer's writes.
    #[must_use]
    pub fn lower(&self, buffer: usize) -> &[u32] {
        &self.lower[buffer * self.lanes..][..self.lanes]
    }

    /// Componentwise maximum of `through(a)` over the buffer's accesses.
    #[must_use]
    pub fn upper(&self, buffer: usize) -> &[u32] {
        &self.upper[buffer * self.lanes..][..self.lanes]
    }

    /// Does every access of `a` happen before every write of `b`?
    #[must_use]
    pub fn precedes(&self, a: usize, b: usize) -> bool {
        le(self.upper(a), self.lower(b))
    }
}

/// Is `a ≤ b` on every component?
pub(crate) fn le(a: &[u32], b: &[u32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

/// What ends the search before the budget does, other than a proof of optimality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The smallest arena that the budget can find.
    Minimize,
    /// Any arena within the problem's capacity (without a capacity: as `Minimize`).
    Fit,
}

/// How much work may be done. Counted in steps (about one visit of one neighbour), never in
/// seconds, so that a plan is the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Steps of search after the portfolio, which always runs until it meets the bound.
    pub steps: u64,
    /// When to stop early.
    pub goal: Goal,
}

impl Budget {
    /// Only the portfolio of orders and fits.
    pub const QUICK: Self = Self { steps: 0, goal: Goal::Minimize };
    /// For plans made while a program starts: tens of milliseconds at worst.
    pub const PLAN: Self = Self { steps: 5_000_000, goal: Goal::Minimize };
    /// For a packing made once and kept: some seconds.
    pub const THOROUGH: Self = Self { steps: 1_000_000_000, goal: Goal::Minimize };
}

/// What is known about a packing's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No packing has a smaller arena.
    Optimal(Proof),
    /// The arena is feasible; a smaller one, down to the lower bound, is not excluded.
    Gap,
}

/// Why no smaller arena exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The witness's buffers conflict pairwise and their bytes add up to the arena.
    Witness,
    /// A pinned buffer ends at the arena's end.
    Pinned,
    /// The complete search excluded every smaller arena.
    Exhausted,
}

/// A placement of every buffer and what is known of its quality.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each buffer, in bytes.
    pub offsets: Vec<u64>,
    /// Largest end of a buffer, in bytes.
    pub arena_bytes: u64,
    /// No packing has a smaller arena than this: the witness's bytes, or more where a pinned
    /// buffer or the complete search proved more.
    pub lower_bound: u64,
    /// Buffers that conflict pairwise, ascending: they alone need `witness_bytes`.
    pub witness: Vec<usize>,
    /// Reserved bytes of the witness, added up.
    pub witness_bytes: u64,
    /// Is the arena proved minimal?
    pub status: Status,
    /// Steps of work done.
    pub steps: u64,
}

/// Why a problem was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// More buffers than [`limits::BUFFERS_MAX`].
    TooManyBuffers {
        /// Buffers given.
        count: usize,
    },
    /// The conflict relation does not have one entry a buffer.
    LifetimeCount {
        /// Buffers given.
        buffers: usize,
        /// Lifetimes given.
        lifetimes: usize,
    },
    /// A lifetime that is empty or runs backwards.
    EmptyLifetime {
        /// Index of the buffer.
        buffer: usize,
    },
    /// No lanes, or more than [`limits::LANES_MAX`].
    LaneCount {
        /// Lanes given.
        lanes: usize,
    },
    /// A pair that names no buffer, or one buffer twice.
    BadPair {
        /// First of the pair.
        a: usize,
        /// Second of the pair.
        b: usize,
    },
    /// More pairs than [`limits::PAIRS_MAX`].
    TooManyPairs {
        /// Pairs given.
        count: usize,
    },
    /// An alignment that is no power of two or above [`limits::ALIGNMENT_MAX`].
    BadAlignment {
        /// Index of the buffer.
        buffer: usize,
        /// The alignment given.
        alignment: u64,
    },
    /// Sizes and pinned offsets add up beyond [`limits::ARENA_BYTES_MAX`].
    TooManyBytes {
        /// Index of the buffer at which the sum left the range.
        buffer: usize,
    },
    /// A pinned offset off its alignment.
    PinnedMisaligned {
        /// Index of the buffer.
        buffer: usize,
        /// The pinned offset.
        offset: u64,
    },
    /// Two pinned buffers conflict and share bytes.
    PinnedOverlap {
        /// One buffer.
        a: usize,
        /// The other buffer.
        b: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyBuffers { count } => {
                write!(f, "{count} buffers, at most {}", limits::BUFFERS_MAX)
            }
            Self::LifetimeCount { buffers, lifetimes } => {
                write!(f, "{buffers} buffers but {lifetimes} lifetimes")
            }
            Self::EmptyLifetime { buffer } => write!(f, "buffer {buffer}: its lifetime is empty"),
            Self::LaneCount { lanes } => {
                write!(f, "{lanes} lanes, expected 1 to {}", limits::LANES_MAX)
            }
            Self::BadPair { a, b } => write!(f, "conflict ({a}, {b}): not two buffers"),
            Self::TooManyPairs { count } => {
                write!(f, "{count} conflict pairs, at most {}", limits::PAIRS_MAX)
            }
            Self::BadAlignment { buffer, alignment } => write!(
                f,
                "buffer {buffer}: alignment {alignment} is not a power of two up to {}",
                limits::ALIGNMENT_MAX
            ),
            Self::TooManyBytes { buffer } => {
                write!(f, "buffer {buffer}: the bytes add up beyond {}", limits::ARENA_BYTES_MAX)
            }
            Self::PinnedMisaligned { buffer, offset } => {
                write!(f, "buffer {buffer}: pinned at {offset}, off its alignment")
            }
            Self::PinnedOverlap { a, b } => {
                write!(f, "buffers {a} and {b} conflict, and both are pinned on common bytes")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Checks everything about a problem but the pins against each other.
pub(crate) fn check(problem: &Problem) -> Result<(), Error> {
    let count = problem.buffers.len();
    if count > limits::BUFFERS_MAX {
        return Err(Error::TooManyBuffers { count });
    }
    let mut total: u64 = 0;
    for (index, buffer) in problem.buffers.iter().enumerate() {
        total = check_buffer(index, buffer, total)?;
    }
    check_conflicts(&problem.conflicts, count)
}

/// Checks one buffer and adds its bytes, and the gap that its alignment may cost, to `total`.
fn check_buffer(index: usize, buffer: &Buffer, total: u64) -> Result<u64, Error> {
    let alignment = buffer.alignment;
    if !alignment.is_power_of_two() || alignment > limits::ALIGNMENT_MAX {
        return Err(Error::BadAlignment { buffer: index, alignment });
    }
    let too_many = Error::TooManyBytes { buffer: index };
    let reserved = buffer.size.checked_next_multiple_of(alignment).ok_or(too_many.clone())?;
    let pinned = buffer.pinned.unwrap_or(0);
    if !pinned.is_multiple_of(alignment) {
        return Err(Error::PinnedMisaligned { buffer: index, offset: pinned });
    }
    [reserved, alignment - 1, pinned]
        .iter()
        .try_fold(total, |sum, part| sum.checked_add(*part))
        .filter(|sum| *sum <= limits::ARENA_BYTES_MAX)
        .ok_or(too_many)
}

fn check_conflicts(conflicts: &Conflicts, buffers: usize) -> Result<(), Error> {
    let same_count = |lifetimes: usize| {
        if lifetimes == buffers { Ok(()) } else { Err(Error::LifetimeCount { buffers, lifetimes }) }
    };
    match conflicts {
        Conflicts::Intervals(intervals) => {
            same_count(intervals.len())?;
            match intervals.iter().position(|i| i.lower >= i.upper) {
                Some(buffer) => Err(Error::EmptyLifetime { buffer }),
                None => Ok(()),
            }
        }
        Conflicts::Clocks(clocks) => {
            if clocks.lanes == 0 || clocks.lanes > limits::LANES_MAX {
                return Err(Error::LaneCount { lanes: clocks.lanes });
            }
            same_count(clocks.count())?;
            let empty = |b: &usize| {
                let (lower, upper) = (clocks.lower(*b), clocks.upper(*b));
                lower == upper || !le(lower, upper)
            };
            match (0..buffers).find(empty) {
                Some(buffer) => Err(Error::EmptyLifetime { buffer }),
                None => Ok(()),
            }
        }
        Conflicts::Graph(pairs) => {
            if pairs.len() > limits::PAIRS_MAX {
                return Err(Error::TooManyPairs { count: pairs.len() });
            }
            match pairs.iter().find(|(a, b)| a == b || *a >= buffers || *b >= buffers) {
                Some(&(a, b)) => Err(Error::BadPair { a, b }),
                None => Ok(()),
            }
        }
    }
}
