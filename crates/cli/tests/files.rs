//! Model files that are damaged, hostile or not supported: exit code 2, a message that tells them
//! apart, and nothing spent on them.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use support::child::Child;
use support::gguf::{Bytes, Gguf, Tensor};
use support::{FILE, Folder, dctms, fixture, tiny};

const F32: u32 = 0;
const ARRAY: u32 = 9;

/// Commands that build a model from a file.
const BUILDING: [&str; 3] = [
    "run -p hello -n 1",
    "plan",
    concat!("eval --ctx-size 8 --perplexity ", env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-MIT"),
];
/// Commands that read a file's header: those, and one that only shows it.
const READING: [&str; 4] = [BUILDING[0], BUILDING[1], BUILDING[2], "inspect"];

fn given(path: &Path) -> impl Iterator<Item = Child> {
    READING.into_iter().map(move |words| dctms(words).arg(path))
}

/// Every command that builds a model refuses these bytes with these texts, in less than 50 ms of a
/// processor and with little memory.
#[track_caller]
fn refused(folder: &Folder, bytes: impl AsRef<[u8]>, texts: &[&str]) {
    refused_by(&BUILDING, folder, bytes, texts);
}

/// The same of every command that reads a header.
#[track_caller]
fn header_refused(folder: &Folder, bytes: impl AsRef<[u8]>, texts: &[&str]) {
    refused_by(&READING, folder, bytes, texts);
}

#[track_caller]
fn refused_by(commands: &[&str], folder: &Folder, bytes: impl AsRef<[u8]>, texts: &[&str]) {
    let path = folder.file("m.gguf", bytes);
    for words in commands {
        let child = dctms(words).arg(&path);
        let output = child.refused(FILE, texts);
        assert!(output.processor_time < Duration::from_millis(50), "{output:?}");
        let most = (16 << 20).max(support::child::own_peak_bytes());
        assert!(output.peak_bytes <= most, "{} bytes: {output:?}", output.peak_bytes);
    }
}

#[test]
fn no_such_file_and_no_file() {
    let folder = Folder::new();
    for child in given(Path::new("/no/such.gguf")) {
        child.refused(FILE, &["/no/such.gguf: No such file or directory"]);
    }
    for path in [folder.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
        for child in given(path) {
            child.refused(FILE, &["not a regular file"]);
        }
    }
    let path = folder.path().join("loop");
    std::os::unix::fs::symlink(&path, &path).expect("a link");
    for child in given(&path) {
        child.refused(FILE, &["loop: "]);
    }
    let locked = folder.file("locked.gguf", b"GGUF");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).expect("permissions");
    for child in given(&locked) {
        // Root may read it all the same; then it is a file that ends.
        let output = child.refused(FILE, &["locked.gguf: "]);
        let texts = ["Permission denied", "the file ends"];
        assert!(texts.iter().any(|text| output.stderr.contains(text)), "{output:?}");
    }
}

#[test]
fn headers_that_are_none() {
    let folder = Folder::new();
    header_refused(&folder, b"", &["magic at byte 0: the file ends"]);
    header_refused(&folder, b"\x7fELF\x02\x01\x01", &["magic at byte 0: not a GGUF file"]);
    let old = b"GGUF\x01\x00\x00\x00".to_vec();
    refused(&folder, [old, vec![0; 16]].concat(), &["version at byte 4: version 1"]);
    let big = b"GGUF\x00\x00\x00\x03".to_vec();
    refused(&folder, [big, vec![0; 16]].concat(), &["big-endian"]);
    let text = std::fs::read(fixture("alice.txt")).expect("a text");
    header_refused(&folder, text, &["magic at byte 0: not a GGUF file"]);
    refused(&folder, Bytes::header(0, 0).0, &["general.architecture"]);
}

