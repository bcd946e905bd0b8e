//! The command as a child process, and what its tests share.

// Each test file uses its own part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Options that make a plan the same on every machine but for the program's own size.
pub const FIXED: [&str; 6] = ["--lanes", "2", "--isa", "avx2", "--memory-limit", "1G"];

/// Runs the command to its end.
pub fn dctms<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    command().args(words).output().expect("the command starts")
}

/// The command, its streams captured.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dctms"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit code; panics with what was said when a signal ended the process.
pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("killed: {} {}", output.status, errors(output)))
}

/// Standard output.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A committed tiny model.
pub fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// Writes a model whose caches are large beside everything else, so that bounds decide its M_max:
/// 16 KiB of keys and values a position, weights of zeros.
pub fn long_context_model(folder: &Folder) -> PathBuf {
    use dctms_format::GgmlType;
    use dctms_format::write::Writer;
    const LAYERS: u64 = 4;
    const HIDDEN: u64 = 128;
    const FEATURES: u64 = 1024;
    const CONTEXT: u32 = 16_384;
    let mut writer = Writer::new()
        .metadata("general.architecture", "llama")
        .metadata("llama.block_count", LAYERS as u32)
        .metadata("llama.embedding_length", HIDDEN as u32)
        .metadata("llama.feed_forward_length", 256u32)
        .metadata("llama.attention.head_count", 8u32)
        .metadata("llama.attention.head_count_kv", 8u32)
        .metadata("llama.attention.key_length", 128u32)
        .metadata("llama.attention.value_length", 128u32)
        .metadata("llama.context_length", CONTEXT)
        .metadata("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let zeros = |ggml_type: GgmlType, dims: &[u64]| {
        vec![0; ggml_type.tensor_len_bytes(dims).expect("whole blocks") as usize]
    };
    let mut tensors = vec![
        ("token_embd.weight".to_string(), GgmlType::Q8_0, vec![HIDDEN, 320]),
        ("output_norm.weight".to_string(), GgmlType::F32, vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (part, ggml_type, dims) in [
            ("attn_norm", GgmlType::F32, vec![HIDDEN]),
            ("attn_q", GgmlType::Q4_0, vec![HIDDEN, FEATURES]),
            ("attn_k", GgmlType::Q4_0, vec![HIDDEN, FEATURES]),
            ("attn_v", GgmlType::Q4_0, vec![HIDDEN, FEATURES]),
            ("attn_output", GgmlType::Q4_0, vec![FEATURES, HIDDEN]),
            ("ffn_norm", GgmlType::F32, vec![HIDDEN]),
            ("ffn_gate", GgmlType::Q4_0, vec![HIDDEN, 256]),
            ("ffn_up", GgmlType::Q4_0, vec![HIDDEN, 256]),
            ("ffn_down", GgmlType::Q4_0, vec![256, HIDDEN]),
        ] {
            tensors.push((format!("blk.{layer}.{part}.weight"), ggml_type, dims));
        }
    }
    for (name, ggml_type, dims) in &tensors {
        writer = writer.tensor(name, *ggml_type, dims, zeros(*ggml_type, dims));
    }
    let path = folder.file("long.gguf");
    std::fs::write(&path, writer.to_bytes().expect("written to memory")).expect("a written file");
    path
}

/// An empty folder of one test, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("dctms-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `plan` with the fixed machine and more words.
pub fn plan(model: &Path, words: &[&str]) -> Output {
    let mut command = command();
    command.arg("plan").arg(model).args(FIXED).args(words);
    command.output().expect("the command starts")
}

/// Compares with a committed text, or writes it when `DCTMS_UPDATE_GOLDENS` is set.
pub fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
    if std::env::var_os("DCTMS_UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, found).expect("the golden can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == found,
        "{name} differs (DCTMS_UPDATE_GOLDENS=1 accepts it):\n--- expected\n{expected}--- found\n\
         {found}"
    );
}

/// A number in a JSON text, by a path of member names.
pub fn number(json: &serde_json::Value, path: &[&str]) -> i64 {
    let value = path.iter().fold(json, |value, name| &value[*name]);
    value.as_i64().unwrap_or_else(|| panic!("{path:?} is {value}"))
}

/// JSON on standard output.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(output), errors(output)))
}
