//! Every bound of the checker in one place.

/// Violations that are listed before the checker stops looking.
pub const VIOLATIONS_MAX: usize = 256;
/// Entries of all clocks of a plan: one a lane for each task, operation and tensor of a phase.
pub const CLOCK_ENTRIES_MAX: usize = 1 << 26;
/// Pairs of tensors with common bytes that are looked at in one phase.
pub const PAIRS_MAX: usize = 1 << 26;

const _: () = assert!(CLOCK_ENTRIES_MAX >= dctms_ir::limits::LANES_MAX);
