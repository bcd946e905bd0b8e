//! The oracle's dequantisation: one function a type, after `dequantize_row_*` of llama.cpp's
//! `ggml-quants.c`, index by index as it stands there.
//!
//! Each function turns one block of the file into [`Parts`]: the integers with their zero point
//! taken off, and the scales of each. Values and canonical products both follow from those.

use crate::half::{bf16_to_f32, f16_to_f32};
use crate::packed::PackedKind;
use crate::raw::block_bytes;

/// A block of the file in plain numbers. Value k is
/// `d·scale[k/16]·q[k]` plus `m`, or minus `dmin·minimum[k/16]`.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Integers, zero point subtracted: 32 or 256.
    pub q: Vec<i32>,
    /// Scale of the block.
    pub d: f32,
    /// `m` of Q4_1 and Q5_1.
    pub m: Option<f32>,
    /// `dmin` of the K-quants with minima.
    pub dmin: Option<f32>,
    /// Scale of each 16 columns; empty for block kinds.
    pub scale: Vec<i32>,
    /// Minimum of each 16 columns; empty for kinds without.
    pub minimum: Vec<i32>,
}

/// Every weight of one row of the file's bytes, as f32.
pub fn row(kind: PackedKind, raw: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match kind {
        PackedKind::F32 => {
            raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        PackedKind::F16 => raw.chunks_exact(2).map(|b| f16_to_f32(half(b))).collect(),
        PackedKind::BF16 => raw.chunks_exact(2).map(|b| bf16_to_f32(half(b))).collect(),
        PackedKind::Q8_0
        | PackedKind::Q4_0
        | PackedKind::Q4_1
        | PackedKind::Q5_0
        | PackedKind::Q5_1
        | PackedKind::Q2K
        | PackedKind::Q3K
        | PackedKind::Q4K
        | PackedKind::Q5K
        | PackedKind::Q6K => {
            raw.chunks_exact(block_bytes(kind)).flat_map(|b| values(&parts(kind, b))).collect()
        }
    }
}

/// The values of one block, in ggml's order of rounding.
pub fn values(parts: &Parts) -> Vec<f32> {
    let value = |(k, &q): (usize, &i32)| {
        let dl = match parts.scale.get(k / 16) {
            Some(&scale) => parts.d * scale as f32,
            None => parts.d,
        };
        let product = dl * q as f32;
        match (parts.m, parts.dmin) {
            (Some(m), _) => product + m,
            (None, Some(dmin)) => product - dmin * parts.minimum[k / 16] as f32,
            (None, None) => product,
        }
    };
    parts.q.iter().enumerate().map(value).collect()
}

/// One block of the file. Panics on float kinds.
pub fn parts(kind: PackedKind, b: &[u8]) -> Parts {
    match kind {
        PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => panic!("no blocks"),
        PackedKind::Q8_0 => q8_0(b),
        PackedKind::Q4_0 => q4_0(b),
        PackedKind::Q4_1 => q4_1(b),
        PackedKind::Q5_0 => q5_0(b),
        PackedKind::Q5_1 => q5_1(b),
        PackedKind::Q2K => q2_k(b),
        PackedKind::Q3K => q3_k(b),
        PackedKind::Q4K => q4_k(b),
        PackedKind::Q5K => q5_k(b),
        PackedKind::Q6K => q6_k(b),
    }
}

fn f16(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

fn block_parts(q: Vec<i32>, d: f32, m: Option<f32>) -> Parts {
    Parts { q, d, m, dmin: None, scale: vec![], minimum: vec![] }
}

fn q8_0(b: &[u8]) -> Parts {
    block_parts(b[2..34].iter().map(|&v| i32::from(v as i8)).collect(), f16(b, 0), None)
}

fn q4_0(b: &[u8]) -> Parts {
    let mut q = vec![0; 32];
    for j in 0..16 {
        q[j] = i32::from(b[2 + j] & 0x0F) - 8;
        q[j + 16] = i32::from(b[2 + j] >> 4) - 8;
    }
    block_parts(q, f16(b, 0), None)
}

fn q4_1(b: &[u8]) -> Parts {
    let mut q = vec![0; 32];
    for j in 0..16 {
        q[j] = i32::from(b[4 + j] & 0x0F);
        q[j + 16] = i32::from(b[4 + j] >> 4);
    }
    block_parts(q, f16(b, 0), Some(f16(b, 2)))
}

fn five_bits(qh: u32, qs: &[u8]) -> Vec<i32> {
    let mut q = vec![0; 32];
    for j in 0..16 {
        let xh_0 = ((qh >> j) << 4) & 0x10;
        let xh_1 = (qh >> (j + 12)) & 0x10;
        q[j] = i32::from(qs[j] & 0x0F) | xh_0 as i32;
        q[j + 16] = i32::from(qs[j] >> 4) | xh_1 as i32;
    }
    q
}

fn q5_0(b: &[u8]) -> Parts {
    let qh = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    let q = five_bits(qh, &b[6..22]).into_iter().map(|q| q - 16).collect();
    block_parts(q, f16(b, 0), None)
}

fn q5_1(b: &[u8]) -> Parts {
    let qh = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    block_parts(five_bits(qh, &b[8..24]), f16(b, 0), Some(f16(b, 2)))
}

fn q2_k(b: &[u8]) -> Parts {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let mut q = vec![0; 256];
    for n in 0..2 {
        for j in 0..4 {
            for l in 0..32 {
                q[128 * n + 32 * j + l] = i32::from(qs[32 * n + l] >> (2 * j) & 3);
            }
        }
    }
    Parts {
        q,
        d: f16(b, 80),
        m: None,
        dmin: Some(f16(b, 82)),
        scale: scales.iter().map(|&s| i32::from(s & 0xF)).collect(),
        minimum: scales.iter().map(|&s| i32::from(s >> 4)).collect(),
    }
}

fn q3_k(b: &[u8]) -> Parts {
    const KMASK1: u32 = 0x0303_0303;
    const KMASK2: u32 = 0x0F0F_0F0F;
    let (hm, qs, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let word = |i: usize| u32::from_le_bytes(packed[4 * i..4 * i + 4].try_into().unwrap());
    let (a0, a1, tmp) = (word(0), word(1), word(2));
    let aux = [
        (a0 & KMASK2) | ((tmp & KMASK1) << 4),
        (a1 & KMASK2) | (((tmp >> 2) & KMASK1) << 4),
        ((a0 >> 4) & KMASK2) | (((tmp >> 4) & KMASK1) << 4),
        ((a1 >> 4) & KMASK2) | (((tmp >> 6) & KMASK1) << 4),
    ];
    let scale =
        aux.iter().flat_map(|word| word.to_le_bytes()).map(|s| i32::from(s as i8) - 32).collect();
    let mut q = vec![0; 256];
    let mut mask = 1u8;
    for n in 0..2 {
        for j in 0..4 {
            for l in 0..32 {
                let low = i32::from(qs[32 * n + l] >> (2 * j) & 3);
                q[128 * n + 32 * j + l] = low - if hm[l] & mask != 0 { 0 } else { 4 };
            }
            mask = mask.wrapping_shl(1);
        }
    }
    Parts { q, d: f16(b, 108), m: None, dmin: None, scale, minimum: vec![] }
}

/// `get_scale_min_k4`.
fn scale_min_k4(j: usize, q: &[u8]) -> (i32, i32) {
    let (d, m) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 0xF) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4))
    };
    (i32::from(d), i32::from(m))
}

