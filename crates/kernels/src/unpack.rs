//! From packed bytes back to integers and scales, portably.
//!
//! The scalar matmul and the embedding gather read weights through this. The vector shells have
//! their own unpacking; this one is their specification.

use crate::half::{bf16_to_f32, f16_to_f32};
use crate::limits::{BLOCK_COLS, BLOCK_GROUPS, GROUP_COLS, TILE_ROWS, VECTOR_BYTES};
use crate::packed::{PackedKind, QuantLayout, ScaleScheme};

/// One value for each row of a tile.
pub(crate) type Rows<T> = [T; TILE_ROWS];

/// One block of 32 k of one tile.
pub(crate) struct Block {
    /// Unsigned integers, `[k-group][row][4 k]`; subtract the layout's zero point.
    pub integers: [[u8; VECTOR_BYTES]; BLOCK_GROUPS],
    /// `d`.
    pub d: Rows<f32>,
    /// `m` or `dmin`; zeros for kinds without.
    pub minimum: Rows<f32>,
    /// Scales of the two 16-halves (equal where a scale covers 32; ones for block kinds).
    pub scales: [Rows<i32>; 2],
    /// Minima of the two 16-halves, likewise.
    pub minima: [Rows<i32>; 2],
}

/// Unpacks block `index` of `tile`. Inlined where the layout is known, as is all that it calls.
#[inline(always)]
pub(crate) fn block(layout: &QuantLayout, tile: &[u8], index: usize) -> Block {
    let (header, planes, scales) = parts(layout, tile, index);
    let minimum = match layout.scales.has_minimum() {
        true => f16_rows(&header[2 * TILE_ROWS..]),
        false => [0.0; TILE_ROWS],
    };
    let halves =
        [0, 1].map(|half| std::array::from_fn(|row| sub_scale(layout.scales, scales, half, row)));
    let scales = halves.map(|rows: Rows<(i32, i32)>| rows.map(|(scale, _)| scale));
    let minima = halves.map(|rows| rows.map(|(_, minimum)| minimum));
    let (low, high) = plane_vectors(layout, planes);
    let mut integers = [[0u8; VECTOR_BYTES]; BLOCK_GROUPS];
    for (group, vector) in integers.iter_mut().enumerate() {
        for (at, byte) in vector.iter_mut().enumerate() {
            *byte = integer(layout, low, high, group, at);
        }
    }
    Block { integers, d: f16_rows(header), minimum, scales, minima }
}

/// The bytes of a block: f16 scales (in the super-block's header, or its own), planes, and what
/// follows the planes.
#[inline(always)]
fn parts<'a>(layout: &QuantLayout, tile: &'a [u8], index: usize) -> (&'a [u8], &'a [u8], &'a [u8]) {
    let bytes = &tile[layout.block_offset_bytes(index)..][..layout.block_bytes()];
    let (planes, scales) = bytes.split_at(layout.low_bytes() + layout.high_bytes());
    let header = match layout.header_bytes() {
        0 => scales,
        bytes => &tile[layout.header_offset_bytes(index)..][..bytes],
    };
    (header, planes, scales)
}

#[inline(always)]
fn f16_rows(bytes: &[u8]) -> Rows<f32> {
    std::array::from_fn(|row| f16_of_row(bytes, row))
}

#[inline(always)]
fn f16_of_row(bytes: &[u8], row: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]))
}

/// Scale and minimum of one 16-half.
#[inline(always)]
fn sub_scale(scheme: ScaleScheme, bytes: &[u8], half: usize, row: usize) -> (i32, i32) {
    let byte = |at: usize| bytes[at * TILE_ROWS + row];
    match scheme {
        ScaleScheme::Block | ScaleScheme::BlockMinimum => (1, 0),
        ScaleScheme::Super32Minimum => (i32::from(byte(0)), i32::from(byte(1))),
        ScaleScheme::Super16 => (i32::from(byte(half) as i8), 0),
        ScaleScheme::Super16Minimum => (i32::from(byte(half)), i32::from(byte(2 + half))),
    }
}

/// A 64-byte vector of a plane.
type Vector = [u8; VECTOR_BYTES];

/// The vectors of the low and of the high plane.
#[inline(always)]
fn plane_vectors<'a>(layout: &QuantLayout, planes: &'a [u8]) -> (&'a [Vector], &'a [Vector]) {
    planes.as_chunks::<VECTOR_BYTES>().0.split_at(layout.low_bytes() / VECTOR_BYTES)
}

