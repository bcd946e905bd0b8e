//! Every kind, on every instruction set of this processor, against the oracle: packing, the
//! canonical matmul bit for bit, the f32 path, the embedding look-up; any rows, tokens and split.

use dctms_kernels::gather::{element, gather};
use dctms_kernels::half::{f32_to_bf16, f32_to_f16};
use dctms_kernels::isa::Isa;
use dctms_kernels::limits::{BLOCK_COLS, TILE_ROWS};
use dctms_kernels::matmul::{Epilogue, matmul, matmul_float};
use dctms_kernels::naive;
use dctms_kernels::pack::pack_rows;
use dctms_kernels::packed::{self, PackedKind, PackedTiles};
use dctms_kernels::quantise::{ActBlock, quantise};
use dctms_kernels::random::SplitMix64;
use dctms_kernels::raw;

/// A matrix as the file holds it and as we pack it.
struct Matrix {
    kind: PackedKind,
    rows: usize,
    cols: usize,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// What the random blocks look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flavour {
    /// Any integers, scales of ordinary size.
    Ordinary,
    /// All bits of the integers and sub-scales one.
    Largest,
    /// All integers of the most negative byte.
    Lowest,
    /// f16 denormal scales, some blocks zero.
    Tiny,
}

impl Matrix {
    fn random(random: &mut SplitMix64, kind: PackedKind, rows: usize, cols: usize) -> Self {
        Self::flavoured(random, kind, rows, cols, Flavour::Ordinary)
    }

    fn flavoured(
        random: &mut SplitMix64,
        kind: PackedKind,
        rows: usize,
        cols: usize,
        flavour: Flavour,
    ) -> Self {
        let block_bytes = raw::block_bytes(kind);
        let row_bytes = raw::row_bytes(kind, cols).unwrap();
        let mut raw = vec![0u8; rows * row_bytes];
        for block in raw.chunks_exact_mut(block_bytes) {
            fill_block(random, kind, flavour, block);
        }
        let tile_bytes = kind.tile_bytes(cols).unwrap();
        let mut packed = vec![0xAAu8; packed::bytes(kind, rows, cols).unwrap() as usize];
        for (raw, tile) in
            raw.chunks(TILE_ROWS * row_bytes).zip(packed.chunks_exact_mut(tile_bytes))
        {
            pack_rows(kind, cols, raw, tile);
        }
        Self { kind, rows, cols, raw, packed }
    }

    fn tiles(&self) -> PackedTiles<'_> {
        PackedTiles::new(self.kind, self.cols, &self.packed)
    }

    fn raw_row(&self, row: usize) -> &[u8] {
        let row_bytes = raw::row_bytes(self.kind, self.cols).unwrap();
        &self.raw[row * row_bytes..][..row_bytes]
    }
}

