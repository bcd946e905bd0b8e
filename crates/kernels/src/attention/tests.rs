//! Both forms against the f64 oracle, against each other, and under every split.

use super::*;
use crate::half::f32_to_f16;
use crate::kv::{KvType, kv_append_keys, kv_append_values};
use crate::naive::exact::attend as naive_exact;
use crate::naive::float::attend as naive_attend;
use crate::naive::kv::element as naive_element;
use crate::naive::layout::to_tile_major;
use crate::quantise::{ActBlock, quantise};
use crate::testing::{Random, assert_close, assert_same_bits};

/// A model's layer with sequences of random keys and values in its caches.
struct Case {
    shape: Attention,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// `[slot][position][kv_head · head_dim]`, what was appended.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    random: Random,
}

impl Case {
    /// Appends `lens[slot]` positions to each slot. Unwritten bytes are all ones: NaNs.
    fn new(shape: Attention, lens: &[usize], seed: u64) -> Self {
        let mut random = Random(seed);
        let kv = shape.kv;
        let width = kv.heads * kv.head_dim;
        let mut case = Self {
            shape,
            keys: vec![0xFF; kv.heads * kv.key_head_bytes()],
            values: vec![0xFF; kv.heads * kv.value_head_bytes()],
            k: lens.iter().map(|len| random.normals(len * width)).collect(),
            v: lens.iter().map(|len| random.normals(len * width)).collect(),
            random: Random(seed + 1),
        };
        for (slot, &len) in lens.iter().enumerate() {
            let positions: Vec<u32> = (0..len as u32).collect();
            for chunk in positions.chunks(97) {
                let slots = vec![slot as u32; chunk.len()];
                let places = KvPlaces { positions: chunk, slots: &slots };
                let range = chunk[0] as usize * width..(chunk[0] as usize + chunk.len()) * width;
                let k = to_tile_major(&case.k[slot][range.clone()], chunk.len());
                let v = to_tile_major(&case.v[slot][range], chunk.len());
                kv_append_keys(Isa::detect_best(), &kv, places, &k, &mut case.keys);
                kv_append_values(Isa::detect_best(), &kv, places, &v, &mut case.values);
            }
        }
        case
    }

    fn queries(&mut self, tokens: usize) -> Vec<f32> {
        let mut q = self.random.normals(tokens * self.shape.heads * self.shape.kv.head_dim);
        q.iter_mut().for_each(|q| *q *= 2.0);
        q
    }

    /// The f64 oracle on plain rows `[token][head · head_dim]`.
    fn oracle(&self, tokens: Tokens<'_>, q: &[f32]) -> Vec<f64> {
        let head_dim = self.shape.kv.head_dim;
        let narrow = |x: &[f32]| -> Vec<f32> {
            match self.shape.kv.kind {
                KvType::F32 | KvType::Q8_0 => x.to_vec(),
                KvType::F16 => x.iter().map(|&x| crate::half::f16_to_f32(f32_to_f16(x))).collect(),
            }
        };
        let mut out = Vec::new();
        for token in 0..tokens.len() {
            let slot = tokens.slot(token);
            for head in 0..self.shape.heads {
                let kv_head = head / self.shape.group();
                let rows = |x: &Vec<f32>| -> Vec<Vec<f32>> {
                    tokens
                        .visible(token)
                        .map(|p| {
                            let at = (p * self.shape.kv.heads + kv_head) * head_dim;
                            narrow(&x[at..][..head_dim])
                        })
                        .collect()
                };
                let at = (token * self.shape.heads + head) * head_dim;
                out.extend(naive_attend(
                    &q[at..][..head_dim],
                    &rows(&self.k[slot]),
                    &rows(&self.v[slot]),
                    self.shape.scale.into(),
                    self.shape.soft_cap.map(f64::from),
                ));
            }
        }
        out
    }