/// The integer at byte `at` of a k-group's vector.
#[inline(always)]
fn integer(layout: &QuantLayout, low: &[Vector], high: &[Vector], group: usize, at: usize) -> u8 {
    let high = high_bits(layout.high_bits, high, group, at);
    low_bits(layout.low_bits, low, group, at) | high << (layout.low_bits & 7)
}

#[inline(always)]
fn low_bits(bits: usize, low: &[Vector], group: usize, at: usize) -> u8 {
    match bits {
        8 => low[group][at] ^ 0x80,
        4 => low[group % 4][at] >> (4 * (group / 4)) & 0xF,
        2 => low[group / 4][at] >> (2 * (group % 4)) & 3,
        bits => unreachable!("no low plane of {bits} bits"),
    }
}

#[inline(always)]
fn high_bits(bits: usize, high: &[Vector], group: usize, at: usize) -> u8 {
    match bits {
        0 => 0,
        1 => high[0][at] >> group & 1,
        2 => high[group / 4][at] >> (2 * (group % 4)) & 3,
        bits => unreachable!("no high plane of {bits} bits"),
    }
}

/// The f32 value of every weight of a block, `[k][row]`, rounded as ggml's own dequantisation
/// rounds: scale times sub-scale, times integer, then the minimum; no fused operation.
#[inline(always)]
pub(crate) fn block_values(
    layout: &QuantLayout,
    tile: &[u8],
    index: usize,
) -> [Rows<f32>; BLOCK_COLS] {
    let block = block(layout, tile, index);
    std::array::from_fn(|k| std::array::from_fn(|row| block.value(layout, k, row)))
}

/// The f32 values of half `half` (16 columns) of block `index`, row `row` only.
pub(crate) fn half_row(
    layout: &QuantLayout,
    tile: &[u8],
    index: usize,
    half: usize,
    row: usize,
) -> [f32; TILE_ROWS] {
    let (header, planes, scales) = parts(layout, tile, index);
    let d = f16_of_row(header, row);
    let minimum = match layout.scales.has_minimum() {
        true => f16_of_row(&header[2 * TILE_ROWS..], row),
        false => 0.0,
    };
    let (scale, sub_minimum) = sub_scale(layout.scales, scales, half, row);
    let (low, high) = plane_vectors(layout, planes);
    std::array::from_fn(|k| {
        let group = (half * TILE_ROWS + k) / GROUP_COLS;
        let byte = integer(layout, low, high, group, row * GROUP_COLS + k % GROUP_COLS);
        let q = (i32::from(byte) - layout.zero) as f32;
        value(layout.scales, q, (d, scale as f32), (minimum, sub_minimum as f32))
    })
}

impl Block {
    #[inline(always)]
    fn value(&self, layout: &QuantLayout, k: usize, row: usize) -> f32 {
        let half = k / TILE_ROWS;
        let byte = self.integers[k / GROUP_COLS][row * GROUP_COLS + k % GROUP_COLS];
        let q = (i32::from(byte) - layout.zero) as f32;
        let scale = (self.d[row], self.scales[half][row] as f32);
        let minimum = (self.minimum[row], self.minima[half][row] as f32);
        value(layout.scales, q, scale, minimum)
    }
}

#[inline(always)]
fn value(scheme: ScaleScheme, q: f32, scale: (f32, f32), minimum: (f32, f32)) -> f32 {
    match scheme {
        ScaleScheme::Block => scale.0 * q,
        ScaleScheme::BlockMinimum => scale.0 * q + minimum.0,
        ScaleScheme::Super16 => (scale.0 * scale.1) * q,
        ScaleScheme::Super32Minimum | ScaleScheme::Super16Minimum => {
            (scale.0 * scale.1) * q - minimum.0 * minimum.1
        }
    }
}

/// Element `(row, k)` of a tile of a float kind.
pub(crate) fn float_value(kind: PackedKind, tile: &[u8], k: usize, row: usize) -> f32 {
    let at = k * TILE_ROWS + row;
    let half = |at: usize| u16::from_le_bytes([tile[2 * at], tile[2 * at + 1]]);
    match kind {
        PackedKind::F32 => {
            f32::from_le_bytes([tile[4 * at], tile[4 * at + 1], tile[4 * at + 2], tile[4 * at + 3]])
        }
        PackedKind::F16 => f16_to_f32(half(at)),
        PackedKind::BF16 => bf16_to_f32(half(at)),
        PackedKind::Q8_0
        | PackedKind::Q4_0
        | PackedKind::Q4_1
        | PackedKind::Q5_0
        | PackedKind::Q5_1
        | PackedKind::Q2K
        | PackedKind::Q3K
        | PackedKind::Q4K
        | PackedKind::Q5K
        | PackedKind::Q6K => panic!("{kind:?} has blocks"),
    }
}
