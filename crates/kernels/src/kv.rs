//! The key and value caches of one layer: their layouts, and appending to them.
//!
//! Keys `[kv_head][slot][capacity/16][head_dim][16]`: sixteen positions side by side, so that a
//! score kernel has positions across its lanes. Values `[kv_head][slot][capacity][head_dim]`:
//! rows, so that a weighted sum has the head's dimensions across its lanes. A slot is a ring:
//! position p stands at `p mod capacity`, a multiple of 64.
//!
//! | type | 16 positions of keys | a value row |
//! |---|---|---|
//! | f32, f16 | `[head_dim][16]` | `[head_dim]` |
//! | q8_0 | `{ f16 d[head_dim/32][16], i8 q[head_dim][16] }` | blocks `{ f16 d, i8 q[32] }` |
//!
//! Narrowing to f16 is to nearest even. q8_0 takes `amax` over 32 dimensions of one position,
//! `d = f16(amax / 127)` and `q = round(x · (127 / amax))`, ties to even, within ±127; a value
//! is `d · q`, which f32 holds exactly. An `amax` below 10⁻³⁶ (or none, for NaN) gives zeros.
//!
//! Everything is bytes here, little-endian: the caches are opaque to everyone else.

use crate::half::f32_to_f16;
use crate::isa::Isa;
use crate::limits::{HEAD_DIM_MAX, KV_BLOCK_POSITIONS};
use crate::simd::{Kernel, LANES, Simd, Tile, dispatch, tiles};
use core::ops::Range;

/// Element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// 8-bit integers with one f16 scale for 32 dimensions of a position.
    Q8_0,
}

/// The sizes of a layer's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Element type of keys and values.
    pub kind: KvType,
    /// Key/value heads.
    pub heads: usize,
    /// Sequences that the caches hold.
    pub slots: usize,
    /// Positions of a slot, a multiple of 64.
    pub capacity: usize,
    /// Features of a head: a multiple of 16 (of 32 for q8_0), at most 256.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes of sixteen positions of keys of one head.
    pub const fn key_group_bytes(&self) -> usize {
        match self.kind {
            KvType::F32 => self.head_dim * LANES * 4,
            KvType::F16 => self.head_dim * LANES * 2,
            KvType::Q8_0 => self.head_dim / 32 * LANES * 2 + self.head_dim * LANES,
        }
    }

    /// Bytes of one position of values of one head.
    pub const fn value_row_bytes(&self) -> usize {
        match self.kind {
            KvType::F32 => self.head_dim * 4,
            KvType::F16 => self.head_dim * 2,
            KvType::Q8_0 => self.head_dim / 32 * 34,
        }
    }

    /// Bytes of all keys of one head, all slots.
    pub const fn key_head_bytes(&self) -> usize {
        self.slots * (self.capacity / LANES) * self.key_group_bytes()
    }

    /// Bytes of all values of one head, all slots.
    pub const fn value_head_bytes(&self) -> usize {
        self.slots * self.capacity * self.value_row_bytes()
    }

    /// Panics unless the sizes are ones that the layouts can hold.
    #[track_caller]
    pub(crate) fn assert_valid(&self) {
        let piece = match self.kind {
            KvType::F32 | KvType::F16 => LANES,
            KvType::Q8_0 => 2 * LANES,
        };
        let head_dim = self.head_dim;
        assert!((1..=HEAD_DIM_MAX).contains(&head_dim), "head of {head_dim} features");
        assert!(head_dim.is_multiple_of(piece), "head of {head_dim} features in {:?}", self.kind);
        assert!(self.heads > 0 && self.slots > 0 && self.capacity > 0, "empty cache {self:?}");
        let capacity = self.capacity;
        assert!(capacity.is_multiple_of(KV_BLOCK_POSITIONS), "capacity of {capacity} positions");
    }

    /// Byte range of the group that holds `position`, in the keys of one head.
    #[inline(always)]
    pub(crate) fn key_group(&self, slot: usize, position: usize) -> Range<usize> {
        let group = slot * (self.capacity / LANES) + position % self.capacity / LANES;
        group * self.key_group_bytes()..(group + 1) * self.key_group_bytes()
    }

    /// Byte offset of the row of `position`, in the values of one head.
    #[inline(always)]
    pub(crate) fn value_row(&self, slot: usize, position: usize) -> usize {
        (slot * self.capacity + position % self.capacity) * self.value_row_bytes()
    }
}

