//! How fast the float kernels are on one core, and whether their answers are still the same.
//!
//! `cargo bench -p dctms-kernels --bench float [-- GROUP …] [--isa NAME]`, with groups
//! `attention`, `elementwise`, `passes`, `sample`.
//!
//! Attention over a prompt is arithmetic, so its figure is a share of the core's own peak of
//! fused multiply-adds, measured first; attention of one token at depth 2000 reads the caches of
//! all layers, so its figure is bytes/s. Every answer's digest is compared with the expected one,
//! which is the same for all instruction sets; the exit code is 1 if any differs. The best of
//! several runs counts.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dctms_kernels::attention::*;
use dctms_kernels::elementwise::{Gate, add, bias_add, gated_mul, gated_mul_quantise, scale};
use dctms_kernels::gather::gather;
use dctms_kernels::isa::Isa;
use dctms_kernels::kv::*;
use dctms_kernels::norm::{NormInput, head_norm, rms_norm, rms_norm_add, rms_norm_quantise};
use dctms_kernels::packed::{PackedKind, PackedTiles};
use dctms_kernels::peak::float_operations;
use dctms_kernels::quantise::{ActBlock, quantise};
use dctms_kernels::random::SplitMix64;
use dctms_kernels::rope::{Rope, RopeStyle, rope, rope_table, rope_table_len};
use dctms_kernels::sample::{
    Candidate, LogitsRow, RandomState, SampleParameters, argmax, log_softmax_of, sample,
};
use dctms_kernels::simd::Operand;

/// Whether an answer was not the expected one.
static WRONG: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let mut isa = Isa::detect_best();
    let mut wanted = Vec::new();
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--isa" => {
                let name = arguments.next().expect("--isa NAME");
                isa = Isa::from_name(&name).expect("an instruction set of this processor");
            }
            group => wanted.push(group.to_owned()),
        }
    }
    let peak = fma_peak(isa);
    println!("{}: fused multiply-add peak {:.1} GFLOP/s, one core", isa.name(), peak / 1e9);
    let on = |group: &str| wanted.is_empty() || wanted.iter().any(|name| name == group);
    if on("attention") {
        for model in MODELS {
            bench_attention(isa, peak, &model);
        }
    }
    if on("elementwise") {
        bench_elementwise(isa);
    }
    if on("passes") {
        bench_passes(isa);
    }
    if on("sample") {
        bench_sample(isa);
    }
    match WRONG.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// The attention of a model.
struct Model {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    layers: usize,
    kind: KvType,
    /// Digests of a prompt's and of a step's answer.
    expected: [u32; 2],
}

const fn model(
    name: &'static str,
    [heads, kv_heads, head_dim, layers]: [usize; 4],
    kind: KvType,
    expected: [u32; 2],
) -> Model {
    Model { name, heads, kv_heads, head_dim, layers, kind, expected }
}

const MODELS: [Model; 6] = [
    model("SmolLM2-135M f16", [9, 3, 64, 30], KvType::F16, [0x81C4_2362, 0x7230_EB90]),
    model("SmolLM2-135M q8_0", [9, 3, 64, 30], KvType::Q8_0, [0x06D4_8F0C, 0x7F18_4F9F]),
    model("SmolLM2-135M f32", [9, 3, 64, 30], KvType::F32, [0x3344_A01D, 0xB453_BE91]),
    model("Qwen2.5-0.5B f16", [14, 2, 64, 24], KvType::F16, [0x9E6F_D08D, 0x2C4D_F567]),
    model("Qwen2.5-1.5B f16", [12, 2, 128, 28], KvType::F16, [0x9193_76C2, 0xC3F7_96D9]),
    model("Gemma-3-270m f16", [4, 1, 256, 18], KvType::F16, [0xA903_C3C1, 0xA533_02EC]),
];

/// Positions of each cache.
const CAPACITY: usize = 2048;
/// Position of the step's token.
const DEPTH: usize = 2000;
/// Prompts: the first position and the tokens of a chunk. One head of one chunk is timed, so that
/// a run is shorter than a time slice.
const CHUNKS: [(usize, usize); 2] = [(0, 512), (2000, 48)];

