//! How fast an image encoder's kernels are on one core: the parts of SigLIP-B at 512².
//!
//! `cargo bench -p dctms-kernels --bench vision [-- --isa NAME]`. Each piece takes a millisecond or
//! two, and the best of many runs counts, so that a busy machine still gives its figure. Products
//! and attention are given as a share of the core's own peak of fused multiply-adds. The digest of
//! every answer is compared with the expected one, the same for all instruction sets; the exit
//! code is 1 if any differs.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dctms_kernels::attention::{
    FullWorkspace, attention_full, attention_full_head_bytes, attention_full_workspace_len,
};
use dctms_kernels::elementwise::{Gate, activate, add, bias_add, feature_scale};
use dctms_kernels::isa::Isa;
use dctms_kernels::matmul::{Epilogue, matmul_float};
use dctms_kernels::norm::{NormInput, layer_norm};
use dctms_kernels::packed::{PackedKind, PackedTiles};
use dctms_kernels::peak::float_operations;
use dctms_kernels::random::SplitMix64;
use dctms_kernels::simd::Operand;
use dctms_kernels::vision::{Grid, PatchOrder, Patches, add_positions, merge_patches, patchify};

const TOKENS: usize = 1024;
const WIDTH: usize = 768;
const RUNS: usize = 60;

