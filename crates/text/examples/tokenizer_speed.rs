//! Measures tables and speed: `tokenizer_speed MODEL.gguf TEXT [TEXT …]`.
//!
//! Times are of the processor, not of the wall, where the system tells them: other processes on
//! the machine then change little.

#[path = "../tests/common/mod.rs"]
mod common;

use common::read_gguf;
use dctms_text::{EncodeOptions, Ends, Facts, Scratch, SpecialText, TableLayout, Tokenizer, build};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, texts @ ..] = arguments.as_slice() else {
        eprintln!("usage: tokenizer_speed MODEL.gguf TEXT [TEXT …]");
        std::process::exit(64);
    };
    let source = read_gguf(Path::new(model));
    let start = Clock::start();
    let layout = TableLayout::new(Facts::measure(&source).expect("a sound vocabulary"));
    let measured = start.elapsed();
    let mut table = vec![0; layout.len_bytes()];
    let start = Clock::start();
    build(&layout, &source, &mut table).expect("a sound vocabulary");
    let facts = layout.facts();
    println!(
        "{} tokens, {} merges as {:?}: {} bytes ({} of them text); measured in {measured:?}, \
         built in {:?}",
        facts.token_count,
        facts.merge_count,
        facts.merge_form,
        layout.len_bytes(),
        facts.text_len_bytes,
        start.elapsed()
    );
    let tokenizer = Tokenizer::new(&layout, &table);
    let options = EncodeOptions { special_text: SpecialText::Parse, ends: Ends::None };
    for path in texts {
        let text = std::fs::read(path).expect("the text opens");
        let mut scratch = Scratch::with_text_bytes_max(facts.kind, text.len());
        for pass in 0..2 {
            let (start, mut sum) = (Clock::start(), 0_u64);
            let encoded = tokenizer
                .encode(&text, options, &mut scratch, &mut |id| sum += u64::from(id))
                .expect("fits");
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{path} pass {pass}: {} bytes, {} tokens (sum {sum}), {:.1} MB/s, scratch {} bytes",
                text.len(),
                encoded.token_count,
                text.len() as f64 / seconds / 1e6,
                Scratch::heap_bytes(facts.kind, text.len())
            );
        }
    }
}

/// Time on the processor, or on the wall where the former is not told.
struct Clock {
    start: Instant,
    processor_start: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), processor_start: processor_time() }
    }

    fn elapsed(&self) -> Duration {
        match (self.processor_start, processor_time()) {
            (Some(start), Some(now)) => now - start,
            _ => self.start.elapsed(),
        }
    }
}

fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
