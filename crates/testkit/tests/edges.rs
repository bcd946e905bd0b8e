//! The shape of the workspace, held by a test: which crate may know which, where `unsafe` may
//! stand, how long files may be, and what the dependency tree must not contain.
//!
//! Reads manifests and sources as plain text and believes nothing else. The same lists stand in
//! `ARCHITECTURE.md`, which is compared too; so a new edge or a new file with `unsafe` is a change
//! of three places that a reviewer sees side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A crate of the workspace, the crates that it may depend on, and those that its tests may use.
struct Edges {
    name: &'static str,
    product: &'static [&'static str],
    tests: &'static [&'static str],
}

const fn edges(
    name: &'static str,
    product: &'static [&'static str],
    tests: &'static [&'static str],
) -> Edges {
    Edges { name, product, tests }
}

/// Everything that is allowed; what is not here is refused.
const ALLOWED: [Edges; 17] = [
    edges("ir", &["sha2"], &[]),
    edges("format", &["sha2"], &[]),
    edges("text", &["minijinja", "minijinja-contrib"], &["serde_json"]),
    edges("pack", &[], &[]),
    edges("image", &["png", "zune-jpeg", "zune-core", "image-webp", "gif", "libm"], &["flate2"]),
    edges("kernels", &["libm"], &[]),
    edges("system", &["libc"], &[]),
    edges("models", &["ir", "format", "libm"], &[]),
    edges("synth", &["format"], &[]),
    edges("planner", &["ir", "pack"], &[]),
    edges("verifier", &["ir"], &["sha2"]),
    edges("exec", &["ir", "verifier", "kernels", "system", "libm"], &[]),
    edges(
        "engine",
        &[
            "ir", "format", "text", "image", "models", "planner", "verifier", "kernels", "system",
            "exec", "sha2",
        ],
        &["serde_json", "testkit"],
    ),
    edges(
        "cli",
        &[
            "ir",
            "format",
            "text",
            "models",
            "pack",
            "planner",
            "verifier",
            "kernels",
            "synth",
            "system",
            "exec",
            "engine",
            "sha2",
            "lexopt",
            "serde_json",
        ],
        &["serde_json", "testkit", "sha2", "libc"],
    ),
    edges(
        "baseline",
        &["ir", "text", "models", "kernels", "system", "exec", "engine", "sha2", "serde_json"],
        &[],
    ),
    edges("experiment", &["system", "lexopt", "serde_json", "png"], &[]),
    edges("testkit", &["ir"], &["models", "planner", "verifier", "sha2", "serde_json"]),
];

/// Files of the product in which the word may stand.
const UNSAFE_PRODUCT: [&str; 35] = [
    "cli/src/commands/run/images.rs",
    "exec/src/memory.rs",
    "exec/src/retired.rs",
    "exec/src/run.rs",
    "exec/src/run/vision.rs",
    "exec/src/session.rs",
    "exec/src/beside.rs",
    "kernels/src/matmul/avx2.rs",
    "kernels/src/matmul/avx2/block.rs",
    "kernels/src/matmul/avx512.rs",
    "kernels/src/matmul/avx512/block.rs",
    "kernels/src/matmul/avx512/tiles.rs",
    "kernels/src/matmul/float_avx2.rs",
    "kernels/src/matmul/float_avx512.rs",
    "kernels/src/peak.rs",
    "kernels/src/permission.rs",
    "kernels/src/prefetch.rs",
    "kernels/src/simd/avx2.rs",
    "kernels/src/simd/avx512.rs",
    "system/src/affinity.rs",
    "system/src/arena.rs",
    "system/src/c_library.rs",
    "system/src/child.rs",
    "system/src/heap/escape.rs",
    "system/src/heap/mod.rs",
    "system/src/heap/tlsf.rs",
    "system/src/heap/tlsf/check.rs",
    "system/src/image.rs",
    "system/src/interrupt.rs",
    "system/src/lanes.rs",
    "system/src/output.rs",
    "system/src/overflow.rs",
    "system/src/process.rs",
    "system/src/seal.rs",
    "system/src/stack.rs",
];

/// The module of system calls; apart, because it is the one that a port rewrites.
const UNSAFE_PORT: [&str; 1] = ["system/src/sys.rs"];

/// What the product is compared with, and is no part of it.
const UNSAFE_BASELINE: [&str; 1] = ["baseline/src/memory.rs"];

/// Tests that bring an allocator of their own, and the one that signals and waits for children.
const UNSAFE_TESTS: [&str; 4] = [
    "cli/tests/support/child.rs",
    "format/tests/common/counting.rs",
    "system/src/heap/tests.rs",
    "text/tests/heap.rs",
];

