//! Real models, when the environment names them: `DCTMS_TEST_MODELS` is a list of GGUF files
//! with `:` between. Without it these tests have nothing to do.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::path::Path;
use std::time::{Duration, Instant};

use common::thread_time;
use dctms_format::{Checkpoint, ValueType};

#[test]
fn headers_open_in_time_and_within_the_heap_bound() {
    let Ok(list) = std::env::var("DCTMS_TEST_MODELS") else { return };
    for path in list.split(':').map(Path::new) {
        let mut elapsed = Duration::MAX;
        let (mut checkpoint, mut peak) = (None, 0);
        for _ in 0..5 {
            let start = thread_time();
            let (opened, bytes) = counting::peak_len_bytes(|| Checkpoint::open(path));
            elapsed = elapsed.min(thread_time() - start);
            (checkpoint, peak) = (Some(opened.unwrap()), bytes);
        }
        let checkpoint = checkpoint.unwrap();
        println!("{}: {elapsed:?}, {peak} bytes of heap", path.display());
        println!(
            "  header {} bytes, sha256 {}",
            checkpoint.header_len_bytes(0),
            checkpoint.header_sha256_hex()
        );
        println!(
            "  {} parameters, complete: {}",
            checkpoint.parameter_count(),
            checkpoint.file_complete()
        );
        for row in checkpoint.histogram() {
            println!(
                "  {:8} {:4} tensors {:12} bytes",
                row.ggml_type, row.tensor_count, row.len_bytes
            );
        }
        for (key, kind, value) in checkpoint.metadata() {
            println!("  {key}: {kind} = {value}");
        }
        assert!(elapsed < Duration::from_millis(50));
        assert!(checkpoint.file_complete());
        let Some(tokens) =
            checkpoint.find_array("tokenizer.ggml.tokens", &[ValueType::String]).unwrap()
        else {
            continue;
        };
        let mut window = vec![0; 64 << 10];
        let start = Instant::now();
        let mut reader = checkpoint.strings(&tokens, &mut window);
        let (mut count, mut total) = (0, 0);
        while let Some(token) = reader.next_string().unwrap() {
            count += 1;
            total += token.len() as u64;
        }
        println!("  streamed {count} tokens in {:?}", start.elapsed());
        assert_eq!((count, total), (tokens.count(), tokens.string_len_bytes_total()));
    }
}