    /// The exact oracle on plain rows.
    fn exact(&self, tokens: Tokens<'_>, q: &[f32]) -> Vec<f32> {
        let (kv, head_dim) = (&self.shape.kv, self.shape.kv.head_dim);
        let mut out = Vec::new();
        for token in 0..tokens.len() {
            for head in 0..self.shape.heads {
                let kv_head = head / self.shape.group();
                let keys = &self.keys[kv_head * kv.key_head_bytes()..][..kv.key_head_bytes()];
                let values =
                    &self.values[kv_head * kv.value_head_bytes()..][..kv.value_head_bytes()];
                let slot = tokens.slot(token);
                out.extend(naive_exact(
                    &q[(token * self.shape.heads + head) * head_dim..][..head_dim],
                    tokens.visible(token),
                    |p, d| naive_element(kv, keys, values, slot, p, d),
                    self.shape.scale,
                    self.shape.soft_cap,
                ));
            }
        }
        out
    }

    /// Prefill of tile-major queries, in shards of heads that end at `cuts`.
    fn prefill(&self, isa: Isa, tokens: Tokens<'_>, q: &[f32], cuts: &[usize]) -> Vec<f32> {
        let head = self.shape.kv.head_dim * tokens.len();
        let mut out = vec![f32::NAN; q.len()];
        let mut start = 0;
        for &end in cuts.iter().chain([&self.shape.heads]) {
            let range = start * head..end * head;
            let mut workspace = vec![f32::NAN; attention_workspace_len(self.shape.kv.head_dim)];
            attention_prefill(
                isa,
                &self.shape,
                tokens,
                start..end,
                &q[range.clone()],
                &self.keys,
                &self.values,
                &mut workspace,
                &mut out[range],
            );
            start = end;
        }
        out
    }

    /// The decode form, in shards of items and of heads.
    fn decode(&self, isa: Isa, tokens: Tokens<'_>, q: &[f32], shards: usize) -> Vec<f32> {
        let shape = &self.shape;
        let record = attention_partial_len(shape);
        let items = attention_decode_items(shape, tokens);
        let mut partials = vec![f32::NAN; items * record];
        let mut end = 0;
        for shard in (0..shards).rev() {
            let range = shard * items / shards..(shard + 1) * items / shards;
            assert!(shard != shards - 1 || range.end == items);
            end += range.len();
            let mut workspace = vec![f32::NAN; attention_workspace_len(shape.kv.head_dim)];
            attention_decode_partial(
                isa,
                shape,
                tokens,
                range.clone(),
                q,
                &self.keys,
                &self.values,
                &mut workspace,
                &mut partials[range.start * record..range.end * record],
            );
        }
        assert_eq!(end, items, "shards cover the items");
        let mut out = vec![f32::NAN; q.len()];
        let cut = shape.heads / 2;
        let (low, high) = out.split_at_mut(cut * shape.kv.head_dim * tokens.len());
        attention_decode_merge(isa, shape, tokens, cut..shape.heads, &partials, high);
        attention_decode_merge(isa, shape, tokens, 0..cut, &partials, low);
        if shape.kv.head_dim.is_multiple_of(32) {
            let mut want = vec![ActBlock::ZERO; out.len() / 32];
            quantise(isa, &out, tokens.len(), &mut want);
            let mut got = vec![ActBlock::ZERO; want.len()];
            let (low, high) = got.split_at_mut(cut * shape.kv.head_dim / 32 * tokens.len());
            attention_decode_merge_quantise(isa, shape, tokens, cut..shape.heads, &partials, high);
            attention_decode_merge_quantise(isa, shape, tokens, 0..cut, &partials, low);
            assert_eq!(got, want, "quantised");
        }
        out
    }
}

fn shape(kind: KvType, heads: usize, kv_heads: usize, head_dim: usize, slots: usize) -> Attention {
    let kv = KvShape { kind, heads: kv_heads, slots, capacity: 1024, head_dim };
    Attention { kv, heads, scale: 1.0 / (head_dim as f32).sqrt(), soft_cap: None }
}

