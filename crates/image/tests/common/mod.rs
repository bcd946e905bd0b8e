//! What the tests share: fixtures, the formula of source pictures, and a digest.

#![allow(dead_code, reason = "each test uses a part")]

use dctms_image::{Picture, Size};
use std::io::Read;
use std::path::Path;

/// The parts of a packed fixture: each with its length before it, all compressed.
pub fn parts(name: &str) -> Vec<Vec<u8>> {
    let file = std::fs::read(fixtures().join(name)).expect("a fixture");
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(file.as_slice()).read_to_end(&mut bytes).expect("zlib");
    let mut rest = bytes.as_slice();
    let mut parts = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (part, after) = after.split_at(u32::from_le_bytes(*len) as usize);
        parts.push(part.to_vec());
        rest = after;
    }
    parts
}

/// The lines of a table, cut into columns.
pub fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(fixtures().join(name)).expect("a fixture");
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Waves, edges and noise: the formula of `scripts/image_fixtures.py`.
pub fn source(size: Size, shift: u64) -> Picture {
    let mut pixels = Vec::with_capacity(size.pixels() as usize * 3);
    for y in 0..u64::from(size.height) {
        for x in 0..u64::from(size.width) {
            for c in 0..3 {
                let wave = x * 7 + y * 13 + c * 41 + (x * y) / 16 + shift;
                let noise = ((x * 73_856_093) ^ (y * 19_349_663) ^ (c * 83_492_791)) % 61;
                let edge = ((x / 9 + y / 7 + c) % 2) * 90;
                pixels.push((wave + noise + edge) as u8);
            }
        }
    }
    Picture::new(size, pixels)
}

/// The bytes of an upright picture.
pub fn bytes(picture: &Picture) -> Vec<u8> {
    let size = picture.size();
    let mut bytes = vec![0; size.pixels() as usize * 3];
    for (row, to) in (0..size.height).zip(bytes.chunks_exact_mut(size.width as usize * 3)) {
        picture.read_row(row, 0..size.width, to);
    }
    bytes
}

/// CRC-32 as zlib computes it, going on from `before` (0 at first).
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    assert_eq!(before, 0);
    crc.update(bytes);
    crc.sum()
}

/// A small generator: the same numbers on every machine.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}
