//! The envelope, measured from outside: whatever the settings, a run that reaches its bounds stays
//! inside M_max, allocates nothing on the token path, and gives the same logits.
//!
//! `DCTMS_ENVELOPE_ALL=1` runs every combination; without it a seeded part of them.

mod support;

use std::collections::BTreeMap;

use support::child::{Json, own_peak_bytes};
use support::{Folder, SMOLLM2, SplitMix64, dctms, fixture, real_model, tiny};

/// Everything that every report must keep.
#[track_caller]
fn inside(report: &Json, what: &str) {
    let m_max = report.integer("m_max_bytes");
    let peak = report.integer("peak_bytes");
    assert!(peak <= m_max, "{what}: peak {peak} of {m_max}");
    // What the kernel says to the parent; a child begins with its parent's peak.
    let seen = report.output.peak_bytes;
    assert!(seen <= m_max.max(own_peak_bytes()), "{what}: the kernel saw {seen} of {m_max}");
    let (heap_peak, heap) = (report.integer("heap_peak_bytes"), report.integer("heap_bytes"));
    assert!(heap_peak <= heap, "{what}: heap {heap_peak} of {heap}");
    assert_eq!(report.integer("allocations"), 0, "{what}");
    if report.value["locked"] == true {
        assert_eq!(report.integer("minor_faults"), 0, "{what}");
    }
    assert_eq!(report.integer("major_faults"), 0, "{what}");
}

struct Case {
    model: &'static str,
    lanes: u64,
    chunk: u64,
    kv_type: &'static str,
    sequences: u64,
}

const MODELS: [&str; 8] = [
    "llama-f32",
    "llama-legacy-mixed",
    "llama-llama3-f16",
    "qwen2-yarn-f16",
    "qwen3-k-quants-mixed",
    "qwen3-f32",
    "gemma3-f16",
    "gemma3-linear-f16",
];

/// Those whose heads are whole blocks of 32 features, as q8_0 caches want them.
const Q8_MODELS: [&str; 4] =
    ["llama-llama3-f16", "qwen2-yarn-f16", "qwen3-k-quants-mixed", "qwen3-f32"];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for model in MODELS {
        for lanes in [1, 2, 3] {
            for chunk in [1, 7, 64] {
                for kv_type in ["f16", "f32", "q8_0"] {
                    for sequences in 1..=4 {
                        cases.push(Case { model, lanes, chunk, kv_type, sequences });
                    }
                }
            }
        }
    }
    cases.retain(|case| case.kv_type != "q8_0" || Q8_MODELS.contains(&case.model));
    if std::env::var_os("DCTMS_ENVELOPE_ALL").is_none() {
        let mut random = SplitMix64(20);
        cases.retain(|_| random.next().is_multiple_of(8));
    }
    cases
}

#[test]
fn every_setting_stays_inside_and_gives_one_answer() {
    const PROMPT: usize = 40;
    const OUTPUT: u64 = 24;
    let folder = Folder::new();
    let mut answers: BTreeMap<(&str, &str), serde_json::Value> = BTreeMap::new();
    for case in cases() {
        let Case { model, lanes, chunk, kv_type, sequences } = case;
        // Ids that every fixture's vocabulary has.
        let ids = folder.ids("ids", PROMPT, 256);
        let words = format!(
            "--ignore-eos -n {OUTPUT} --max-input {PROMPT} --lanes {lanes} \
             --prefill-chunk {chunk} --kv-type {kv_type} --sequences {sequences}"
        );
        let what = format!("{model} {words}");
        let path = fixture(&format!("{model}.gguf"));
        let run = || dctms("run").arg(&path).arg("--prompt-ids").arg(&ids).args(&words).json();
        let mut report = run();
        // A kernel that moves pages to make room for large ones costs a fault now and then that is
        // none of the program's. One of its own comes each time.
        for _ in 0..2 {
            if report.integer("minor_faults") > 0 {
                report = run();
            }
        }
        inside(&report, &what);
        assert_eq!(report.integer("prompt_tokens"), PROMPT as u64, "{what}");
        assert_eq!(report.integer("decode_tokens"), OUTPUT, "{what}");
        let sha256 = report.value["logits_sha256"].clone();
        assert!(sha256.is_string(), "{what}");
        let answer = answers.entry((model, kv_type)).or_insert_with(|| sha256.clone());
        assert_eq!(*answer, sha256, "{what}");
    }
}

