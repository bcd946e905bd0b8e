//! Families of plans: a small picture runs the member that is planned for its size, in the arena of
//! the largest, and the answer is the same whichever member runs.

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
        .args("--max-input 1600 --max-output 8 --lanes 2 --raw --ignore-eos -p see --image")
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
        for words in ["--mode serial", "--family 2", "--mode phase-resident", "--mode overlapped"] {
            let (answer, phases) = seen(&folder, (name, side), words);
            assert!(phases.contains("vision@"), "{name} {words}: no small plan ran");
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
    assert_eq!((smaller(&one), smaller(&three)), (0, 2));
}
