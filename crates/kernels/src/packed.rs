//! The packed form of weights: which kinds there are and where each byte stands.
//!
//! One layout serves every instruction set. The rows of a matrix (its outputs) are cut into
//! tiles of 16, the last one filled up with zero rows; a tile runs over k in blocks of 32. The
//! bytes of a tile are contiguous, so that a shard of tiles is one slice and one read stream.
//!
//! A *vector* is 64 bytes `[row 0..16][4 k]`: the 4 consecutive k of one *k-group* for 16 rows,
//! which is what one integer dot-product instruction consumes. A block of 32 k has 8 k-groups.
//!
//! ```text
//! tile (block kinds)   | block 0 | block 1 | … | block cols/32−1 |
//! tile (super kinds)   | d[16] (dmin[16]) | block 0 … block 7 | d[16] (dmin[16]) | block 8 …
//! block                | low plane | high plane | scales |
//!
//! low plane   8 bits   vector g       : i8 of k-group g                       8 vectors
//!             4 bits   vector v       : low nibble k-group v, high v+4        4 vectors
//!             2 bits   vector v       : bits 2j,2j+1 k-group 4v+j             2 vectors
//! high plane  1 bit    one vector     : bit g = high bit of k-group g
//!             2 bits   vector v       : bits 2j,2j+1 k-group 4v+j             2 vectors
//! scales      block kinds             : f16 d[16] (f16 m[16])
//!             super, sub-blocks of 32 : u8 scale[16], u8 minimum[16]
//!             super, sub-blocks of 16 : scale[2][16] (i8, or u8 with minima) (u8 minimum[2][16])
//! float kinds          : [k][16] of the type, no blocks
//! ```
//!
//! This module knows bytes only. What the numbers mean is [`crate::matmul`]'s business, where
//! they come from [`crate::pack`]'s.

use crate::limits::{BLOCK_COLS, SUPER_BLOCKS, SUPER_COLS, TILE_ROWS};

/// The type that a packed matrix holds; named after the file's type it is packed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PackedKind {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 8 bits, signed: `d·q`.
    Q8_0,
    /// 4 bits: `d·(q − 8)`.
    Q4_0,
    /// 4 bits: `d·q + m`.
    Q4_1,
    /// 5 bits: `d·(q − 16)`.
    Q5_0,
    /// 5 bits: `d·q + m`.
    Q5_1,
    /// 2 bits, super-blocks: `d·scale·q − dmin·minimum` each 16.
    Q2K,
    /// 3 bits, super-blocks: `d·scale·(q − 4)` each 16.
    Q3K,
    /// 4 bits, super-blocks: `d·scale·q − dmin·minimum` each 32.
    Q4K,
    /// 5 bits, super-blocks: `d·scale·q − dmin·minimum` each 32.
    Q5K,
    /// 6 bits, super-blocks: `d·scale·(q − 32)` each 16.
    Q6K,
}

/// How the integers of a quantised kind become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleScheme {
    /// Each block of 32: f16 `d`.
    Block,
    /// Each block of 32: f16 `d` and f16 `m`.
    BlockMinimum,
    /// Each 256: f16 `d` and `dmin`; each 32: a scale and a minimum (unsigned).
    Super32Minimum,
    /// Each 256: f16 `d`; each 16: a signed scale.
    Super16,
    /// Each 256: f16 `d` and `dmin`; each 16: a scale and a minimum (unsigned).
    Super16Minimum,
}

/// The planes and scales of a quantised kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantLayout {
    /// Bits of an integer in the low plane: 2, 4 or 8.
    pub low_bits: usize,
    /// Bits of an integer in the high plane: 0, 1 or 2.
    pub high_bits: usize,
    /// Zero point of the integer read as unsigned (an 8-bit integer with its sign bit flipped).
    pub zero: i32,
    /// The scales.
    pub scales: ScaleScheme,
}

impl ScaleScheme {
    /// Whether there is a minimum beside the scale.
    pub(crate) const fn has_minimum(self) -> bool {
        match self {
            Self::Block | Self::Super16 => false,
            Self::BlockMinimum | Self::Super32Minimum | Self::Super16Minimum => true,
        }
    }
}

impl QuantLayout {
    const fn new(low_bits: usize, high_bits: usize, zero: i32, scales: ScaleScheme) -> Self {
        Self { low_bits, high_bits, zero, scales }
    }