fn bench_attention(isa: Isa, peak: f64, model: &Model) {
    let Model { name, heads, kv_heads, head_dim, layers, kind, expected } = *model;
    let kv = KvShape { kind, heads: kv_heads, slots: 1, capacity: CAPACITY, head_dim };
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape = Attention { kv, heads, scale, soft_cap: None };
    let mut random = SplitMix64::new(5);
    let mut keys = vec![0u8; kv_heads * kv.key_head_bytes()];
    let mut values = vec![0u8; kv_heads * kv.value_head_bytes()];
    let positions: Vec<u32> = (0..CAPACITY as u32).collect();
    let slots = vec![0; CAPACITY];
    let places = KvPlaces { positions: &positions, slots: &slots };
    let x = floats(&mut random, CAPACITY * kv_heads * head_dim);
    let append = best_time(|| kv_append_keys(isa, &kv, places, &x, &mut keys));
    let append_values = best_time(|| kv_append_values(isa, &kv, places, &x, &mut values));
    let nanoseconds = |time: Duration| time.as_secs_f64() * 1e9 / (CAPACITY * kv_heads) as f64;
    print!(
        "{name}: append k {:.0} v {:.0} ns/head;",
        nanoseconds(append),
        nanoseconds(append_values)
    );
    let mut workspace = vec![0.0; attention_workspace_len(head_dim)];
    let mut digest = 0;
    for (first, count) in CHUNKS {
        let range = first..first + count;
        let places = KvPlaces { positions: &positions[range.clone()], slots: &slots[range] };
        let tokens = Tokens { places, visibility: Visibility::Causal };
        let q = floats(&mut random, count * heads * head_dim);
        let mut out = vec![0.0; q.len()];
        let head = count * head_dim;
        let time = best_time(|| {
            let workspace = &mut workspace;
            let (q, out) = (&q[..head], &mut out[..head]);
            attention_prefill(isa, &shape, tokens, 0..1, q, &keys, &values, workspace, out);
        });
        let workspace = &mut workspace;
        attention_prefill(isa, &shape, tokens, 0..heads, &q, &keys, &values, workspace, &mut out);
        let visible: usize = (0..count).map(|t| first + t + 1).sum();
        let operations = (visible * head_dim * 4) as f64;
        let share = operations / time.as_secs_f64() / peak;
        print!(" {count} tokens at {first}: {share:.2} of peak;");
        digest ^= fnv(&out);
    }
    let copies: Vec<(Vec<u8>, Vec<u8>)> =
        (0..layers).map(|_| (keys.clone(), values.clone())).collect();
    let tokens = Tokens {
        places: KvPlaces { positions: &[DEPTH as u32 - 1], slots: &[0] },
        visibility: Visibility::Causal,
    };
    let q = floats(&mut random, heads * head_dim);
    let mut out = vec![0.0; q.len()];
    let items = attention_decode_items(&shape, tokens);
    let mut partials = vec![0.0; items * attention_partial_len(&shape)];
    let mut best = vec![Duration::MAX; layers];
    for _ in 0..30 {
        for ((keys, values), best) in copies.iter().zip(&mut best) {
            let start = Instant::now();
            let (workspace, partials) = (&mut workspace, &mut partials);
            attention_decode_partial(
                isa,
                &shape,
                tokens,
                0..items,
                &q,
                keys,
                values,
                workspace,
                partials,
            );
            attention_decode_merge(isa, &shape, tokens, 0..heads, partials, &mut out);
            *best = start.elapsed().min(*best);
        }
    }
    let time: Duration = best.iter().sum();
    let bytes = layers * kv_heads * DEPTH * (kv.key_group_bytes() / 16 + kv.value_row_bytes());
    let seconds = time.as_secs_f64();
    let operations = (DEPTH * heads * head_dim * 4 * layers) as f64;
    print!(
        " step at {DEPTH}: {:.2} ms, {:.1} GB/s, {:.2} of peak;",
        seconds * 1e3,
        bytes as f64 / seconds / 1e9,
        operations / seconds / peak
    );
    report(&[digest, fnv(&out)], &expected);
}