/// Where the step's tokens stand in the caches.
#[derive(Clone, Copy, Debug)]
pub struct KvPlaces<'a> {
    /// Position of each token in its sequence.
    pub positions: &'a [u32],
    /// Slot of each token.
    pub slots: &'a [u32],
}

impl KvPlaces<'_> {
    /// Panics unless there is one slot, below `slots`, for each position.
    #[track_caller]
    pub(crate) fn assert_valid(&self, slots: usize) {
        assert!(!self.positions.is_empty(), "no token");
        assert_eq!(self.positions.len(), self.slots.len(), "positions and slots");
        assert!(self.slots.iter().all(|&slot| (slot as usize) < slots), "slot of {slots}");
    }
}

/// Appends keys of heads `heads`. `k` is their tile-major slice, `keys` the cache of those heads.
///
/// Panics unless the lengths agree with `shape` and the heads.
pub fn kv_append_keys(isa: Isa, shape: &KvShape, places: KvPlaces<'_>, k: &[f32], keys: &mut [u8]) {
    let heads = check(shape, places, k, keys.len(), shape.key_head_bytes());
    dispatch(isa, AppendKeys { shape, places, heads, k: tiles(k), keys });
}

/// Appends values of heads `heads`. `v` is their tile-major slice, `values` the cache of those.
///
/// Panics unless the lengths agree with `shape` and the heads.
pub fn kv_append_values(
    isa: Isa,
    shape: &KvShape,
    places: KvPlaces<'_>,
    v: &[f32],
    values: &mut [u8],
) {
    let heads = check(shape, places, v, values.len(), shape.value_head_bytes());
    dispatch(isa, AppendValues { shape, places, heads, v: tiles(v), values });
}

/// The number of heads, once everything agrees.
fn check(
    shape: &KvShape,
    places: KvPlaces<'_>,
    x: &[f32],
    cache_bytes: usize,
    head_bytes: usize,
) -> usize {
    shape.assert_valid();
    places.assert_valid(shape.slots);
    let head = shape.head_dim * places.positions.len();
    let heads = x.len() / head;
    assert!(heads > 0 && x.len() == heads * head, "whole heads of {head} elements");
    assert_eq!(cache_bytes, heads * head_bytes, "bytes of the cache of {heads} heads");
    heads
}

struct AppendKeys<'a> {
    shape: &'a KvShape,
    places: KvPlaces<'a>,
    heads: usize,
    k: &'a [Tile],
    keys: &'a mut [u8],
}

