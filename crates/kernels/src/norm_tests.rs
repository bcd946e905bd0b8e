//! Norms against the f64 oracle, and against themselves in shards, chunks and fusions.

use super::*;
use crate::naive::float as naive;
use crate::naive::layout::{to_rows, to_tile_major};
use crate::quantise::quantise;
use crate::testing::{Random, assert_close, assert_same_bits};

const SHAPES: [(usize, usize); 6] = [(32, 1), (64, 2), (96, 7), (576, 8), (160, 9), (640, 19)];
const EPSILON: f32 = 1e-5;

struct Case {
    features: usize,
    tokens: usize,
    rows: Vec<f32>,
    x: Vec<f32>,
    weight: Vec<f32>,
    other: Vec<f32>,
}

fn cases() -> impl Iterator<Item = Case> {
    let mut random = Random(41);
    SHAPES.into_iter().map(move |(features, tokens)| {
        let rows = random.normals(features * tokens);
        Case {
            x: to_tile_major(&rows, tokens),
            rows,
            weight: random.normals(features),
            other: random.normals(features * tokens),
            features,
            tokens,
        }
    })
}

impl Case {
    fn input(&self, tiles: Range<usize>) -> NormInput<'_> {
        NormInput { x: &self.x, weight: &self.weight, epsilon: EPSILON, tokens: self.tokens, tiles }
    }

    fn tiles(&self) -> usize {
        self.features / LANES
    }

    fn norm(&self, isa: Isa) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.x.len()];
        rms_norm(isa, self.input(0..self.tiles()), &mut out);
        out
    }
}

#[test]
fn rms_norm_matches_the_oracle_in_any_shards() {
    for case in cases() {
        let want = case.norm(Isa::Scalar);
        let exact = naive::rms_norm(&case.rows, &case.weight, EPSILON);
        assert_close(&want, &to_tile_major(&exact, case.tokens), 1e-6, 1e-9, "rms norm");
        let exact = crate::naive::exact::rms_norm(&case.rows, &case.weight, EPSILON);
        assert_same_bits(&want, &to_tile_major(&exact, case.tokens), "exact oracle");
        for isa in Isa::available() {
            assert_same_bits(&case.norm(isa), &want, isa.name());
            let mut parts = vec![f32::NAN; want.len()];
            let cut = case.tiles() / 3;
            let (low, high) = parts.split_at_mut(cut * case.tokens * LANES);
            rms_norm(isa, case.input(cut..case.tiles()), high);
            rms_norm(isa, case.input(0..cut), low);
            assert_same_bits(&parts, &want, "shards");
        }
    }
}

#[test]
fn a_token_is_the_same_alone_and_in_a_batch() {
    for case in cases() {
        let want = to_rows(&case.norm(Isa::detect_best()), case.tokens);
        for token in 0..case.tokens {
            let row = &case.rows[token * case.features..][..case.features];
            let alone = Case { tokens: 1, x: row.to_vec(), rows: row.to_vec(), ..case.copy() };
            let got = alone.norm(Isa::detect_best());
            assert_same_bits(&got, &want[token * case.features..][..case.features], "alone");
        }
    }
}

impl Case {
    fn copy(&self) -> Self {
        Self {
            rows: self.rows.clone(),
            x: self.x.clone(),
            weight: self.weight.clone(),
            other: self.other.clone(),
            ..*self
        }
    }
}

#[test]
fn fused_forms_equal_their_steps() {
    for case in cases() {
        let norm = case.norm(Isa::Scalar);
        let sum: Vec<f32> = norm.iter().zip(&case.other).map(|(y, x)| x + y).collect();
        let mut blocks = vec![ActBlock::ZERO; norm.len() / 32];
        quantise(Isa::Scalar, &norm, case.tokens, &mut blocks);
        for isa in Isa::available() {
            let all = 0..case.tiles();
            let mut out = vec![f32::NAN; norm.len()];
            rms_norm_add(isa, case.input(all.clone()), Operand::At(&case.other), &mut out);
            assert_same_bits(&out, &sum, "residual elsewhere");
            out.copy_from_slice(&case.other);
            let cut = LANES * case.tokens;
            rms_norm_add(isa, case.input(0..1), Operand::InPlace, &mut out[..cut]);
            rms_norm_add(isa, case.input(1..all.end), Operand::InPlace, &mut out[cut..]);
            assert_same_bits(&out, &sum, "in place");
            let mut got = vec![ActBlock::ZERO; blocks.len()];
            let (low, high) = got.split_at_mut(case.tokens);
            rms_norm_quantise(isa, case.input(0..2), low);
            rms_norm_quantise(isa, case.input(2..all.end), high);
            assert_eq!(got, blocks, "{}", isa.name());
        }
    }
}

#[test]
fn head_norm_is_a_norm_of_each_head() {
    for case in cases() {
        for head_dim in [16, 32] {
            let weight = &case.weight[..head_dim];
            let exact = naive::rms_norm(&case.rows, weight, EPSILON);
            let exact = to_tile_major(&exact, case.tokens);
            let mut want = vec![f32::NAN; case.x.len()];
            head_norm(Isa::Scalar, Operand::At(&case.x), weight, EPSILON, case.tokens, &mut want);
            assert_close(&want, &exact, 1e-6, 1e-9, "head norm");
            for isa in Isa::available() {
                let mut got = case.x.clone();
                let (first, rest) = got.split_at_mut(head_dim * case.tokens);
                head_norm(isa, Operand::InPlace, weight, EPSILON, case.tokens, rest);
                head_norm(isa, Operand::InPlace, weight, EPSILON, case.tokens, first);
                assert_same_bits(&got, &want, isa.name());
            }
        }
    }
}

#[test]
fn layer_norm_matches_the_oracle_in_any_shards() {
    for case in cases() {
        let bias = &case.other[..case.features];
        let exact = naive::layer_norm(&case.rows, &case.weight, bias, EPSILON);
        let all = 0..case.tiles();
        let mut want = vec![f32::NAN; case.x.len()];
        layer_norm(Isa::Scalar, case.input(all.clone()), bias, &mut want);
        assert_close(&want, &to_tile_major(&exact, case.tokens), 1e-5, 1e-6, "layer norm");
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; want.len()];
            let (low, high) = got.split_at_mut(LANES * case.tokens);
            layer_norm(isa, case.input(0..1), bias, low);
            layer_norm(isa, case.input(1..all.end), bias, high);
            assert_same_bits(&got, &want, isa.name());
        }
    }
}

#[test]
fn a_nan_or_an_infinity_stays_in_its_token() {
    for case in cases().filter(|case| case.tokens > 1) {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut poisoned = case.copy();
            poisoned.x[3] = poison;
            let (clean, got) = (case.norm(Isa::detect_best()), poisoned.norm(Isa::detect_best()));
            let (clean, got) = (to_rows(&clean, case.tokens), to_rows(&got, case.tokens));
            assert_same_bits(&got[case.features..], &clean[case.features..], "other tokens");
            assert!(got[3].is_nan());
        }
    }
}
