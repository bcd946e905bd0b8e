//! What the writer writes, the reader reads: values, tensors, streams, shards, completeness.

mod common;

use common::{open, small_model, thread_time};
use dctms_format::write::{MetadataValue, Writer};
use dctms_format::{Checkpoint, Error, GgmlType, Scalar, Source, Value, ValueType};

#[test]
fn scalars_and_strings_come_back() {
    let checkpoint = open(&small_model().to_bytes().unwrap()).unwrap();
    assert_eq!(checkpoint.get_str("general.architecture").unwrap(), "llama");
    assert_eq!(checkpoint.get_u32("llama.block_count").unwrap(), 2);
    assert_eq!(checkpoint.get_u32("llama.context_length").unwrap(), 128);
    assert_eq!(checkpoint.get_u32("llama.byte").unwrap(), 7);
    assert_eq!(checkpoint.get_f32("llama.rope.freq_base").unwrap(), 10000.0);
    assert_eq!(checkpoint.get_f32("llama.some.double").unwrap(), 0.5);
    assert!(checkpoint.get_bool("tokenizer.ggml.add_bos_token").unwrap());
    let negative = checkpoint.find("llama.negative");
    assert_eq!(negative, Some(Value::Scalar(Scalar::Signed(-3))));
    assert_eq!(checkpoint.find_u32("no.such.key").unwrap(), None);
    let template = checkpoint.read_string("tokenizer.chat_template").unwrap().unwrap();
    assert_eq!(template, "{{ x }}".repeat(100));
    assert_eq!(checkpoint.metadata().len(), 18);
    let (key, kind, value) = checkpoint.metadata().nth(1).unwrap();
    assert_eq!((key, kind), ("general.name", ValueType::String));
    assert_eq!(value.to_string(), r#""a \"small\"\nmodel""#);
}

#[test]
fn refusals_name_key_types_and_offset() {
    let bytes = small_model().to_bytes().unwrap();
    let checkpoint = open(&bytes).unwrap();
    let check = |error: Error, expected: &str| assert_eq!(error.to_string(), expected);
    check(
        checkpoint.get_u32("llama.nothing").unwrap_err(),
        "m.gguf: metadata key \"llama.nothing\" (u32) is missing",
    );
    let key = b"llama.negative";
    let offset = bytes.windows(key.len()).position(|window| window == key).unwrap() + 14 + 4;
    check(
        checkpoint.get_u32("llama.negative").unwrap_err(),
        &format!(
            "m.gguf: metadata key \"llama.negative\" at byte {offset}: expected u32, found i32 -3"
        ),
    );
    let error = checkpoint.get_u32("tokenizer.ggml.tokens").unwrap_err().to_string();
    assert!(error.contains("expected u32, found [string; 300]"), "{error}");
    let error = checkpoint.get_array("tokenizer.ggml.tokens", &[ValueType::F32]).unwrap_err();
    assert!(error.to_string().contains("expected array of f32"), "{error}");
    let error = checkpoint.get_str("tokenizer.chat_template").unwrap_err();
    assert!(matches!(error, Error::StringTooLong { bound: 256, found: 700, .. }), "{error}");
    let error = checkpoint.require_tensor("x.weight", &[1, 2]).unwrap_err();
    check(error, "m.gguf: tensor \"x.weight\" with dimensions [1, 2] is missing");
    let error = checkpoint.require_tensor("output_norm.weight", &[65]).unwrap_err().to_string();
    assert!(error.contains("expected dimensions [65], found [64]"), "{error}");
}

#[test]
fn arrays_stream_through_the_smallest_window() {
    let checkpoint = open(&small_model().to_bytes().unwrap()).unwrap();
    let tokens = checkpoint.get_array("tokenizer.ggml.tokens", &[ValueType::String]).unwrap();
    assert_eq!((tokens.count(), tokens.string_len_bytes_max()), (300, 9));
    assert_eq!(tokens.string_len_bytes_total(), 10 * 7 + 90 * 8 + 200 * 9);
    assert_eq!(tokens.len_bytes(), tokens.string_len_bytes_total() + 300 * 8);
    for window_len in [17, 18, 31, 64, 100_000] {
        let mut window = vec![0; window_len];
        let mut reader = checkpoint.strings(&tokens, &mut window);
        for index in 0..300 {
            let expected = format!("token-{index}");
            assert_eq!(reader.next_string().unwrap(), Some(expected.as_bytes()));
        }
        assert_eq!(reader.next_string().unwrap(), None);
        assert_eq!(reader.next_string().unwrap(), None);
    }
    let scores = checkpoint.get_array("tokenizer.ggml.scores", &[ValueType::F32]).unwrap();
    let mut window = [0; 10];
    let mut reader = checkpoint.scalars(&scores, &mut window);
    for index in 0..300 {
        assert_eq!(reader.next_scalar().unwrap(), Some(Scalar::F32(index as f32)));
    }
    assert_eq!(reader.next_scalar().unwrap(), None);
}

#[test]
fn tensors_lie_where_the_writer_put_them() {
    let checkpoint = open(&small_model().to_bytes().unwrap()).unwrap();
    assert!(checkpoint.file_complete());
    checkpoint.require_complete().unwrap();
    assert_eq!(checkpoint.parameter_count(), 64 * 300 + 64 * 64 + 64 + 64);
    let tensor = checkpoint.require_tensor("blk.0.attn_q.weight", &[64, 64]).unwrap();
    assert_eq!((tensor.ggml_type, tensor.len_bytes), (GgmlType::Q4_0, 2304));
    assert_eq!(tensor.offset % 32, 0);
    let mut bytes = vec![0; 2300];
    checkpoint.read_tensor(&tensor, 4, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 2));
    let rows: Vec<_> = checkpoint.histogram();
    let row =
        |index: usize| (rows[index].ggml_type, rows[index].tensor_count, rows[index].len_bytes);
    assert_eq!(row(0), (GgmlType::F32, 2, 512));
    assert_eq!(row(1), (GgmlType::Q4_0, 1, 2304));
    assert_eq!(row(2), (GgmlType::Q8_0, 1, 20400));
    assert_eq!(rows.len(), 3);
}

