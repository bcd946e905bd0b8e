//! The list of files with `unsafe` in the crate's documentation is the truth.

use std::path::{Path, PathBuf};

const WITH_UNSAFE: &[&str] = &[
    "affinity",
    "arena",
    "c_library",
    "child",
    "heap",
    "image",
    "interrupt",
    "lanes",
    "output",
    "overflow",
    "process",
    "seal",
    "stack",
    "sys",
];

fn files_under(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_under(&path, files),
            false => files.push(path),
        }
    }
}

#[test]
fn unsafe_stands_in_the_listed_modules_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    files_under(&source, &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let below = file.strip_prefix(&source).unwrap();
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let has_unsafe = code.flat_map(str::split_whitespace).any(|word| word == "unsafe");
        assert!(!has_unsafe || WITH_UNSAFE.contains(&module), "unsafe in {}", file.display());
        assert!(text.starts_with("//!"), "{} does not say what it holds", file.display());
        assert!(text.lines().count() <= 600, "{} is too long", file.display());
    }
    let documentation = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    for module in WITH_UNSAFE {
        assert!(documentation.contains(&format!("`{module}`")), "{module} is not in the list");
    }
}