fn bench_elementwise(isa: Isa) {
    const HIDDEN: usize = 1536;
    let mut random = SplitMix64::new(6);
    // One token stands at position 0, where no style turns anything.
    let expected = [
        [0xA7D0_913D, 0x8EED_F957, 0x47CA_6139, 0x07B5_37C5, 0xD52F_EF42, 0xD52F_EF42],
        [0xA1DA_216A, 0x7BBB_A705, 0xD446_AC1C, 0xA541_0154, 0x695D_9311, 0x13C9_E968],
    ];
    for (tokens, expected) in [1, 64].into_iter().zip(expected) {
        let x = floats(&mut random, HIDDEN * tokens);
        let up = floats(&mut random, HIDDEN * tokens);
        let weight = floats(&mut random, HIDDEN);
        let mut blocks = vec![ActBlock::ZERO; HIDDEN / 32 * tokens];
        let per_element = |time: Duration| time.as_secs_f64() * 1e9 / (HIDDEN * tokens) as f64;
        let norm = best_time(|| {
            let (x, weight, tiles) = (&x[..], &weight[..], 0..HIDDEN / 16);
            let input = NormInput { x, weight, epsilon: 1e-6, tokens, tiles };
            rms_norm_quantise(isa, input, &mut blocks);
        });
        let mut digests = vec![blocks_digest(&blocks)];
        let [silu, gelu] = [Gate::Silu, Gate::GeluTanh].map(|gate| {
            let time = best_time(|| gated_mul_quantise(isa, gate, &x, &up, tokens, &mut blocks));
            digests.push(blocks_digest(&blocks));
            time
        });
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let mut table = vec![0.0; rope_table_len(64, tokens)];
        let make = best_time(|| rope_table(&positions, &weight[..64], 1.0, &mut table));
        digests.push(fnv(&table));
        let [halves, interleaved] = [RopeStyle::Halves, RopeStyle::Interleaved].map(|style| {
            let settings = || Rope { style, head_dim: 128, rotary_dim: 128, table: &table };
            let mut turned = x.clone();
            rope(isa, settings(), Operand::InPlace, tokens, &mut turned);
            digests.push(fnv(&turned));
            best_time(|| rope(isa, settings(), Operand::InPlace, tokens, &mut turned))
        });
        print!(
            "{tokens} tokens, ns/feature: norm+quantise {:.3}, silu·up+quantise {:.3}, gelu {:.3}, \
             rope {:.3}, interleaved {:.3}; table {:.0} ns/pair;",
            per_element(norm),
            per_element(silu),
            per_element(gelu),
            per_element(halves),
            per_element(interleaved),
            make.as_secs_f64() * 1e9 / (64 * tokens) as f64,
        );
        report(&digests, &expected);
    }
}

/// What stands alone, or where it may not be fused with its neighbours.
fn bench_passes(isa: Isa) {
    const HIDDEN: usize = 1536;
    const TOKENS: usize = 64;
    let mut random = SplitMix64::new(8);
    let [x, up] = [(); 2].map(|()| floats(&mut random, HIDDEN * TOKENS));
    let weight = floats(&mut random, HIDDEN);
    let table: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let table = PackedTiles::new(PackedKind::F32, HIDDEN, &table);
    let ids: Vec<u32> = (0..TOKENS as u32).rev().collect();
    let mut blocks = vec![ActBlock::ZERO; HIDDEN / 32 * TOKENS];
    let input = || NormInput {
        x: &x,
        weight: &weight,
        epsilon: 1e-6,
        tokens: TOKENS,
        tiles: 0..HIDDEN / 16,
    };
    let in_place = Operand::InPlace;
    let mut digests = Vec::new();
    print!("{TOKENS} tokens, ns/feature:");
    let mut pass = |what: &str, run: &mut dyn FnMut(&mut [f32])| {
        let mut out = x.clone();
        run(&mut out);
        digests.push(fnv(&out));
        // What works in place starts from its own last answer: the time is the same.
        let time = best_time(|| run(&mut out));
        print!(" {what} {:.3},", time.as_secs_f64() * 1e9 / out.len() as f64);
    };
    pass("norm", &mut |out| rms_norm(isa, input(), out));
    pass("norm and sum", &mut |out| rms_norm_add(isa, input(), in_place, out));
    pass("head norm", &mut |out| head_norm(isa, in_place, &weight[..128], 1e-6, TOKENS, out));
    pass("bias", &mut |out| bias_add(isa, in_place, &weight, TOKENS, out));
    pass("sum", &mut |out| add(isa, in_place, &up, out));
    pass("silu·up", &mut |out| gated_mul(isa, Gate::Silu, in_place, &up, out));
    pass("factor", &mut |out| scale(isa, 0.5, out));
    pass("rows of a table", &mut |out| gather(table, &ids, 2.0, 0..HIDDEN, out));
    pass("quantise", &mut |_| quantise(isa, &x, TOKENS, &mut blocks));
    digests.push(blocks_digest(&blocks));
    let expected = [
        0x7FEE_431E,
        0x4DFE_B23A,
        0x8C7B_8B70,
        0x180B_4FA3,
        0x4026_E567,
        0x475C_EB4E,
        0x6087_50AA,
        0xE9ED_9204,
        0x5F87_50AA,
        0xB229_0DF2,
    ];
    report(&digests, &expected);
}

