//! Attention of every token over all tokens of the step: an image encoder's.
//!
//! The arithmetic is the module's, with all positions visible to everyone: segments of 256
//! positions, merged in increasing order. There is no cache; each head's keys and values are
//! copied into the workspace as a cache would hold them (sixteen positions side by side), and no
//! buffer grows with the square of the tokens.

use super::block::{Ahead, Cache, Merge, Running, Workspace, rows_max, segment, segments};
use super::{Attention, attention_workspace_len};
use crate::isa::Isa;
use crate::kv::{KvShape, KvType};
use crate::limits::{ATTENTION_ROWS, KV_BLOCK_POSITIONS};
use crate::simd::{LANES, Operand, Tile, dispatch, tiles, tiles_mut};

/// Bytes of the keys, or of the values, of one head of `tokens` tokens in the workspace.
#[must_use]
pub const fn attention_full_head_bytes(head_dim: usize, tokens: usize) -> usize {
    tokens.next_multiple_of(KV_BLOCK_POSITIONS) * head_dim * 4
}

/// Scratch of a call.
#[derive(Debug)]
pub struct FullWorkspace<'a> {
    /// [`attention_workspace_len`] floats.
    pub rows: &'a mut [f32],
    /// [`attention_full_head_bytes`] bytes.
    pub keys: &'a mut [u8],
    /// [`attention_full_head_bytes`] bytes.
    pub values: &'a mut [u8],
}

/// Attention of a run of heads; queries, keys, values and `out` are their tile-major slices,
/// `[heads][head_dim/16][tokens][16]`. The queries may be the output's bytes.
///
/// Panics unless the lengths agree.
#[expect(clippy::too_many_arguments, reason = "operands are told apart by name, not by a struct")]
pub fn attention_full(
    isa: Isa,
    (head_dim, scale): (usize, f32),
    tokens: usize,
    q: Operand<'_>,
    k: &[f32],
    v: &[f32],
    workspace: FullWorkspace<'_>,
    out: &mut [f32],
) {
    let head_len = head_dim * tokens;
    assert!(head_len > 0 && out.len().is_multiple_of(head_len), "whole heads");
    assert_eq!((k.len(), v.len()), (out.len(), out.len()), "elements of keys and values");
    let capacity = tokens.next_multiple_of(KV_BLOCK_POSITIONS);
    let kv = KvShape { kind: KvType::F32, heads: 1, slots: 1, capacity, head_dim };
    let shape = Attention { kv, heads: 1, scale, soft_cap: None };
    shape.assert_valid();
    let bytes = attention_full_head_bytes(head_dim, tokens);
    let FullWorkspace { rows, keys, values } = workspace;
    assert!(rows.len() >= attention_workspace_len(head_dim), "the workspace is too small");
    let (keys, values) = (&mut keys[..bytes], &mut values[..bytes]);
    let (k, v) = (tiles(k), tiles(v));
    let out = tiles_mut(out);
    let q = q.tiles(out.len());
    let mut rows = Workspace::new(&shape, rows);
    let head_tiles = head_len / LANES;
    for head in 0..out.len() / head_tiles {
        let part = head * head_tiles..(head + 1) * head_tiles;
        pack_keys(&k[part.clone()], tokens, head_dim, keys);
        pack_values(&v[part.clone()], tokens, head_dim, values);
        let mut work = Head {
            isa,
            shape: &shape,
            tokens,
            q: q.map(|q| &q[part.clone()]),
            cache: Cache { shape: &kv, keys, values },
            rows: &mut rows,
            out: &mut out[part],
        };
        let rows = rows_max(isa);
        (0..tokens).step_by(rows).for_each(|first| work.attend(first, rows.min(tokens - first)));
    }
}

/// One head.
struct Head<'a, 'w> {
    isa: Isa,
    shape: &'a Attention,
    tokens: usize,
    q: Option<&'a [Tile]>,
    cache: Cache<'a>,
    rows: &'a mut Workspace<'w>,
    out: &'a mut [Tile],
}

