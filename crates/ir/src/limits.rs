//! Every bound that the data types assume, in one place.

/// Alignment of each placement in the arena, bytes: one cache line, one AVX-512 vector.
pub const ALIGNMENT_BYTES: u64 = 64;
/// Page size that the arena's regions are rounded to, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Rows of a packed weight tile, and features of an activation tile.
pub const TILE: u64 = 16;
/// Features of one quantised activation block, and weights of one packed block.
pub const BLOCK: u64 = 32;
/// Bytes of one quantised activation block: f32 scale, two i16 sums, 32 i8 values.
pub const ACTIVATION_BLOCK_BYTES: u64 = 40;
/// A lane's own copy of quantised activations is a multiple of so many blocks: whole cache lines,
/// so that no two lanes write to one.
pub const COPY_BLOCKS: u64 = 8;
/// Positions of one key/value block; capacities are multiples of it.
pub const KV_BLOCK: u64 = 64;
/// Positions of one attention segment; partial results are merged at these boundaries.
pub const SEGMENT: u64 = 256;
/// Lanes that a schedule may have.
pub const LANES_MAX: usize = 64;
/// Tensors, operations or tasks that a program or plan may have.
pub const ITEMS_MAX: usize = 1 << 20;
/// Nesting depth of a size expression.
pub const SIZE_DEPTH_MAX: usize = 16;
/// Phases that a program may have: a set of phases is one 64-bit word.
pub const PHASES_MAX: usize = 64;
/// Axes of a tensor, and parts of one sum, product, minimum or maximum.
pub const SIZE_PARTS_MAX: usize = 16;
/// Bytes of a plan's JSON text.
pub const JSON_BYTES_MAX: usize = 256 << 20;
/// Values in a plan's JSON text.
pub const JSON_VALUES_MAX: usize = 1 << 23;
/// Nesting depth of a plan's JSON text.
pub const JSON_DEPTH_MAX: usize = 48;

const _: () = assert!(BLOCK == 2 * TILE);
const _: () = assert!(SEGMENT.is_multiple_of(KV_BLOCK) && KV_BLOCK.is_multiple_of(TILE));
const _: () = assert!(PAGE_BYTES.is_multiple_of(ALIGNMENT_BYTES));
const _: () = assert!(JSON_DEPTH_MAX >= 2 * SIZE_DEPTH_MAX + 4);
const _: () = assert!(PHASES_MAX <= u64::BITS as usize);
const _: () = assert!(ACTIVATION_BLOCK_BYTES == 4 + 2 * 2 + BLOCK);
const _: () = assert!((COPY_BLOCKS * ACTIVATION_BLOCK_BYTES).is_multiple_of(ALIGNMENT_BYTES));
