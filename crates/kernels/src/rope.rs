//! Rotary position embedding: a table once a step, then a rotation of each head.
//!
//! **Table**, tile-major like what it meets: `[⌈pairs/16⌉][tokens][2][16]`, where `[2]` is cosine
//! and sine and lane p of tile P is pair 16 P + p. `angle = position · frequency` in f32 (what
//! the models were trained with), its cosine and sine through `libm` in f64, times the magnitude,
//! rounded to f32 once. Pairs beyond the last are cosine 1 and sine 0.
//!
//! **Rotation** of the pair (a, b): `a' = fma(a, cos, −(b · sin))`, `b' = fma(b, cos, a · sin)`.
//! The pair is (i, i + rotary/2) or (2i, 2i + 1); features from `rotary` on stay as they are.

use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Operand, Simd, Tile, dispatch, tiles, tiles_mut};

/// Which two features a rotation mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Features i and i + rotary/2 (NeoX).
    Halves,
    /// Features 2i and 2i + 1.
    Interleaved,
}

/// Elements of a table for `pairs` frequencies and `tokens` tokens.
pub const fn rope_table_len(pairs: usize, tokens: usize) -> usize {
    pairs.div_ceil(LANES) * tokens * 2 * LANES
}

/// Fills `table` with cosines and sines of `positions` times `frequencies`, times `magnitude`.
///
/// Panics unless `table` has [`rope_table_len`] elements.
pub fn rope_table(positions: &[u32], frequencies: &[f32], magnitude: f32, table: &mut [f32]) {
    let (tokens, pairs) = (positions.len(), frequencies.len());
    assert_eq!(table.len(), rope_table_len(pairs, tokens), "elements of the table");
    fill(0, (tokens, pairs), magnitude, table, |pair, token| (positions[token], frequencies[pair]));
}

/// As [`rope_table`] where a token has three positions, `positions[3 t..][..3]`, and each turns its
/// own section of the frequencies: the first `sections[0]`, those after them, and the rest. `table`
/// is the slice of some tiles of pairs, from `first_tile` on.
///
/// Panics unless the sections are all frequencies and `table` is whole tiles that exist.
pub fn rope_table_sectioned(
    positions: &[u32],
    frequencies: &[f32],
    (sections, magnitude): ([usize; 3], f32),
    first_tile: usize,
    table: &mut [f32],
) {
    let (places, pairs) = (positions.as_chunks::<3>().0, frequencies.len());
    assert_eq!(sections.iter().sum::<usize>(), pairs, "sections {sections:?}");
    fill(first_tile, (places.len(), pairs), magnitude, table, |pair, token| {
        let section =
            usize::from(pair >= sections[0]) + usize::from(pair >= sections[0] + sections[1]);
        (places[token][section], frequencies[pair])
    });
}

/// As [`rope_table`] where a token has a row and a column: the row turns the frequencies in the
/// first half of the pairs, the column the same ones in the second. `table` is the slice of some
/// tiles of pairs, from `first_tile` on.
///
/// Panics unless `table` is whole tiles that exist.
pub fn rope_table_grid(
    places: impl Iterator<Item = (usize, usize)> + Clone,
    tokens: usize,
    frequencies: &[f32],
    first_tile: usize,
    table: &mut [f32],
) {
    let half = frequencies.len();
    let rows = table.chunks_exact_mut(tokens.max(1) * 2 * LANES);
    for (tile, row) in rows.enumerate() {
        let entries = row.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut();
        for (entry, (y, x)) in entries.zip(places.clone()) {
            fill(first_tile + tile, (1, 2 * half), 1.0, entry, |pair, _| match pair < half {
                true => (y as u32, frequencies[pair]),
                false => (x as u32, frequencies[pair - half]),
            });
        }
    }
}

