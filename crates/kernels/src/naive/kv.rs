//! An element of the caches, by the definition of their layouts.

use crate::half::f16_to_f32;
use crate::kv::{KvShape, KvType};

/// Key and value of dimension `d` of position `p`. `keys` and `values` are those of one head.
pub fn element(
    shape: &KvShape,
    keys: &[u8],
    values: &[u8],
    slot: usize,
    p: usize,
    d: usize,
) -> [f32; 2] {
    let f32_at = |b: &[u8], i: usize| f32::from_le_bytes([0, 1, 2, 3].map(|j| b[4 * i + j]));
    let f16_at = |b: &[u8], i: usize| f16_to_f32(u16::from_le_bytes([b[2 * i], b[2 * i + 1]]));
    let p = p % shape.capacity;
    let group = &keys[(slot * shape.capacity / 16 + p / 16) * shape.key_group_bytes()..];
    let row = &values[(slot * shape.capacity + p) * shape.value_row_bytes()..];
    match shape.kind {
        KvType::F32 => [f32_at(group, d * 16 + p % 16), f32_at(row, d)],
        KvType::F16 => [f16_at(group, d * 16 + p % 16), f16_at(row, d)],
        KvType::Q8_0 => {
            let q = &group[shape.head_dim / 32 * 32..];
            let block = &row[d / 32 * 34..];
            [
                f16_at(group, d / 32 * 16 + p % 16) * f32::from(q[d * 16 + p % 16] as i8),
                f16_at(block, 0) * f32::from(block[2 + d % 32] as i8),
            ]
        }
    }
}
