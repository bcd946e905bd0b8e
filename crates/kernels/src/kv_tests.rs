//! Appending: every element lands where the layout says, whatever the chunk and the ring.

use super::*;
use crate::half::f16_to_f32;
use crate::naive::kv::element;
use crate::naive::layout::to_tile_major;
use crate::testing::Random;

/// What an element of a block becomes.
fn stored(kind: KvType, block: &[f32], i: usize) -> f32 {
    match kind {
        KvType::F32 => block[i],
        KvType::F16 => f16_to_f32(f32_to_f16(block[i])),
        KvType::Q8_0 => {
            let amax = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let q = (block[i] * (127.0 / amax)).round_ties_even().clamp(-127.0, 127.0);
            f16_to_f32(f32_to_f16(amax / 127.0)) * q
        }
    }
}

#[test]
fn elements_land_where_the_layout_says() {
    for kind in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (heads, head_dim) in [(1, 32), (3, 64), (2, 256)] {
            let shape = KvShape { kind, heads, slots: 3, capacity: 64, head_dim };
            let mut random = Random(head_dim as u64);
            let positions = [0, 1, 63, 64, 66, 200, 17];
            let slots = [0, 2, 1, 1, 2, 0, 0];
            let places = KvPlaces { positions: &positions, slots: &slots };
            let width = heads * head_dim;
            let (k, v) = (random.normals(7 * width), random.normals(7 * width));
            let (k_tiles, v_tiles) = (to_tile_major(&k, 7), to_tile_major(&v, 7));
            let mut caches: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            for isa in Isa::available() {
                let mut keys = vec![0xAA; heads * shape.key_head_bytes()];
                let mut values = vec![0xAA; heads * shape.value_head_bytes()];
                // One shard a head.
                for head in 0..heads {
                    let part = head * head_dim * 7..(head + 1) * head_dim * 7;
                    let bytes = shape.key_head_bytes();
                    let cache = &mut keys[head * bytes..][..bytes];
                    kv_append_keys(isa, &shape, places, &k_tiles[part.clone()], cache);
                    let bytes = shape.value_head_bytes();
                    let cache = &mut values[head * bytes..][..bytes];
                    kv_append_values(isa, &shape, places, &v_tiles[part], cache);
                }
                caches.push((keys, values));
            }
            assert!(caches.iter().all(|cache| *cache == caches[0]), "{kind:?}");
            let (keys, values) = &caches[0];
            for (t, (&position, &slot)) in positions.iter().zip(&slots).enumerate() {
                for head in 0..heads {
                    for d in 0..head_dim {
                        let at = t * width + head * head_dim + d / 32 * 32;
                        let want = [&k, &v].map(|x| stored(kind, &x[at..][..32], d % 32));
                        let keys = &keys[head * shape.key_head_bytes()..];
                        let values = &values[head * shape.value_head_bytes()..];
                        let got =
                            element(&shape, keys, values, slot as usize, position as usize, d);
                        assert_eq!(got, want, "{kind:?} token {t} head {head} dimension {d}");
                    }
                }
            }
            let untouched = values.iter().filter(|&&byte| byte == 0xAA).count();
            assert!(untouched >= values.len() * 3 / 4, "only the tokens' rows are written");
        }
    }
}

#[test]
fn hostile_values_are_the_same_everywhere() {
    let shape = KvShape { kind: KvType::Q8_0, heads: 1, slots: 1, capacity: 64, head_dim: 32 };
    let places = KvPlaces { positions: &[5], slots: &[0] };
    let mut x = [1.0f32; 32];
    (x[0], x[1], x[2]) = (f32::NAN, -0.5, 1e-30);
    for x in [x, [0.0; 32], [f32::NAN; 32], [1e-38; 32]] {
        let mut first: Option<Vec<u8>> = None;
        for isa in Isa::available() {
            let mut keys = vec![0; shape.key_head_bytes()];
            kv_append_keys(isa, &shape, places, &x, &mut keys);
            assert_eq!(*first.get_or_insert(keys.clone()), keys);
        }
    }
}
