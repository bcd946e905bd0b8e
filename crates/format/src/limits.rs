//! Every bound that a model file must keep, in one place, with the relations between them.
//!
//! The bounds are chosen so that the largest public files pass with room (the largest known
//! header has about 15 MB, the most tensors about 2,000) while everything that is *kept* of a
//! header stays under 1 MiB: the process has a fixed heap before it has seen the file. A file
//! past a bound is refused by name and number; it never costs memory first.

use crate::{metadata::Entry, tensor::TensorEntry};

/// Bytes of the window through which headers are read and, by default, arrays are streamed.
pub const WINDOW_LEN_BYTES: usize = 64 << 10;

/// Bytes of a header, magic to the end of the tensor table, all shards together. Bounds the time
/// of a scan.
pub const HEADER_LEN_BYTES_MAX: u64 = 32 << 20;

/// Metadata entries in one file.
pub const METADATA_COUNT_MAX: u64 = 1024;

/// Tensors in one checkpoint, all shards together.
pub const TENSOR_COUNT_MAX: u64 = 4096;

/// Bytes of a metadata key. The format allows 65,535; no known key has more than 80.
pub const KEY_LEN_BYTES_MAX: u64 = 255;

/// Bytes of a tensor's name. The format allows 64, some writers go to 127.
pub const TENSOR_NAME_LEN_BYTES_MAX: u64 = 127;

/// Bytes of a string value that is decoded while the header is parsed. Longer ones stay in the
/// file and are read on request.
pub const SHORT_STRING_LEN_BYTES_MAX: u64 = 256;

/// Bytes of a string value that can be read on request (a chat template, a licence).
pub const STRING_LEN_BYTES_MAX: u64 = 1 << 20;

/// Bytes of keys and short strings kept from one file.
pub const METADATA_TEXT_LEN_BYTES_MAX: usize = 64 << 10;

/// Bytes of tensor names kept from one checkpoint.
pub const TENSOR_TEXT_LEN_BYTES_MAX: usize = 160 << 10;

/// Elements of one metadata array.
pub const ARRAY_COUNT_MAX: u64 = 4 << 20;

/// Bytes of one string in a metadata array. Fits in any stream window.
pub const ARRAY_STRING_LEN_BYTES_MAX: u64 = 32 << 10;

/// Arrays of arrays of … values.
pub const ARRAY_DEPTH_MAX: u32 = 4;

/// Dimensions of a tensor.
pub const RANK_MAX: u32 = 4;

/// Bytes of the alignment of tensor data (`general.alignment`).
pub const ALIGNMENT_BYTES_MAX: u64 = 64 << 10;

/// Bytes of the alignment when the file gives none.
pub const ALIGNMENT_BYTES_DEFAULT: u64 = 32;

/// The largest offset or length in bytes that any file may claim: what a signed 64-bit file
/// offset can hold.
pub const FILE_LEN_BYTES_MAX: u64 = i64::MAX as u64;

/// Shards of one checkpoint. The file name has five digits; no known model uses 200.
pub const SHARD_COUNT_MAX: u64 = 512;

/// Bytes on the heap while a header is parsed and after, error or not.
pub const PARSE_HEAP_LEN_BYTES_MAX: usize = 1 << 20;

// A string of an array, with its length prefix, is always wholly in a default window, and so are
// keys, names and short strings.
const _: () = assert!(ARRAY_STRING_LEN_BYTES_MAX + 8 <= WINDOW_LEN_BYTES as u64);
const _: () = assert!(KEY_LEN_BYTES_MAX + 8 <= WINDOW_LEN_BYTES as u64);
const _: () = assert!(SHORT_STRING_LEN_BYTES_MAX <= STRING_LEN_BYTES_MAX);
// The largest array of the widest scalar fits in the largest header.
const _: () = assert!(ARRAY_COUNT_MAX * 8 <= HEADER_LEN_BYTES_MAX);
// Offsets in the header and in the text table are kept in 32 bits.
const _: () = assert!(HEADER_LEN_BYTES_MAX <= u32::MAX as u64);
const _: () = assert!(METADATA_TEXT_LEN_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(TENSOR_TEXT_LEN_BYTES_MAX <= u32::MAX as usize);
// Indices of entries are kept in 16 bits.
const _: () = assert!(METADATA_COUNT_MAX <= 1 << 16 && TENSOR_COUNT_MAX <= 1 << 16);
const _: () = assert!(ALIGNMENT_BYTES_MAX.is_power_of_two());
const _: () = assert!(SHARD_COUNT_MAX <= u16::MAX as u64);
// All tables at their bounds, each growing by doubling (old and new together: 3/2 of the bound),
// the sorted index of each, and the window.
const _: () = assert!(
    TENSOR_COUNT_MAX as usize * size_of::<TensorEntry>() * 3 / 2
        + METADATA_COUNT_MAX as usize * size_of::<Entry>() * 3 / 2
        + (METADATA_TEXT_LEN_BYTES_MAX + TENSOR_TEXT_LEN_BYTES_MAX) * 3 / 2
        + (TENSOR_COUNT_MAX + METADATA_COUNT_MAX) as usize * size_of::<u16>() * 2
        + WINDOW_LEN_BYTES
        < PARSE_HEAP_LEN_BYTES_MAX
);
