//! Families of plans: a small picture and a short chunk run the member that is planned for their
//! size, in the arena of the largest, and the answer is the same whichever member runs.

mod support;

use serde_json::Value;
use support::{Folder, dctms, fixture, pictures};

/// An answer about a small picture, and the phases that the lanes went through.
fn seen(folder: &Folder, (name, side): (&str, usize), words: &str) -> (Value, String) {
    let trace = folder.path().join("trace.json");
    let output = dctms("run")
        .arg(fixture(&format!("{name}-text-f16.gguf")))
        .arg("--mmproj")
        .arg(fixture(&format!("{name}-mmproj-f16.gguf")))
        .args("--max-input 1600 --prefill-chunk 1024 --max-output 8 --lanes 2 --raw --ignore-eos")
        .args("-p see --image")
        .arg(folder.file("p.png", pictures::png(side, side)))
        .args("--json --trace")
        .arg(&trace)
        .args(words)
        .run();
    assert_eq!(output.code(), 0, "{words}: {output:?}");
    let answer = serde_json::from_str(&output.stdout).expect("JSON");
    (answer, std::fs::read_to_string(&trace).expect("a timeline"))
}

#[test]
fn a_small_picture_runs_a_small_plan_with_the_same_answer() {
    for (name, side) in [("vision-lfm2", 224), ("vision-qwen25vl", 96)] {
        let folder = Folder::new();
        let (alone, phases) = seen(&folder, (name, side), "--family 1 --mode serial");
        assert!(phases.contains("\"vision\"") && !phases.contains("vision@"), "{name}");
        assert!(phases.contains("\"prefill\"") && !phases.contains("prefill@"), "{name}");
        for words in ["--mode serial", "--family 2", "--mode phase-resident", "--mode overlapped"] {
            let (answer, phases) = seen(&folder, (name, side), words);
            for family in ["vision@", "prefill@"] {
                assert!(phases.contains(family), "{name} {words}: no {family} ran");
            }
            for key in ["tokens", "logits_sha256", "text"] {
                assert_eq!(answer[key], alone[key], "{name} {words}: {key}");
            }
            let number = |key: &str| answer[key].as_u64().expect("a number");
            assert!(number("peak_bytes") <= number("m_max_bytes"), "{answer}");
            assert_eq!((number("allocations"), number("minor_faults")), (0, 0), "{answer}");
        }
    }
}

#[test]
fn a_family_takes_no_more_of_the_arena_than_its_largest() {
    let plan = |words: &str| -> Value {
        let output = dctms("plan")
            .arg(fixture("vision-qwen25vl-text-f16.gguf"))
            .arg("--mmproj")
            .arg(fixture("vision-qwen25vl-mmproj-f16.gguf"))
            .args("--json --memory-limit 1G")
            .args(words)
            .run();
        assert_eq!(output.code(), 0, "{output:?}");
        serde_json::from_str(&output.stdout).expect("a plan")
    };
    let [one, three] = ["--family 1", "--family 3"].map(plan);
    assert_eq!(one["arena"]["transient_bytes"], three["arena"]["transient_bytes"]);
    let names = |plan: &Value| -> Vec<String> {
        let phases = plan["phases"].as_array().expect("a list").iter();
        phases.map(|phase| phase["name"].as_str().expect("a name").to_string()).collect()
    };
    let smaller = |plan: &Value| names(plan).iter().filter(|name| name.contains('@')).count();
    // Two for tiles, two for chunks: of 128 tokens and of 32.
    assert_eq!((smaller(&one), smaller(&three)), (0, 4));
}

#[test]
fn chunks_of_every_size_give_the_same_bits_and_each_member_is_verified() {
    let model = || fixture("llama-f16.gguf");
    for count in [1, 3, 7, 8, 9, 30, 33, 41, 70] {
        let prompt = "a b c d e f g h i j ".repeat(8);
        let run = |words: &str| -> Value {
            let folder = Folder::new();
            let trace = folder.path().join("trace.json");
            let child = dctms("run").arg(model()).arg("-p").arg(&prompt[..2 * count]);
            let fixed = "--raw --ignore-eos --json -n 4 --max-input 200 --prefill-chunk 32 --lanes 2 --trace";
            let output = child.args(fixed).arg(&trace).args(words).run();
            assert_eq!(output.code(), 0, "{output:?}");
            let phases = std::fs::read_to_string(&trace).expect("a timeline");
            let mut answer: Value = serde_json::from_str(&output.stdout).expect("JSON");
            answer["small"] = phases.contains("prefill@8").into();
            answer
        };
        let (alone, family) = (run("--family 1"), run("--family 3"));
        for key in ["tokens", "logits_sha256", "text", "prompt_tokens"] {
            assert_eq!(alone[key], family[key], "{count}: {key}");
        }
        let last = (alone["prompt_tokens"].as_u64().expect("a number") - 1) % 32 + 1;
        assert_eq!((&alone["small"], &family["small"]), (&false.into(), &(last <= 8).into()));
        let number = |key: &str| family[key].as_u64().expect("a number");
        assert!(number("peak_bytes") <= number("m_max_bytes"), "{family}");
        assert_eq!((number("allocations"), number("minor_faults")), (0, 0), "{family}");
    }
    let folder = Folder::new();
    let plan = folder.path().join("plan.json");
    let child = dctms("plan").arg(model()).args("--family 3 --prefill-chunk 128 --lanes 2 -o");
    let output = child.arg(&plan).run();
    assert_eq!(output.code(), 0, "{output:?}");
    for row in ["prefill@32", "prefill@8", "up to 32 tokens of a chunk"] {
        assert!(output.stdout.contains(row), "{}", output.stdout);
    }
    let output = dctms("verify").arg(&plan).arg("--model").arg(model()).run();
    assert_eq!(output.code(), 0, "{output:?}");
}