fn k4_scales(b: &[u8]) -> (Vec<i32>, Vec<i32>) {
    (0..16).map(|sixteen| scale_min_k4(sixteen / 2, b)).unzip()
}

fn q4_k(b: &[u8]) -> Parts {
    let qs = &b[16..144];
    let mut q = vec![0; 256];
    for j in 0..4 {
        for l in 0..32 {
            q[64 * j + l] = i32::from(qs[32 * j + l] & 0xF);
            q[64 * j + 32 + l] = i32::from(qs[32 * j + l] >> 4);
        }
    }
    let (scale, minimum) = k4_scales(&b[4..16]);
    Parts { q, d: f16(b, 0), m: None, dmin: Some(f16(b, 2)), scale, minimum }
}

fn q5_k(b: &[u8]) -> Parts {
    let (qh, ql) = (&b[16..48], &b[48..176]);
    let mut q = vec![0; 256];
    for j in 0..4 {
        let (u1, u2) = (1u8 << (2 * j), 2u8 << (2 * j));
        for l in 0..32 {
            let high = |mask: u8| if qh[l] & mask != 0 { 16 } else { 0 };
            q[64 * j + l] = i32::from(ql[32 * j + l] & 0xF) + high(u1);
            q[64 * j + 32 + l] = i32::from(ql[32 * j + l] >> 4) + high(u2);
        }
    }
    let (scale, minimum) = k4_scales(&b[4..16]);
    Parts { q, d: f16(b, 0), m: None, dmin: Some(f16(b, 2)), scale, minimum }
}

fn q6_k(b: &[u8]) -> Parts {
    let scale = b[192..208].iter().map(|&s| i32::from(s as i8)).collect();
    let mut q = vec![0; 256];
    for n in 0..2 {
        let (ql, qh) = (&b[64 * n..], &b[128 + 32 * n..]);
        for l in 0..32 {
            let high = |shift: u8| (qh[l] >> shift & 3) << 4;
            let y = 128 * n + l;
            q[y] = i32::from(ql[l] & 0xF | high(0)) - 32;
            q[y + 32] = i32::from(ql[l + 32] & 0xF | high(2)) - 32;
            q[y + 64] = i32::from(ql[l] >> 4 | high(4)) - 32;
            q[y + 96] = i32::from(ql[l + 32] >> 4 | high(6)) - 32;
        }
    }
    Parts { q, d: f16(b, 208), m: None, dmin: None, scale, minimum: vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_blocks() {
        let one = 0x3C00u16.to_le_bytes();
        let mut b = [one[0], one[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        b[2] = 0xF1;
        let v = row(PackedKind::Q4_0, &b);
        assert_eq!((v[0], v[16], v[1]), (1.0 - 8.0, 15.0 - 8.0, -8.0));
        let mut b = [0u8; 22];
        b[..2].copy_from_slice(&one);
        b[2..6].copy_from_slice(&(1u32 << 20 | 1).to_le_bytes());
        let v = row(PackedKind::Q5_0, &b);
        assert_eq!((v[0], v[1], v[20], v[4]), (0.0, -16.0, 0.0, -16.0));
        let mut b = [0u8; 210];
        b[208..].copy_from_slice(&one);
        b[192] = 0xFF;
        let v = row(PackedKind::Q6K, &b);
        assert_eq!((v[0], v[16]), (32.0, 0.0));
    }
}
