//! Every fixed size of this crate, with the relations between them proved here.
//!
//! Believes: the formats' own limits. Must not know: what a caller's bounds are.

/// Longest edge that any bound may allow, pixels: the formats' own limits are 16,383 (WebP) and
/// 65,535 (GIF, JPEG); 16,384 keeps every product of sizes far inside 64 bits.
pub const EDGE_MAX: u32 = 1 << 14;

/// Bytes of a file that are held at a time.
pub const WINDOW_BYTES: usize = 16 << 10;

/// Bytes of a file per pixel: four channels of 16 bits that do not compress.
pub const FILE_BYTES_PER_PIXEL_MAX: u64 = 8;

/// Bytes of a file beyond that: filters, checksums, profiles and other ancillary data.
pub const FILE_EXTRA_BYTES_MAX: u64 = 4 << 20;

/// Segments that are looked at before the frame header of a JPEG.
pub const JPEG_SEGMENTS_MAX: usize = 4096;

/// Scans of a progressive JPEG: each costs a pass over all coefficients, however short it is.
pub const JPEG_SCANS_MAX: usize = 64;

/// Bytes of EXIF data that are read; the orientation stands in the first directory.
pub const EXIF_BYTES_MAX: usize = 64 << 10;

/// Entries of the first EXIF directory that are looked at.
pub const EXIF_ENTRIES_MAX: u16 = 512;

/// Chunks of a PNG or WebP file that are looked at for its orientation.
pub const CHUNKS_MAX: usize = 256;

/// Bytes that a PNG decoder may reserve for ancillary chunks.
pub const PNG_ANCILLARY_BYTES_MAX: usize = 128 << 10;

/// Bytes that decoding takes for each pixel in the worst format that does not pad: an animated
/// WebP holds its frame, its canvas and its answer with four channels each.
pub const DECODE_BYTES_PER_PIXEL: u64 = 12;

/// Bytes that decoding takes for each pixel of the padded picture in the worst format that pads:
/// a progressive JPEG of four channels holds two bytes for each coefficient, and its answer.
pub const DECODE_BYTES_PER_PADDED_PIXEL: u64 = 11;

/// Pixels to which a format pads each edge at most: a JPEG with four-fold subsampling.
pub const DECODE_PAD_PIXELS: u64 = 31;

/// Bytes that a JPEG takes for each pixel of the longest edge: rows before and after
/// upsampling, with 16 bits.
pub const DECODE_BYTES_PER_EDGE_PIXEL: u64 = 640;

/// Bytes that decoding takes in any case: the window, inflate and Huffman tables, the headers of
/// blocks.
pub const DECODE_FIXED_BYTES: u64 = 448 << 10;

/// Most sides of a grid of tiles.
pub const TILES_PER_EDGE_MAX: u32 = 64;

const _: () = {
    assert!(EDGE_MAX as u64 * EDGE_MAX as u64 * DECODE_BYTES_PER_PIXEL < 1 << 40);
    assert!(EXIF_BYTES_MAX <= PNG_ANCILLARY_BYTES_MAX);
    assert!(DECODE_FIXED_BYTES > (WINDOW_BYTES + PNG_ANCILLARY_BYTES_MAX) as u64);
};