#[test]
fn a_file_cut_off_after_its_table_is_incomplete_not_broken() {
    let bytes = small_model().to_bytes().unwrap();
    let whole = open(&bytes).unwrap();
    let header_len = whole.header_len_bytes(0) as usize;
    let cut = open(&bytes[..header_len]).unwrap();
    assert!(!cut.file_complete());
    assert_eq!(cut.header_sha256_hex(), whole.header_sha256_hex());
    let error = cut.require_complete().unwrap_err();
    assert!(matches!(&error, Error::Incomplete { name, .. } if name == "token_embd.weight"));
    // Everything but the last tensor's last byte.
    let last = whole.find_tensor("output_norm.weight").unwrap();
    let end = (last.offset + last.len_bytes) as usize;
    assert!(open(&bytes[..end]).unwrap().file_complete());
    let error = open(&bytes[..end - 1]).unwrap().require_complete().unwrap_err();
    assert!(matches!(&error, Error::Incomplete { name, .. } if name == "output_norm.weight"));
}

#[test]
fn the_hash_is_the_header_s() {
    use sha2::{Digest, Sha256};
    let bytes = small_model().to_bytes().unwrap();
    let checkpoint = open(&bytes).unwrap();
    let header = &bytes[..checkpoint.header_len_bytes(0) as usize];
    assert_eq!(checkpoint.header_sha256(), &<[u8; 32]>::from(Sha256::digest(header)));
}

#[test]
fn version_2_alignment_and_streamed_tensors() {
    let mut writer = Writer::new().version(2).alignment(4096).tensor_stream(
        "a",
        GgmlType::F32,
        &[2],
        Box::new(|out| out.write_all(&[9; 8])),
    );
    let checkpoint = open(&writer.to_bytes().unwrap()).unwrap();
    assert_eq!((checkpoint.version(), checkpoint.alignment()), (2, 4096));
    assert_eq!(checkpoint.find_tensor("a").unwrap().offset, 4096);
    let mut wrong = Writer::new().tensor_stream(
        "a",
        GgmlType::F32,
        &[2],
        Box::new(|out| out.write_all(&[9; 7])),
    );
    assert!(wrong.to_bytes().is_err());
}