#[test]
fn counts_and_lengths_that_no_file_has() {
    let folder = Folder::new();
    let case = |bytes: Bytes, texts: &[&str]| header_refused(&folder, bytes.0, texts);
    let array =
        |kind: u32, count: u64| Bytes::header(0, 1).string("a").u32(ARRAY).u32(kind).u64(count);
    let alignment = |value: u32| Bytes::header(0, 1).string("general.alignment").u32(4).u32(value);
    let one = |dims: &[u64], kind: u32, offset: u64| {
        Bytes::header(1, 0).tensor("t", dims, kind, offset).raw(&[0; 256])
    };
    // ferrox #24, gguf-py #27188, ggml #1516, llama.cpp #26318, #18586, CVE-2026-27940.
    case(Bytes::header(0, 500_000_000), &["metadata count at byte 16: 500000000 exceeds"]);
    case(Bytes::header(u64::MAX, 0), &["tensor count at byte 8"]);
    case(array(4, 1 << 63), &["array count at byte 41: 9223372036854775808 exceeds"]);
    case(array(8, 4 << 20), &["array count at byte 41: the file ends"]);
    case(Bytes::header(0, 1).u64(1 << 62), &["key length at byte 24"]);
    case(Bytes::header(0, 1).string("k").u32(8).u64(u64::MAX), &["string length at byte 37"]);
    case(alignment(1 << 30), &["general.alignment", "byte 53: 1073741824 exceeds"]);
    case(alignment(0), &["general.alignment", "not a power of two"]);
    case(alignment(u32::MAX), &["general.alignment", "not a power of two"]);
    case(one(&[32, 0], F32, 0), &["\"t\": dimension 1 at byte 45: must not be zero"]);
    case(one(&[1 << 32, 1 << 32], F32, 0), &["size overflows"]);
    case(one(&[32], F32, u64::MAX - 31), &["data offset at byte 49: size overflows"]);
    case(one(&[32], F32, 8), &["data offset at byte 49: 8 is not a multiple"]);
    case(one(&[32], 999, 0), &["type at byte 45: unknown tensor type 999"]);
    let deep =
        (0..5).fold(Bytes::header(0, 1).string("a").u32(ARRAY), |bytes, _| bytes.u32(ARRAY).u64(1));
    case(deep.u32(0).u64(0).raw(&[0; 64]), &["exceeds the bound 4"]);
}

#[test]
fn a_header_that_is_cut_off() {
    let folder = Folder::new();
    let model = tiny::llama(256);
    let (bytes, len) = (model.bytes(), model.header_len_bytes());
    // The reader's own tests cut at every byte; here the way out through the program counts.
    for cut in (0..len).step_by(len / 24) {
        header_refused(&folder, &bytes[..cut], &["m.gguf: ", " at byte ", "the file ends"]);
    }
}

/// CVE-2026-7482: the data ends before the tensors do. A plan can be made; a run is refused.
#[test]
fn data_that_is_cut_off() {
    let folder = Folder::new();
    let model = tiny::llama(256);
    let bytes = model.bytes();
    for cut in [model.header_len_bytes(), bytes.len() - 64] {
        let path = folder.file("m.gguf", &bytes[..cut]);
        let child = dctms("run").arg(&path).args("-p hello -n 1");
        let output = child.refused(FILE, &["incomplete", "tensor", "bytes"]);
        assert!(output.processor_time < Duration::from_millis(50), "{output:?}");
        let output = dctms("plan --json").arg(&path).run();
        assert_eq!(output.code(), 0, "{output:?}");
        assert!(output.stdout.contains("\"file_complete\":false"), "{output:?}");
        let output = dctms("inspect").arg(&path).run();
        assert_eq!(output.code(), 0, "{output:?}");
    }
}

#[test]
fn architectures_that_are_not_supported() {
    let folder = Folder::new();
    let named = |name: &str| tiny::llama(256).set_text("general.architecture", name).bytes();
    refused(&folder, named("mamba"), &["unsupported architecture \"mamba\"", "llama", "gemma3"]);
    refused(&folder, named(""), &["architecture \"\""]);
    refused(&folder, named("\x1b[2J"), &["architecture", "\\u{1b}"]);
    let other = tiny::llama(256).set_u32("general.architecture", 3);
    refused(&folder, other.bytes(), &["general.architecture", "expected string, found u32"]);
    let none = tiny::llama(256).without("general.architecture");
    refused(&folder, none.bytes(), &["general.architecture"]);
}