/// Fills some tiles of a table; `turn` says the position and the frequency of a pair of a token.
fn fill(
    first_tile: usize,
    (tokens, pairs): (usize, usize),
    magnitude: f32,
    table: &mut [f32],
    turn: impl Fn(usize, usize) -> (u32, f32),
) {
    let row_len = tokens.max(1) * 2 * LANES;
    let end = first_tile + table.len() / row_len;
    assert!(table.len().is_multiple_of(row_len) && end <= pairs.div_ceil(LANES), "whole tiles");
    for (tile, row) in (first_tile..end).zip(table.chunks_exact_mut(row_len)) {
        let own = tile * LANES..pairs.min((tile + 1) * LANES);
        for (token, entry) in row.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
            let (cosines, sines) = entry.split_at_mut(LANES);
            cosines.fill(1.0);
            sines.fill(0.0);
            for ((cosine, sine), pair) in cosines.iter_mut().zip(sines).zip(own.clone()) {
                let (position, frequency) = turn(pair, token);
                let (s, c) = libm::sincos(f64::from(position as f32 * frequency));
                *cosine = (c * f64::from(magnitude)) as f32;
                *sine = (s * f64::from(magnitude)) as f32;
            }
        }
    }
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// Pairing.
    pub style: RopeStyle,
    /// Features of a head, a multiple of 16.
    pub head_dim: usize,
    /// Rotated features of a head, the first ones; even.
    pub rotary_dim: usize,
    /// Of [`rope_table`] for `rotary_dim / 2` frequencies.
    pub table: &'a [f32],
}

/// Rotates the heads of `x` into `out`: tile-major slices of whole heads.
///
/// Panics unless `out` is a whole number of heads and the table fits `tokens`.
pub fn rope(isa: Isa, rope: Rope<'_>, x: Operand<'_>, tokens: usize, out: &mut [f32]) {
    let Rope { style, head_dim, rotary_dim, table } = rope;
    let out = tiles_mut(out);
    let head = head_dim / LANES * tokens;
    assert!(head_dim.is_multiple_of(LANES) && head > 0, "head of {head_dim} features");
    assert!(out.len().is_multiple_of(head), "whole heads of {head} tiles");
    assert!(rotary_dim <= head_dim && rotary_dim.is_multiple_of(2), "{rotary_dim} rotated");
    assert_eq!(table.len(), rope_table_len(rotary_dim / 2, tokens), "elements of the table");
    // The operation is in place; the copy costs a pass only where the plan kept both.
    if let Some(x) = x.tiles(out.len()) {
        out.copy_from_slice(x);
    }
    dispatch(isa, Rotate { style, rotary_dim, head, tokens, table: tiles(table), out });
}