#[test]
fn nested_arrays_are_stepped_over() {
    let inner = MetadataValue::strings(["x", "yz"]);
    let nested = MetadataValue::Array(ValueType::Array, vec![inner.clone(), inner]);
    let mut writer = Writer::new().metadata("a", nested).metadata("b", 5u32);
    let checkpoint = open(&writer.to_bytes().unwrap()).unwrap();
    assert_eq!(checkpoint.get_u32("b").unwrap(), 5);
    assert_eq!(checkpoint.find("a").unwrap().to_string(), "[array; 2] of 62 bytes");
}

#[test]
fn a_reader_that_fails_is_named() {
    struct Broken;
    impl Source for Broken {
        fn len(&self) -> u64 {
            1 << 20
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            Err(std::io::ErrorKind::TimedOut.into())
        }
    }
    let source: Box<dyn Source> = Box::new(Broken);
    let error = Checkpoint::from_sources([("m.gguf".to_string(), source)]).unwrap_err();
    assert_eq!(error.to_string(), "m.gguf: magic at byte 0: cannot read: timed out");
}

#[test]
fn for_each_gives_indices_and_passes_errors_on() {
    let flags = [true, false, true].map(MetadataValue::Bool).to_vec();
    let mut writer = Writer::new()
        .metadata("tokens", MetadataValue::strings(["a", "", "bc"]))
        .metadata("flags", MetadataValue::Array(ValueType::Bool, flags));
    let mut bytes = writer.to_bytes().unwrap();
    let checkpoint = open(&bytes).unwrap();
    let tokens = checkpoint.get_array("tokens", &[ValueType::String]).unwrap();
    let mut seen = Vec::new();
    let each = |index, string: &[u8]| {
        seen.push((index, string.to_vec()));
        Ok::<(), Error>(())
    };
    checkpoint.for_each_string(&tokens, each).unwrap();
    assert_eq!(seen, [(0, b"a".to_vec()), (1, vec![]), (2, b"bc".to_vec())]);

    let flags = checkpoint.get_array("flags", &[ValueType::Bool]).unwrap();
    bytes[flags.offset() as usize + 1] = 7;
    let checkpoint = open(&bytes).unwrap();
    let error = checkpoint.for_each_scalar(&flags, |_, _| Ok::<(), Error>(())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "m.gguf: metadata 1 \"flags\": array elements at byte {}: \
             bool must be 0 or 1, found 7",
            flags.offset() + 1
        )
    );
}

#[test]
fn types_that_do_not_run_are_listed_and_refused_by_name() {
    let mut writer = Writer::new().tensor("t", GgmlType::IQ4_XS, &[256], vec![0; 136]);
    let checkpoint = open(&writer.to_bytes().unwrap()).unwrap();
    assert_eq!(checkpoint.histogram()[0].ggml_type, GgmlType::IQ4_XS);
    let error = checkpoint.require_tensor("t", &[256]).unwrap_err().to_string();
    assert_eq!(error, "m.gguf: tensor \"t\" (entry at byte 24): type IQ4_XS is not supported");
}

#[test]
fn ones_at_the_end_of_a_shape_do_not_count() {
    let mut writer = Writer::new().tensor("t", GgmlType::F32, &[2, 1, 1], vec![0; 8]);
    let checkpoint = open(&writer.to_bytes().unwrap()).unwrap();
    checkpoint.require_tensor("t", &[2]).unwrap();
    checkpoint.require_tensor("t", &[2, 1, 1, 1]).unwrap();
    checkpoint.require_tensor("t", &[1, 2]).unwrap_err();
}

/// The largest vocabulary in use: its header opens at once, and its tables stay in the file.
#[test]
fn a_large_tokeniser_opens_in_time() {
    let tokens = (0..262_144).map(|index| format!("▁token{index}"));
    let mut writer = Writer::new()
        .metadata("tokens", MetadataValue::strings(tokens))
        .metadata("scores", MetadataValue::f32s((0..262_144).map(|index| -(index as f32))));
    let bytes = writer.to_bytes().unwrap();
    let mut elapsed = std::time::Duration::MAX;
    for _ in 0..5 {
        let start = thread_time();
        let checkpoint = open(&bytes).unwrap();
        elapsed = elapsed.min(thread_time() - start);
        let tokens = checkpoint.get_array("tokens", &[ValueType::String]).unwrap();
        assert_eq!((tokens.count(), tokens.string_len_bytes_max()), (262_144, 14));
    }
    assert!(elapsed < std::time::Duration::from_millis(50), "{elapsed:?}");
}
