//! What the integration tests share: a small model, bytes by hand, a clock, random numbers.
#![allow(dead_code)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dctms_format::write::{MetadataValue, Writer};
use dctms_format::{Checkpoint, Error, GgmlType, Source};

/// This thread's time on a processor, or the wall's where the system does not tell.
pub fn thread_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    nanoseconds.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// Opens bytes as a checkpoint of one file.
pub fn open(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let source: Box<dyn Source> = Box::new(bytes.to_vec());
    Checkpoint::from_sources([("m.gguf".to_string(), source)])
}

/// A tiny llama-like model with every kind of metadata and several tensor types.
pub fn small_model() -> Writer<'static> {
    let tokens: Vec<String> = (0..300).map(|index| format!("token-{index}")).collect();
    Writer::new()
        .metadata("general.architecture", "llama")
        .metadata("general.name", "a \"small\"\nmodel")
        .metadata("general.alignment", 32u32)
        .metadata("llama.block_count", 2u32)
        .metadata("llama.context_length", 128u64)
        .metadata("llama.rope.freq_base", 10000.0f32)
        .metadata("llama.some.double", 0.5f64)
        .metadata("llama.negative", -3i32)
        .metadata("llama.byte", 7u8)
        .metadata("llama.signed_byte", -7i8)
        .metadata("llama.short", 700u16)
        .metadata("llama.signed_short", -700i16)
        .metadata("llama.signed_long", -1i64)
        .metadata("tokenizer.ggml.add_bos_token", true)
        .metadata("tokenizer.ggml.tokens", MetadataValue::strings(&tokens))
        .metadata("tokenizer.ggml.scores", MetadataValue::f32s((0..300).map(|i| i as f32)))
        .metadata("tokenizer.ggml.token_type", MetadataValue::i32s(0..300))
        .metadata("tokenizer.chat_template", "{{ x }}".repeat(100).as_str())
        .tensor("token_embd.weight", GgmlType::Q8_0, &[64, 300], vec![1; 64 / 32 * 34 * 300])
        .tensor("blk.0.attn_q.weight", GgmlType::Q4_0, &[64, 64], vec![2; 64 / 32 * 18 * 64])
        .tensor("blk.0.attn_norm.weight", GgmlType::F32, &[64], vec![3; 256])
        .tensor("output_norm.weight", GgmlType::F32, &[64], vec![4; 256])
}

/// Little-endian bytes of a header by hand, for files that the writer would not make.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Magic, version 3 and the two counts.
    pub fn header(tensor_count: u64, metadata_count: u64) -> Self {
        Self::default().raw(b"GGUF").u32(3).u64(tensor_count).u64(metadata_count)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// A tensor table entry.
    pub fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let start = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(start, |bytes, &dim| bytes.u64(dim)).u32(kind).u64(offset)
    }

    /// Zero bytes up to a multiple of 32 and then `len` more.
    pub fn data(mut self, len: usize) -> Self {
        let end = self.0.len().next_multiple_of(32) + len;
        self.0.resize(end, 0);
        self
    }
}

/// SplitMix64: the tests' only randomness, seeded.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