/// Whether an answer was not the expected one.
static WRONG: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let mut isa = Isa::detect_best();
    while let Some(argument) = arguments.next() {
        assert_eq!(argument, "--isa", "the one option");
        let name = arguments.next().expect("--isa NAME");
        isa = Isa::from_name(&name).expect("an instruction set of this processor");
    }
    let peak = fma_peak(isa);
    println!("{}: fused multiply-add peak {:.1} GFLOP/s, one core", isa.name(), peak / 1e9);
    products(isa, peak);
    attention(isa, peak);
    passes(isa);
    match WRONG.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn best(mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

fn floats(random: &mut SplitMix64, len: usize) -> Vec<f32> {
    (0..len).map(|_| (random.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn products(isa: Isa, peak: f64) {
    let mut random = SplitMix64::new(1);
    for (kind, rows, cols, expected) in [
        (PackedKind::F32, 64, WIDTH, 0xb713_26ff),
        (PackedKind::F16, 64, WIDTH, 0xf910_daaf),
        (PackedKind::BF16, 64, WIDTH, 0x2052_7713),
        (PackedKind::F16, 32, 4 * WIDTH, 0x22ea_9d3a),
        (PackedKind::F16, 32, 4 * WIDTH + 12, 0xd908_4c64),
        (PackedKind::Q8_0, 64, WIDTH, 0xa6ff_0ffc),
    ] {
        let bytes = rows / 16 * kind.tile_bytes(cols).expect("whole blocks");
        // Small bytes are small numbers of every kind.
        let packed: Vec<u8> = (0..bytes).map(|_| (random.bits() % 48) as u8).collect();
        let weights = PackedTiles::new(kind, cols, &packed);
        let x = floats(&mut random, cols.next_multiple_of(16) * TOKENS);
        let mut y = vec![0.0; rows * TOKENS];
        let seconds = best(|| matmul_float(isa, weights, &x, TOKENS, Epilogue::Store, &mut y));
        let rate = (2 * rows * cols * TOKENS) as f64 / seconds;
        println!(
            "{kind:?} {rows}x{cols}, {TOKENS} tokens: {:.1} GFLOP/s, {:.0} % of the peak{}",
            rate / 1e9,
            100.0 * rate / peak,
            verdict(&y, expected)
        );
    }
}

fn attention(isa: Isa, peak: f64) {
    let mut random = SplitMix64::new(2);
    let head_dim = 64;
    let [q, k, v] = [(); 3].map(|()| floats(&mut random, head_dim * TOKENS));
    let bytes = attention_full_head_bytes(head_dim, TOKENS);
    let mut rows = vec![0.0; attention_full_workspace_len(head_dim)];
    let [mut keys, mut values] = [(); 2].map(|()| vec![0; bytes]);
    let mut out = vec![0.0; head_dim * TOKENS];
    let seconds = best(|| {
        let workspace = FullWorkspace { rows: &mut rows, keys: &mut keys, values: &mut values };
        let q = Operand::At(&q);
        attention_full(isa, (head_dim, 0.125), TOKENS, q, &k, &v, workspace, &mut out);
    });
    let rate = (4 * TOKENS * TOKENS * head_dim) as f64 / seconds;
    println!(
        "attention, a head of {head_dim}, {TOKENS} tokens: {:.1} GFLOP/s, {:.0} % of the peak{}",
        rate / 1e9,
        100.0 * rate / peak,
        verdict(&out, 0xf482_42fc)
    );
}

/// The passes over half of the features, as one of two lanes does them.
fn passes(isa: Isa) {
    let mut random = SplitMix64::new(3);
    let x = floats(&mut random, WIDTH * TOKENS);
    let vector = floats(&mut random, WIDTH);
    let half = &x[..WIDTH / 2 * TOKENS];
    pass("layer norm", half, 0xd666_e0b3, |out| {
        let input =
            NormInput { x: &x, weight: &vector, epsilon: 1e-6, tokens: TOKENS, tiles: 0..24 };
        layer_norm(isa, input, &vector, out);
    });
    pass("bias", half, 0x4544_f084, |out| {
        bias_add(isa, Operand::InPlace, &vector[..WIDTH / 2], TOKENS, out);
    });
    pass("a factor each feature", half, 0x7c46_c8a9, |out| {
        feature_scale(isa, Operand::InPlace, &vector[..WIDTH / 2], TOKENS, out);
    });
    pass("sum", half, 0x15a9_6f35, |out| add(isa, Operand::InPlace, half, out));
    for (gate, expected) in [
        (Gate::GeluTanh, 0x2d09_d6f1),
        (Gate::GeluErf, 0xbf9e_9321),
        (Gate::GeluQuick, 0x25d4_f57b),
    ] {
        pass(&format!("{gate:?}"), half, expected, |out| {
            activate(isa, gate, Operand::At(half), out);
        });
    }
    let grid = Grid { rows: 32, columns: 32 };
    let order = PatchOrder::Rows;
    let patches = Patches { grid, order, side: 16, mean: [0.5; 3], deviation: [0.5; 3] };
    let pixels: Vec<u8> = (0..patches.pixel_bytes()).map(|i| i as u8).collect();
    pass("patches", half, 0x48f7_1dc5, |out| patchify(&pixels, &patches, 0..24, out));
    let table: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let table = PackedTiles::new(PackedKind::F32, WIDTH, &table);
    pass("positions", half, 0xc0e7_d4f1, |out| {
        add_positions(Operand::InPlace, table, 32, grid, 0..24, out);
    });
    pass("squares of patches", half, 0x0f7b_bcaf, |out| {
        merge_patches(&x, (grid, PatchOrder::Rows), 4, 0..384, out);
    });
}

/// One pass: its answer from `start`, then its time.
fn pass(what: &str, start: &[f32], expected: u32, mut run: impl FnMut(&mut [f32])) {
    let mut out = start.to_vec();
    run(&mut out);
    let verdict = verdict(&out, expected);
    // What works in place starts from its own last answer: the time is the same.
    let seconds = best(|| run(black_box(&mut out)));
    println!("{what}: {:.2} ms{verdict}", seconds * 1e3);
}

/// Whether the answer is the expected one, by FNV-1a over its bits.
fn verdict(y: &[f32], expected: u32) -> String {
    let digest =
        y.iter().fold(0x811C_9DC5u32, |hash, y| (hash ^ y.to_bits()).wrapping_mul(0x0100_0193));
    WRONG.fetch_or(digest != expected, Ordering::Relaxed);
    match digest == expected {
        true => " ok".to_string(),
        false => format!(" DIGEST {digest:#010x} IS NOT {expected:#010x}"),
    }
}

/// Operations per second of one core that does nothing but fused multiply-adds.
fn fma_peak(isa: Isa) -> f64 {
    let mut operations = 0;
    let seconds = best(|| operations = float_operations(isa, 200_000));
    operations as f64 / seconds
}