    /// Bytes of the low plane of a block of one tile.
    #[inline]
    pub const fn low_bytes(&self) -> usize {
        self.low_bits * BLOCK_COLS * TILE_ROWS / 8
    }

    /// Bytes of the high plane of a block of one tile.
    #[inline]
    pub const fn high_bytes(&self) -> usize {
        self.high_bits * BLOCK_COLS * TILE_ROWS / 8
    }

    /// k-groups whose high bits share a vector: each byte holds as many as fit. Only for kinds
    /// with a high plane.
    #[inline]
    pub(crate) const fn groups_per_high_vector(&self) -> usize {
        match self.high_bits {
            1 => 8,
            2 => 4,
            _ => panic!("no high plane"),
        }
    }

    /// Bytes of the scales that follow the planes of a block of one tile.
    #[inline]
    pub const fn scale_bytes(&self) -> usize {
        match self.scales {
            ScaleScheme::Block | ScaleScheme::Super32Minimum | ScaleScheme::Super16 => {
                2 * TILE_ROWS
            }
            ScaleScheme::BlockMinimum | ScaleScheme::Super16Minimum => 4 * TILE_ROWS,
        }
    }

    /// Bytes of a block of one tile.
    #[inline]
    pub const fn block_bytes(&self) -> usize {
        self.low_bytes() + self.high_bytes() + self.scale_bytes()
    }

    /// Bytes that stand before each 8 blocks of one tile (0 for block kinds).
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        match self.scales {
            ScaleScheme::Block | ScaleScheme::BlockMinimum => 0,
            ScaleScheme::Super16 => 2 * TILE_ROWS,
            ScaleScheme::Super32Minimum | ScaleScheme::Super16Minimum => 4 * TILE_ROWS,
        }
    }

    /// Byte offset of block `block` in its tile.
    #[inline]
    pub const fn block_offset_bytes(&self, block: usize) -> usize {
        let header = self.header_bytes();
        block * self.block_bytes() + (block / SUPER_BLOCKS + 1) * header
    }

    /// Byte offset in its tile of the header before block `block`; meaningless for block kinds.
    #[inline]
    pub const fn header_offset_bytes(&self, block: usize) -> usize {
        let run = SUPER_BLOCKS * self.block_bytes() + self.header_bytes();
        block / SUPER_BLOCKS * run
    }
}

impl PackedKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The planes and scales, for the quantised kinds.
    pub const fn quant_layout(self) -> Option<QuantLayout> {
        use ScaleScheme::{Block, BlockMinimum, Super16, Super16Minimum, Super32Minimum};
        Some(match self {
            Self::F32 | Self::F16 | Self::BF16 => return None,
            Self::Q8_0 => QuantLayout::new(8, 0, 128, Block),
            Self::Q4_0 => QuantLayout::new(4, 0, 8, Block),
            Self::Q4_1 => QuantLayout::new(4, 0, 0, BlockMinimum),
            Self::Q5_0 => QuantLayout::new(4, 1, 16, Block),
            Self::Q5_1 => QuantLayout::new(4, 1, 0, BlockMinimum),
            Self::Q2K => QuantLayout::new(2, 0, 0, Super16Minimum),
            Self::Q3K => QuantLayout::new(2, 1, 4, Super16),
            Self::Q4K => QuantLayout::new(4, 0, 0, Super32Minimum),
            Self::Q5K => QuantLayout::new(4, 1, 0, Super32Minimum),
            Self::Q6K => QuantLayout::new(4, 2, 32, Super16),
        })
    }

    /// What the number of columns must be a multiple of.
    pub const fn cols_multiple(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => BLOCK_COLS,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => SUPER_COLS,
        }
    }

    /// Bytes of `cols_multiple` columns of one tile, which is the unit a tile repeats.
    const fn unit_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * TILE_ROWS,
            Self::F16 | Self::BF16 => 2 * TILE_ROWS,
            Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K => match self.quant_layout() {
                None => unreachable!(),
                Some(layout) => {
                    let blocks = self.cols_multiple() / BLOCK_COLS;
                    layout.header_bytes() + blocks * layout.block_bytes()
                }
            },
        }
    }

    /// Bytes of one tile of `cols` columns. `None` if `cols` is not a multiple of
    /// [`Self::cols_multiple`] or the count overflows.
    pub const fn tile_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.cols_multiple()) {
            return None;
        }
        (cols / self.cols_multiple()).checked_mul(self.unit_bytes())
    }
}

