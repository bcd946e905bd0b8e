//! The numbers that every layout and kernel of this crate is built on, in one place.

/// Rows (outputs) of a weight tile, features of an activation tile, lanes of a vector.
pub const TILE_ROWS: usize = 16;
/// Columns (k) of a quantised block, of weights and of activations.
pub const BLOCK_COLS: usize = 32;
/// Consecutive k that one integer dot product takes.
pub const GROUP_COLS: usize = 4;
/// k-groups of a block.
pub const BLOCK_GROUPS: usize = BLOCK_COLS / GROUP_COLS;
/// Blocks of a super-block.
pub const SUPER_BLOCKS: usize = 8;
/// Columns of a super-block.
pub const SUPER_COLS: usize = SUPER_BLOCKS * BLOCK_COLS;
/// Bytes of one vector `[row][4 k]`.
pub const VECTOR_BYTES: usize = TILE_ROWS * GROUP_COLS;
/// Largest magnitude of a quantised activation.
pub const ACTIVATION_MAX: i32 = 127;
/// Most tokens that the matmul kernels hold accumulators for at once.
pub const TOKEN_GROUP: usize = 16;

const _: () = {
    assert!(BLOCK_COLS == 2 * TILE_ROWS, "a block is two activation tiles");
    assert!(VECTOR_BYTES == 64);
    // The largest integer sum of a block, 8-bit weights and 32 products, fits f32's 24-bit
    // significand, so converting it is exact.
    assert!(128 * 32 * ACTIVATION_MAX < 1 << 24);
};

/// Features of an attention head, at most.
pub const HEAD_DIM_MAX: usize = 256;
/// Positions of a cache block: capacities are multiples of it.
pub const KV_BLOCK_POSITIONS: usize = 64;
/// Positions of an attention segment: partial results are merged at its multiples.
pub const SEGMENT_POSITIONS: usize = 256;
/// Query rows (a token and a head each) that attention takes together, at most.
pub const ATTENTION_ROWS: usize = 6;
/// Tokens that attention of all over all takes together: four groups of the float product.
pub const FULL_ATTENTION_TOKENS: usize = 48;

const _: () = {
    assert!(SEGMENT_POSITIONS.is_multiple_of(KV_BLOCK_POSITIONS));
    assert!(KV_BLOCK_POSITIONS.is_multiple_of(TILE_ROWS));
    // Both scaling exponents of a merge fit one vector.
    assert!(2 * ATTENTION_ROWS <= TILE_ROWS);
};