struct Rotate<'a> {
    style: RopeStyle,
    rotary_dim: usize,
    /// Tiles of a head.
    head: usize,
    tokens: usize,
    table: &'a [Tile],
    out: &'a mut [Tile],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { style, rotary_dim, head, tokens, table, out } = self;
        for out in out.chunks_exact_mut(head) {
            match style {
                RopeStyle::Halves if rotary_dim.is_multiple_of(2 * LANES) => {
                    rotate_halves(s, rotary_dim / LANES * tokens, tokens, table, out);
                }
                RopeStyle::Interleaved if rotary_dim.is_multiple_of(2 * LANES) => {
                    rotate_interleaved(s, rotary_dim / LANES, tokens, table, out);
                }
                RopeStyle::Halves => {
                    rotate_pairs(rotary_dim, |i| (i, i + rotary_dim / 2), tokens, table, out);
                }
                RopeStyle::Interleaved => {
                    rotate_pairs(rotary_dim, |i| (2 * i, 2 * i + 1), tokens, table, out);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate_halves<S: Simd>(s: S, len: usize, tokens: usize, table: &[Tile], head: &mut [Tile]) {
    let (low, high) = head[..len].split_at_mut(len / 2);
    let table = &table.as_chunks::<2>().0[..len / 2];
    debug_assert!(len.is_multiple_of(2 * tokens));
    for ((a_at, b_at), [cosine, sine]) in low.iter_mut().zip(high).zip(table) {
        let (a, b) = (s.load(a_at), s.load(b_at));
        let (cosine, sine) = (s.load(cosine), s.load(sine));
        s.store(minus_product(s, a, cosine, b, sine), a_at);
        s.store(s.fma(b, cosine, s.mul(a, sine)), b_at);
    }
}

/// `fma(a, cosine, −(b · sine))`.
#[inline(always)]
fn minus_product<S: Simd>(s: S, a: S::F, cosine: S::F, b: S::F, sine: S::F) -> S::F {
    s.fma(a, cosine, s.mul(s.mul(s.splat(-1.0), b), sine))
}

#[inline(always)]
fn rotate_interleaved<S: Simd>(
    s: S,
    rotary_tiles: usize,
    tokens: usize,
    table: &[Tile],
    head: &mut [Tile],
) {
    // Even lanes subtract, odd lanes add: the sign goes to the sine, which changes no rounding.
    let signs = s.load(&core::array::from_fn(|i| if i % 2 == 0 { -1.0 } else { 1.0 }));
    let rows = head[..rotary_tiles * tokens].chunks_exact_mut(2 * tokens);
    for (rows, table) in rows.zip(table.chunks_exact(2 * tokens)) {
        let (first, second) = rows.split_at_mut(tokens);
        let both = first.iter_mut().zip(second);
        for ((first, second), [cosine, sine]) in both.zip(table.as_chunks::<2>().0) {
            let cosines = s.duplicate(s.load(cosine));
            let sines = s.duplicate(s.load(sine));
            for (at, cosine, sine) in [(first, cosines.0, sines.0), (second, cosines.1, sines.1)] {
                let x = s.load(at);
                let turned = s.mul(s.swap_adjacent(x), s.mul(sine, signs));
                s.store(s.fma(x, cosine, turned), at);
            }
        }
    }
}

/// The same for any even number of rotated features, one pair at a time.
#[inline(always)]
fn rotate_pairs(
    rotary_dim: usize,
    pair: impl Fn(usize) -> (usize, usize),
    tokens: usize,
    table: &[Tile],
    head: &mut [Tile],
) {
    for i in 0..rotary_dim / 2 {
        let (low, high) = pair(i);
        for t in 0..tokens {
            let entry = (i / LANES * tokens + t) * 2;
            let (cosine, sine) = (table[entry][i % LANES], table[entry + 1][i % LANES]);
            let a = head[low / LANES * tokens + t][low % LANES];
            let b = head[high / LANES * tokens + t][high % LANES];
            head[low / LANES * tokens + t][low % LANES] = a.mul_add(cosine, -(b * sine));
            head[high / LANES * tokens + t][high % LANES] = b.mul_add(cosine, a * sine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{float as naive, layout::to_tile_major};
    use crate::testing::{Random, assert_close, assert_same_bits};

    const POSITIONS: [u32; 5] = [0, 1, 7, 2047, 131_071];

    #[test]
    fn rotations_match_the_oracle_and_every_instruction_set() {
        let mut random = Random(31);
        for (head_dim, rotary_dim) in [(16, 16), (64, 64), (64, 32), (80, 80), (96, 24), (256, 256)]
        {
            for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
                for tokens in [1, 2, 5] {
                    let positions = &POSITIONS[5 - tokens..];
                    let frequencies: Vec<f32> = (0..rotary_dim / 2)
                        .map(|i| 10_000f32.powf(-2.0 * i as f32 / rotary_dim as f32))
                        .collect();
                    let mut table = vec![f32::NAN; rope_table_len(rotary_dim / 2, tokens)];
                    rope_table(positions, &frequencies, 1.25, &mut table);
                    let heads = 3;
                    let rows = random.normals(tokens * heads * head_dim);
                    let x = to_tile_major(&rows, tokens);
                    let settings = Rope { style, head_dim, rotary_dim, table: &table };
                    let mut want = vec![f32::NAN; x.len()];
                    rope(Isa::Scalar, settings, Operand::At(&x), tokens, &mut want);
                    let exact = naive::rope(&rows, positions, &frequencies, 1.25, style, head_dim);
                    assert_close(&want, &to_tile_major(&exact, tokens), 1e-6, 1e-6, "exact");
                    for isa in Isa::available() {
                        let mut got = x.clone();
                        let head = head_dim * tokens;
                        rope(isa, settings, Operand::InPlace, tokens, &mut got[head..]);
                        rope(isa, settings, Operand::InPlace, tokens, &mut got[..head]);
                        assert_same_bits(&got, &want, isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn tables_of_several_positions_are_made_of_plain_ones() {
        let frequencies: Vec<f32> = (0..40).map(|i| 0.9f32.powi(i)).collect();
        let tokens = 5;
        let plain = |positions: &[u32], frequencies: &[f32]| {
            let mut table = vec![f32::NAN; rope_table_len(frequencies.len(), tokens)];
            rope_table(positions, frequencies, 1.25, &mut table);
            table
        };
        let at =
            |pair: usize, token: usize| (pair / LANES * tokens + token) * 2 * LANES + pair % LANES;
        // Three positions each: time, row, column.
        let positions = [3, 9, 4, 70, 7, 7, 7, 0, 5, 1, 1, 1, 2, 400, 3];
        let mut table = vec![f32::NAN; rope_table_len(40, tokens)];
        let (first, rest) = table.split_at_mut(tokens * 2 * LANES);
        for (tile, part) in [(0, first), (1, rest)] {
            rope_table_sectioned(&positions, &frequencies, ([7, 17, 16], 1.25), tile, part);
        }
        for (section, pairs) in [(0, 0..7), (1, 7..24), (2, 24..40)] {
            let own: Vec<u32> = positions.chunks(3).map(|three| three[section]).collect();
            let want = plain(&own, &frequencies);
            for (pair, token) in pairs.flat_map(|pair| (0..tokens).map(move |token| (pair, token)))
            {
                let at = at(pair, token);
                assert_eq!(table[at].to_bits(), want[at].to_bits(), "pair {pair} of {token}");
                assert_eq!(table[at + LANES].to_bits(), want[at + LANES].to_bits());
            }
        }
        let places = [(0, 3), (1, 2), (9, 9), (40, 0), (2, 1)];
        let mut table = vec![f32::NAN; rope_table_len(40, tokens)];
        rope_table_grid(places.into_iter(), tokens, &frequencies[..20], 0, &mut table);
        for (half, of) in [(0, 0), (1, 20)] {
            let own = places.map(|(y, x)| if half == 0 { y as u32 } else { x as u32 });
            let mut want = vec![f32::NAN; rope_table_len(20, tokens)];
            rope_table(&own, &frequencies[..20], 1.0, &mut want);
            for (pair, token) in
                (0..20).flat_map(|pair| (0..tokens).map(move |token| (pair, token)))
            {
                let (got, want_at) = (at(of + pair, token), at(pair, token));
                assert_eq!(table[got].to_bits(), want[want_at].to_bits(), "pair {pair} of {token}");
            }
        }
    }

    #[test]
    fn rotated_features_beyond_the_last_stay() {
        let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let mut table = vec![0.0; rope_table_len(16, 1)];
        rope_table(&[3], &[0.5; 16], 1.0, &mut table);
        let settings =
            Rope { style: RopeStyle::Halves, head_dim: 64, rotary_dim: 32, table: &table };
        let mut out = vec![0.0; 64];
        rope(Isa::detect_best(), settings, Operand::At(&x), 1, &mut out);
        assert_eq!(out[32..], x[32..]);
        assert_ne!(out[..32], x[..32]);
    }
}
