//! Words at random: whatever the options, the program ends with a documented exit code, in time,
//! without a panic; a refusal says why, and prints nothing. `DCTMS_FUZZ_SECONDS` sets the time.

mod support;

use std::time::{Duration, Instant};

use support::child::Child;
use support::{Folder, SplitMix64, dctms, fixture, tiny};

/// Options of a plan or a run, with values that are right, at an edge, or wrong.
const OPTIONS: [(&str, &[&str]); 22] = [
    ("-n", &["1", "2", "7", "255", "256", "1073741824", "0", "x"]),
    ("--max-input", &["1", "20", "100", "255", "256", "1073741825", "18446744073709551615"]),
    ("--max-output", &["1", "3", "128", "255", "257", ""]),
    ("--sequences", &["1", "2", "5", "64", "65"]),
    ("--prefill-chunk", &["1", "2", "16", "17", "300", "65536", "65537"]),
    ("--kv-type", &["f16", "f32", "q8_0", "q4_0"]),
    ("--lanes", &["1", "2", "3", "5", "16", "64", "65"]),
    ("--isa", &["scalar", "avx2", "avx512", "amx", "sse"]),
    ("--memory-limit", &["0", "1", "12M", "13M", "20M", "1G", "18446744073709551615", "1T"]),
    ("--activations", &["q8", "f32", "f16"]),
    ("--temp", &["0", "0.5", "100", "1e-30", "NaN", "-0"]),
    ("--top-k", &["0", "1", "40", "4294967296", "18446744073709551615"]),
    ("--top-p", &["0", "1e-9", "0.9", "1", "1.1"]),
    ("--min-p", &["0", "0.5", "1", "-1"]),
    ("--repeat-penalty", &["0.01", "1", "1.3", "100", "0"]),
    ("--seed", &["0", "1", "18446744073709551615", "18446744073709551616"]),
    ("--system", &["", "be brief", "<|im_end|>", "{{ x }}"]),
    ("--stop", &["a", "\n", "é", "<|im_end|>", ""]),
    ("--ignore-eos", &[]),
    ("--raw", &[]),
    ("--json", &[]),
    ("--replan", &[]),
];

const MODELS: [&str; 5] =
    ["llama-f16", "llama-legacy-mixed", "qwen2-yarn-f16", "qwen3-k-quants-mixed", "gemma3-f16"];

fn words(random: &mut SplitMix64, folder: &Folder) -> Child {
    let mut pick = |count: usize| (random.next() % count as u64) as usize;
    let model = fixture(&format!("{}.gguf", MODELS[pick(MODELS.len())]));
    let mut child = dctms(["run", "run", "run", "plan"][pick(4)]).arg(model);
    let prompts = ["hello", "", "a b c d e f g h i j k l m n o p", "<|im_start|>", "日本 😀\u{0}x"];
    child = match pick(6) {
        0 => child.arg("--prompt-ids").arg(folder.ids("ids", 1 + pick(200), tiny::VOCABULARY)),
        1 => {
            let lines: Vec<String> = (0..=pick(5))
                .map(|_| serde_json::json!(prompts[pick(prompts.len())]).to_string())
                .collect();
            child.arg("--prompts").arg(folder.file("lines", lines.join("\n")))
        }
        2 => child.arg("-f").arg(folder.file("text", prompts[pick(prompts.len())])),
        3 => child.input(prompts[pick(prompts.len())]),
        _ => child.arg("-p").arg(prompts[pick(prompts.len())].replace('\u{0}', "\u{1}")),
    };
    for _ in 0..pick(6) {
        let (name, values) = OPTIONS[pick(OPTIONS.len())];
        child = child.arg(name);
        if !values.is_empty() {
            // Mostly the first ones, which are right.
            let value = values[pick(values.len()).min(pick(values.len()))];
            child = child.arg(value);
        }
    }
    child
}

#[test]
fn any_words_end_well() {
    let seconds = std::env::var("DCTMS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let budget = Duration::from_secs(seconds.unwrap_or(3));
    let folder = Folder::new();
    let start = Instant::now();
    let mut ran = 0;
    for seed in 0.. {
        if start.elapsed() > budget {
            break;
        }
        let child = words(&mut SplitMix64(seed), &folder);
        let asked = child.words();
        let output = child.run();
        let say = || format!("seed {seed}: {asked}: {output:?}");
        assert!(output.status.code().is_some(), "ended by a signal: {}", say());
        assert!([0, 1, 2, 3, 4, 64].contains(&output.code()), "{}", say());
        assert!(!output.stderr.contains("panicked"), "{}", say());
        assert!(!output.stderr.contains("heap limit"), "{}", say());
        match output.code() {
            0 => ran += 1,
            _ => assert!(output.stderr.starts_with("dctms: "), "{}", say()),
        }
    }
    assert!(ran > 0, "nothing ran");
}
