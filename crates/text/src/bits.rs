//! Reading and writing integers of any whole number of bytes, and the hash of the indexes.
//!
//! Tables are plain bytes without alignment: a field of width w is w little-endian bytes, read
//! as one 8-byte word and masked (the tables end in padding for that). No `unsafe`.

/// How many bits are needed to write every number below `count`.
pub const fn bits_for(count: usize) -> u32 {
    if count <= 1 { 0 } else { usize::BITS - (count - 1).leading_zeros() }
}

/// How many bytes are needed to write every number below `count`; at least one.
pub const fn bytes_for(count: usize) -> usize {
    let bytes = bits_for(count).div_ceil(8) as usize;
    if bytes == 0 { 1 } else { bytes }
}

/// The integer of `width` ≤ 8 bytes at `at`; 8 bytes must be readable there.
#[inline]
pub fn read(bytes: &[u8], at: usize, width: usize) -> u64 {
    let word: [u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(word) & (u64::MAX >> (64 - 8 * width as u32))
}

/// Writes the lowest `width` bytes of `value` at `at`.
pub fn write(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    debug_assert!(width == 8 || value >> (8 * width) == 0, "{value} in {width} bytes");
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Whether bit `index` is set.
#[inline]
pub fn bit(bytes: &[u8], index: usize) -> bool {
    bytes[index / 8] >> (index % 8) & 1 == 1
}

/// Sets bit `index`.
pub fn set_bit(bytes: &mut [u8], index: usize) {
    bytes[index / 8] |= 1 << (index % 8);
}

/// A hash of a text: high bits choose the bucket, low bits are the fingerprint.
#[inline]
pub fn hash_text(text: &[u8]) -> u64 {
    let mut hash = (text.len() as u64).wrapping_mul(MULTIPLIER);
    let mut rest = text;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        hash = mix(hash ^ u64::from_le_bytes(*word));
        rest = tail;
    }
    if !rest.is_empty() {
        hash = mix(hash ^ short_word(rest));
    }
    hash
}

/// The one to seven bytes of `text` as a number, without a loop; texts of one length differ.
#[inline]
fn short_word(text: &[u8]) -> u64 {
    let len = text.len();
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    u64::from(text[0]) | u64::from(text[len / 2]) << 8 | u64::from(text[len - 1]) << 16
}

/// A hash of a pair of identifiers.
#[inline]
pub fn hash_pair(left: u32, right: u32) -> u64 {
    mix(u64::from(left) << 32 | u64::from(right))
}

/// The bucket, of `count`, that a hash falls in.
#[inline]
pub fn bucket(hash: u64, count: usize) -> usize {
    (((hash >> 32) * count as u64) >> 32) as usize
}

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Folds the 128-bit product back to 64 bits: every input bit reaches every output bit.
#[inline]
fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ 0xA076_1D64_78BD_642F) * u128::from(MULTIPLIER);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths() {
        let cases = [(0, 0, 1), (1, 0, 1), (2, 1, 1), (256, 8, 1), (257, 9, 2), (65537, 17, 3)];
        for (count, bits, bytes) in cases {
            assert_eq!((bits_for(count), bytes_for(count)), (bits, bytes), "{count}");
        }
    }

    #[test]
    fn written_fields_read_back() {
        let mut bytes = [0_u8; 32];
        for width in 1..=8_usize {
            let value = 0x8877_6655_4433_2211_u64 >> (64 - 8 * width);
            write(&mut bytes, width, width, value);
            assert_eq!(read(&bytes, width, width), value);
        }
    }

    #[test]
    fn buckets_are_even() {
        let mut counts = [0_u32; 64];
        for number in 0..64_000_u32 {
            counts[bucket(hash_text(number.to_string().as_bytes()), 64)] += 1;
        }
        assert!(counts.iter().all(|&count| (800..1200).contains(&count)), "{counts:?}");
    }
}