#[test]
fn neighbours_change_nothing() {
    let folder = Folder::new();
    let texts = ["the", "a longer one, with the sea in it", "1 2 3 4 5 6 7 8 9", "é日本 😀"];
    let words = "--raw --ignore-eos -n 12 --max-input 60";
    let model = fixture("llama-f16.gguf");
    let alone: Vec<serde_json::Value> = texts
        .iter()
        .map(|text| {
            let report = dctms("run").arg(&model).arg("-p").arg(text).args(words).json();
            inside(&report, text);
            report.value
        })
        .collect();
    for lanes in [1, 2, 3] {
        for count in 2..=texts.len() {
            let lines = texts[..count].iter().map(|text| serde_json::json!({ "prompt": text }));
            let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
            let lines = folder.file("lines", lines.join("\n"));
            let child = dctms("run").arg(&model).arg("--prompts").arg(lines).args(words);
            let report = child.args(&format!("--lanes {lanes}")).json();
            inside(&report, &format!("{count} together on {lanes} lanes"));
            for (index, alone) in alone[..count].iter().enumerate() {
                for key in ["text", "tokens", "logits_sha256"] {
                    assert_eq!(report.value[key][index], alone[key], "{key} of {index}");
                }
            }
        }
    }
}

#[test]
fn instruction_sets_give_one_answer() {
    let folder = Folder::new();
    let ids = folder.ids("ids", 30, 256);
    for model in ["llama-legacy-mixed", "qwen3-k-quants-mixed", "gemma3-f16"] {
        let answer = |isa: &str| {
            let words = format!("--ignore-eos -n 8 --isa {isa}");
            let path = fixture(&format!("{model}.gguf"));
            let child = dctms("run").arg(path).arg("--prompt-ids").arg(&ids).args(&words);
            let output = child.arg("--json").run();
            // A processor without it refuses; that is another test's affair.
            let value = serde_json::from_str::<serde_json::Value>(&output.stdout).ok()?;
            Some(value["logits_sha256"].clone())
        };
        let scalar = answer("scalar").expect("every processor has it");
        for isa in ["avx2", "avx512", "amx"] {
            assert_eq!(answer(isa).unwrap_or_else(|| scalar.clone()), scalar, "{model} {isa}");
        }
    }
}

#[test]
fn an_evaluation_stays_inside_and_gives_one_answer() {
    let folder = Folder::new();
    let text = std::fs::read(fixture("alice.txt")).expect("a text");
    let text = folder.file("text", &text[..4000]);
    for model in ["llama-f16", "gemma3-f16"] {
        let mut answer = None;
        for words in ["--lanes 1", "--lanes 2 --prefill-chunk 7", "--lanes 3 --kv-type f16"] {
            let child = dctms("eval --ctx-size 48 --perplexity").arg(&text).args(words);
            let report = child.arg(fixture(&format!("{model}.gguf"))).json();
            for (part, whole) in [("peak_bytes", "m_max_bytes"), ("heap_peak_bytes", "heap_bytes")]
            {
                assert!(report.integer(part) <= report.integer(whole), "{words}: {}", report.value);
            }
            assert_eq!(report.integer("allocations"), 0, "{words}");
            let perplexity = report.value["perplexity"].clone();
            assert_eq!(*answer.get_or_insert_with(|| perplexity.clone()), perplexity, "{words}");
        }
    }
}

#[test]
fn a_real_model_fills_its_envelope() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let folder = Folder::new();
    let ids = folder.ids("ids", 256, 49_152);
    let mut answer = None;
    for words in ["--lanes 2", "--lanes 1 --prefill-chunk 32"] {
        let words = format!("--ignore-eos -n 16 --max-input 256 {words}");
        let report = dctms("run").arg(&model).arg("--prompt-ids").arg(&ids).args(&words).json();
        inside(&report, &words);
        let share =
            |part: &str, whole: &str| report.integer(part) as f64 / report.integer(whole) as f64;
        let (peak, heap) =
            (share("peak_bytes", "m_max_bytes"), share("heap_peak_bytes", "heap_bytes"));
        assert!(peak >= 0.95, "{words}: peak / M_max {peak:.3}");
        assert!(heap >= 0.8, "{words}: heap {heap:.3}");
        let sha256 = report.value["logits_sha256"].clone();
        assert_eq!(*answer.get_or_insert_with(|| sha256.clone()), sha256, "{words}");
    }
}

#[test]
fn the_smallest_bounds_have_an_envelope_too() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", tiny::llama(256).bytes());
    let ids = folder.ids("ids", 1, 256);
    for lanes in [1, 2, 8, 64] {
        let words = format!("-n 1 --max-input 1 --lanes {lanes} --prefill-chunk 1");
        let report = dctms("run").arg(&model).arg("--prompt-ids").arg(&ids).args(&words).json();
        inside(&report, &words);
    }
}
