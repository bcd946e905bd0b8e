//! Seeded mutations of valid files: whatever the bytes, the answer is a checkpoint that keeps
//! its promises or a typed error, on a bounded heap. `DCTMS_FUZZ_SECONDS` sets the time.

mod common;
#[path = "common/counting.rs"]
mod counting;
#[path = "common/exercise.rs"]
mod exercise;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{SplitMix64, small_model};
use dctms_format::GgmlType;
use dctms_format::limits::PARSE_HEAP_LEN_BYTES_MAX;
use dctms_format::write::{MetadataValue, Writer};

/// Values at which readers break: around zero, powers of two and the ends of the types.
const INTERESTING: [u64; 22] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    12,
    13,
    31,
    32,
    255,
    256,
    1 << 16,
    1 << 30,
    1 << 32,
    (1 << 61) + 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

#[test]
fn mutated_files_are_taken_or_refused() {
    let seconds = std::env::var("DCTMS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let budget = Duration::from_secs(seconds.unwrap_or(3));
    let start = Instant::now();
    let seeds = seeds();
    let (mut taken, mut refused) = (0u64, 0u64);
    for round in 0.. {
        if start.elapsed() >= budget {
            break;
        }
        let mut random = SplitMix64(round);
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(4) {
            mutate(&mut bytes, &mut random);
        }
        let len = bytes.len();
        let (result, peak) = counting::peak_len_bytes(|| exercise::open_and_ask(bytes));
        assert!(peak < PARSE_HEAP_LEN_BYTES_MAX + len, "round {round}: {peak} bytes");
        match result {
            Ok(_) => taken += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(taken > 100 && refused > 100, "mutations must reach both: {taken}, {refused}");
}

/// The fuzzer starts from the same files. `DCTMS_UPDATE=1` writes them anew.
#[test]
fn the_seeds_of_the_fuzzer_are_these() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf");
    for (name, bytes) in ["dense", "split", "empty"].iter().zip(seeds()) {
        if std::env::var_os("DCTMS_UPDATE").is_some() {
            std::fs::write(directory.join(name), &bytes).unwrap();
        }
        assert_eq!(std::fs::read(directory.join(name)).unwrap(), bytes, "{name}");
    }
}

/// Valid files: dense in structure, so that most mutations hit some.
fn seeds() -> Vec<Vec<u8>> {
    let inner = MetadataValue::strings(["x", "", "yz"]);
    let nested = MetadataValue::Array(dctms_format::ValueType::Array, vec![inner.clone(), inner]);
    let flags = [true, false].map(MetadataValue::Bool).to_vec();
    let mut dense = Writer::new()
        .version(2)
        .alignment(8)
        .metadata("nested", nested)
        .metadata("flags", MetadataValue::Array(dctms_format::ValueType::Bool, flags))
        .metadata("s", "text")
        .metadata("scores", MetadataValue::f32s([0.5, 1.5]))
        .tensor("a", GgmlType::F32, &[2, 3], vec![1; 24])
        .tensor("b", GgmlType::I8, &[1, 1, 1, 5], vec![1; 5])
        .tensor("c", GgmlType::Q8_0, &[32], vec![1; 34]);
    let split = Writer::new()
        .metadata("split.no", 0u16)
        .metadata("split.count", 1u16)
        .metadata("split.tensors.count", 1i32)
        .tensor("a", GgmlType::F16, &[], vec![1; 2])
        .to_bytes();
    vec![
        dense.to_bytes().unwrap(),
        split.unwrap(),
        Writer::new().to_bytes().unwrap(),
        small_model().to_bytes().unwrap(),
    ]
}

fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix64) {
    if bytes.is_empty() {
        bytes.push(random.next() as u8);
        return;
    }
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..(at + 1 + random.below(16)).min(bytes.len()))),
        4 => {
            let piece: Vec<u8> = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        5 => {
            let count = 1 + random.below(16);
            let fill = random.next() as u8;
            bytes.splice(at..at, std::iter::repeat_n(fill, count));
        }
        width => {
            let width = if width == 6 { 4 } else { 8 };
            let value = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
    }
}
