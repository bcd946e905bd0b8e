//! Prints the identifiers of texts: `tokenize MODEL.gguf TEXTS.json`, where the texts are one
//! JSON list of strings; one JSON list of identifiers a line. For comparisons with others.

#[path = "../tests/common/mod.rs"]
mod common;

use common::read_gguf;
use dctms_text::{EncodeOptions, Ends, Scratch, SpecialText, Tokenizer};
use serde_json::Value;
use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, texts] = arguments.as_slice() else {
        eprintln!("usage: tokenize MODEL.gguf TEXTS.json");
        std::process::exit(64);
    };
    let (layout, table) = read_gguf(Path::new(model)).tables();
    let tokenizer = Tokenizer::new(&layout, &table);
    let options = EncodeOptions { special_text: SpecialText::Parse, ends: Ends::None };
    let texts = std::fs::read_to_string(texts).expect("the texts open");
    let texts: Value = serde_json::from_str(&texts).expect("JSON");
    let texts: Vec<&str> =
        texts.as_array().expect("a list").iter().map(|text| text.as_str().expect("text")).collect();
    let len_bytes_max = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let mut scratch = Scratch::with_text_bytes_max(layout.facts().kind, len_bytes_max);
    for text in texts {
        let mut ids: Vec<u32> = Vec::new();
        tokenizer
            .encode(text.as_bytes(), options, &mut scratch, &mut |id| ids.push(id))
            .expect("fits");
        println!("{}", Value::from(ids));
    }
}
