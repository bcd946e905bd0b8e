//! `dctms inspect` and `dctms pack` as child processes.

mod common;

use common::{Folder, code, dctms, errors, golden, json, model, text};

#[test]
fn a_header_is_shown_whole() {
    let llama = model("llama-legacy-mixed.gguf");
    let output = dctms(["inspect".as_ref(), llama.as_os_str()]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    golden("inspect.txt", &text(&output));
    let told = json(&dctms(["inspect".as_ref(), llama.as_os_str(), "--json".as_ref()]));
    let tensors = told["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    let types = told["types"].as_array().unwrap();
    assert_eq!(types.iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>(), bytes);
    let keys = told["metadata"].as_array().unwrap();
    let architecture = keys.iter().find(|key| key["key"] == "general.architecture").unwrap();
    assert_eq!(architecture["value"], "llama");
    assert_eq!(told["file_complete"], true);
}

const TABLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

#[test]
fn a_table_is_packed() {
    let folder = Folder::new("pack");
    let (file, svg) = (folder.file("table.csv"), folder.file("table.svg"));
    std::fs::write(&file, TABLE).unwrap();
    let pack = |words: &[&str]| {
        let mut all = vec!["pack".as_ref(), file.as_os_str()];
        all.extend(words.iter().map(std::ffi::OsStr::new));
        dctms(all)
    };
    let output = pack(&["--svg", svg.to_str().unwrap()]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let lines: Vec<String> = text(&output).lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0], "id,lower,upper,size,offset");
    assert!(errors(&output).contains("lower bound: 12"), "{}", errors(&output));
    assert!(errors(&output).contains("proven minimal"), "{}", errors(&output));
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    assert_eq!(code(&pack(&["--capacity", "12", "--minimize", "--budget", "1000"])), 0);
    let small = pack(&["--capacity", "11"]);
    assert_eq!((code(&small), small.stdout.len()), (3, 0), "{}", errors(&small));
    std::fs::write(&file, "id,lower,upper,size\na,3,1,2\n").unwrap();
    let wrong = pack(&[]);
    assert_eq!(code(&wrong), 2);
    assert!(errors(&wrong).contains("line 2"), "{}", errors(&wrong));
}
