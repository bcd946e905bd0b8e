//! Helpers of the tests: a reader of GGUF metadata just large enough for vocabularies, a source
//! made of plain vectors, and a seeded generator. Not part of the crate.
#![allow(dead_code, reason = "each test file uses its own part")]

use dctms_text::{Facts, Flag, Role, TableLayout, TokenEntry, VocabularySource, build};
use serde_json::Value as Json;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A vocabulary in plain vectors.
#[derive(Debug, Clone, Default)]
pub struct PlainSource {
    pub model: String,
    pub pre: Option<String>,
    pub tokens: Vec<(Vec<u8>, i32, f32)>,
    pub merges: Vec<Vec<u8>>,
    pub flags: Vec<(&'static str, bool)>,
    pub roles: Vec<(&'static str, u32)>,
    pub chat_template: Option<String>,
}

impl VocabularySource for PlainSource {
    fn model(&self) -> Option<&str> {
        (!self.model.is_empty()).then_some(&self.model)
    }
    fn pre_tokenizer(&self) -> Option<&str> {
        self.pre.as_deref()
    }
    fn flag(&self, flag: Flag) -> Option<bool> {
        self.flags.iter().find(|(key, _)| *key == flag.key()).map(|(_, value)| *value)
    }
    fn special_token(&self, role: Role) -> Option<u32> {
        self.roles.iter().find(|(key, _)| *key == role.key()).map(|(_, value)| *value)
    }
    fn tokens(&self) -> impl Iterator<Item = TokenEntry<'_>> {
        self.tokens.iter().map(|(text, type_code, score)| TokenEntry {
            text,
            type_code: *type_code,
            score: *score,
        })
    }
    fn merges(&self) -> impl Iterator<Item = &[u8]> {
        self.merges.iter().map(Vec::as_slice)
    }
}

impl PlainSource {
    /// Measures, lays out and builds.
    pub fn tables(&self) -> (TableLayout, Vec<u8>) {
        let layout = TableLayout::new(Facts::measure(self).expect("a sound vocabulary"));
        let mut table = vec![0xAA; layout.len_bytes()];
        build(&layout, self, &mut table).expect("a sound vocabulary");
        (layout, table)
    }
}

/// A value of GGUF metadata, as far as vocabularies need it.
enum Value {
    Number(u64),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    Numbers(Vec<u32>),
}

/// The vocabulary in the metadata of a GGUF file.
pub fn read_gguf(path: &Path) -> PlainSource {
    let file = std::fs::File::open(path).expect("the file opens");
    let mut reader = Reader(std::io::BufReader::new(file));
    assert_eq!(&reader.bytes(4), b"GGUF");
    let (_version, _tensors, count) = (reader.number(4), reader.number(8), reader.number(8));
    let mut source = PlainSource::default();
    let (mut texts, mut types, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let key = reader.text();
        let key = String::from_utf8(key).expect("keys are text");
        let kind = reader.number(4);
        match (key.as_str(), reader.value(kind)) {
            ("tokenizer.ggml.model", Value::Text(text)) => {
                source.model = String::from_utf8(text).expect("text");
            }
            ("tokenizer.ggml.pre", Value::Text(text)) => {
                source.pre = Some(String::from_utf8(text).expect("text"));
            }
            ("tokenizer.chat_template", Value::Text(text)) => {
                source.chat_template = Some(String::from_utf8(text).expect("text"));
            }
            ("tokenizer.ggml.tokens", Value::Texts(list)) => texts = list,
            ("tokenizer.ggml.merges", Value::Texts(list)) => source.merges = list,
            ("tokenizer.ggml.token_type", Value::Numbers(list)) => types = list,
            ("tokenizer.ggml.scores", Value::Numbers(list)) => scores = list,
            (key, Value::Number(number)) => {
                for flag in [Flag::AddBos, Flag::AddEos, Flag::AddSpacePrefix] {
                    if flag.key() == key {
                        source.flags.push((flag.key(), number != 0));
                    }
                }
                for role in Role::ALL {
                    if role.key() == key {
                        source.roles.push((role.key(), number as u32));
                    }
                }
            }
            _ => {}
        }
    }
    source.tokens = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| {
            let type_code = types.get(id).map_or(1, |&code| code as i32);
            (text, type_code, scores.get(id).map_or(0.0, |&bits| f32::from_bits(bits)))
        })
        .collect();
    source
}

struct Reader(std::io::BufReader<std::fs::File>);

impl Reader {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the file is whole");
        bytes
    }
    fn number(&mut self, width: usize) -> u64 {
        let mut word = [0; 8];
        word[..width].copy_from_slice(&self.bytes(width));
        u64::from_le_bytes(word)
    }
    fn text(&mut self) -> Vec<u8> {
        let len = self.number(8) as usize;
        self.bytes(len)
    }
    fn value(&mut self, kind: u64) -> Value {
        let width = |kind| match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            _ => panic!("value type {kind}"),
        };
        match kind {
            8 => Value::Text(self.text()),
            9 => {
                let (kind, count) = (self.number(4), self.number(8));
                match kind {
                    8 => Value::Texts((0..count).map(|_| self.text()).collect()),
                    _ => Value::Numbers(
                        (0..count).map(|_| self.number(width(kind)) as u32).collect(),
                    ),
                }
            }
            _ => Value::Number(self.number(width(kind))),
        }
    }
}

/// The model file named by an environment variable, or of that name in `.cache/models` at the
/// root of the repository; none when it is not there.
pub fn model_file(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models");
    Some(root.join(name)).filter(|path| path.exists())
}

/// A text file of the fixtures.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A vocabulary of the fixtures, and the expected identifiers of each text in each of its modes.
pub fn small_vocabulary(file: &str) -> (PlainSource, Vec<(String, Cases)>) {
    let parsed: Json = serde_json::from_str(&fixture(file)).expect("JSON");
    let list = |key: &str| parsed[key].as_array().expect("a list").clone();
    let (types, scores) = (list("types"), list("scores"));
    let tokens = list("tokens").into_iter().enumerate().map(|(id, text)| {
        let score = scores.get(id).map_or(0.0, |score| score.as_f64().unwrap() as f32);
        (text.as_str().unwrap().into(), types[id].as_i64().unwrap() as i32, score)
    });
    let merges = list("merges")
        .iter()
        .map(|merge| {
            format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into_bytes()
        })
        .collect();
    let source = PlainSource {
        model: parsed["model"].as_str().unwrap().into(),
        tokens: tokens.collect(),
        merges,
        roles: vec![("tokenizer.ggml.unknown_token_id", 0)],
        ..PlainSource::default()
    };
    let cases = parsed["cases"].as_object().unwrap().iter();
    (source, cases.map(|(name, ids)| (name.clone(), identifiers(ids))).collect())
}

/// The identifiers of each text.
pub fn identifiers(value: &Json) -> Cases {
    let list =
        |ids: &Json| ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    value.as_array().unwrap().iter().map(list).collect()
}

/// The expected identifiers of each text.
pub type Cases = Vec<Vec<u32>>;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ value >> 31
    }
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
