//! How fast the matmul is, and whether its answers are still the same.
//!
//! `cargo bench -p dctms-kernels --bench matmul [-- KIND …] [--isa NAME] [--add]`
//!
//! Shapes are those of Qwen2.5-1.5B's feed-forward layer. One token reads weights from memory
//! (the working set is larger than any cache), so bytes/s is the figure, beside the read
//! bandwidth of a plain pass over as many bytes; 512 tokens compute, so operations/s is
//! (a multiplication and an addition count as two). Products are stored, or with `--add` added to
//! what is there. Either way both answers' digests are compared with the expected one (added to
//! zeros is stored), which is the same for all instruction sets and numbers of threads, and the
//! exit code is 1 if any differs. The best of several runs counts, because other work on the
//! machine only ever slows a run down.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dctms_kernels::half::f32_to_f16;
use dctms_kernels::isa::Isa;
use dctms_kernels::limits::{BLOCK_COLS, SUPER_BLOCKS, TILE_ROWS};
use dctms_kernels::matmul::{Epilogue, matmul, matmul_float};
use dctms_kernels::packed::{self, PackedKind, PackedTiles, QuantLayout};
use dctms_kernels::peak::{self, Streams};
use dctms_kernels::quantise::{ActBlock, quantise};
use dctms_kernels::random::SplitMix64;

/// Hidden size: columns of gate and up.
const HIDDEN: usize = 1536;
/// Rows of the matrix used with 64 tokens and with 512, so that a run takes about a millisecond
/// and some of the runs escape whatever else the machine does.
const GEMM_ROWS: [usize; 2] = [2240, 320];
/// Bytes of weights that one token reads.
const STREAM_BYTES: usize = 160 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (mut isa, mut epilogue) = (Isa::detect_best(), Epilogue::Store);
    let mut wanted = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--isa" => {
                let name = arguments.next().expect("--isa NAME");
                isa = Isa::from_name(name).expect("an instruction set of this processor");
            }
            "--add" => epilogue = Epilogue::AddTo,
            kind => wanted.push(kind.to_owned()),
        }
    }
    println!(
        "{}: read bandwidth, 1 thread {:.1} GB/s, 2 threads {:.1} GB/s",
        isa.name(),
        read_bandwidth(1),
        read_bandwidth(2)
    );
    let is_wanted = |kind: &PackedKind| wanted.is_empty() || wanted.contains(&format!("{kind:?}"));
    let wrong = PackedKind::ALL.into_iter().filter(is_wanted);
    match wrong.map(|kind| bench_kind(isa, kind, epilogue)).sum::<usize>() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// All measurements of one kind; gives how many answers were wrong.
fn bench_kind(isa: Isa, kind: PackedKind, epilogue: Epilogue) -> usize {
    let row_bytes = kind.tile_bytes(HIDDEN).unwrap() / TILE_ROWS;
    let rows = STREAM_BYTES / row_bytes / 64 * 64;
    let weights = random_weights(kind, rows, HIDDEN);
    let bytes = weights.len() as f64;
    let mut wrong = 0;
    print!("{kind:?}:");
    for (tokens, rows) in [(1, rows), (8, rows), (64, GEMM_ROWS[0]), (512, GEMM_ROWS[1])] {
        if isa == Isa::Scalar && tokens > 8 {
            continue;
        }
        let job = Job::new(isa, kind, &weights[..rows / TILE_ROWS * row_bytes * TILE_ROWS], tokens);
        let mut y = vec![0.0f32; rows * tokens];
        let operations = 2.0 * (rows * HIDDEN * tokens) as f64;
        for threads in [1, 2] {
            let time = best_time(|| job.run(threads, epilogue, &mut y));
            let giga_per_second = |count: f64| count / time.as_secs_f64() / 1e9;
            match tokens {
                1 => print!(" T1x{threads} {:.1} GB/s", giga_per_second(bytes)),
                _ => print!(" T{tokens}x{threads} {:.0} GOP/s", giga_per_second(operations)),
            }
        }
        let expected = expected(kind, tokens);
        for epilogue in [Epilogue::Store, Epilogue::AddTo] {
            y.fill(0.0);
            job.run(2, epilogue, &mut y);
            let digest = digest(&y);
            if digest != expected {
                wrong += 1;
                print!(" {epilogue:?}: DIGEST {digest:#010x} IS NOT {expected:#010x}");
            }
        }
        print!("{}", if wrong == 0 { " ok;" } else { ";" });
    }
    println!();
    wrong
}

/// One multiplication, ready to run.
struct Job<'a> {
    isa: Isa,
    kind: PackedKind,
    weights: &'a [u8],
    tokens: usize,
    x: Vec<f32>,
    blocks: Vec<ActBlock>,
}

impl<'a> Job<'a> {
    fn new(isa: Isa, kind: PackedKind, weights: &'a [u8], tokens: usize) -> Self {
        let mut random = SplitMix64::new(tokens as u64);
        let x: Vec<f32> = (0..HIDDEN * tokens).map(|_| random.symmetric()).collect();
        let mut blocks = vec![ActBlock::ZERO; HIDDEN / BLOCK_COLS * tokens];
        quantise(isa, &x, tokens, &mut blocks);
        Self { isa, kind, weights, tokens, x, blocks }
    }

    /// Runs it with the rows shared out over threads.
    fn run(&self, threads: usize, epilogue: Epilogue, y: &mut [f32]) {
        let tile_bytes = self.kind.tile_bytes(HIDDEN).unwrap();
        let tiles = (self.weights.len() / tile_bytes).div_ceil(threads);
        let y_shards = y.chunks_mut(tiles * TILE_ROWS * self.tokens);
        std::thread::scope(|scope| {
            for (weights, y) in self.weights.chunks(tiles * tile_bytes).zip(y_shards) {
                scope.spawn(move || {
                    let weights = PackedTiles::new(self.kind, HIDDEN, weights);
                    let tokens = self.tokens;
                    match self.kind.quant_layout() {
                        Some(_) => matmul(self.isa, weights, &self.blocks, tokens, epilogue, y),
                        None => matmul_float(self.isa, weights, &self.x, tokens, epilogue, y),
                    }
                });
            }
        });
    }
}

