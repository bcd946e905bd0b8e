//! From the file's blocks to packed tiles, one tile of 16 rows at a time.
//!
//! The source is ggml's block formats (`ggml-common.h` of llama.cpp: `block_q4_0` and so on),
//! each row a run of blocks. A call sees at most 16 rows and fills one tile, so a loader streams
//! a tensor through a buffer of 16 rows. Nothing is rounded: every integer and every scale keeps
//! its value, only its place changes.
//!
//! [`crate::raw`] takes 32 integers of one row out of the file's block, and its scales; one routine
//! here places integers in the planes.

use crate::limits::{BLOCK_COLS, GROUP_COLS, SUPER_BLOCKS, TILE_ROWS, VECTOR_BYTES};
use crate::packed::{PackedKind, QuantLayout, ScaleScheme};
use crate::raw;

/// 32 unsigned integers of one row (8-bit ones with their sign bit flipped).
type Integers = [u8; BLOCK_COLS];

/// Packs up to 16 rows into one tile.
///
/// `raw` holds whole rows of [`raw::row_bytes`] bytes, at least one and at most 16; missing rows
/// are filled with zeros (zero integers under zero scales). `out` is exactly one tile,
/// [`PackedKind::tile_bytes`]. Panics if a length is not that.
pub fn pack_rows(kind: PackedKind, cols: usize, raw: &[u8], out: &mut [u8]) {
    let row_bytes = raw::row_bytes(kind, cols).expect("columns are a multiple of the block");
    assert!(row_bytes > 0 && raw.len().is_multiple_of(row_bytes), "whole rows");
    let row_count = raw.len() / row_bytes;
    assert!((1..=TILE_ROWS).contains(&row_count), "1 to 16 rows");
    assert_eq!(Some(out.len()), kind.tile_bytes(cols), "one tile");
    out.fill(0);
    for (row, raw_row) in raw.chunks_exact(row_bytes).enumerate() {
        match kind.quant_layout() {
            None => pack_float_row(raw_row, row_bytes / cols, row, out),
            Some(layout) => {
                let raw_block_bytes = raw::block_bytes(kind);
                for (index, raw_block) in raw_row.chunks_exact(raw_block_bytes).enumerate() {
                    pack_raw_block(kind, &layout, index, raw_block, row, out);
                }
            }
        }
    }
}

/// Element k of the row goes to `[k][row]`.
fn pack_float_row(raw_row: &[u8], element_bytes: usize, row: usize, out: &mut [u8]) {
    let tile_rows = out.chunks_exact_mut(element_bytes * TILE_ROWS);
    for (element, target) in raw_row.chunks_exact(element_bytes).zip(tile_rows) {
        target[row * element_bytes..][..element_bytes].copy_from_slice(element);
    }
}

/// One block of the file: 32 columns, or 256 for the super-block kinds.
fn pack_raw_block(
    kind: PackedKind,
    layout: &QuantLayout,
    index: usize,
    raw_block: &[u8],
    row: usize,
    out: &mut [u8],
) {
    let fields = raw::Fields::of(kind, raw_block);
    let blocks = kind.cols_multiple() / BLOCK_COLS;
    if blocks == SUPER_BLOCKS {
        let header = &mut out[layout.header_offset_bytes(index * SUPER_BLOCKS)..];
        put_f16(header, row, fields.d);
        if let Some(dmin) = fields.minimum {
            put_f16(&mut header[2 * TILE_ROWS..], row, dmin);
        }
    }
    for sub in 0..blocks {
        let block = index * blocks + sub;
        let target = &mut out[layout.block_offset_bytes(block)..][..layout.block_bytes()];
        let (planes, scales) = target.split_at_mut(layout.low_bytes() + layout.high_bytes());
        put_integers(layout, &fields.integers(sub), row, planes);
        put_scales(layout.scales, &fields, sub, row, scales);
    }
}

fn put_f16(target: &mut [u8], row: usize, bits: u16) {
    target[2 * row..][..2].copy_from_slice(&bits.to_le_bytes());
}

/// The scales that follow the planes of block `sub` of the file's block.
fn put_scales(
    scheme: ScaleScheme,
    fields: &raw::Fields<'_>,
    sub: usize,
    row: usize,
    target: &mut [u8],
) {
    match scheme {
        ScaleScheme::Block => put_f16(target, row, fields.d),
        ScaleScheme::BlockMinimum => {
            put_f16(target, row, fields.d);
            put_f16(&mut target[2 * TILE_ROWS..], row, fields.minimum.expect("a minimum kind"));
        }
        ScaleScheme::Super32Minimum => {
            let (scale, minimum) = fields.scale_and_minimum(sub);
            target[row] = scale;
            target[TILE_ROWS + row] = minimum;
        }
        ScaleScheme::Super16 => {
            for half in 0..2 {
                target[half * TILE_ROWS + row] = fields.scale_and_minimum(2 * sub + half).0;
            }
        }
        ScaleScheme::Super16Minimum => {
            for half in 0..2 {
                let (scale, minimum) = fields.scale_and_minimum(2 * sub + half);
                target[half * TILE_ROWS + row] = scale;
                target[(2 + half) * TILE_ROWS + row] = minimum;
            }
        }
    }
}

/// Places 32 integers of one row in the planes. `planes` must be zero there.
///
/// Four integers of a k-group travel as one little-endian `u32`, since a row's 4 k stand side by
/// side in every vector.
fn put_integers(layout: &QuantLayout, integers: &Integers, row: usize, planes: &mut [u8]) {
    let mut groups = [0u32; BLOCK_COLS / GROUP_COLS];
    for (group, four) in groups.iter_mut().zip(integers.chunks_exact(GROUP_COLS)) {
        *group = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    }
    let mut put = |vector: usize, word: u32| {
        let at = vector * VECTOR_BYTES + row * GROUP_COLS;
        planes[at..at + GROUP_COLS].copy_from_slice(&word.to_le_bytes());
    };
    match layout.low_bits {
        8 => groups.iter().enumerate().for_each(|(g, group)| put(g, group ^ 0x8080_8080)),
        4 => (0..4).for_each(|v| {
            put(v, groups[v] & 0x0F0F_0F0F | (groups[v + 4] & 0x0F0F_0F0F) << 4);
        }),
        2 => (0..2).for_each(|v| put(v, two_bit_word(&groups[4 * v..4 * v + 4], 0))),
        bits => unreachable!("no low plane of {bits} bits"),
    }
    let first_high_vector = layout.low_bytes() / VECTOR_BYTES;
    match layout.high_bits {
        0 => {}
        1 => {
            let shift = layout.low_bits;
            let word = groups
                .iter()
                .enumerate()
                .fold(0, |word, (g, group)| word | (group >> shift & 0x0101_0101) << g);
            put(first_high_vector, word);
        }
        2 => (0..2).for_each(|v| {
            let word = two_bit_word(&groups[4 * v..4 * v + 4], layout.low_bits);
            put(first_high_vector + v, word);
        }),
        bits => unreachable!("no high plane of {bits} bits"),
    }
}

/// Two bits of each of four k-groups, `shift` up, side by side in each byte.
fn two_bit_word(groups: &[u32], shift: usize) -> u32 {
    groups
        .iter()
        .enumerate()
        .fold(0, |word, (j, group)| word | (group >> shift & 0x0303_0303) << (2 * j))
}
