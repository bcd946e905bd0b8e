//! Identifiers of hostile multilingual texts against Hugging Face's, on small vocabularies that
//! are part of the repository and on real ones where their files are present.
//!
//! `scripts/tokenizer_fixtures.py` writes the expected identifiers.

mod common;

use common::{PlainSource, fixture, identifiers, model_file, read_gguf, small_vocabulary};
use dctms_text::{EncodeOptions, Ends, Scratch, SpecialText, Tokenizer};
use serde_json::Value;

const PARSE: EncodeOptions = EncodeOptions { special_text: SpecialText::Parse, ends: Ends::None };

#[test]
fn small_byte_pair_vocabulary_under_all_splitters() {
    let (mut source, cases) = small_vocabulary("small_byte_pair.json");
    for (pre, expected) in cases {
        source.pre = Some(pre.clone());
        compare(&source, &expected, &pre);
    }
}

#[test]
fn small_sentence_piece_vocabulary() {
    let (mut source, cases) = small_vocabulary("small_pieces.json");
    for (name, expected) in cases {
        source.flags = vec![("tokenizer.ggml.add_space_prefix", name == "prefix")];
        compare(&source, &expected, &name);
    }
}

#[test]
fn smollm2() {
    real("DCTMS_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json");
}

#[test]
fn gemma3() {
    real("DCTMS_GEMMA3", "gemma-3-270m-q4_k_m.gguf", "gemma3.json");
}

#[test]
fn qwen2() {
    real("DCTMS_QWEN2", "qwen2-vocabulary.gguf", "qwen2.json");
}

#[test]
fn llama3() {
    real("DCTMS_LLAMA3", "llama3-vocabulary.gguf", "llama3.json");
}

fn real(variable: &str, file: &str, expected: &str) {
    let Some(path) = model_file(variable, file) else {
        println!("skipped: {file} is not in .cache/models and {variable} is not set");
        return;
    };
    let expected = identifiers(&serde_json::from_str(&fixture(expected)).expect("JSON"));
    compare(&read_gguf(&path), &expected, file);
}

fn compare(source: &PlainSource, expected: &[Vec<u32>], name: &str) {
    let (layout, table) = source.tables();
    println!("{name}: tables of {} bytes, {:?}", layout.len_bytes(), layout.facts().merge_form);
    let tokenizer = Tokenizer::new(&layout, &table);
    let texts: Vec<String> = texts();
    let mut scratch = Scratch::with_text_bytes_max(layout.facts().kind, 4096);
    let mut failures = 0;
    for (text, expected) in texts.iter().zip(expected) {
        let mut ids = Vec::new();
        tokenizer.encode(text.as_bytes(), PARSE, &mut scratch, &mut |id| ids.push(id)).unwrap();
        if ids != *expected {
            let show = |ids: &[u32]| -> Vec<String> {
                ids.iter()
                    .map(|&id| {
                        let bytes = tokenizer.token_bytes(id);
                        format!("{id}:{:?}", String::from_utf8_lossy(bytes))
                    })
                    .collect()
            };
            println!("{name} {text:?}\n  got  {:?}\n  want {:?}", show(&ids), show(expected));
            failures += 1;
        }
    }
    assert_eq!(failures, 0, "{name}: texts with other identifiers");
}

fn texts() -> Vec<String> {
    let texts: Value = serde_json::from_str(&fixture("texts.json")).expect("JSON");
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_string()).collect()
}
