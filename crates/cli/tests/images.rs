//! Pictures from outside: who may not see, and files that are no pictures or too large ones.
//!
//! Most of this is refused before a prompt is read.

use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/vision/pictures").join(name)
}

/// Runs the program; gives its code and standard error.
fn refused(words: &[&str]) -> (i32, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_dctms"))
        .args(words)
        .output()
        .expect("the program");
    let code = output.status.code().expect("an exit code");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn see(image: &Path, more: &[&str]) -> (i32, String) {
    let text = fixture("vision-lfm2-text-f16.gguf");
    let eyes = fixture("vision-lfm2-mmproj-f16.gguf");
    let [text, eyes, image] = [&text, &eyes, image].map(|path| path.to_str().expect("a name"));
    let mut words = vec!["run", text, "--mmproj", eyes, "--image", image, "-p", "what?"];
    words.extend(more);
    refused(&words)
}

#[test]
fn a_text_model_is_said_to_be_blind() {
    let text = fixture("llama-f16.gguf");
    let image = picture("te_canon_056.png");
    let (code, said) = refused(&[
        "run",
        text.to_str().expect("a name"),
        "--image",
        image.to_str().expect("a name"),
        "-p",
        "what?",
    ]);
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("is a text model and cannot see") && said.contains("--mmproj"), "{said}");
}

#[test]
fn a_picture_over_the_bound_is_refused_with_both_numbers() {
    let (code, said) = see(&picture("te_canon_056.png"), &["--max-image-size", "100x200"]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("224x224") && said.contains("200"), "{said}");
    assert!(said.contains("141x141 of it would fit: --oversize resize"), "{said}");
    // Made smaller it is looked at.
    let words = ["--max-image-size", "100x200", "--oversize", "resize"];
    let (code, said) = see(&picture("te_canon_056.png"), &words);
    assert_eq!(code, 0, "{said}");
    let words = ["--max-image-size", "50x50", "--max-source-size", "100x200"];
    let (code, said) = see(&picture("te_canon_056.png"), &words);
    assert!(code == 4 && said.contains("--max-source-size"), "{said}");
}

#[test]
fn files_that_are_no_pictures_are_refused() {
    let (code, said) = see(&fixture("README.md"), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("README.md: no picture"), "{said}");
    let (code, said) = see(Path::new("/nowhere.png"), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("/nowhere.png: cannot read the picture"), "{said}");
    let folder = std::env::temp_dir();
    let (code, said) = see(&folder, &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("a directory, a picture is a regular file"), "{said}");
    let (code, said) = see(Path::new("/dev/null"), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("/dev/null: a device"), "{said}");
}

#[test]
fn sizes_and_numbers_of_pictures_are_checked() {
    for (words, part) in [
        (["--max-image-size", "0x5"], "pixels are expected"),
        (["--max-image-size", "99999"], "16384 an edge"),
        (["--max-images", "0"], "1 to 64"),
        (["--oversize", "crop"], "refuse or resize"),
        // What is made smaller is larger than what is looked at.
        (["--max-source-size", "1023x1024"], "less than the 1024x1024 of --max-image-size"),
        (["--max-source-size", "2000x500"], "less than the 1024x1024 of --max-image-size"),
    ] {
        let (code, said) = see(&picture("te_canon_056.png"), &words);
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(part), "{said}");
    }
}

/// Files that do not belong together are a defect of theirs, for whoever looks.
#[test]
fn a_vision_file_for_another_width_is_a_defect_for_every_command() {
    let text = fixture("llama-f16.gguf");
    let eyes = fixture("vision-lfm2-mmproj-f16.gguf");
    let [text, eyes] = [&text, &eyes].map(|path| path.to_str().expect("a name"));
    for words in [&["run", text, "-p", "what?"][..], &["plan", text]] {
        let (code, said) = refused(&[words, &["--mmproj", eyes]].concat());
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("projection_dim: 32"), "{said}");
    }
}

/// A template that knows pictures writes a picture's mark with the tokens round it; what becomes of
/// it is their text, once, and the picture's rows between.
#[test]
fn a_template_that_knows_pictures_shows_each_once() {
    let text = fixture("vision-qwen25vl-text-f16.gguf");
    let eyes = fixture("vision-qwen25vl-mmproj-f16.gguf");
    let image = picture("te_canon_056.png");
    let [text, eyes, image] = [&text, &eyes, &image].map(|path| path.to_str().expect("a name"));
    let run = |more: &[&str]| {
        let words = ["run", text, "--mmproj", eyes, "-n", "4", "--json", "--ignore-eos"];
        let sizes = ["--max-images", "2", "--max-image-size", "224x224", "-p", "what?"];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_dctms"))
            .args(words.iter().chain(&sizes).chain(more))
            .output()
            .expect("the program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (value["prompt_tokens"].as_u64().expect("a number"), value["logits_sha256"].to_string())
    };
    let (blind, _) = run(&[]);
    let (one, answer) = run(&["--image", image]);
    // 28 by 28 tokens of 8 pixels, and a mark at each end.
    assert_eq!(one - blind, 28 * 28 + 2);
    let (two, _) = run(&["--image", image, "--image", image]);
    assert_eq!(two - one, 28 * 28 + 2);
    for mode in ["phase-resident", "overlapped"] {
        assert_eq!(run(&["--image", image, "--mode", mode]).1, answer, "{mode}");
    }
}