impl Kernel for AppendKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { shape, places, heads, k, keys } = self;
        let tokens = places.positions.len();
        let head_tiles = shape.head_dim / LANES;
        for head in 0..heads {
            let keys = &mut keys[head * shape.key_head_bytes()..][..shape.key_head_bytes()];
            let k = &k[head * head_tiles * tokens..][..head_tiles * tokens];
            let token_places = places.positions.iter().zip(places.slots).enumerate();
            for (t, (&position, &slot)) in token_places {
                let group = &mut keys[shape.key_group(slot as usize, position as usize)];
                let lane = position as usize % LANES;
                let column = k.iter().skip(t).step_by(tokens);
                match shape.kind {
                    KvType::F32 => {
                        let rows = group.as_chunks_mut::<{ 4 * LANES }>().0.as_chunks_mut().0;
                        for (tile, rows) in column.zip(rows) {
                            scatter::<4, 64>(tile.map(f32::to_le_bytes), lane, rows);
                        }
                    }
                    KvType::F16 => {
                        let rows = group.as_chunks_mut::<{ 2 * LANES }>().0.as_chunks_mut().0;
                        for (tile, rows) in column.zip(rows) {
                            scatter::<2, 32>(to_f16(s, tile), lane, rows);
                        }
                    }
                    KvType::Q8_0 => {
                        let scales_bytes = shape.head_dim / 32 * LANES * 2;
                        let (scales, rows) = group.split_at_mut(scales_bytes);
                        let scales = scales.as_chunks_mut::<{ 2 * LANES }>().0;
                        let rows = rows.as_chunks_mut::<LANES>().0.as_chunks_mut::<32>().0;
                        for (block, (scales, rows)) in scales.iter_mut().zip(rows).enumerate() {
                            let low = &k[2 * block * tokens + t];
                            let high = &k[(2 * block + 1) * tokens + t];
                            let (d, q) = quantise_q8_0(s, low, high);
                            scales[2 * lane..][..2].copy_from_slice(&d.to_le_bytes());
                            for (row, q) in rows.iter_mut().zip(q) {
                                row[lane] = q as u8;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Puts element i of a tile at `lane` of row i.
#[inline(always)]
fn scatter<const BYTES: usize, const ROW: usize>(
    elements: [[u8; BYTES]; LANES],
    lane: usize,
    rows: &mut [[u8; ROW]; LANES],
) {
    for (row, element) in rows.iter_mut().zip(elements) {
        row[BYTES * lane..][..BYTES].copy_from_slice(&element);
    }
}

#[inline(always)]
fn to_f16<S: Simd>(s: S, tile: &Tile) -> [[u8; 2]; LANES] {
    let mut bytes = [0; 2 * LANES];
    s.store_f16_bytes(s.load(tile), &mut bytes);
    core::array::from_fn(|i| [bytes[2 * i], bytes[2 * i + 1]])
}

struct AppendValues<'a> {
    shape: &'a KvShape,
    places: KvPlaces<'a>,
    heads: usize,
    v: &'a [Tile],
    values: &'a mut [u8],
}

impl Kernel for AppendValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { shape, places, heads, v, values } = self;
        let tokens = places.positions.len();
        let head_tiles = shape.head_dim / LANES;
        for head in 0..heads {
            let values = &mut values[head * shape.value_head_bytes()..];
            let v = &v[head * head_tiles * tokens..][..head_tiles * tokens];
            let token_places = places.positions.iter().zip(places.slots).enumerate();
            for (t, (&position, &slot)) in token_places {
                let start = shape.value_row(slot as usize, position as usize);
                let row = &mut values[start..][..shape.value_row_bytes()];
                let column = v.iter().skip(t).step_by(tokens);
                match shape.kind {
                    KvType::F32 => {
                        for (to, tile) in
                            row.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().zip(column)
                        {
                            for (to, x) in to.as_chunks_mut().0.iter_mut().zip(tile) {
                                *to = x.to_le_bytes();
                            }
                        }
                    }
                    KvType::F16 => {
                        for (to, tile) in
                            row.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().zip(column)
                        {
                            s.store_f16_bytes(s.load(tile), to);
                        }
                    }
                    KvType::Q8_0 => {
                        for (block, to) in row.as_chunks_mut::<34>().0.iter_mut().enumerate() {
                            let low = &v[2 * block * tokens + t];
                            let high = &v[(2 * block + 1) * tokens + t];
                            let (d, q) = quantise_q8_0(s, low, high);
                            to[..2].copy_from_slice(&d.to_le_bytes());
                            to[2..].copy_from_slice(&q.map(|q| q as u8));
                        }
                    }
                }
            }
        }
    }
}

/// The smallest `amax` that is not taken for zero: below it `127 / amax` may overflow.
const AMAX_MIN: f32 = 1e-36;

/// Scale and integers of 32 elements.
#[inline(always)]
fn quantise_q8_0<S: Simd>(s: S, low: &Tile, high: &Tile) -> (u16, [i8; 32]) {
    let (low, high) = (s.load(low), s.load(high));
    let zero = s.splat(0.0);
    let largest = s.max(s.abs(high), s.max(s.abs(low), zero));
    let amax = s.reduce_max(largest);
    let mut q = [0; 32];
    if amax < AMAX_MIN {
        return (0, q);
    }
    let inverse = s.splat(127.0 / amax);
    for (x, q) in [low, high].into_iter().zip(q.as_chunks_mut::<LANES>().0) {
        // A NaN becomes 127, like in the quantised activations.
        let below = s.min(s.mul(x, inverse), s.splat(127.0));
        s.store_i8(s.to_int(s.max(below, s.splat(-127.0))), q);
    }
    (f32_to_f16(amax / 127.0), q)
}

/// How attention reads a cache of one element type.
pub(crate) trait Element: Copy {
    /// Keys of 16 positions and 16 dimensions.
    type Keys<'a>: Copy;
    /// What those keys are multiplied by.
    type KeyScale<S: Simd>: Copy;

    /// The keys of dimensions `16 · tile ..` of a group.
    fn keys(group: &[u8], head_dim: usize, tile: usize) -> Self::Keys<'_>;
    fn key_scale<S: Simd>(s: S, keys: Self::Keys<'_>) -> Self::KeyScale<S>;
    /// Dimension `dim` < 16 of the keys, positions across lanes.
    fn key<S: Simd>(s: S, keys: Self::Keys<'_>, scale: Self::KeyScale<S>, dim: usize) -> S::F;
    /// Dimensions `16 · tile ..` of a value row.
    fn value<S: Simd>(s: S, row: &[u8], tile: usize) -> S::F;
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct Q8;

impl Element for F32 {
    type Keys<'a> = &'a [[u8; 64]; LANES];
    type KeyScale<S: Simd> = ();

    #[inline(always)]
    fn keys(group: &[u8], _head_dim: usize, tile: usize) -> Self::Keys<'_> {
        &group.as_chunks().0.as_chunks().0[tile]
    }
    #[inline(always)]
    fn key_scale<S: Simd>(_s: S, _keys: Self::Keys<'_>) {}
    #[inline(always)]
    fn key<S: Simd>(s: S, keys: Self::Keys<'_>, (): (), dim: usize) -> S::F {
        s.load_f32_bytes(&keys[dim])
    }
    #[inline(always)]
    fn value<S: Simd>(s: S, row: &[u8], tile: usize) -> S::F {
        s.load_f32_bytes(&row.as_chunks().0[tile])
    }
}

impl Element for F16 {
    type Keys<'a> = &'a [[u8; 32]; LANES];
    type KeyScale<S: Simd> = ();

    #[inline(always)]
    fn keys(group: &[u8], _head_dim: usize, tile: usize) -> Self::Keys<'_> {
        &group.as_chunks().0.as_chunks().0[tile]
    }
    #[inline(always)]
    fn key_scale<S: Simd>(_s: S, _keys: Self::Keys<'_>) {}
    #[inline(always)]
    fn key<S: Simd>(s: S, keys: Self::Keys<'_>, (): (), dim: usize) -> S::F {
        s.load_f16_bytes(&keys[dim])
    }
    #[inline(always)]
    fn value<S: Simd>(s: S, row: &[u8], tile: usize) -> S::F {
        s.load_f16_bytes(&row.as_chunks().0[tile])
    }
}

impl Element for Q8 {
    type Keys<'a> = (&'a [u8; 32], &'a [[u8; LANES]; LANES]);
    type KeyScale<S: Simd> = S::F;

    #[inline(always)]
    fn keys(group: &[u8], head_dim: usize, tile: usize) -> Self::Keys<'_> {
        let (scales, q) = group.split_at(head_dim / 32 * 32);
        (&scales.as_chunks().0[tile / 2], &q.as_chunks().0.as_chunks().0[tile])
    }
    #[inline(always)]
    fn key_scale<S: Simd>(s: S, keys: Self::Keys<'_>) -> S::F {
        s.load_f16_bytes(keys.0)
    }
    #[inline(always)]
    fn key<S: Simd>(s: S, keys: Self::Keys<'_>, scale: S::F, dim: usize) -> S::F {
        s.mul(s.load_i8_bytes(&keys.1[dim]), scale)
    }
    #[inline(always)]
    fn value<S: Simd>(s: S, row: &[u8], tile: usize) -> S::F {
        let block = &row.as_chunks::<34>().0[tile / 2];
        let d = s.splat_f16(u16::from_le_bytes([block[0], block[1]]));
        let half = block[2 + tile % 2 * LANES..].first_chunk().expect("16 of 32 bytes");
        s.mul(s.load_i8_bytes(half), d)
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
