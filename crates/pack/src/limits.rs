//! Every limit of this crate, in one place. A problem beyond them is refused with a typed error,
//! never truncated; the relations between them are proved at compile time.

/// Buffers in one problem. Ids are held as `u32` inside.
pub const BUFFERS_MAX: usize = 1 << 24;

/// Lanes of a partial order given by vector clocks.
pub const LANES_MAX: usize = 64;

/// Largest arena, so that no sum of an offset and a size can overflow.
pub const ARENA_BYTES_MAX: u64 = 1 << 60;

/// Largest alignment of a buffer, a power of two.
pub const ALIGNMENT_MAX: u64 = 1 << 30;

/// Explicit conflict pairs of a graph.
pub const PAIRS_MAX: usize = 1 << 28;

const _: () = const {
    assert!(BUFFERS_MAX < u32::MAX as usize);
    assert!(PAIRS_MAX * 2 < u32::MAX as usize);
    assert!(ALIGNMENT_MAX.is_power_of_two());
    assert!(ARENA_BYTES_MAX < u64::MAX / 4);
};

/// Conflict pairs of intervals that are stored as lists; beyond, they are enumerated afresh.
pub const STORED_PAIRS_MAX: usize = 1 << 22;

/// Steps after which the portfolio ends, if it has a packing; the budget's steps come on top.
pub const PORTFOLIO_STEPS: u64 = 200_000_000;

/// Section memberships (buffers times the sections that each spans) of the complete search.
pub const MEMBERS_MAX: usize = 1 << 21;

/// Failed states that the complete search remembers, 16 bytes each.
pub const FAILED_STATES_MAX: usize = 1 << 20;

/// Steps of the first turn of local and of complete search.
pub const SLICE_STEPS_MIN: u64 = 400_000;

/// Steps that the heaviest antichain may take in any case; a quarter of the budget comes on top.
pub const ANTICHAIN_STEPS: u64 = 8_000_000;
