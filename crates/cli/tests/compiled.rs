//! Compiled models: the same answers as the files that they were made from, and refusals of
//! whatever is not a compiled model of this program.

mod support;

use std::path::{Path, PathBuf};

use support::pictures::png;
use support::{FILE, Folder, SplitMix64, USAGE, dctms, fixture};

const MODEL: &str = "llama-legacy-mixed.gguf";
const RUN: &str = "run --raw -p hello -n 6 --max-input 16 --max-output 8 --json";

fn compiled(folder: &Folder) -> PathBuf {
    let path = folder.path().join("m.dctms");
    let child = dctms("compile").arg(fixture(MODEL)).arg("-o").arg(&path);
    assert_eq!(child.run().code(), 0);
    path
}

/// What two runs must agree on.
fn answer(model: &Path, words: &str) -> (String, String, u64) {
    let json = dctms(RUN).args(words).arg(model).json();
    let text = |key: &str| json.value[key].as_str().expect(key).to_string();
    assert!(json.integer("peak_bytes") <= json.integer("m_max_bytes"));
    assert_eq!(json.integer("allocations"), 0);
    (text("text"), text("logits_sha256"), json.integer("m_max_bytes"))
}

#[test]
fn a_compiled_model_answers_like_its_file_and_takes_as_much() {
    let folder = Folder::new();
    let path = compiled(&folder);
    for words in ["", "--lanes 1 --sequences 3", "--kv-type f32 --verify"] {
        assert_eq!(answer(&path, words), answer(&fixture(MODEL), words), "{words}");
    }
    // Plans name the file that it was made from, so they are the same, digest and all.
    let plan = |model: &Path| dctms("plan --json").arg(model).run().stdout;
    assert_eq!(plan(&path), plan(&fixture(MODEL)));
    let inspected = |model: &Path| dctms("inspect --json").arg(model).run().stdout;
    assert_eq!(inspected(&path), inspected(&fixture(MODEL)));
    // And reports of the one can be compared with reports of the other.
    let bench = "bench --json --prompt-tokens 8 --gen-tokens 2 --repetitions 1";
    let old = dctms(bench).arg(fixture(MODEL)).run().stdout;
    let old = folder.file("old.json", old);
    let report = dctms(bench).arg(&path).arg("--compare").arg(&old).json();
    assert!(report.value["now_by_earlier"]["peak_bytes"].as_f64().expect("a ratio") > 0.0);
}

/// The vision file stays what it is; what its encoder computes while loading, like the frequencies
/// of its own rotation, is of neither file.
#[test]
fn a_compiled_model_sees_like_its_file() {
    let folder = Folder::new();
    let picture = folder.file("p.png", png(47, 33));
    for name in ["lfm2", "qwen25vl"] {
        let text = fixture(&format!("vision-{name}-text-f16.gguf"));
        let path = folder.path().join(format!("{name}.dctms"));
        assert_eq!(dctms("compile").arg(&text).arg("-o").arg(&path).run().code(), 0);
        let answer = |model: &Path, words: &str| {
            let child =
                dctms("run --raw -p see -n 3 --json --max-input 700").arg(model).args(words);
            let child = child.args("--max-image-size 64x64 --mmproj");
            let child = child.arg(fixture(&format!("vision-{name}-mmproj-f16.gguf")));
            let json = child.arg("--image").arg(&picture).json();
            json.value["logits_sha256"].as_str().expect("a digest").to_string()
        };
        let expected = answer(&text, "");
        for words in ["", "--mode overlapped", "--mode phase-resident", "--weights mapped"] {
            assert_eq!(answer(&path, words), expected, "{name} {words}");
        }
    }
}

#[test]
fn a_compiled_model_is_not_compiled_again_and_words_are_checked() {
    let folder = Folder::new();
    let path = compiled(&folder);
    let again = folder.path().join("again.dctms");
    dctms("compile").arg(&path).arg("-o").arg(&again).refused(USAGE, &["compiled model already"]);
    dctms("compile").arg(fixture(MODEL)).refused(USAGE, &["compile MODEL.gguf -o"]);
    let nowhere = folder.path().join("no/such/folder");
    dctms("compile").arg(fixture(MODEL)).arg("-o").arg(&nowhere).refused(1, &["no/such/folder"]);
    assert!(!again.exists());
}

