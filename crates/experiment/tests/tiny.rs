//! A whole experiment on a tiny model with the real systems: same texts, no missed envelope.
//!
//! The programs of two other crates stand beside ours when the workspace is built; a build of this
//! crate alone has not made them, and then there is nothing to run.

use std::path::Path;
use std::process::Command;

use dctms_experiment::protocol::PRODUCT;
use dctms_experiment::report::equal_answers;
use dctms_experiment::results::{Cell, read_results};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dctms-experiment");
const PROMPTS: &str = r#"[
    {"id": "P1", "category": "short factual", "prompt": "Why?"},
    {"id": "P2", "category": "summarisation", "prompt": "Say it in one word, and say why."}
]"#;

#[test]
fn a_tiny_model_goes_through_the_whole_protocol() {
    let beside = Path::new(PROGRAM).parent().unwrap();
    if !["dctms", "dctms-baseline"].iter().all(|name| beside.join(name).is_file()) {
        eprintln!("skipped: dctms and dctms-baseline are not built");
        return;
    }
    let out = std::env::temp_dir().join(format!("experiment-tiny-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).unwrap();
    let prompts = out.join("prompts.json");
    std::fs::write(&prompts, PROMPTS).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-f16.gguf");
    let run = || {
        let mut command = Command::new(PROGRAM);
        command.arg("--quick").arg("--model").arg(&model).arg("--out").arg(&out);
        command.arg("--prompts").arg(&prompts).env("TMPDIR", &out);
        command.args(["--max-input", "400", "--conditions", "none,burner,group-m-max"]);
        command.output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = read_results(&out).unwrap();
    let under = |condition: &str, system: &str| {
        let calls = results.calls.iter();
        calls.filter(|call| call.condition == condition && call.system == system).count()
    };
    for system in ["dynamic", "prototype", PRODUCT] {
        for condition in ["none", "burner"] {
            assert_eq!(under(condition, system), 6, "{condition} {system}");
        }
        // Without root there is no group, and the cell says so.
        let cell = |cell: &&Cell| cell.system == system;
        let skipped = results.cells.iter().find(cell).is_some_and(|it| it.status == "skipped");
        let made = under("group-m-max", system) == 6;
        assert!(made || skipped || system != PRODUCT, "{:?}", results.cells);
    }
    assert_eq!(equal_answers(&results.calls), Some(true));
    let m_max = results.m_max_bytes.expect("the product states its bound");
    for call in results.calls.iter().filter(|call| call.system == PRODUCT) {
        assert!(call.peak_bytes <= m_max, "{call:?}");
        assert_eq!(call.major_faults, 0, "{call:?}");
    }
    assert!(String::from_utf8_lossy(&run().stdout).contains("complete"));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    let settings = std::fs::read_to_string(out.join("settings.tsv")).unwrap();
    for name in ["build of dctms\t", "build of dctms-baseline\t", "turn order\t"] {
        assert!(settings.contains(name), "{settings}");
    }
    if under("group-m-max", PRODUCT) > 0 {
        assert!(results.limits["group-m-max"] > m_max && page.contains("group of group-m-max"));
    }
    assert!(page.contains("0 missed envelopes") && page.contains("same text in every call"));
    std::fs::remove_dir_all(&out).unwrap();
}