/// Random bytes, with the f16 fields replaced by finite scales.
fn fill_block(random: &mut SplitMix64, kind: PackedKind, flavour: Flavour, block: &mut [u8]) {
    match kind {
        PackedKind::F32 => {
            let value = random.symmetric() * if flavour == Flavour::Tiny { 1e-40 } else { 1.0 };
            block.copy_from_slice(&value.to_le_bytes());
            return;
        }
        PackedKind::F16 => {
            let value = random.symmetric() * if flavour == Flavour::Tiny { 1e-6 } else { 1.0 };
            block.copy_from_slice(&f32_to_f16(value).to_le_bytes());
            return;
        }
        PackedKind::BF16 => {
            block.copy_from_slice(&f32_to_bf16(random.symmetric()).to_le_bytes());
            return;
        }
        PackedKind::Q8_0
        | PackedKind::Q4_0
        | PackedKind::Q4_1
        | PackedKind::Q5_0
        | PackedKind::Q5_1
        | PackedKind::Q2K
        | PackedKind::Q3K
        | PackedKind::Q4K
        | PackedKind::Q5K
        | PackedKind::Q6K => {}
    }
    match flavour {
        Flavour::Largest => block.fill(0xFF),
        Flavour::Lowest => block.fill(0x80),
        Flavour::Ordinary | Flavour::Tiny => {
            block.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        }
    }
    if flavour == Flavour::Tiny && random.below(3) == 0 {
        block.fill(0);
        return;
    }
    for &at in f16_fields(kind) {
        let bits = match flavour {
            Flavour::Tiny => random.below(1024) as u16 | (random.below(2) as u16) << 15,
            Flavour::Ordinary | Flavour::Largest | Flavour::Lowest => {
                f32_to_f16(random.symmetric() * 0.02)
            }
        };
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// Where a block of the file holds its f16 scales.
fn f16_fields(kind: PackedKind) -> &'static [usize] {
    match kind {
        PackedKind::Q8_0 | PackedKind::Q4_0 | PackedKind::Q5_0 => &[0],
        PackedKind::Q4_1 | PackedKind::Q5_1 | PackedKind::Q4K | PackedKind::Q5K => &[0, 2],
        PackedKind::Q2K => &[80, 82],
        PackedKind::Q3K => &[108],
        PackedKind::Q6K => &[208],
        PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => &[],
    }
}

/// Tile-major activations of `cols` features (padded to 16), and the same as rows of features.
fn activations(random: &mut SplitMix64, cols: usize, tokens: usize) -> (Vec<f32>, Vec<Vec<f32>>) {
    let tiles = cols.div_ceil(TILE_ROWS);
    let mut tiled = vec![0.0f32; tiles * TILE_ROWS * tokens];
    let rows: Vec<Vec<f32>> =
        (0..tokens).map(|_| (0..cols).map(|_| random.symmetric() * 2.0).collect()).collect();
    for (token, row) in rows.iter().enumerate() {
        for (k, value) in row.iter().enumerate() {
            tiled[(k / 16 * tokens + token) * 16 + k % 16] = *value;
        }
    }
    (tiled, rows)
}

fn quantised(tiled: &[f32], tokens: usize) -> Vec<ActBlock> {
    let mut blocks = vec![ActBlock::ZERO; tiled.len() / BLOCK_COLS];
    quantise(Isa::Scalar, tiled, tokens, &mut blocks);
    blocks
}

fn at(y: &[f32], tokens: usize, row: usize, token: usize) -> f32 {
    y[(row / 16 * tokens + token) * 16 + row % 16]
}

const QUANTISED: [PackedKind; 10] = [
    PackedKind::Q8_0,
    PackedKind::Q4_0,
    PackedKind::Q4_1,
    PackedKind::Q5_0,
    PackedKind::Q5_1,
    PackedKind::Q2K,
    PackedKind::Q3K,
    PackedKind::Q4K,
    PackedKind::Q5K,
    PackedKind::Q6K,
];

/// All of `matrix` against all tokens, on every ISA, bit for bit.
fn check_against_oracle(matrix: &Matrix, blocks: &[ActBlock], tokens: usize, label: &str) {
    let want = naive::matmul::matmul(matrix.kind, &matrix.raw, matrix.cols, blocks, tokens);
    for isa in Isa::available() {
        let mut y = vec![f32::NAN; matrix.tiles().tile_count() * TILE_ROWS * tokens];
        matmul(isa, matrix.tiles(), blocks, tokens, Epilogue::Store, &mut y);
        for row in 0..matrix.tiles().tile_count() * TILE_ROWS {
            for token in 0..tokens {
                let got = at(&y, tokens, row, token);
                let want = if row < matrix.rows { want[row * tokens + token] } else { 0.0 };
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{label} {:?} {} rows {} cols {} tokens {tokens} row {row} token {token}: \
                     {got} for {want}",
                    matrix.kind,
                    isa.name(),
                    matrix.rows,
                    matrix.cols,
                );
            }
        }
    }
}

#[test]
fn matmul_has_the_oracle_s_bits() {
    let mut random = SplitMix64::new(2);
    for kind in QUANTISED {
        for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33] {
            for rows in [1, 16, 50, 87] {
                let cols = kind.cols_multiple() * (1 + random.below(3));
                let matrix = Matrix::random(&mut random, kind, rows, cols);
                let (tiled, _) = activations(&mut random, cols, tokens);
                check_against_oracle(&matrix, &quantised(&tiled, tokens), tokens, "ordinary");
            }
        }
    }
}

#[test]
fn hostile_weights_and_activations() {
    let mut random = SplitMix64::new(3);
    for kind in QUANTISED {
        for flavour in [Flavour::Largest, Flavour::Lowest, Flavour::Tiny] {
            for (tokens, sign) in [(1, 127), (5, -127), (17, 127)] {
                let cols = kind.cols_multiple() * 2;
                let matrix = Matrix::flavoured(&mut random, kind, 20, cols, flavour);
                let largest =
                    ActBlock { d: 1.5, s: [16 * sign as i16; 2], q: [sign as i8; BLOCK_COLS] };
                let blocks = vec![largest; cols / BLOCK_COLS * tokens];
                check_against_oracle(&matrix, &blocks, tokens, &format!("{flavour:?}"));
                let (mut tiled, _) = activations(&mut random, cols, tokens);
                tiled.iter_mut().for_each(|x| *x *= 1e-30);
                check_against_oracle(&matrix, &quantised(&tiled, tokens), tokens, "small");
                let blocks = vec![ActBlock::ZERO; cols / BLOCK_COLS * tokens];
                check_against_oracle(&matrix, &blocks, tokens, "zero");
            }
        }
    }
}