#[test]
fn damage_is_refused_by_what_it_is() {
    let folder = Folder::new();
    let whole = std::fs::read(compiled(&folder)).expect("a compiled model");
    let refused = |bytes: &[u8], words: &str, texts: &[&str]| {
        let path = folder.file("damaged.dctms", bytes);
        dctms(words).arg(&path).refused(FILE, texts);
    };
    let run = "run --raw -p hello -n 1";
    for len in [9, 95, 96, 200, 4096, whole.len() - 1] {
        refused(&whole[..len], run, &["cut off"]);
        refused(&whole[..len], "plan", &["cut off"]);
    }
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    refused(&changed(8, 9), run, &["version 9"]);
    refused(&changed(32, b'x'), run, &["xows16-k32-v1", "rows16-k32-v1", "compile"]);
    refused(&changed(70, 1), run, &["SHA-256"]);
    refused(&changed(130, 0xff), run, &["SHA-256"]);
    let last = whole.len() - 1;
    let flipped = changed(last, whole[last] ^ 1);
    refused(&flipped, &format!("{run} --verify"), &["checksum"]);
}

#[test]
fn no_change_of_a_byte_ends_in_a_crash() {
    let folder = Folder::new();
    let whole = std::fs::read(compiled(&folder)).expect("a compiled model");
    let mut random = SplitMix64(7);
    for round in 0..24 {
        let mut bytes = whole.clone();
        // The head and the table, where lengths and offsets are, more often than the rest.
        let within = if round % 3 == 0 { bytes.len() as u64 } else { 1024 };
        let at = (random.next() % within) as usize;
        bytes[at] ^= 1 << (random.next() % 8);
        let path = folder.file("changed.dctms", &bytes);
        let output = dctms("run --raw -p hello -n 1 --verify").arg(&path).run();
        // Padding between constants is nobody's; everything else is noticed.
        assert!([0, FILE].contains(&output.code()), "byte {at}: {output:?}");
    }
}

#[test]
fn mapped_weights_give_the_same_answer() {
    let folder = Folder::new();
    let (path, model) = (compiled(&folder), fixture(MODEL));
    assert_eq!(answer(&path, "--weights mapped"), answer(&model, ""));
    // Of a plain file a compiled model is made, once, and it is said.
    for expected in ["compiling", "mapped from"] {
        let child = dctms(RUN).args("--weights mapped").arg(&model);
        let json = child.env("XDG_CACHE_HOME", folder.path()).json();
        assert!(json.output.stderr.contains(expected), "{}", json.output.stderr);
        assert_eq!(json.value["logits_sha256"].as_str(), Some(&*answer(&model, "").1));
    }
    // What is kept under its name is believed by what it says of itself, and made again if wrong.
    let kept = std::fs::read_dir(folder.path().join("dctms/compiled")).expect("the cache");
    let kept = kept.map(|entry| entry.expect("an entry").path()).next().expect("one file");
    let other = dctms("compile").arg(fixture("llama-f16.gguf")).arg("-o").arg(&kept);
    assert_eq!(other.run().code(), 0);
    for _ in 0..2 {
        let child = dctms(RUN).args("--weights mapped").arg(&model);
        let json = child.env("XDG_CACHE_HOME", folder.path()).json();
        assert!(json.output.stderr.contains("made again"), "{}", json.output.stderr);
        assert_eq!(json.value["logits_sha256"].as_str(), Some(&*answer(&model, "").1));
        std::fs::write(&kept, "cut off").expect("the cache can be written");
    }
    let nowhere = dctms(RUN).args("--weights mapped").arg(&model);
    nowhere.env("XDG_CACHE_HOME", "").env("HOME", "here").refused(USAGE, &["XDG_CACHE_HOME"]);
    dctms("run --raw -p a -n 1 --weights mapped --verify").arg(&path).refused(USAGE, &["--verify"]);
    dctms("run --raw -p a -n 1 --weights here").arg(&path).refused(USAGE, &["here", "mapped"]);
}

#[test]
fn nothing_that_is_read_and_no_device_is_written_over() {
    let folder = Folder::new();
    let bytes = std::fs::read(fixture(MODEL)).expect("a fixture");
    let model = folder.file("own.gguf", &bytes);
    for (command, words) in
        [("compile", "-o"), ("plan", "-o"), ("plan", "--html"), ("run --raw -p a -n 1", "--trace")]
    {
        dctms(command).arg(&model).args(words).arg(&model).refused(USAGE, &["own.gguf: is read"]);
        assert_eq!(std::fs::read(&model).expect("still there"), bytes, "{command} {words}");
    }
    let null = "/dev/null: is there and is no ordinary file";
    dctms("compile -o /dev/null").arg(&model).refused(USAGE, &[null]);
    dctms("synth smollm2-135m q4_0 -o /dev/null").refused(USAGE, &[null]);
    let blind = dctms("eval --perplexity").arg(&model).args("--mmproj").arg(&model);
    blind.refused(USAGE, &["looks at no pictures"]);
}
