//! ggml's block formats, read field by field: the only place that knows the file's bit order.
//!
//! Source: `ggml-common.h` and `ggml-quants.c` of llama.cpp. A block holds 32 columns of one row,
//! or 256 for the super-block kinds ("K-quants"). Fields are little-endian:
//!
//! ```text
//! Q4_0 d qs[16]        Q4_1 d m qs[16]       Q5_0 d qh[4] qs[16]   Q5_1 d m qh[4] qs[16]
//! Q8_0 d qs[32]        Q2_K scales[16] qs[64] d dmin               Q3_K hmask[32] qs[64] scales[12] d
//! Q4_K d dmin scales[12] qs[128]             Q5_K d dmin scales[12] qh[32] qs[128]
//! Q6_K ql[128] qh[64] scales[16] d
//! ```
//!
//! The packer uses this. The oracle in [`crate::naive`] does not: it reads the same bytes on its
//! own, the long way, so that a slip here is seen.

use crate::limits::{BLOCK_COLS, SUPER_BLOCKS};
use crate::packed::PackedKind;

/// Bytes of one block of the file: `cols_multiple` columns of one row.
pub const fn block_bytes(kind: PackedKind) -> usize {
    match kind {
        PackedKind::F32 => 4,
        PackedKind::F16 | PackedKind::BF16 => 2,
        PackedKind::Q8_0 => 34,
        PackedKind::Q4_0 => 18,
        PackedKind::Q4_1 => 20,
        PackedKind::Q5_0 => 22,
        PackedKind::Q5_1 => 24,
        PackedKind::Q2K => 84,
        PackedKind::Q3K => 110,
        PackedKind::Q4K => 144,
        PackedKind::Q5K => 176,
        PackedKind::Q6K => 210,
    }
}

/// Bytes of one row of the file. `None` if the kind does not allow that number of columns or the
/// count overflows.
pub const fn row_bytes(kind: PackedKind, cols: usize) -> Option<usize> {
    if !cols.is_multiple_of(kind.cols_multiple()) {
        return None;
    }
    (cols / kind.cols_multiple()).checked_mul(block_bytes(kind))
}

/// One quantised block of the file, with the scales of the whole block read out.
pub struct Fields<'a> {
    kind: PackedKind,
    bytes: &'a [u8],
    /// f16 scale of the block (of the super-block for K-quants).
    pub d: u16,
    /// f16 minimum `m`, or `dmin` for K-quants; `None` for kinds with a zero point.
    pub minimum: Option<u16>,
}

impl<'a> Fields<'a> {
    /// Reads the scales. Panics unless `bytes` is one block of a quantised kind.
    pub fn of(kind: PackedKind, bytes: &'a [u8]) -> Self {
        assert_eq!(bytes.len(), block_bytes(kind), "one block");
        let f16 = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (d, minimum) = match kind {
            PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => {
                panic!("float kinds have no blocks")
            }
            PackedKind::Q8_0 | PackedKind::Q4_0 | PackedKind::Q5_0 => (f16(0), None),
            PackedKind::Q4_1 | PackedKind::Q5_1 | PackedKind::Q4K | PackedKind::Q5K => {
                (f16(0), Some(f16(2)))
            }
            PackedKind::Q2K => (f16(80), Some(f16(82))),
            PackedKind::Q3K => (f16(108), None),
            PackedKind::Q6K => (f16(208), None),
        };
        Self { kind, bytes, d, minimum }
    }

