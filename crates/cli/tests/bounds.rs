//! Bounds: of the plan, of the model, of the machine. What passes one is refused before anything
//! is computed, with both numbers; what just keeps it runs.

mod support;

use std::time::Duration;

use support::child::{Child, Output};
use support::{DOES_NOT_FIT, Folder, OVER_BOUND, SMOLLM2, dctms, fixture, real_model, tiny};

/// A run of a tiny model on so many ids, with further words.
fn run(folder: &Folder, ids: usize, words: &str) -> Child {
    let model = folder.file("m.gguf", tiny::llama(256).bytes());
    let ids = folder.ids(&format!("{ids}.ids"), ids, tiny::VOCABULARY);
    dctms("run").arg(model).arg("--prompt-ids").arg(ids).args(words)
}

#[track_caller]
fn quick(output: &Output) {
    assert!(output.processor_time < Duration::from_millis(200), "{output:?}");
}

#[test]
fn prompts_and_outputs_over_the_plan() {
    let folder = Folder::new();
    let refused = |ids: usize, words: &str, texts: &[&str]| {
        quick(&run(&folder, ids, words).refused(OVER_BOUND, texts));
    };
    let runs = |ids: usize, words: &str| {
        let output = run(&folder, ids, words).run();
        assert_eq!(output.code(), 0, "{output:?}");
    };
    refused(6, "-n 2 --max-input 5", &["the prompt has 6 tokens, the plan holds 5", "--max-input"]);
    runs(5, "-n 2 --max-input 5");
    refused(5, "-n 3 --max-output 2", &["3 output tokens", "the plan holds 2", "--max-output"]);
    runs(5, "-n 2 --max-output 2");
    // --replan takes the larger bound, and says so.
    let output = run(&folder, 6, "-n 3 --max-input 5 --max-output 2 --replan").run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("max input raised from 5 to 6"), "{output:?}");
    assert!(output.stderr.contains("max output raised from 2 to 3"), "{output:?}");
}

#[test]
fn contexts_over_the_model() {
    let folder = Folder::new();
    let refused = |ids: usize, words: &str, texts: &[&str]| {
        quick(&run(&folder, ids, words).refused(OVER_BOUND, texts));
    };
    refused(250, "-n 7", &["250", "7", "257 tokens", "context of 256"]);
    refused(5, "-n 252", &["257 tokens", "context of 256"]);
    refused(5, "-n 2 --max-input 255", &["257 tokens", "context of 256"]);
    refused(5, "-n 1000000000 --max-input 1000000000", &["2000000000 tokens", "context of 256"]);
    refused(257, "-n 1", &["257", "context of 256"]);
    refused(200_000, "-n 1", &["257", "context of 256"]);
    let output = run(&folder, 250, "-n 6 --ignore-eos").run();
    assert_eq!(output.code(), 0, "{output:?}");
    // The same for text, which is refused by its length before it is encoded.
    let model = folder.file("m.gguf", tiny::llama(256).bytes());
    let long = folder.file("long", "word ".repeat(100_000));
    let child = dctms("run").arg(model).arg("-f").arg(long);
    quick(&child.refused(OVER_BOUND, &["500000 bytes, at most 16384", "context of 256"]));
}

#[test]
fn one_byte_less_than_m_max_is_refused_and_m_max_runs() {
    let folder = Folder::new();
    let words = "-n 6 --max-input 100 --lanes 2 --ignore-eos";
    let free = run(&folder, 100, words).json();
    let m_max = free.integer("m_max_bytes");
    let limited = |bytes: u64| run(&folder, 100, &format!("{words} --memory-limit {bytes}"));
    let exact = limited(m_max).json();
    assert_eq!(exact.integer("m_max_bytes"), m_max);
    assert_eq!(exact.value["logits_sha256"], free.value["logits_sha256"]);
    let refused =
        limited(m_max - 1).refused(DOES_NOT_FIT, &["does not fit: M_max", "1 bytes short"]);
    assert!(refused.stderr.contains("(flag)"), "{refused:?}");
    limited(0).refused(DOES_NOT_FIT, &["does not fit", "no setting fits"]);
    limited(1 << 20).refused(DOES_NOT_FIT, &["does not fit", "the limit is 1,048,576 bytes"]);
}

/// What a refusal says would fit does fit.
#[test]
fn the_advice_of_a_refusal_runs() {
    let folder = Folder::new();
    // Caches that are large beside the rest: some 256 bytes a position and sequence.
    let model = folder.file("long.gguf", tiny::llama(1 << 14).bytes());
    let ids = folder.ids("ids", 9, tiny::VOCABULARY);
    let child = |words: &str| {
        dctms("run").arg(&model).arg("--prompt-ids").arg(&ids).args("-n 3 --json").args(words)
    };
    let large = "--max-input 16000 --sequences 32 --memory-limit 40M";
    let refused = child(large).refused(DOES_NOT_FIT, &["any one of these lines fits:"]);
    let mut tried = 0;
    for line in refused.stderr.lines().skip_while(|line| !line.contains("fits:")).skip(1) {
        // Options, two spaces, the number of bytes.
        let options = line.trim().split("  ").next().expect("options");
        let words = match options.contains("--max-input") {
            true => format!("--sequences 32 --memory-limit 40M {options}"),
            false => format!("{large} {options}"),
        };
        let report = child(&words).run();
        assert_eq!(report.code(), 0, "{options}: {report:?}");
        tried += 1;
    }
    assert!(tried > 0, "{refused:?}");
}

/// The ids of a prompt are kept in the run's heap, which is as large as they are.
#[test]
fn long_prompts_have_their_room() {
    let folder = Folder::new();
    let model = folder.file("long.gguf", tiny::llama(1 << 18).bytes());
    let ids = folder.ids("ids", 200_000, tiny::VOCABULARY);
    let child = dctms("run").arg(model).arg("--prompt-ids").arg(ids);
    let refused = child.args("-n 1 --memory-limit 9M");
    refused.refused(DOES_NOT_FIT, &["does not fit: M_max is"]);
    let lines: String = (0..64).map(|i| format!("\"{}\"\n", "word ".repeat(100 + i))).collect();
    let lines = folder.file("lines", lines);
    let model = folder.file("m.gguf", tiny::llama(4096).bytes());
    let report = dctms("run").arg(model).arg("--prompts").arg(lines).args("-n 2").json();
    assert_eq!(report.value["text"].as_array().map(Vec::len), Some(64));
}

#[test]
fn a_real_model_is_refused_before_weights_are_read() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let child = dctms("run").arg(model).args("-p hello -n 8 --memory-limit 64M");
    let refused = child.refused(DOES_NOT_FIT, &["does not fit: M_max is", "67,108,864"]);
    assert!(refused.peak_bytes < 64 << 20, "{} bytes", refused.peak_bytes);
}

#[test]
fn instruction_sets_of_other_processors() {
    let here = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let folder = Folder::new();
    for (isa, flag) in [("avx2", "avx2"), ("avx512", "avx512vnni"), ("avx512", "avx512_vnni")] {
        let has = here.split_whitespace().any(|word| word == flag);
        let child = run(&folder, 5, &format!("-n 2 --isa {isa}"));
        if has {
            assert_eq!(child.run().code(), 0, "{isa}");
        }
    }
    let output = dctms("run").arg(fixture("llama-f16.gguf")).args("-p x -n 2 --isa scalar").run();
    assert_eq!(output.code(), 0, "{output:?}");
}