/// Crates that must say `#![forbid(unsafe_code)]` themselves.
const FORBIDS_UNSAFE: [&str; 11] = [
    "engine",
    "experiment",
    "format",
    "image",
    "ir",
    "models",
    "pack",
    "planner",
    "testkit",
    "text",
    "verifier",
];

const FILE_LINES_MAX: usize = 700;
const VERIFIER_LINES_MAX: usize = 1500;

#[test]
fn crates_know_only_what_they_may() {
    let mut seen = BTreeSet::new();
    for manifest in manifests() {
        let name = manifest.name.as_str();
        let allowed = ALLOWED.iter().find(|edges| edges.name == name);
        let allowed = allowed.unwrap_or_else(|| panic!("crate {name} is not in the list"));
        seen.insert(allowed.name);
        for dependency in &manifest.product {
            assert!(allowed.product.contains(&dependency.as_str()), "{name} uses {dependency}");
        }
        for dependency in &manifest.tests {
            let known = allowed.product.iter().chain(allowed.tests);
            assert!(known.copied().any(|may| may == dependency), "tests of {name}: {dependency}");
        }
    }
    assert_eq!(seen.len(), ALLOWED.len(), "the list names a crate that is not there");
}

#[test]
fn allowed_edges_have_no_cycle_and_keep_the_checker_apart() {
    let own = |name: &str| ALLOWED.iter().find(|edges| edges.name == name);
    for edges in &ALLOWED {
        // In the order of the list a crate knows only earlier ones, so no cycle is possible.
        let place = ALLOWED.iter().position(|other| other.name == edges.name).unwrap();
        for dependency in edges.product.iter().filter(|name| own(name).is_some()) {
            let other = ALLOWED.iter().position(|other| other.name == *dependency).unwrap();
            assert!(other < place, "{} stands before {dependency}", edges.name);
        }
    }
    for edges in &ALLOWED {
        for apart in ["baseline", "experiment"] {
            assert!(!edges.product.contains(&apart), "{} knows {apart}", edges.name);
        }
    }
    assert_eq!(own("verifier").unwrap().product, ["ir"]);
    assert!(!own("planner").unwrap().product.contains(&"verifier"));
    assert!(!own("exec").unwrap().product.contains(&"planner"));
    let kernels = own("kernels").unwrap().product;
    assert!(kernels.iter().all(|name| own(name).is_none()), "kernels know a crate of ours");
}

#[test]
fn every_dependency_from_outside_has_a_reason() {
    for manifest in manifests() {
        let lines: Vec<&str> = manifest.text.lines().collect();
        let mut section = "";
        for (index, line) in lines.iter().enumerate() {
            section = if line.starts_with('[') { line } else { section };
            let entry = section.ends_with("dependencies]") && line.contains('=');
            // Continuation lines of a feature list are indented; ours come from the workspace.
            if entry && !line.starts_with([' ', '#']) && !line.starts_with("dctms-") {
                // One comment may stand over a group of lines.
                let above = lines[..index].iter().rev().take_while(|line| !line.is_empty());
                assert!(
                    above.clone().any(|line| line.starts_with('#')),
                    "{}: {line}: no comment says why",
                    manifest.name
                );
            }
        }
    }
}

#[test]
fn nothing_expands_code_while_compiling() {
    // The static build cannot make procedural macros. One stands in every lock file beside serde
    // (a pin of versions under `cfg(any())`, never built); nobody else may ask for one.
    let lock = read(&root().join("Cargo.lock"));
    let mut asks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |line: &&str| line.starts_with("name = ");
        let name = package.lines().find(field).unwrap().split('"').nth(1).unwrap();
        let list = package.split_once("dependencies = [").map_or("", |(_, list)| list);
        let names = list.split('"').skip(1).step_by(2);
        asks.insert(name, names.map(|name| name.split(' ').next().unwrap()).collect());
    }
    let pinned = ["serde_derive", "syn", "quote", "proc-macro2", "unicode-ident"];
    for (name, dependencies) in &asks {
        let expands = name.ends_with("_derive")
            || name.ends_with("-derive")
            || name.ends_with("-macros")
            || name.ends_with("_macros")
            || pinned.contains(name);
        assert!(!expands || pinned.contains(name), "{name} is a procedural macro");
        for dependency in dependencies.iter().filter(|name| pinned.contains(name)) {
            let fine = *name == "serde_core" || *name == "serde" || pinned.contains(name);
            assert!(fine, "{name} asks for {dependency}");
        }
    }
    for manifest in manifests() {
        assert!(!manifest.text.contains("\"derive\""), "{} derives", manifest.name);
        assert!(!manifest.text.contains("proc-macro = true"), "{} expands", manifest.name);
        assert!(!manifest.text.contains("build = "), "{} has a build script", manifest.name);
        let script = root().join("crates").join(&manifest.name).join("build.rs");
        assert!(!script.exists(), "{} has a build script", manifest.name);
    }
}

