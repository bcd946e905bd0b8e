//! Pictures that arrive while an answer is written: the same answers in every mode, within the
//! envelope, and the token path as still as ever.

mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{Folder, dctms, fixture};

const PICTURES: [&str; 2] = ["te_canon_056.png", "te_aug_088.png"];

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/vision/pictures").join(name)
}

fn answers(folder: &Folder, name: &str, mode: &str, lines: &[String]) -> Vec<Value> {
    let requests = folder.file("requests.jsonl", lines.join("\n"));
    let eyes = fixture(&format!("{name}-mmproj-f16.gguf"));
    let output = dctms("run")
        .arg(fixture(&format!("{name}-text-f16.gguf")))
        .args("--mmproj")
        .arg(eyes)
        .args("--max-images 2 --max-input 1600 --max-output 48 --prefill-chunk 32 --lanes 2")
        .args("--raw --ignore-eos --logits-sha --mode")
        .args(mode)
        .args("--requests")
        .arg(requests)
        .run();
    assert_eq!(output.code(), 0, "{output:?}");
    output.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn one_answer_whether_pictures_are_looked_at_before_or_beside() {
    for name in ["vision-idefics3", "vision-lfm2"] {
        let folder = Folder::new();
        let [first, second] = PICTURES.map(picture);
        let mut lines: Vec<String> = (0..6)
            .map(|index| {
                let images = match index % 3 {
                    0 => format!("[{first:?}]"),
                    1 => format!("[{second:?},{first:?}]"),
                    _ => "[]".to_string(),
                };
                format!("{{\"prompt\":\"what is it\",\"images\":{images},\"id\":{index}}}")
            })
            .collect();
        // Refused at its turn, though it was looked at before: no picture, and a damaged one.
        lines.insert(2, "{\"prompt\":\"?\",\"images\":[\"/nowhere.png\"],\"id\":\"none\"}".into());
        let whole = std::fs::read(&first).expect("a picture");
        let cut = folder.file("cut.png", &whole[..whole.len() / 2]);
        lines.insert(4, format!("{{\"prompt\":\"?\",\"images\":[{cut:?}],\"id\":\"cut\"}}"));
        let [serial, overlapped] =
            ["serial", "overlapped"].map(|mode| answers(&folder, name, mode, &lines));
        assert_eq!(serial.len(), lines.len());
        assert_eq!(overlapped.len(), lines.len());
        let mut tiles = 0;
        for (one, other) in serial.iter().zip(&overlapped) {
            assert_eq!(one["id"], other["id"]);
            for key in ["text", "tokens", "logits_sha256", "prompt_tokens", "line", "finish"] {
                assert_eq!(one[key], other[key], "{name}, {key}");
            }
            assert_eq!(one["error"]["class"], other["error"]["class"], "{one} {other}");
            for answer in [one, other].into_iter().filter(|answer| answer["error"].is_null()) {
                let number = |key: &str| answer[key].as_u64().expect("a number");
                assert!(number("peak_bytes") <= number("m_max_bytes"), "{answer}");
                assert_eq!((number("allocations"), number("minor_faults")), (0, 0), "{answer}");
                assert!(answer["gap_ms"].as_f64() > Some(0.0), "{answer}");
            }
            tiles += other["beside"]["tiles"].as_u64().unwrap_or(0);
            assert!(one["beside"].is_null());
        }
        assert!(tiles >= 2, "{name}: {tiles} tiles beside answers");
        assert_eq!(serial[2]["error"]["class"], "file");
        assert_eq!(serial[4]["error"]["class"], "file");
    }
}

/// A plan of a model with eyes, with rates of which some are given.
fn plan(folder: &Folder, mode: &str, rates: &str) -> Value {
    let profile =
        format!(r#"{{"lanes":2,"isa":"avx2","memory_bytes":1073741824,"cache_bytes":1{rates}}}"#);
    let output = dctms("plan")
        .arg(fixture("vision-lfm2-text-f16.gguf"))
        .arg("--mmproj")
        .arg(fixture("vision-lfm2-mmproj-f16.gguf"))
        .args("--json --max-images 2 --max-input 1600 --max-output 48 --mode")
        .args(mode)
        .arg("--machine")
        .arg(folder.file("profile.json", profile))
        .run();
    assert_eq!(output.code(), 0, "{output:?}");
    serde_json::from_str(&output.stdout).expect("a plan")
}

#[test]
fn a_plan_says_how_long_a_gap_may_be_and_what_shortens_the_step_beside() {
    let folder = Folder::new();
    let number = |plan: &Value, key: &str| plan["gap"][key].as_u64().expect("a number");
    let step = |plan: &Value, phase: &str| {
        let known = plan["predictions"].as_array().expect("predictions").iter();
        let of_phase = known.filter(|known| known["phase"] == phase);
        of_phase.map(|known| known["nanoseconds"].as_u64().expect("a number")).max()
    };
    let rates = |read: &str| {
        let f16 = format!(r#"{{"f16":{{"beside_bytes_per_s":{read}}}}}"#);
        format!(r#","pause_ps":30000000000,"float_products":{f16}"#)
    };
    let [fast, slow] = ["16e9", "1e9"].map(|read| plan(&folder, "overlapped", &rates(read)));
    for plan in [&fast, &slow] {
        assert_eq!(plan["gap"]["arrival"], "beside");
        let expected = number(plan, "expected_ns");
        let bound = expected + expected / 4 + 2 * 30_000_000;
        assert!(number(plan, "bound_ns").abs_diff(bound) <= 2, "{}", plan["gap"]);
        assert_eq!(number(plan, "pause_ns"), 30_000_000);
        assert!(expected >= step(plan, "decode.beside").expect("a step beside"));
        assert!(number(plan, "picture_ns") > step(plan, "vision").expect("a tile"));
        assert!(number(plan, "picture_tiles") > 0, "{}", plan["gap"]);
    }
    // What a neighbour leaves of the memory is what the step beside has, and no other.
    let [slower, faster] = [&slow, &fast].map(|plan| number(plan, "expected_ns"));
    assert!(slower > faster + faster / 10, "{} {}", slow["gap"], fast["gap"]);
    assert_eq!(step(&slow, "decode"), step(&fast, "decode"));
    let serial = plan(&folder, "serial", &rates("1e9"));
    assert_eq!(serial["gap"]["arrival"], "after-answer");
    assert!(number(&serial, "expected_ns") < number(&slow, "expected_ns"));
    assert_eq!(number(&serial, "picture_tiles"), number(&slow, "picture_tiles"));
}