#[test]
fn metadata_that_makes_no_model() {
    let folder = Folder::new();
    let case = |change: &dyn Fn(Gguf) -> Gguf, texts: &[&str]| {
        refused(&folder, change(tiny::llama(256)).bytes(), texts);
    };
    case(&|m| m.without("llama.block_count"), &["llama.block_count is missing"]);
    case(&|m| m.set_u32("llama.block_count", 0), &["llama.block_count: 0 is out of range"]);
    case(&|m| m.set_u32("llama.block_count", u32::MAX), &["4294967295 is out of range"]);
    case(&|m| m.set_u32("llama.block_count", 3), &["blk.2.", "is missing"]);
    case(&|m| m.set_u32("llama.attention.head_count_kv", 3), &["head_count_kv", "a divisor"]);
    case(&|m| m.set_u32("llama.attention.head_count", 0), &["head_count: 0 is out of range"]);
    case(&|m| m.set_u32("llama.context_length", 0), &["llama.context_length: 0 is out of range"]);
    case(&|m| m.set_text("llama.block_count", "two"), &["llama.block_count", "found string"]);
    let nan = [6u32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
    case(&|m| m.set("llama.rope.freq_base", nan.clone()), &["llama.rope.freq_base", "NaN"]);
    // llama.cpp #26690: an array of another type than expected.
    let bytes = [ARRAY.to_le_bytes(), 0u32.to_le_bytes()].concat();
    let bytes = [&bytes[..], &270u64.to_le_bytes(), &[0; 270]].concat();
    for key in ["tokens", "token_type", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        case(&|m| m.set(&key, bytes.clone()), &[&key, "array"]);
    }
    // llama.cpp #9235: a byte-pair vocabulary without merges.
    case(&|m| m.without("tokenizer.ggml.merges"), &["tokenizer.ggml.merges"]);
    case(&|m| m.set_text("tokenizer.ggml.model", "rwkv"), &["tokenizer.ggml.model", "rwkv"]);
    case(&|m| m.set_text("tokenizer.ggml.pre", "else"), &["tokenizer.ggml.pre", "else"]);
    // Templates matter to those who use them.
    for template in ["{% if %}", "{{ x.y.z }}"] {
        let model = tiny::llama(256).set_text("tokenizer.chat_template", template);
        refused_by(&BUILDING[..1], &folder, model.bytes(), &["template"]);
    }
}

#[test]
fn tensors_that_are_missing_or_wrong() {
    let folder = Folder::new();
    let name = "blk.1.ffn_down.weight";
    let mut model = tiny::llama(256);
    model.tensors.retain(|tensor| tensor.name != name);
    refused(&folder, model.bytes(), &[name, "is missing, expected shape [48, 64]"]);
    let turned = tiny::llama(256).tensor(name, |tensor| tensor.dims.reverse());
    refused(&folder, turned.bytes(), &[name, "has shape [64, 48], expected [48, 64]"]);
    let flat = tiny::llama(256).tensor(name, |tensor| tensor.dims = vec![48 * 64]);
    refused(&folder, flat.bytes(), &[name, "has shape [3072], expected [48, 64]"]);
    let mut model = tiny::llama(256);
    let data = vec![0; 64];
    model.tensors.push(Tensor { name: "more.weight".into(), dims: vec![16], kind: F32, data });
    refused(&folder, model.bytes(), &["more.weight", "llama"]);
    // Whole numbers are a type that files may have and products do not take.
    let whole = tiny::llama(256).tensor("output_norm.weight", |tensor| tensor.kind = 26);
    refused(&folder, whole.bytes(), &["output_norm.weight", "type"]);
    let names = tiny::llama(256).tensor(name, |tensor| tensor.name = "output_norm.weight".into());
    refused(&folder, names.bytes(), &["output_norm.weight", "occurs twice"]);
}

#[test]
fn a_read_only_folder_and_a_relative_path() {
    let folder = Folder::new();
    folder.file("m.gguf", tiny::llama(256).bytes());
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(folder.path(), mode(0o555)).expect("permissions");
    let output = dctms("run m.gguf -p hello -n 2").folder(folder.path()).run();
    std::fs::set_permissions(folder.path(), mode(0o755)).expect("permissions");
    assert_eq!(output.code(), 0, "{output:?}");
    let output = dctms("run ./m.gguf -p hello -n 2").folder(folder.path()).run();
    assert_eq!(output.code(), 0, "{output:?}");
    // A working folder that is gone.
    let gone = Folder::new();
    let script = "cd \"$1\" && rmdir \"$1\" && exec \"$2\" run \"$3\" -p hello -n 2";
    let status = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(gone.path())
        .arg(env!("CARGO_BIN_EXE_dctms"))
        .arg(folder.path().join("m.gguf"))
        .output()
        .expect("a shell");
    assert!(status.status.success(), "{status:?}");
}

/// One file of a set: `split.no` and its kin say so, whatever the name.
fn shard(number: u16, metadata: &[(String, Vec<u8>)], tensors: &[Tensor], total: usize) -> Gguf {
    let small = |value: u16| [&2u32.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let count = [5u32.to_le_bytes(), (total as u32).to_le_bytes()].concat();
    Gguf { metadata: metadata.to_vec(), tensors: tensors.to_vec() }
        .set("split.no", small(number))
        .set("split.count", small(2))
        .set("split.tensors.count", count)
}

#[test]
fn a_set_of_shards_is_one_model() {
    let folder = Folder::new();
    let whole = tiny::llama(512);
    let (front, back) = whole.tensors.split_at(whole.tensors.len() / 3);
    let total = whole.tensors.len();
    let first = shard(0, &whole.metadata, front, total).bytes();
    let first = folder.file("m-00001-of-00002.gguf", first);
    let second = folder.file("m-00002-of-00002.gguf", shard(1, &[], back, total).bytes());
    let report = |path: &Path| dctms("run -p hello -n 8 --ignore-eos").arg(path).json().value;
    let (alone, set) = (report(&folder.file("m.gguf", whole.bytes())), report(&first));
    for key in ["text", "logits_sha256"] {
        assert_eq!(alone[key], set[key], "{key}");
    }
    // Names promise nothing: without these keys a file is a model of its own.
    let named = folder.file("n-00001-of-00002.gguf", whole.bytes());
    assert_eq!(report(&named)["logits_sha256"], alone["logits_sha256"]);
    for child in given(&second) {
        child.refused(FILE, &["this is shard 2 of 2; give the first"]);
    }
    std::fs::remove_file(&second).expect("it was there");
    for child in given(&first) {
        child.refused(FILE, &["m-00002-of-00002.gguf"]);
    }
}

/// Nothing but the header is read: a file of some 300 tensors is planned in less than a tenth of a
/// second of a processor that nobody shares, in a build that is optimised.
#[test]
fn a_plan_of_hundreds_of_tensors_is_quick() {
    let folder = Folder::new();
    let path = folder.file("many.gguf", many_layers(32));
    let output = dctms("inspect --json").arg(&path).run();
    let header: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    let tensors = header["tensors"].as_array().expect("a list").len();
    assert!(tensors >= 290, "{tensors}");
    let time = |_| {
        let output = dctms("plan --lanes 2").arg(&path).run();
        assert_eq!(output.code(), 0, "{output:?}");
        output.processor_time
    };
    let quickest = (0..3).map(time).min().expect("three");
    println!("a plan of {tensors} tensors: {quickest:?}");
    // Others share the processor; unoptimised code is ten times slower.
    let most_ms = if cfg!(debug_assertions) { 5_000 } else { 200 };
    assert!(quickest.as_millis() < most_ms, "{quickest:?}");
}

/// The header of a llama of so many layers, nine tensors each, and no weights.
fn many_layers(layers: u64) -> Vec<u8> {
    use dctms_format::GgmlType;
    use dctms_format::write::Writer;
    const HIDDEN: u64 = 64;
    let mut writer = Writer::new()
        .metadata("general.architecture", "llama")
        .metadata("llama.block_count", layers as u32)
        .metadata("llama.embedding_length", HIDDEN as u32)
        .metadata("llama.feed_forward_length", 128u32)
        .metadata("llama.attention.head_count", 4u32)
        .metadata("llama.attention.head_count_kv", 2u32)
        .metadata("llama.context_length", 4096u32)
        .metadata("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![HIDDEN, 320]),
        ("output_norm.weight".to_string(), vec![HIDDEN]),
    ];
    for layer in 0..layers {
        for (part, dims) in [
            ("attn_norm", vec![HIDDEN]),
            ("attn_q", vec![HIDDEN, HIDDEN]),
            ("attn_k", vec![HIDDEN, HIDDEN / 2]),
            ("attn_v", vec![HIDDEN, HIDDEN / 2]),
            ("attn_output", vec![HIDDEN, HIDDEN]),
            ("ffn_norm", vec![HIDDEN]),
            ("ffn_gate", vec![HIDDEN, 128]),
            ("ffn_up", vec![HIDDEN, 128]),
            ("ffn_down", vec![128, HIDDEN]),
        ] {
            tensors.push((format!("blk.{layer}.{part}.weight"), dims));
        }
    }
    for (name, dims) in &tensors {
        let bytes = GgmlType::F32.tensor_len_bytes(dims).expect("whole") as usize;
        writer = writer.tensor(name, GgmlType::F32, dims, vec![0; bytes]);
    }
    writer.to_bytes().expect("written to memory")
}
