//! Every bound of this crate, and the relations between them.
//!
//! A vocabulary comes from an untrusted file, so each size in it has a largest accepted value.
//! The table formats rely on these bounds: identifiers fit 24 bits, offsets inside a block of
//! tokens fit 16 bits, and so on. Nothing here knows a model.

use crate::bits::bits_for;

/// Most tokens of a vocabulary: an identifier fits in 20 bits.
pub const TOKEN_COUNT_MAX: usize = 1 << 20;

/// Most merges of a byte-pair vocabulary: a rank fits in 24 bits.
pub const MERGE_COUNT_MAX: usize = (1 << 24) - 1;

/// Longest token text in bytes, as stored in the tables.
pub const TOKEN_LEN_BYTES_MAX: usize = 1000;

/// Tokens that share one absolute offset; the others are 16-bit distances from it.
pub const OFFSET_BLOCK_TOKENS: usize = 64;

/// Most entries that may fall in one bucket of a hash index. A random vocabulary stays below 30;
/// more means a file made to slow every look-up down, and it is refused.
pub const BUCKET_ENTRIES_MAX: usize = 200;

/// Average entries in a bucket of the text index.
pub const TEXT_BUCKET_MEAN: usize = 6;

/// Average entries in a bucket of the merge index.
pub const MERGE_BUCKET_MEAN: usize = 4;

/// Fewest bits of an entry's hash kept beside its identifier in the text index.
pub const FINGERPRINT_BITS_MIN: u32 = 4;

/// Readable bytes after the last table, so that any field can be read as one 8-byte word.
pub const TAIL_PAD_BYTES: usize = 8;

/// Most tokens that end a generation.
pub const END_TOKENS_MAX: usize = 32;

/// Longest word, in bytes, that is merged by plain scanning; longer ones use the tree.
pub const SHORT_WORD_BYTES_MAX: usize = 48;

/// Slots of the cache of tokens known to encode as themselves.
pub const VERDICT_SLOTS: usize = 4096;

/// Longest text that one scratch may be made for.
pub const TEXT_LEN_BYTES_MAX: usize = 1 << 30;

/// Most characters that may change each other in normalisation; longer runs stay as they are.
pub const NORMALIZED_SEGMENT_CHARS_MAX: usize = 128;

/// Longest chat template in bytes.
pub const TEMPLATE_LEN_BYTES_MAX: usize = 64 << 10;

/// Most bytes of one tag of a template outside strings and white space: its longest chain.
pub const TEMPLATE_TAG_BYTES_MAX: usize = 2048;

/// Most `elif`s of a template.
pub const TEMPLATE_ELIF_COUNT_MAX: usize = 512;

/// Most work of one rendering, in the template engine's units: an instruction or 64 bytes each.
/// A usual template takes about twenty a message and five for 64 bytes of content.
pub const TEMPLATE_FUEL_MAX: u64 = 1 << 16;

/// Most nested calls of a rendering.
pub const TEMPLATE_RECURSION_MAX: usize = 64;

const _: () = assert!((OFFSET_BLOCK_TOKENS - 1) * TOKEN_LEN_BYTES_MAX <= u16::MAX as usize);
// A pair entry (two identifiers and a rank) is one 8-byte read.
const _: () = assert!(2 * bits_for(TOKEN_COUNT_MAX) + bits_for(MERGE_COUNT_MAX) <= 64);
const _: () = assert!(VERDICT_SLOTS.is_power_of_two());
const _: () = assert!(SHORT_WORD_BYTES_MAX <= 256);
const _: () = assert!(TEXT_LEN_BYTES_MAX < u32::MAX as usize);