impl Head<'_, '_> {
    /// Rows `first..first + count`.
    fn attend(&mut self, first: usize, count: usize) {
        let Self { isa, shape, tokens, q, cache, rows, out } = self;
        let head_tiles = shape.head_tiles();
        for tile in 0..head_tiles {
            let from = tile * *tokens + first;
            let q = q.unwrap_or(out);
            rows.q[tile * count..][..count].copy_from_slice(&q[from..][..count]);
        }
        let all = 0..*tokens;
        let visible =
            [const { 0..0 }; ATTENTION_ROWS].map(|_: core::ops::Range<usize>| all.clone());
        let (visible, cache) = (&visible[..count], cache.of(0, 0));
        let mut running = Running::new();
        for index in segments(visible) {
            let next = segment(*isa, shape, visible, index, cache, Ahead::default(), rows);
            let (part, o) = (&*rows.part, &mut *rows.o);
            dispatch(*isa, Merge { running: &mut running, next, part, o, head_tiles });
        }
        for tile in 0..head_tiles {
            for row in 0..count {
                let answer = running.finish(row, &rows.o[row * head_tiles + tile]);
                out[tile * *tokens + first + row] = answer;
            }
        }
    }
}

/// Keys as `[tokens/16][head_dim][16]`; lanes past the last token are 0.
fn pack_keys(k: &[Tile], tokens: usize, head_dim: usize, keys: &mut [u8]) {
    for (group, keys) in keys.chunks_exact_mut(head_dim * LANES * 4).enumerate() {
        for (dim, keys) in keys.chunks_exact_mut(LANES * 4).enumerate() {
            let tile = &k[dim / LANES * tokens..][..tokens];
            for (lane, key) in keys.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let value = tile.get(group * LANES + lane).map_or(0.0, |tile| tile[dim % LANES]);
                *key = value.to_le_bytes();
            }
        }
    }
}

/// Values as rows `[tokens][head_dim]`; rows past the last token are 0.
fn pack_values(v: &[Tile], tokens: usize, head_dim: usize, values: &mut [u8]) {
    for (token, row) in values.chunks_exact_mut(head_dim * 4).enumerate() {
        for (tile, to) in row.chunks_exact_mut(LANES * 4).enumerate() {
            let from = if token < tokens { v[tile * tokens + token] } else { [0.0; LANES] };
            for (to, value) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
                *to = value.to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::exact::attend;
    use crate::naive::layout::{to_rows, to_tile_major};
    use crate::testing::{Random, assert_same_bits};

    #[test]
    fn every_token_sees_every_token() {
        let mut random = Random(41);
        for (heads, head_dim, tokens) in
            [(1, 16, 1), (2, 32, 7), (3, 64, 17), (2, 16, 256), (2, 48, 301), (1, 64, 523)]
        {
            let width = heads * head_dim;
            let scale = 1.0 / (head_dim as f32).sqrt();
            let [q, k, v] = [2.0, 1.0, 1.0].map(|factor| -> Vec<f32> {
                random.normals(tokens * width).into_iter().map(|x| x * factor).collect()
            });
            let [q_tiles, k_tiles, v_tiles] = [&q, &k, &v].map(|x| to_tile_major(x, tokens));
            let mut want = Vec::new();
            for token in 0..tokens {
                for head in 0..heads {
                    let at = |p: usize| p * width + head * head_dim;
                    let query = &q[at(token)..][..head_dim];
                    let element = |p: usize, d: usize| [k[at(p) + d], v[at(p) + d]];
                    want.extend(attend(query, 0..tokens, element, scale, None));
                }
            }
            let bytes = attention_full_head_bytes(head_dim, tokens);
            for isa in Isa::available() {
                let run = |heads: core::ops::Range<usize>, in_place: bool, out: &mut [f32]| {
                    let part = heads.start * head_dim * tokens..heads.end * head_dim * tokens;
                    let q = &q_tiles[part.clone()];
                    let q = if in_place { Operand::InPlace } else { Operand::At(q) };
                    let workspace = FullWorkspace {
                        rows: &mut vec![f32::NAN; attention_workspace_len(head_dim)],
                        keys: &mut vec![0xFF; bytes],
                        values: &mut vec![0xFF; bytes],
                    };
                    let (k, v) = (&k_tiles[part.clone()], &v_tiles[part]);
                    attention_full(isa, (head_dim, scale), tokens, q, k, v, workspace, out);
                };
                let mut out = q_tiles.clone();
                run(0..heads, true, &mut out);
                assert_same_bits(&to_rows(&out, tokens), &want, "in place");
                out.fill(f32::NAN);
                let (low, high) = out.split_at_mut(head_dim * tokens);
                run(0..1, false, low);
                if heads > 1 {
                    run(1..heads, false, high);
                }
                assert_same_bits(&to_rows(&out, tokens), &want, "in shards");
            }
        }
    }
}
