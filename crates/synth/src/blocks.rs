//! Random blocks in their stored form.
//!
//! A block is uniform integers and one scale. For integers of deviation s the scale is
//! 1/(s·sqrt(k)), spread by a quarter each way, so that no kernel gets away with one scale for
//! all. Layouts are those of the GGUF specification.

use std::io::{self, Write};

use dctms_format::GgmlType;

use crate::random::Random;

/// Writes `rows × columns` elements of deviation about 1/sqrt(columns).
///
/// # Errors
/// What `out` reports.
///
/// # Panics
/// For a type that no mix uses.
pub fn write(
    kind: GgmlType,
    rows: u64,
    columns: u64,
    random: &mut Random,
    out: &mut dyn Write,
) -> io::Result<()> {
    let deviation = 1.0 / (columns as f32).sqrt();
    let row_len_bytes = columns / kind.block_len() * kind.block_len_bytes();
    let mut row = vec![0u8; row_len_bytes as usize];
    for _ in 0..rows {
        for block in row.chunks_exact_mut(kind.block_len_bytes() as usize) {
            draw(kind, deviation, random, block);
        }
        out.write_all(&row)?;
    }
    Ok(())
}

/// Deviation of uniform integers out of `2^bits`.
fn spread(bits: u32) -> f32 {
    let values = f32::from(1u16 << bits);
    ((values * values - 1.0) / 12.0).sqrt()
}

fn draw(kind: GgmlType, deviation: f32, random: &mut Random, block: &mut [u8]) {
    let near = 0.75 + 0.5 * random.unit();
    let scale = |of: f32| f16_bits(near * deviation / of).to_le_bytes();
    match kind {
        GgmlType::F16 => {
            block.copy_from_slice(&f16_bits(deviation * random.normal()).to_le_bytes())
        }
        GgmlType::Q4_0 => draw_after(scale(spread(4)), random, block),
        GgmlType::Q5_0 => draw_after(scale(spread(5)), random, block),
        GgmlType::Q8_0 => draw_after(scale(spread(8)), random, block),
        GgmlType::Q4_K => {
            // Scales and minima of 32..64, mean 47.5; the minimum cancels the nibbles' mean.
            let of = spread(4) * 47.5;
            block[..2].copy_from_slice(&scale(of));
            block[2..4].copy_from_slice(&scale(of / 7.5));
            draw_scales(random, &mut block[4..16]);
            random.fill(&mut block[16..]);
        }
        GgmlType::Q6_K => {
            random.fill(&mut block[..208]);
            // Signed scales of -64..64, deviation 37.
            block[192..208].iter_mut().for_each(|byte| *byte = (*byte & 127).wrapping_sub(64));
            block[208..].copy_from_slice(&scale(spread(6) * 37.0));
        }
        other => unreachable!("no mix uses {}", other.name()),
    }
}

fn draw_after(scale: [u8; 2], random: &mut Random, block: &mut [u8]) {
    block[..2].copy_from_slice(&scale);
    random.fill(&mut block[2..]);
}

/// The 12 bytes of eight 6-bit scales and eight 6-bit minima, all with their top bit set: bytes
/// 0..4 and 4..8 hold four of each with the others' top pairs, 8..12 the others' low nibbles.
fn draw_scales(random: &mut Random, bytes: &mut [u8]) {
    random.fill(bytes);
    // A six-bit value's top bit is bit 5 where it is whole, bit 7 where its top pair is kept.
    bytes[..8].iter_mut().for_each(|byte| *byte |= 0b1010_0000);
}

/// The nearest binary16, ties to even, of a number within its normal range or near zero.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let exponent = (magnitude >> 23) as i32 - 127 + 15;
    assert!(exponent < 31, "{value} is beyond binary16");
    // Below the normal range the significand is shifted further, with its hidden bit in place.
    let (significand, shift) = match exponent {
        ..-10 => return sign,
        -10..=0 => ((magnitude & 0x007f_ffff) | 0x0080_0000, (14 - exponent) as u32),
        _ => ((exponent as u32) << 23 | (magnitude & 0x007f_ffff), 13),
    };
    let (kept, rest, half) =
        (significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1));
    let up = rest > half || (rest == half && kept & 1 == 1);
    sign | (kept + u32::from(up)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_nearest_ones() {
        let table = [
            (0.0, 0),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (0.1, 0x2e66),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (6.103_515_6e-5, 0x0400),
            (5.960_464_5e-8, 0x0001),
            (1e-9, 0),
        ];
        for (value, expected) in table {
            assert_eq!(f16_bits(value), expected, "{value}");
        }
    }

    /// Reads a block back by the specification: mean near 0, deviation near what was asked.
    #[test]
    fn blocks_have_the_deviation_that_was_asked_for() {
        for kind in [GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::Q8_0] {
            let (mut bytes, mut random) = (Vec::new(), Random::named(1, "blocks"));
            write(kind, 64, 1024, &mut random, &mut bytes).expect("a vector takes all");
            let values = bytes.chunks_exact(kind.block_len_bytes() as usize).flat_map(dequantise);
            let squares: Vec<f64> = values.map(|value| value * value).collect();
            let deviation = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
            assert!((deviation * 32.0 - 1.0).abs() < 0.05, "{} {deviation}", kind.name());
        }
    }

    fn dequantise(block: &[u8]) -> Vec<f64> {
        let scale = f64::from(f32_of(u16::from_le_bytes([block[0], block[1]])));
        let quantised: Vec<f64> = match block.len() {
            18 => (0..32).map(|i| nibble(&block[2..], i) - 8.0).collect(),
            22 => (0..32)
                .map(|i| nibble(&block[6..], i) + 16.0 * f64::from(block[2 + i / 8] >> (i % 8) & 1))
                .map(|value| value - 16.0)
                .collect(),
            34 => block[2..].iter().map(|byte| f64::from(*byte as i8)).collect(),
            len => panic!("no block has {len} bytes"),
        };
        quantised.into_iter().map(|value| value * scale).collect()
    }

    fn nibble(bytes: &[u8], index: usize) -> f64 {
        f64::from(bytes[index % 16] >> (index / 16 * 4) & 15)
    }

    fn f32_of(bits: u16) -> f32 {
        let exponent = i32::from(bits >> 10 & 31) - 25;
        (f32::from(bits & 0x3ff) + 1024.0) * 2f32.powi(exponent)
    }
}
