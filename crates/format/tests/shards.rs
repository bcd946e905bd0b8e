//! Sets of shards: opened as one, and every way of mixing them up refused by name.

mod common;

use common::{open, small_model};
use dctms_format::write::Writer;
use dctms_format::{Checkpoint, Error, GgmlType, Source};

#[test]
fn shards_open_as_one() {
    let directory = std::env::temp_dir().join(format!("dctms-shards-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let paths = small_model().write_shards(&directory, "model", 2).unwrap();
    assert_eq!(paths.len(), 2);
    let checkpoint = Checkpoint::open(&paths[0]).unwrap();
    assert_eq!((checkpoint.shard_count(), checkpoint.tensor_count()), (2, 4));
    assert_eq!(checkpoint.file_name(1), "model-00002-of-00002.gguf");
    let tensor = checkpoint.find_tensor("blk.0.attn_norm.weight").unwrap();
    assert_eq!(tensor.shard, 1);
    let mut bytes = [0; 256];
    checkpoint.read_tensor(&tensor, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 256]);
    assert!(checkpoint.source(1).file().is_some());
    assert!(checkpoint.file_complete());

    let error = Checkpoint::open(&paths[1]).unwrap_err();
    assert!(matches!(error, Error::NotFirstShard { index: 1, count: 2, .. }), "{error}");
    std::fs::copy(&paths[0], &paths[1]).unwrap();
    let error = Checkpoint::open(&paths[0]).unwrap_err().to_string();
    assert!(error.contains("split.no: expected 1, found 0"), "{error}");
    std::fs::remove_file(&paths[1]).unwrap();
    let error = Checkpoint::open(&paths[0]).unwrap_err();
    assert!(matches!(error, Error::MissingShard { index: 1, count: 2, .. }), "{error}");
    assert!(error.to_string().contains("model-00002-of-00002.gguf"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A shard as the writer of a set makes it, with one tensor.
fn shard(number: u16, count: u16, total: i32, tensor: &str) -> Vec<u8> {
    let writer = Writer::new()
        .metadata("split.no", number)
        .metadata("split.count", count)
        .metadata("split.tensors.count", total);
    writer.tensor(tensor, GgmlType::F32, &[1], vec![0; 4]).to_bytes().unwrap()
}

/// What opening the shards in this order says.
fn refusal(shards: &[Vec<u8>]) -> String {
    let sources = shards.iter().enumerate().map(|(index, bytes)| {
        let source: Box<dyn Source> = Box::new(bytes.clone());
        (format!("s{index}"), source)
    });
    Checkpoint::from_sources(sources).expect_err("mixed up").to_string()
}

#[test]
fn sets_that_do_not_belong_together() {
    assert_eq!(
        refusal(&[shard(0, 2, 2, "a"), shard(1, 3, 2, "b")]),
        "s1: metadata 1 \"split.count\": value at byte 69: split.count: expected 2, found 3"
    );
    assert_eq!(
        refusal(&[shard(0, 2, 3, "a"), shard(1, 2, 3, "b")]),
        "s0: metadata 2 \"split.tensors.count\": value at byte 102: \
         split.tensors.count: expected 3, found 2"
    );
    assert_eq!(
        refusal(&[shard(0, 2, 2, "a"), shard(1, 2, 2, "a")]),
        "s1: tensor 0 \"a\": name at byte 114: occurs twice"
    );
    assert_eq!(
        refusal(&[shard(0, 2, 2, "a"), small_model().to_bytes().unwrap()]),
        "s1: value at byte 0: split.count is missing, expected 2"
    );
    assert_eq!(
        refusal(&[shard(0, 2, 1, "a")]),
        "s0: metadata 1 \"split.count\": value at byte 69: split.count: expected 1, found 2"
    );
    assert_eq!(
        refusal(&[shard(1, 2, 1, "a")]),
        "s0: this is shard 2 of 2; give the first, named like NAME-00001-of-00002.gguf"
    );
}

#[test]
fn numbers_of_shards_that_no_set_has() {
    let of = |count: u16| open(&shard(0, count, 1, "a")).unwrap_err().to_string();
    let at = "m.gguf: metadata 1 \"split.count\": value at byte 69";
    assert_eq!(of(0), format!("{at}: must not be zero"));
    assert_eq!(of(u16::MAX), format!("{at}: 65535 exceeds the bound 512"));
    let text = Writer::new().metadata("split.count", "two").to_bytes().unwrap();
    let error = open(&text).unwrap_err().to_string();
    assert!(error.ends_with("expected unsigned integer, found string"), "{error}");
}
