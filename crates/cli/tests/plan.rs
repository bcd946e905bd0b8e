//! `dctms plan` as a child process: the table, the numbers, the exit codes, hostile files.

mod common;

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use common::{
    Folder, code, command, dctms, errors, golden, json, long_context_model, model, number, plan,
    text,
};

const LLAMA: &str = "llama-legacy-mixed.gguf";
const MODELS: [&str; 4] =
    [LLAMA, "qwen3-k-quants-mixed.gguf", "gemma3-f16.gguf", "gemma3-f32.gguf"];

/// Figures that depend on the program's own size are masked, columns drawn together.
fn masked(table: &str) -> String {
    let own = ["runtime", "heap", "stacks", "image", "M_max", "M_free", "peak while", "lane "];
    let mut out = String::new();
    for line in table.lines() {
        let name = line.trim_start();
        let indent = &line[..(line.len() - name.len()).min(4)];
        let hide = own.iter().any(|own| name.starts_with(own));
        let cells = name.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let cells: Vec<String> = cells
            .enumerate()
            .map(|(index, cell)| match hide && index > 0 {
                true => cell.replace(|c: char| c.is_ascii_digit() || c == ',' || c == '.', ""),
                false => cell.to_string(),
            })
            .collect();
        out.push_str(&format!("{indent}{}\n", cells.join(" | ").trim_end()));
    }
    out
}