#[test]
fn unsafe_stands_in_the_listed_files_only() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let product = UNSAFE_PRODUCT.iter().chain(&UNSAFE_PORT);
    let listed: BTreeSet<&str> =
        product.chain(&UNSAFE_BASELINE).chain(&UNSAFE_TESTS).copied().collect();
    let mut found = BTreeSet::new();
    for (name, text) in sources() {
        if code_words(&text).any(|word| word == "unsafe") {
            assert!(listed.contains(name.as_str()), "{name}: unsafe in a file that is not listed");
            found.insert(name);
        }
    }
    for name in listed {
        assert!(found.contains(name), "{name} is listed and has no unsafe");
        assert!(architecture.contains(&format!("`{name}`")), "ARCHITECTURE.md lacks {name}");
    }
    for name in FORBIDS_UNSAFE {
        let text = read(&root().join("crates").join(name).join("src/lib.rs"));
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe");
    }
}

#[test]
fn files_say_what_they_hold_and_are_short() {
    for (name, text) in sources() {
        assert!(text.starts_with("//!"), "{name} does not say what it holds");
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{name}: {lines} lines, at most {FILE_LINES_MAX}");
    }
}

#[test]
fn the_verifier_can_be_read_in_one_sitting() {
    let read_lines = |text: &str| {
        let product = text.split("\n#[cfg(test)]").next().unwrap();
        product.lines().filter(|line| !line.trim().is_empty()).count()
    };
    let own = sources().filter(|(name, _)| name.starts_with("verifier/src/"));
    let lines: usize = own.map(|(_, text)| read_lines(&text)).sum();
    assert!(lines > 0 && lines < VERIFIER_LINES_MAX, "{lines} lines, below {VERIFIER_LINES_MAX}");
}

/// A manifest: the crate's folder, its text, and the names that it depends on.
struct Manifest {
    name: String,
    text: String,
    product: Vec<String>,
    tests: Vec<String>,
}

fn manifests() -> Vec<Manifest> {
    let mut folders: Vec<PathBuf> = entries(&root().join("crates"));
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.iter().map(|folder| manifest(folder)).collect()
}

fn manifest(folder: &Path) -> Manifest {
    let text = read(&folder.join("Cargo.toml"));
    let (mut product, mut tests, mut section) = (Vec::new(), Vec::new(), String::new());
    for line in text.lines() {
        if line.starts_with('[') {
            section = line.to_string();
            let whole = section.starts_with("[dependencies.");
            assert!(!whole, "{}: one line a dependency", folder.display());
            continue;
        }
        if line.starts_with(['#', ' ', ']']) {
            continue;
        }
        let Some((name, _)) = line.split_once(['=', '.']) else { continue };
        let name = name.trim().trim_start_matches("dctms-").to_string();
        // Sections for one target count like the others.
        if section.ends_with("dev-dependencies]") {
            tests.push(name);
        } else if section.ends_with("dependencies]") {
            product.push(name);
        }
    }
    let name = folder.file_name().unwrap().to_str().unwrap().to_string();
    Manifest { name, text, product, tests }
}

/// Every Rust file below `crates/`, by its path there.
fn sources() -> impl Iterator<Item = (String, String)> {
    let crates = root().join("crates");
    let mut folders = vec![crates.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            match (path.is_dir(), path.extension().is_some_and(|end| end == "rs")) {
                (true, _) => folders.push(path),
                (false, true) => files.push(path),
                (false, false) => {}
            }
        }
    }
    files.sort();
    files.into_iter().map(move |path| {
        let name = path.strip_prefix(&crates).unwrap().to_str().unwrap().to_string();
        (name, read(&path))
    })
}

/// The words of a file that are code: neither comment nor text in quotes.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| {
        let quoted = line.split('"').step_by(2);
        quoted.take_while(|part| !part.trim_start().starts_with("//"))
    });
    lines.flatten().flat_map(|part| {
        let code = part.split(" //").next().unwrap_or("");
        code.split(|c: char| !c.is_alphanumeric() && c != '_')
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