/// Bytes of a packed matrix of `rows` outputs and `cols` inputs. `None` if the kind does not
/// allow that number of columns or the count overflows.
pub fn bytes(kind: PackedKind, rows: usize, cols: usize) -> Option<u64> {
    let tile_bytes = u64::try_from(kind.tile_bytes(cols)?).ok()?;
    u64::try_from(rows.div_ceil(TILE_ROWS)).ok()?.checked_mul(tile_bytes)
}

/// A run of whole tiles of one packed matrix: what one shard of a matmul reads.
#[derive(Clone, Copy, Debug)]
pub struct PackedTiles<'a> {
    kind: PackedKind,
    cols: usize,
    tile_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> PackedTiles<'a> {
    /// Views `bytes` as tiles. Panics unless `bytes` is a whole number of tiles of `cols` > 0
    /// columns of that kind.
    pub fn new(kind: PackedKind, cols: usize, bytes: &'a [u8]) -> Self {
        let tile_bytes = kind.tile_bytes(cols).expect("columns are a multiple of the block");
        assert!(tile_bytes > 0, "a tile has columns");
        assert!(bytes.len().is_multiple_of(tile_bytes), "whole tiles");
        Self { kind, cols, tile_bytes, bytes }
    }

    /// The kind.
    pub fn kind(&self) -> PackedKind {
        self.kind
    }

    /// Columns: inputs, k.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of tiles; each has 16 rows.
    pub fn tile_count(&self) -> usize {
        self.bytes.len() / self.tile_bytes
    }

    /// Bytes from one tile to the next.
    pub fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of one tile.
    pub fn tile(&self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.tile_bytes..][..self.tile_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_per_256_columns_of_one_tile() {
        let table = [
            (PackedKind::F32, 16384),
            (PackedKind::F16, 8192),
            (PackedKind::BF16, 8192),
            (PackedKind::Q8_0, 8 * 544),
            (PackedKind::Q4_0, 8 * 288),
            (PackedKind::Q4_1, 8 * 320),
            (PackedKind::Q5_0, 8 * 352),
            (PackedKind::Q5_1, 8 * 384),
            (PackedKind::Q2K, 64 + 8 * 192),
            (PackedKind::Q3K, 32 + 8 * 224),
            (PackedKind::Q4K, 64 + 8 * 288),
            (PackedKind::Q5K, 64 + 8 * 352),
            (PackedKind::Q6K, 32 + 8 * 416),
        ];
        assert_eq!(table.map(|(kind, _)| kind), PackedKind::ALL);
        for (kind, want) in table {
            assert_eq!(kind.tile_bytes(256), Some(want), "{kind:?}");
            assert_eq!(bytes(kind, 17, 512), Some(4 * want as u64), "{kind:?}");
            assert_eq!(bytes(kind, 0, 512), Some(0), "{kind:?}");
        }
    }

    #[test]
    fn blocks_and_headers_fill_a_tile_exactly() {
        for kind in PackedKind::ALL {
            let Some(layout) = kind.quant_layout() else { continue };
            let mut end = 0;
            for block in 0..24 {
                if block % SUPER_BLOCKS == 0 {
                    assert_eq!(layout.header_offset_bytes(block), end, "{kind:?}");
                    end += layout.header_bytes();
                }
                assert_eq!(layout.block_offset_bytes(block), end, "{kind:?}");
                end += layout.block_bytes();
            }
            assert_eq!(kind.tile_bytes(24 * BLOCK_COLS), Some(end), "{kind:?}");
        }
    }

    #[test]
    fn refused_columns_and_overflow() {
        assert_eq!(bytes(PackedKind::Q4_0, 16, 33), None);
        assert_eq!(bytes(PackedKind::Q4K, 16, 288), None);
        assert_eq!(bytes(PackedKind::F32, 16, 33), Some(33 * 64));
        assert_eq!(bytes(PackedKind::F32, usize::MAX, usize::MAX), None);
        assert_eq!(bytes(PackedKind::F16, usize::MAX, 1 << 40), None);
    }
}