/// (heads, kv heads, head_dim): every count of rows in a block, every remainder of tiles.
const HEADS: [(usize, usize, usize); 7] =
    [(9, 3, 64), (7, 1, 64), (4, 1, 256), (2, 2, 80), (12, 2, 128), (5, 1, 32), (4, 2, 96)];
const KINDS: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

fn fits(kind: KvType, head_dim: usize) -> bool {
    kind != KvType::Q8_0 || head_dim.is_multiple_of(32)
}

#[test]
fn prefill_matches_the_oracle_and_every_instruction_set() {
    for kind in KINDS {
        for (i, (heads, kv_heads, head_dim)) in HEADS.into_iter().enumerate() {
            if !fits(kind, head_dim) {
                continue;
            }
            let mut shape = shape(kind, heads, kv_heads, head_dim, 1);
            shape.soft_cap = (i % 2 == 1).then_some(3.0);
            let mut case = Case::new(shape, &[531], i as u64);
            let positions: Vec<u32> = (500..531).collect();
            let places = KvPlaces { positions: &positions, slots: &[0; 31] };
            for visibility in [Visibility::Causal, Visibility::Window(270), Visibility::Window(1)] {
                let tokens = Tokens { places, visibility };
                let rows = case.queries(31);
                let q = to_tile_major(&rows, 31);
                let want = case.prefill(Isa::detect_best(), tokens, &q, &[]);
                let exact = to_tile_major(&case.oracle(tokens, &rows), 31);
                let bound = if kind == KvType::Q8_0 { 3e-2 } else { 3e-6 };
                assert_close(&want, &exact, bound, bound, "oracle");
                if head_dim <= 64 && matches!(visibility, Visibility::Window(270)) {
                    let exact = to_tile_major(&case.exact(tokens, &rows), 31);
                    assert_same_bits(&want, &exact, "exact oracle");
                }
                for isa in Isa::available() {
                    let cuts = [heads / 3, heads / 2];
                    assert_same_bits(&case.prefill(isa, tokens, &q, &cuts), &want, isa.name());
                }
            }
        }
    }
}