#[test]
fn long_columns_pass_several_token_chunks() {
    let mut random = SplitMix64::new(4);
    for kind in [PackedKind::Q4_0, PackedKind::Q6K, PackedKind::Q8_0] {
        let (cols, tokens) = (65536, 37);
        let matrix = Matrix::random(&mut random, kind, 2, cols);
        let (tiled, _) = activations(&mut random, cols, tokens);
        check_against_oracle(&matrix, &quantised(&tiled, tokens), tokens, "long");
    }
}

#[test]
fn add_to_is_one_addition_and_shards_write_their_own_slice() {
    let mut random = SplitMix64::new(5);
    for kind in PackedKind::ALL {
        let (rows, cols, tokens) = (96, 512, 7);
        let matrix = Matrix::random(&mut random, kind, rows, cols);
        let (tiled, _) = activations(&mut random, cols, tokens);
        let blocks = quantised(&tiled, tokens);
        let is_float = kind.quant_layout().is_none();
        for isa in Isa::available() {
            let run = |tiles: PackedTiles<'_>, epilogue: Epilogue, y: &mut [f32]| match is_float {
                true => matmul_float(isa, tiles, &tiled, tokens, epilogue, y),
                false => matmul(isa, tiles, &blocks, tokens, epilogue, y),
            };
            let mut whole = vec![0.0f32; rows * tokens];
            run(matrix.tiles(), Epilogue::Store, &mut whole);
            let residual: Vec<f32> = (0..rows * tokens).map(|_| random.symmetric()).collect();
            for cut in [1, 2, 5] {
                let tile_bytes = matrix.tiles().tile_bytes();
                let (left, right) = matrix.packed.split_at(cut * tile_bytes);
                let mut y = residual.clone();
                let (y_left, y_right) = y.split_at_mut(cut * TILE_ROWS * tokens);
                run(PackedTiles::new(kind, cols, left), Epilogue::AddTo, y_left);
                run(PackedTiles::new(kind, cols, right), Epilogue::AddTo, y_right);
                for ((y, x), acc) in y.iter().zip(&residual).zip(&whole) {
                    assert_eq!(y.to_bits(), (x + acc).to_bits(), "{kind:?} {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn float_activations_have_the_oracle_s_bits() {
    let mut random = SplitMix64::new(6);
    for kind in PackedKind::ALL {
        // The last one is more than the tokens that share a dequantised block.
        for (tokens, all_rows) in
            [(1, &[16, 83][..]), (2, &[83]), (5, &[83]), (9, &[16, 83]), (19, &[83]), (211, &[16])]
        {
            for &rows in all_rows {
                let cols = match kind.cols_multiple() {
                    1 => 37,
                    32 => 96,
                    multiple => multiple,
                };
                let matrix = Matrix::random(&mut random, kind, rows, cols);
                let (tiled, x) = activations(&mut random, cols, tokens);
                for isa in Isa::available() {
                    let mut y = vec![f32::NAN; matrix.tiles().tile_count() * 16 * tokens];
                    matmul_float(isa, matrix.tiles(), &tiled, tokens, Epilogue::Store, &mut y);
                    for row in 0..rows {
                        for (token, x) in x.iter().enumerate() {
                            let got = at(&y, tokens, row, token);
                            let want = naive::matmul::element_float(kind, matrix.raw_row(row), x);
                            assert_eq!(got.to_bits(), want.to_bits(), "{kind:?} {}", isa.name());
                        }
                    }
                }
            }
        }
    }
}

/// Digests of 64 seeded blocks of each type as the `gguf` Python package (numpy) dequantises them:
/// an implementation that shares nothing with ours.
#[test]
fn the_oracle_agrees_with_another_implementation() {
    let expected = [
        (PackedKind::Q8_0, 0x22b6_6c45),
        (PackedKind::Q4_0, 0x5fb9_b9c5),
        (PackedKind::Q4_1, 0x9075_bdc5),
        (PackedKind::Q5_0, 0x3925_b5c5),
        (PackedKind::Q5_1, 0x0edf_46c5),
        (PackedKind::Q2K, 0x5b16_8745),
        (PackedKind::Q3K, 0x7d43_f445),
        (PackedKind::Q4K, 0x033f_2a4d),
        (PackedKind::Q5K, 0xeec2_e4e9),
        (PackedKind::Q6K, 0x2095_be95),
    ];
    for (kind, expected) in expected {
        let mut random = SplitMix64::new(42);
        let block_bytes = raw::block_bytes(kind);
        let mut raw: Vec<u8> = (0..64 * block_bytes).map(|_| random.bits() as u8).collect();
        for block in raw.chunks_exact_mut(block_bytes) {
            for &at in f16_fields(kind) {
                let bits = u16::from_le_bytes([block[at], block[at + 1]]) & 0x83FF | 0x2000;
                block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
        }
        let digest = naive::dequantise::row(kind, &raw)
            .iter()
            .fold(0x811C_9DC5u32, |hash, w| (hash ^ w.to_bits()).wrapping_mul(0x0100_0193));
        assert_eq!(digest, expected, "{kind:?}");
    }
}

#[test]
fn quantised_activations_lose_little() {
    let mut random = SplitMix64::new(7);
    for kind in QUANTISED {
        let (cols, tokens) = (1024, 3);
        let matrix = Matrix::random(&mut random, kind, 48, cols);
        let (tiled, x) = activations(&mut random, cols, tokens);
        let mut y = vec![0.0; 48 * tokens];
        let isa = Isa::detect_best();
        matmul(isa, matrix.tiles(), &quantised(&tiled, tokens), tokens, Epilogue::Store, &mut y);
        for row in 0..48 {
            let weights = naive::dequantise::row(kind, matrix.raw_row(row));
            for (token, x) in x.iter().enumerate() {
                let exact: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(w * x)).sum();
                // Rounding errors of the activations add up like a random walk.
                let noise: f64 = weights.iter().map(|w| f64::from(w * w)).sum::<f64>().sqrt();
                let error = (f64::from(at(&y, tokens, row, token)) - exact).abs();
                assert!(error < 6.0 * noise * 2.0 / 254.0, "{kind:?}: {error} for {noise}");
            }
        }
    }
}

#[test]
fn gather_gives_ggml_s_dequantised_rows() {
    let mut random = SplitMix64::new(8);
    for kind in PackedKind::ALL {
        let cols = match kind.cols_multiple() {
            1 => 45,
            multiple => 2 * multiple,
        };
        let matrix = Matrix::random(&mut random, kind, 37, cols);
        let ids = [0u32, 36, 17, 17, 5];
        for (factor, features) in [(1.0f32, 0..cols), (25.3, 16..cols), (-0.5, 16..32)] {
            let tiles = features.len().div_ceil(TILE_ROWS);
            let mut out = vec![f32::NAN; tiles * TILE_ROWS * ids.len()];
            gather(matrix.tiles(), &ids, factor, features.clone(), &mut out);
            for (token, id) in ids.iter().enumerate() {
                let row = naive::dequantise::row(kind, matrix.raw_row(*id as usize));
                for (i, k) in (features.start..features.start + tiles * TILE_ROWS).enumerate() {
                    let got = at(&out, ids.len(), i, token);
                    let want = row.get(k).map_or(0.0, |value| value * factor);
                    assert_eq!(got.to_bits(), want.to_bits(), "{kind:?} id {id} k {k}");
                }
                let value = element(matrix.tiles(), *id as usize, 7);
                assert_eq!(value.to_bits(), row[7].to_bits());
            }
        }
    }
}

#[test]
#[should_panic(expected = "id 48 has a row")]
fn gather_refuses_an_id_past_the_table() {
    let mut random = SplitMix64::new(9);
    let matrix = Matrix::random(&mut random, PackedKind::F16, 40, 16);
    gather(matrix.tiles(), &[48], 1.0, 0..16, &mut [0.0; 16]);
}

#[test]
fn wrong_lengths_are_refused() {
    let mut random = SplitMix64::new(10);
    let matrix = Matrix::random(&mut random, PackedKind::Q4_0, 32, 64);
    let blocks = vec![ActBlock::ZERO; 4];
    let run = |blocks: &[ActBlock], tokens: usize, outputs: usize| {
        let mut y = vec![0.0; outputs];
        let tiles = matrix.tiles();
        let call = || matmul(Isa::Scalar, tiles, blocks, tokens, Epilogue::Store, &mut y);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_ok()
    };
    assert!(run(&blocks, 2, 64));
    assert!(!run(&blocks[1..], 2, 64));
    assert!(!run(&blocks, 1, 64));
    assert!(!run(&blocks, 2, 63));
    assert!(!run(&blocks[..0], 0, 0));
}