#[test]
fn the_table_is_the_golden_one() {
    let output = plan(&model(LLAMA), &["--max-input", "100", "--prefill-chunk", "32"]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    golden("plan_table.txt", &masked(&text(&output)));
}

#[test]
fn the_lines_add_up_exactly() {
    for name in MODELS {
        let plan = json(&plan(&model(name), &["--json"]));
        let of = |path: &[&str]| number(&plan["envelope"], path);
        let runtime = of(&["runtime", "heap"])
            + of(&["runtime", "stacks"])
            + of(&["runtime", "image"])
            + of(&["runtime", "io"]);
        assert_eq!(of(&["runtime", "total"]), runtime, "{name}");
        let terms = of(&["weights"]) + of(&["kv"]) + of(&["persistent"]) + of(&["intermediate"]);
        assert_eq!(of(&["total"]), terms + runtime, "{name}");
        assert_eq!(of(&["free"]), of(&["hardware"]) - of(&["total"]), "{name}");
        assert_eq!(of(&["hardware"]), 1 << 30, "{name}");
        assert!(of(&["load_peak"]) <= of(&["total"]), "{name}");
    }
}

#[test]
fn the_same_plan_prints_the_same_bytes() {
    let first = plan(&model(LLAMA), &["--json"]);
    assert_eq!(first.stdout, plan(&model(LLAMA), &["--json"]).stdout);
    let folder = Folder::new("same");
    let file = folder.file("plan.json");
    let output = plan(&model(LLAMA), &["-o", file.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert!(text(&output).contains("M_max"), "the table is printed beside the file");
    assert_eq!(std::fs::read(&file).unwrap(), first.stdout);
}

#[test]
fn a_file_without_its_weights_is_planned_and_says_so() {
    let whole = json(&plan(&model(LLAMA), &["--json"]));
    let header = json(&dctms(["inspect".as_ref(), model(LLAMA).as_os_str(), "--json".as_ref()]));
    let end = number(&header["files"][0], &["header_bytes"]);
    let bytes = std::fs::read(model(LLAMA)).unwrap();
    let folder = Folder::new("cut");
    let cut = folder.file("cut.gguf");
    std::fs::write(&cut, &bytes[..end as usize]).unwrap();
    let output = plan(&cut, &["--json"]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let planned = json(&output);
    assert_eq!(planned["models"][0]["file_complete"], false);
    assert_eq!(planned["envelope"], whole["envelope"]);
    assert!(text(&plan(&cut, &[])).contains("file incomplete"));
    // One byte less is a defect, told by field and offset.
    std::fs::write(&cut, &bytes[..end as usize - 1]).unwrap();
    let output = plan(&cut, &[]);
    assert_eq!(code(&output), 2);
    assert!(errors(&output).contains("cut.gguf"), "{}", errors(&output));
}

/// Runs `plan` on the model whose caches decide.
fn plan_long(long: &Path, words: &[&str], limit: &str) -> std::process::Output {
    let machine = ["--lanes", "2", "--isa", "avx2", "--memory-limit", limit, "--json"];
    command().arg("plan").arg(long).args(machine).args(words).output().unwrap()
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let folder = Folder::new("refused");
    let long = long_context_model(&folder);
    let wide = ["--sequences", "3", "--max-input", "8000", "--max-output", "192"];
    let total = number(&json(&plan_long(&long, &wide, "4G")), &["envelope", "total"]);
    assert!(total > 3 * 8192 * (16 << 10), "{total}");
    assert_eq!(code(&plan_long(&long, &wide, &total.to_string())), 0);
    let limit = (total - 1).to_string();
    let refused = plan_long(&long, &wide, &limit);
    assert_eq!(code(&refused), 3);
    let plan_json = json(&refused);
    assert_eq!(plan_json["envelope"]["fits"], false);
    assert_eq!(number(&plan_json, &["envelope", "free"]), -1);
    let said = errors(&refused);
    assert!(said.contains(" 1 bytes short"), "{said}");
    let mut advised = Vec::new();
    for line in said.lines().filter(|line| line.trim_start().starts_with("--")) {
        let options: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .find(|cell| cell.starts_with("--"))
            .unwrap()
            .split(' ')
            .collect();
        let words = [&wide[..], &options].concat();
        assert_eq!(code(&plan_long(&long, &words, &limit)), 0, "{line}");
        advised.push(options[0].to_string());
    }
    assert_eq!(advised, ["--max-input", "--kv-type", "--prefill-chunk", "--sequences"], "{said}");
    // Alone nothing helps here, together it does.
    let wide = ["--sequences", "3", "--max-input", "192", "--max-output", "8000"];
    let refused = plan_long(&long, &wide, "120M");
    assert_eq!(code(&refused), 3);
    let said = errors(&refused);
    assert!(said.contains("--sequences 1 --prefill-chunk 16 --kv-type q8_0"), "{said}");
}

#[test]
fn bounds_that_nobody_asked_for_shrink_to_what_fits() {
    let folder = Folder::new("shrunk");
    let long = long_context_model(&folder);
    let total =
        |words: &[&str]| number(&json(&plan_long(&long, words, "4G")), &["envelope", "total"]);
    // Large chunks: 7,000 tokens are too many for the heap of planning to hide.
    let words = ["--max-output", "8000"];
    let (all, less) = (total(&words), total(&[&words[..], &["--max-input", "1000"]].concat()));
    assert!(all > less);
    let shrunk = plan_long(&long, &words, &less.to_string());
    assert_eq!(code(&shrunk), 0, "{}", errors(&shrunk));
    let input = number(&json(&shrunk), &["bounds", "max_input_tokens"]);
    assert!((1000..2048).contains(&input), "{input}");
    let asked = [&words[..], &["--max-input", "2048"]].concat();
    assert_eq!(code(&plan_long(&long, &asked, &less.to_string())), 3);
}

#[test]
fn a_fit_is_the_largest_that_fits() {
    let folder = Folder::new("fit");
    let long = long_context_model(&folder);
    for (budget, sequences) in [("150M", "1"), ("200M", "1"), ("300000000", "2"), ("4G", "1")] {
        let words = ["--sequences", sequences, "--max-output", "64", "--fit", budget];
        let output = plan_long(&long, &words, budget);
        assert_eq!(code(&output), 0, "{}", errors(&output));
        let fit = json(&output);
        let input = number(&fit, &["bounds", "max_input_tokens"]);
        let more = if budget == "4G" { 4 } else { 3 };
        for (input, expected) in [(input, 0), (input + 1, more)] {
            let input = input.to_string();
            let words = ["--sequences", sequences, "--max-output", "64", "--max-input", &input];
            assert_eq!(code(&plan_long(&long, &words, budget)), expected, "{budget} {input}");
        }
    }
    // Where nothing fits, the plan that needs least is printed. The lower limit counts.
    for words in [["--fit", "1M", "--memory-limit", "4G"], ["--fit", "1G", "--memory-limit", "1M"]]
    {
        let nothing = plan(&model(LLAMA), &[&words[..], &["--json"]].concat());
        assert_eq!(code(&nothing), 3);
        assert!(errors(&nothing).contains("bytes short"), "{}", errors(&nothing));
        let least = json(&nothing);
        assert_eq!(least["envelope"]["fits"], false);
        assert_eq!(number(&least, &["envelope", "hardware"]), 1 << 20);
        assert_eq!(number(&least, &["bounds", "max_input_tokens"]), 1);
        let nothing = plan(&model(LLAMA), &words);
        assert_eq!(code(&nothing), 3);
        assert!(text(&nothing).contains("the least: nothing fits into 1,048,576 bytes"));
    }
}

#[test]
fn bounds_at_their_limits_have_plans() {
    let folder = Folder::new("limits");
    let long = long_context_model(&folder);
    let words = ["plan", long.to_str().unwrap(), "--lanes", "64", "--sequences", "64"];
    let output = dctms(words.into_iter().chain(["--memory-limit", "64G"]));
    assert_eq!(code(&output), 0, "{}", errors(&output));
    assert!(text(&output).contains("beyond a limit"), "{}", text(&output));
    let words = ["plan", long.to_str().unwrap(), "--prefill-chunk", "65536"];
    let output = dctms(words.into_iter().chain(["--max-input", "16000", "--max-output", "384"]));
    assert_eq!(code(&output), 0, "{}", errors(&output));
}

#[test]
fn prices_are_what_bounds_cost() {
    let folder = Folder::new("prices");
    let long = long_context_model(&folder);
    let output = command()
        .arg("plan")
        .arg(&long)
        .args(["--lanes", "2", "--isa", "avx2", "--memory-limit", "4G", "--max-input", "8000"])
        .args(["--max-output", "192"])
        .output()
        .unwrap();
    let table = text(&output);
    let line = table.lines().find(|line| line.contains("token of context")).unwrap();
    // 4 layers × keys and values × 8 heads × 128 features × 2 bytes, and what attention takes.
    let bytes: u64 = line.split_whitespace().nth(3).unwrap().replace(',', "").parse().unwrap();
    assert!((16_384..16_384 + 256).contains(&bytes), "{line}");
}

#[test]
fn bounds_say_where_they_came_from() {
    let table = text(&plan(&model(LLAMA), &["--max-output", "7", "--prefill-chunk", "9999"]));
    assert!(table.contains("505  capped by the model's context of 512"), "{table}");
    assert!(table.contains("7  given"), "{table}");
    assert!(table.contains("505  capped by the input bound"), "{table}");
    let over = plan(&model(LLAMA), &["--max-input", "500", "--max-output", "13"]);
    assert_eq!(code(&over), 4);
    assert!(errors(&over).contains("512"), "{}", errors(&over));
}

#[test]
fn a_hash_is_of_the_whole_file() {
    use sha2::Digest;
    let bytes = std::fs::read(model(LLAMA)).unwrap();
    let expected: String =
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let plan = json(&plan(&model(LLAMA), &["--hash", "--json"]));
    assert_eq!(plan["models"][0]["sha256"], expected.as_str());
}

#[test]
fn wrong_words_are_usage() {
    for words in [
        &["plan", "--no-such"][..],
        &["plan", "--fit"],
        &["plan", "--fit", "1G", "--max-input", "5", "a.gguf"],
        &["plan", "--lanes", "0", "a.gguf"],
        &["plan", "--diff", "a.json"],
        &["verify"],
        &["verify", "a.json", "b.json"],
        &["pack"],
        &["inspect", "a", "b"],
    ] {
        let output = dctms(words);
        assert_eq!(code(&output), 64, "{words:?} {}", errors(&output));
        assert!(!errors(&output).is_empty(), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn unreadable_files_are_defects_told_apart() {
    let folder = Folder::new("unreadable");
    let empty = folder.file("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    let escape = folder.file("\u{1b}[2Jname");
    let missing = folder.file("missing");
    for command in ["plan", "inspect", "verify", "pack"] {
        for path in [&missing, &empty, &escape, &folder.file("")] {
            let start = Instant::now();
            let output = dctms([command.as_ref(), path.as_os_str()]);
            assert_eq!(code(&output), 2, "{command} {path:?} {}", errors(&output));
            assert!(!errors(&output).contains('\u{1b}'), "{command} {path:?}");
            assert!(errors(&output).lines().count() <= 3, "{}", errors(&output));
            assert!(output.stdout.is_empty(), "{command} {path:?}");
            assert!(start.elapsed().as_secs() < 5);
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    for words in [&["--json"][..], &[]] {
        let mut child = command().arg("plan").arg(model(LLAMA)).args(words).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let mut first = [0; 1];
        let _ = pipe.read(&mut first);
        drop(pipe);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
    // Not even a standard error to complain to.
    let mut child = command().args(["plan", "/nonexistent"]).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}