#[test]
fn decode_has_the_bits_of_prefill() {
    let lens = [1, 255, 256, 257, 700, 1023];
    for kind in KINDS {
        for (i, (heads, kv_heads, head_dim)) in HEADS.into_iter().enumerate() {
            if !fits(kind, head_dim) {
                continue;
            }
            let mut shape = shape(kind, heads, kv_heads, head_dim, lens.len());
            shape.soft_cap = (i % 2 == 0).then_some(20.0);
            let mut case = Case::new(shape, &lens, 50 + i as u64);
            let positions: Vec<u32> = lens.iter().map(|&len| len as u32 - 1).collect();
            let places = KvPlaces { positions: &positions, slots: &[0, 1, 2, 3, 4, 5] };
            for visibility in [Visibility::Causal, Visibility::Window(300)] {
                let tokens = Tokens { places, visibility };
                let q = to_tile_major(&case.queries(lens.len()), lens.len());
                let want = case.prefill(Isa::detect_best(), tokens, &q, &[]);
                for isa in Isa::available().skip(1) {
                    for shards in [1, 2, 5] {
                        let got = case.decode(isa, tokens, &q, shards);
                        assert_same_bits(&got, &want, isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_token_is_the_same_in_any_chunk() {
    let mut case = Case::new(shape(KvType::F16, 6, 2, 64, 1), &[600], 70);
    let positions: Vec<u32> = (240..600).collect();
    let count = positions.len();
    let slots = vec![0; count];
    let rows = case.queries(count);
    let width = rows.len() / count;
    for visibility in [Visibility::Causal, Visibility::Window(100)] {
        let run = |chunk: usize| -> Vec<f32> {
            let mut out = Vec::new();
            for start in (0..count).step_by(chunk) {
                let end = count.min(start + chunk);
                let places =
                    KvPlaces { positions: &positions[start..end], slots: &slots[start..end] };
                let q = to_tile_major(&rows[start * width..end * width], end - start);
                let tokens = Tokens { places, visibility };
                let chunk = case.prefill(Isa::detect_best(), tokens, &q, &[]);
                out.extend(crate::naive::layout::to_rows(&chunk, end - start));
            }
            out
        };
        let want = run(count);
        for chunk in [1, 2, 5, 7, 64, 100] {
            assert_same_bits(&run(chunk), &want, "chunk");
        }
    }
}

#[test]
fn a_ring_answers_like_a_long_cache() {
    let window = 60;
    let long = shape(KvType::F16, 3, 1, 32, 1);
    let mut ring = long;
    ring.kv.capacity = 128;
    let mut long = Case::new(long, &[900], 80);
    let mut short = Case { shape: ring, ..Case::new(long.shape, &[900], 80) };
    short.keys = vec![0xFF; ring.kv.key_head_bytes()];
    short.values = vec![0xFF; ring.kv.value_head_bytes()];
    let visibility = Visibility::Window(window);
    let isa = Isa::detect_best();
    for start in (0..900).step_by(9) {
        let positions: Vec<u32> = (start..start + 9).collect();
        let places = KvPlaces { positions: &positions, slots: &[0; 9] };
        let range = start as usize * 32..(start as usize + 9) * 32;
        let k = to_tile_major(&short.k[0][range.clone()], 9);
        let v = to_tile_major(&short.v[0][range], 9);
        kv_append_keys(isa, &ring.kv, places, &k, &mut short.keys);
        kv_append_values(isa, &ring.kv, places, &v, &mut short.values);
        let tokens = Tokens { places, visibility };
        let q = to_tile_major(&long.queries(9), 9);
        let want = long.prefill(isa, tokens, &q, &[]);
        assert_same_bits(&short.prefill(isa, tokens, &q, &[]), &want, "ring");
        assert_same_bits(&short.decode(isa, tokens, &q, 3), &want, "ring, decode form");
    }
}

#[test]
fn ranges_may_look_ahead_or_see_nothing() {
    let mut case = Case::new(shape(KvType::F32, 4, 2, 64, 2), &[400, 300], 90);
    let positions = [10, 11, 12, 0, 5];
    let places = KvPlaces { positions: &positions, slots: &[0, 0, 0, 1, 1] };
    let ranges = [[0, 400], [7, 7], [255, 258], [100, 300], [299, 300]];
    let tokens = Tokens { places, visibility: Visibility::Ranges(&ranges) };
    let rows = case.queries(5);
    let q = to_tile_major(&rows, 5);
    let want = case.prefill(Isa::Scalar, tokens, &q, &[]);
    let exact: Vec<f64> =
        case.oracle(tokens, &rows).iter().map(|&x| if x.is_nan() { 0.0 } else { x }).collect();
    assert_close(&want, &to_tile_major(&exact, 5), 3e-6, 3e-6, "oracle");
    for isa in Isa::available() {
        assert_same_bits(&case.prefill(isa, tokens, &q, &[1]), &want, isa.name());
        assert_same_bits(&case.decode(isa, tokens, &q, 4), &want, isa.name());
    }
}

#[test]
fn items_never_exceed_their_bound() {
    let shape = shape(KvType::F16, 2, 2, 16, 1);
    for window in [1, 2, 63, 255, 256, 257, 258, 511, 512, 513, 514, 1000] {
        let bound = attention_decode_items_max(2, 1, 1024, Some(window));
        let mut worst = 0;
        for position in 0..1024 {
            let places = KvPlaces { positions: &[position], slots: &[0] };
            let tokens = Tokens { places, visibility: Visibility::Window(window as u32) };
            worst = worst.max(attention_decode_items(&shape, tokens));
        }
        assert!(worst <= bound, "{window}: {worst} > {bound}");
        assert_eq!(worst, bound, "the bound of window {window} is reached");
    }
}