fn bench_sample(isa: Isa) {
    let mut random = SplitMix64::new(7);
    let expected = [
        [0x0000_0D8E, 0x68B7_C1ED, 0x0000_19D3, 0x0000_19D3, 0x0000_378D, 0x0000_9B43],
        [0x0000_9C6D, 0xEC75_B50A, 0x0000_41C6, 0x0000_41C6, 0x0003_A32D, 0x0003_46BE],
    ];
    for (vocabulary, expected) in [49_152, 262_144].into_iter().zip(expected) {
        let logits: Vec<f32> = (0..vocabulary)
            .map(|_| (0..4).map(|_| random.symmetric()).sum::<f32>() * 4.0)
            .collect();
        let row = LogitsRow::new(&logits, 1, 0, vocabulary);
        let history: Vec<u32> = (0..64).map(|_| random.below(vocabulary) as u32).collect();
        let mut workspace = vec![Candidate { logit: 0.0, id: 0 }; vocabulary];
        let greedy = SampleParameters::GREEDY;
        let usual = SampleParameters { temperature: 0.8, top_k: 40, top_p: 0.95, ..greedy };
        let settings = [
            ("top-k 40", usual),
            ("with penalty", SampleParameters { repeat_penalty: 1.1, ..usual }),
            ("top-p alone", SampleParameters { top_k: 0, ..usual }),
            ("all", SampleParameters { temperature: 1.0, ..greedy }),
        ];
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        print!("vocabulary {vocabulary}, µs:");
        let (mut greatest, mut logarithm) = (0, 0.0f64);
        let time = best_time(|| greatest = black_box(argmax(isa, row)).0);
        print!(" argmax {:.0},", micros(time));
        let time = best_time(|| logarithm = black_box(log_softmax_of(isa, row, 3)));
        print!(" log-softmax {:.0},", micros(time));
        let bits = logarithm.to_bits();
        let mut picked = vec![greatest, (bits ^ (bits >> 32)) as u32];
        for (name, parameters) in settings {
            let mut id = 0;
            let time = best_time(|| {
                let mut state = RandomState::new(1);
                id = sample(isa, row, &parameters, &history, &mut state, &mut workspace);
            });
            print!(" {name} {:.0},", micros(time));
            picked.push(id);
        }
        report(&picked, &expected);
    }
}

fn report(digests: &[u32], expected: &[u32]) {
    match digests == expected {
        true => println!(" ok"),
        false => {
            WRONG.store(true, Ordering::Relaxed);
            println!(" ANSWERS {digests:x?} ARE NOT {expected:x?}");
        }
    }
}

/// Operations per second of one core that does nothing but fused multiply-adds.
fn fma_peak(isa: Isa) -> f64 {
    let mut operations = 0;
    let time = best_time(|| operations = float_operations(isa, 20_000));
    operations as f64 / time.as_secs_f64()
}

/// The best of as many runs as fit in a fraction of a second.
fn best_time(mut run: impl FnMut()) -> Duration {
    run();
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || runs < 200 && start.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        runs += 1;
    }
    best
}

fn floats(random: &mut SplitMix64, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.symmetric()).collect()
}

/// FNV-1a over all that a block holds.
fn blocks_digest(blocks: &[ActBlock]) -> u32 {
    blocks.iter().fold(0x811C_9DC5, |digest: u32, block| {
        let sums = block.s.map(|sum| i32::from(sum) as u32);
        let words = [block.d.to_bits(), sums[0], sums[1]];
        let values = block.q.iter().map(|q| i32::from(*q) as u32);
        words.into_iter().chain(values).fold(digest, |h, v| (h ^ v).wrapping_mul(0x0100_0193))
    })
}

/// FNV-1a over the bits.
fn fnv(values: &[f32]) -> u32 {
    values.iter().fold(0x811C_9DC5, |h, v| (h ^ v.to_bits()).wrapping_mul(0x0100_0193))
}