/// The best of as many runs as fit in a fraction of a second.
fn best_time(mut run: impl FnMut()) -> Duration {
    run();
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 4 || runs < 200 && start.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        runs += 1;
    }
    best
}

/// Random bytes as packed weights, with scales of ordinary size.
fn random_weights(kind: PackedKind, rows: usize, cols: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(11);
    let length = usize::try_from(packed::bytes(kind, rows, cols).unwrap()).unwrap();
    let mut weights = vec![0u8; length];
    let tile_bytes = kind.tile_bytes(cols).unwrap();
    let (first, rest) = weights.split_at_mut(tile_bytes * 64);
    match kind.quant_layout() {
        Some(layout) => {
            first.as_chunks_mut::<8>().0.iter_mut().for_each(|c| *c = random.bits().to_le_bytes());
            for tile in first.chunks_exact_mut(tile_bytes) {
                put_scales(&mut random, &layout, cols, tile);
            }
        }
        None => fill_floats(&mut random, kind, first),
    }
    rest.chunks_mut(tile_bytes * 64).for_each(|chunk| chunk.copy_from_slice(&first[..chunk.len()]));
    weights
}

fn fill_floats(random: &mut SplitMix64, kind: PackedKind, bytes: &mut [u8]) {
    match kind {
        PackedKind::F32 => bytes
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .for_each(|c| *c = random.symmetric().to_le_bytes()),
        _ => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|c| {
            let bits = random.symmetric().to_bits();
            *c = match kind {
                PackedKind::BF16 => ((bits >> 16) as u16).to_le_bytes(),
                _ => f32_to_f16(f32::from_bits(bits)).to_le_bytes(),
            };
        }),
    }
}

/// Finite f16 scales wherever the layout has them.
fn put_scales(random: &mut SplitMix64, layout: &QuantLayout, cols: usize, tile: &mut [u8]) {
    let mut put = |at: usize, length: usize| {
        for c in tile[at..at + length].as_chunks_mut::<2>().0 {
            *c = f32_to_f16(random.symmetric() * 0.01).to_le_bytes();
        }
    };
    for block in 0..cols / BLOCK_COLS {
        match layout.header_bytes() {
            0 => {
                let scales = layout.scale_bytes();
                put(layout.block_offset_bytes(block) + layout.block_bytes() - scales, scales);
            }
            bytes if block % SUPER_BLOCKS == 0 => put(layout.header_offset_bytes(block), bytes),
            _ => {}
        }
    }
}

/// GB/s of reading a buffer larger than any cache, four streams a thread.
fn read_bandwidth(threads: usize) -> f64 {
    let bytes = vec![1u8; STREAM_BYTES];
    let time = best_time(|| {
        std::thread::scope(|scope| {
            for shard in bytes.chunks(bytes.len() / threads) {
                scope.spawn(move || black_box(peak::read_bytes(Streams::Four, shard)));
            }
        });
    });
    STREAM_BYTES as f64 / time.as_secs_f64() / 1e9
}

/// FNV-1a over the bits of the answer.
fn digest(y: &[f32]) -> u32 {
    y.iter().fold(0x811C_9DC5, |hash, y| (hash ^ y.to_bits()).wrapping_mul(0x0100_0193))
}

/// The digests of the answers.
fn expected(kind: PackedKind, tokens: usize) -> u32 {
    let (one, eight, sixty_four, many) = match kind {
        PackedKind::F32 => (0x39b0_47cb, 0xa2a2_176b, 0x1817_f4dc, 0x3a02_69ee),
        PackedKind::F16 => (0x094e_8511, 0xd744_92a3, 0xad2d_d1e6, 0x0cf3_eb7e),
        PackedKind::BF16 => (0xe421_b418, 0x645f_208d, 0xf46c_71ba, 0xc995_e376),
        PackedKind::Q8_0 => (0x0deb_48ed, 0xf209_7436, 0x8e99_33a4, 0x5f59_2308),
        PackedKind::Q4_0 => (0x00f0_e573, 0xb09f_80b9, 0x3970_759c, 0x0245_a55d),
        PackedKind::Q4_1 => (0x5281_699c, 0xbe01_eb54, 0x4284_ee09, 0x1f9c_c29b),
        PackedKind::Q5_0 => (0x436a_fa01, 0xe4c8_6c5d, 0xdd0b_ba36, 0xb3d8_d720),
        PackedKind::Q5_1 => (0xecfb_cbe4, 0xba50_16e0, 0xfb3c_c43e, 0xf17d_1718),
        PackedKind::Q2K => (0x51c5_633e, 0x51dd_ab9f, 0x1906_bc73, 0xcdf6_48e3),
        PackedKind::Q3K => (0xe976_87e8, 0x58b0_fd37, 0x95a7_baf2, 0xf749_2e11),
        PackedKind::Q4K => (0xdfa6_4524, 0xea0c_3cf7, 0x99d4_525a, 0x86cc_ec01),
        PackedKind::Q5K => (0x5b09_1186, 0xf883_48b3, 0x6416_cd0e, 0x76a1_3d74),
        PackedKind::Q6K => (0x3acd_5469, 0x3c90_4d49, 0x1abe_555b, 0xda87_bde7),
    };
    match tokens {
        1 => one,
        8 => eight,
        64 => sixty_four,
        _ => many,
    }
}