    /// The 32 integers of block `sub` (0 for block kinds, 0..8 for K-quants), unsigned; those of
    /// Q8_0 with the sign bit flipped.
    pub fn integers(&self, sub: usize) -> [u8; BLOCK_COLS] {
        let bytes = self.bytes;
        match self.kind {
            PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => unreachable!("see of()"),
            PackedKind::Q8_0 => std::array::from_fn(|k| bytes[2 + k] ^ 0x80),
            PackedKind::Q4_0 => split_nibbles(&bytes[2..18]),
            PackedKind::Q4_1 => split_nibbles(&bytes[4..20]),
            PackedKind::Q5_0 => with_fifth_bit(&bytes[2..6], &bytes[6..22]),
            PackedKind::Q5_1 => with_fifth_bit(&bytes[4..8], &bytes[8..24]),
            PackedKind::Q2K => two_bits(&bytes[16..80], sub),
            PackedKind::Q3K => {
                let low = two_bits(&bytes[32..96], sub);
                std::array::from_fn(|k| low[k] | (bytes[k] >> sub & 1) << 2)
            }
            PackedKind::Q4K => nibbles_of_pair(&bytes[16..144], sub),
            PackedKind::Q5K => {
                let low = nibbles_of_pair(&bytes[48..176], sub);
                std::array::from_fn(|k| low[k] | (bytes[16 + k] >> sub & 1) << 4)
            }
            PackedKind::Q6K => {
                let (half, quarter) = (sub / 4, sub % 4);
                let low = &bytes[64 * half + 32 * (quarter % 2)..][..BLOCK_COLS];
                let high = &bytes[128 + 32 * half..][..BLOCK_COLS];
                std::array::from_fn(|k| {
                    low[k] >> (4 * (quarter / 2)) & 0xF | (high[k] >> (2 * quarter) & 3) << 4
                })
            }
        }
    }

    /// Scale and minimum of sub-block `index` of a K-quant: 8 sub-blocks of 32 for Q4_K and
    /// Q5_K, 16 of 16 for the others. The scale is an `i8` for Q3_K and Q6_K, which have no
    /// minimum (0 is returned).
    pub fn scale_and_minimum(&self, index: usize) -> (u8, u8) {
        let bytes = self.bytes;
        match self.kind {
            PackedKind::F32
            | PackedKind::F16
            | PackedKind::BF16
            | PackedKind::Q8_0
            | PackedKind::Q4_0
            | PackedKind::Q4_1
            | PackedKind::Q5_0
            | PackedKind::Q5_1 => panic!("only K-quants have sub-blocks"),
            PackedKind::Q2K => (bytes[index] & 0xF, bytes[index] >> 4),
            PackedKind::Q3K => {
                let scales = &bytes[96..108];
                let low = scales[index % 8] >> (4 * (index / 8)) & 0xF;
                let high = scales[8 + index % 4] >> (2 * (index / 4)) & 3;
                ((low | high << 4).wrapping_sub(32), 0)
            }
            PackedKind::Q4K | PackedKind::Q5K => six_bit_pair(&bytes[4..16], index),
            PackedKind::Q6K => (bytes[192 + index], 0),
        }
    }
}

/// Columns 0..16 are the low nibbles, 16..32 the high ones.
fn split_nibbles(bytes: &[u8]) -> [u8; BLOCK_COLS] {
    std::array::from_fn(|k| bytes[k % 16] >> (4 * (k / 16)) & 0xF)
}

/// As [`split_nibbles`], the fifth bit of column k being bit k of a 32-bit word.
fn with_fifth_bit(word: &[u8], nibbles: &[u8]) -> [u8; BLOCK_COLS] {
    let low = split_nibbles(nibbles);
    std::array::from_fn(|k| low[k] | (word[k / 8] >> (k % 8) & 1) << 4)
}

/// Q4_K, Q5_K: blocks 2i and 2i+1 are the low and high nibbles of the same 32 bytes.
fn nibbles_of_pair(bytes: &[u8], sub: usize) -> [u8; BLOCK_COLS] {
    debug_assert!(sub < SUPER_BLOCKS);
    let pair = &bytes[BLOCK_COLS * (sub / 2)..][..BLOCK_COLS];
    std::array::from_fn(|k| pair[k] >> (4 * (sub % 2)) & 0xF)
}

/// Q2_K, Q3_K: blocks 4i..4i+4 are the four bit pairs of the same 32 bytes.
fn two_bits(bytes: &[u8], sub: usize) -> [u8; BLOCK_COLS] {
    let four = &bytes[BLOCK_COLS * (sub / 4)..][..BLOCK_COLS];
    std::array::from_fn(|k| four[k] >> (2 * (sub % 4)) & 3)
}

/// Q4_K, Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes.
fn six_bit_pair(bytes: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (bytes[index] & 63, bytes[index + 4] & 63)
    } else {
        let low = bytes[index + 4];
        (low & 0xF | bytes[index - 4] >> 6 << 4, low >> 4 | bytes[index] >> 6 << 4)
    }
}
