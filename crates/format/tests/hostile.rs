//! Files made to break readers, each from a public report on some engine: every one is refused
//! by field and byte offset, in milliseconds, with under 1 MiB on the heap.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::time::Duration;

use common::{Bytes, small_model, thread_time};
use dctms_format::limits::PARSE_HEAP_LEN_BYTES_MAX;
use dctms_format::{Checkpoint, Error, Source};

/// A file's bytes without a copy of them: what lies past their end reads as zeros, so that a
/// test's "huge" file is small.
#[derive(Clone)]
struct Sparse {
    bytes: Vec<u8>,
    len: u64,
}

impl Source for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.fill(0);
        let start = (offset as usize).min(self.bytes.len());
        let stored = &self.bytes[start..(start + buffer.len()).min(self.bytes.len())];
        buffer[..stored.len()].copy_from_slice(stored);
        Ok(())
    }
}

/// Opens under the clock and the counter. The clock counts this thread's time on a processor,
/// for the machine may be busy; the best of some tries counts.
fn open_measured(source: impl Source + Clone + 'static) -> Result<Checkpoint, Error> {
    let mut elapsed = Duration::MAX;
    for _ in 0..4 {
        let source: Box<dyn Source> = Box::new(source.clone());
        let start = thread_time();
        let (result, peak) =
            counting::peak_len_bytes(|| Checkpoint::from_sources([("m.gguf".to_string(), source)]));
        elapsed = elapsed.min(thread_time() - start);
        assert!(peak < PARSE_HEAP_LEN_BYTES_MAX, "{peak} bytes allocated");
        if elapsed < Duration::from_millis(50) {
            return result;
        }
    }
    panic!("{elapsed:?}")
}

/// A file that must be refused with exactly this message.
#[track_caller]
fn refused(bytes: Bytes, expected: &str) {
    let error = open_measured(bytes.0).expect_err("must be refused");
    assert_eq!(error.to_string(), format!("m.gguf: {expected}"));
}

/// A file that must be taken, but as incomplete.
#[track_caller]
fn incomplete(bytes: Bytes, tensor: &str) {
    let checkpoint = open_measured(bytes.0).expect("must be taken");
    assert!(!checkpoint.file_complete());
    let error = checkpoint.require_complete().unwrap_err();
    assert!(matches!(&error, Error::Incomplete { name, .. } if name == tensor), "{error}");
}

const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q4_0: u32 = 2;

#[test]
fn other_files_and_versions() {
    refused(Bytes::default(), "magic at byte 0: the file ends: 4 bytes needed, 0 left");
    refused(
        Bytes::default().raw(b"\x7fELF\x02\x01\x01"),
        "magic at byte 0: not a GGUF file: begins with \"\\x7fELF\"",
    );
    let version = |bytes: [u8; 4]| Bytes::default().raw(b"GGUF").raw(&bytes).u64(0).u64(0);
    refused(version([1, 0, 0, 0]), "version at byte 4: version 1 is not supported (2 and 3 are)");
    refused(
        version([0, 0, 0, 3]),
        "version at byte 4: big-endian file (version 3); only little-endian is supported",
    );
    refused(version([4, 0, 0, 0]), "version at byte 4: version 4 is not supported (2 and 3 are)");
}

/// ferrox #24: 24 bytes that announce 5·10⁸ entries made a reader reserve 61 GB.
#[test]
fn counts_that_no_file_has() {
    refused(
        Bytes::header(0, 500_000_000),
        "metadata count at byte 16: 500000000 exceeds the bound 1024",
    );
    refused(
        Bytes::header(u64::MAX, 0),
        "tensor count at byte 8: 18446744073709551615 exceeds the bound 4096",
    );
    refused(
        Bytes::header(0, 1000),
        "metadata 0: key length at byte 24: the file ends: 8 bytes needed, 0 left",
    );
    refused(
        Bytes::header(4096, 0),
        "tensor 0: name length at byte 24: the file ends: 8 bytes needed, 0 left",
    );
}

/// gguf-py #27188: an array of 2⁶³ elements; and its kin.
#[test]
fn arrays_that_no_file_holds() {
    let array =
        |kind: u32, count: u64| Bytes::header(0, 1).string("a").u32(ARRAY).u32(kind).u64(count);
    refused(
        array(4, 1 << 63),
        "metadata 0 \"a\": array count at byte 41: \
         9223372036854775808 exceeds the bound 4194304",
    );
    for kind in [0, 4, 7, 8, 9, 12] {
        let error = open_measured(array(kind, 4 << 20).0).unwrap_err().to_string();
        assert!(error.contains("array count at byte 41: the file ends: "), "{error}");
    }
    refused(array(13, 1), "metadata 0 \"a\": array element type at byte 37: unknown value type 13");
    refused(
        array(8, 1).u64(u64::MAX),
        "metadata 0 \"a\": array string length at byte 49: \
         18446744073709551615 exceeds the bound 32768",
    );
    refused(
        array(8, 1).u64(100).raw(b"short"),
        "metadata 0 \"a\": array string at byte 57: the file ends: 100 bytes needed, 5 left",
    );
}

/// The longest walk that a file can ask for: all empty strings, and then something wrong.
#[test]
fn the_longest_header_is_refused_in_time() {
    let start = Bytes::header(0, 2).string("a").u32(ARRAY);
    let bytes = start.clone().u32(8).u64((4 << 20) - 16).0;
    let error = open_measured(Sparse { bytes, len: 1 << 40 }).unwrap_err().to_string();
    assert!(error.contains("metadata 1: key length at byte 33554353: must not"), "{error}");
    let bytes = start.u32(8).u64(4 << 20).0;
    let error = open_measured(Sparse { bytes, len: 1 << 40 }).unwrap_err().to_string();
    assert!(error.contains("header passes its bound of 33554432 bytes"), "{error}");
}

#[test]
fn arrays_of_arrays_of_arrays() {
    let start = Bytes::header(0, 1).string("a").u32(ARRAY);
    let deep = (0..5).fold(start, |bytes, _| bytes.u32(ARRAY).u64(1)).u32(0).u64(0).data(64);
    refused(deep, "metadata 0 \"a\": array element type at byte 85: 5 exceeds the bound 4");
    let start = Bytes::header(0, 1).string("a").u32(ARRAY);
    let fits = (0..3).fold(start, |bytes, _| bytes.u32(ARRAY).u64(1)).u32(0).u64(0);
    open_measured(fits.0).expect("four levels are allowed");
}

#[test]
fn strings_and_keys_that_no_file_holds() {
    refused(
        Bytes::header(0, 1).u64(1 << 62),
        "metadata 0: key length at byte 24: 4611686018427387904 exceeds the bound 255",
    );
    refused(Bytes::header(0, 1).u64(0), "metadata 0: key length at byte 24: must not be zero");
    refused(
        Bytes::header(0, 1).u64(2).raw(&[0xff, 0xfe]),
        "metadata 0: key at byte 32: not valid UTF-8",
    );
    refused(
        Bytes::header(0, 1).string("k").u32(8).u64(u64::MAX),
        "metadata 0 \"k\": string length at byte 37: \
         18446744073709551615 exceeds the bound 1048576",
    );
    refused(
        Bytes::header(0, 1).string("k").u32(8).u64(1000),
        "metadata 0 \"k\": string at byte 45: the file ends: 1000 bytes needed, 0 left",
    );
    refused(
        Bytes::header(0, 1).string("k").u32(77),
        "metadata 0 \"k\": value type at byte 33: unknown value type 77",
    );
    refused(
        Bytes::header(0, 1).string("k").u32(7).raw(&[2]),
        "metadata 0 \"k\": value at byte 37: bool must be 0 or 1, found 2",
    );
    refused(
        Bytes::header(0, 2).string("k").u32(0).raw(&[2]).string("k").u32(0).raw(&[2]),
        "metadata 1 \"k\": key at byte 46: occurs twice",
    );
    // A key that would clear the terminal is printed escaped.
    refused(
        Bytes::header(0, 1).string("\x1b[2J").u32(77),
        "metadata 0 \"\\u{1b}[2J\": value type at byte 36: unknown value type 77",
    );
}

/// ggml #1516: an alignment of 2³⁰; llama.cpp #26318: zero and values that make padding wrap.
#[test]
fn alignments() {
    let alignment = |value: u32| Bytes::header(0, 1).string("general.alignment").u32(4).u32(value);
    let at = "metadata 0 \"general.alignment\": value at byte 53";
    refused(alignment(1 << 30), &format!("{at}: 1073741824 exceeds the bound 65536"));
    refused(alignment(0), &format!("{at}: 0 is not a power of two"));
    refused(alignment(48), &format!("{at}: 48 is not a power of two"));
    refused(alignment(u32::MAX), &format!("{at}: 4294967295 is not a power of two"));
    for value in [1, 2, 65536] {
        open_measured(alignment(value).0).expect("allowed");
    }
    // llama.cpp #26690: of another type, array included.
    refused(
        Bytes::header(0, 1).string("general.alignment").u32(6).u32(32),
        &format!("{at}: expected u32, found f32"),
    );
    refused(
        Bytes::header(0, 1).string("general.alignment").u32(ARRAY).u32(4).u64(1).u32(32),
        &format!("{at}: expected u32, found array"),
    );
}

/// llama.cpp #18586: a zero dimension; CVE-2026-27940: sizes that overflow.
#[test]
fn shapes() {
    let one = |dims: &[u64], kind: u32| Bytes::header(1, 0).tensor("t", dims, kind, 0).data(64);
    refused(one(&[32, 0], F32), "tensor 0 \"t\": dimension 1 at byte 45: must not be zero");
    refused(
        one(&[1, 1, 1, 1, 1], F32),
        "tensor 0 \"t\": dimension count at byte 33: 5 exceeds the bound 4",
    );
    refused(
        one(&[1 << 32, 1 << 32], F32),
        "tensor 0 \"t\": dimension 1 at byte 45: size overflows what a file can hold",
    );
    refused(
        one(&[u64::MAX], F32),
        "tensor 0 \"t\": dimension 0 at byte 37: size overflows what a file can hold",
    );
    refused(
        one(&[1 << 61, 2], F32),
        "tensor 0 \"t\": type at byte 53: size overflows what a file can hold",
    );
    refused(
        one(&[33, 2], Q4_0),
        "tensor 0 \"t\": type at byte 53: 33 is not a multiple of the 32 elements \
         in a block of Q4_0",
    );
    refused(one(&[32], 999), "tensor 0 \"t\": type at byte 45: unknown tensor type 999");
    refused(
        one(&[32], 31),
        "tensor 0 \"t\": type at byte 45: \
         tensor type 31 (Q4_0_4_4) was withdrawn from the format",
    );
    open_measured(one(&[], F32).0).expect("a single element has no dimensions");
}

/// CVE-2026-7482: offset + size past the end; llama.cpp #26318: a padded end that wraps.
#[test]
fn offsets() {
    let at = |offset: u64| Bytes::header(1, 0).tensor("t", &[32], F32, offset).data(128);
    assert!(open_measured(at(0).0).unwrap().file_complete());
    incomplete(at(32), "t");
    incomplete(at(1 << 40), "t");
    refused(
        at(8),
        "tensor 0 \"t\": data offset at byte 49: 8 is not a multiple of the alignment 32",
    );
    for offset in [u64::MAX - 31, (1 << 63) - 32, 1 << 63, u64::MAX - 127] {
        refused(
            at(offset),
            "tensor 0 \"t\": data offset at byte 49: size overflows what a file can hold",
        );
    }
    // The largest product that is a length, at offset zero: taken and incomplete.
    incomplete(Bytes::header(1, 0).tensor("t", &[1 << 30, 1 << 30], F32, 0).data(0), "t");
}

#[test]
fn tables() {
    let two = |first: (&str, u64), second: (&str, u64)| {
        Bytes::header(2, 0)
            .tensor(first.0, &[32], F32, first.1)
            .tensor(second.0, &[32], F32, second.1)
            .data(512)
    };
    open_measured(two(("a", 128), ("b", 0)).0).expect("any order");
    refused(two(("a", 0), ("a", 128)), "tensor 1 \"a\": name at byte 65: occurs twice");
    refused(
        two(("a", 0), ("b", 96)),
        "tensor 1 \"b\": data offset at byte 82: begins at 192, inside tensor \"a\" \
         which ends at 224",
    );
    refused(
        Bytes::header(1, 0).u64(128),
        "tensor 0: name length at byte 24: 128 exceeds the bound 127",
    );
    refused(Bytes::header(1, 0).u64(1).raw(&[0x80]), "tensor 0: name at byte 32: not valid UTF-8");
}

/// The announced tables at their bounds: the heap bound holds for any header that is taken, and
/// for one whose last entry is at fault.
#[test]
fn the_heap_bound_holds_at_every_limit() {
    let build = |tensor_count: u64, name_len: usize| {
        let mut bytes = Bytes::header(tensor_count, 1024);
        for index in 0..1024 {
            bytes = bytes.string(&format!("{index:05}{}", "k".repeat(50))).u32(8).string("value");
        }
        for index in 0..tensor_count {
            let name = format!("{index:05}{}", "n".repeat(name_len - 5));
            bytes = bytes.tensor(&name, &[32], F32, index * 128);
        }
        bytes
    };
    open_measured(build(4096, 40).0).expect("every table is at its bound");
    let error = open_measured(build(4096, 41).0).unwrap_err().to_string();
    assert!(error.contains("together exceed 163840 bytes"), "{error}");
    let mut late = build(4096, 40).0;
    let end = late.len();
    late[end - 8] = 1;
    let error = open_measured(late).unwrap_err().to_string();
    assert!(error.contains("tensor 4095") && error.contains("alignment"), "{error}");
}

/// A header cut off at every byte: the field that is missing is named, with where it begins.
#[test]
fn truncation_at_every_byte() {
    let bytes = small_model().to_bytes().unwrap();
    let header_len = open_measured(bytes.clone()).unwrap().header_len_bytes(0) as usize;
    let mut last_offset = 0;
    for len in 0..header_len {
        let error = open_measured(bytes[..len].to_vec()).expect_err("cut off in the header");
        let Error::Format { fault, .. } = &error else { panic!("{len}: {error}") };
        assert!(fault.offset <= len as u64, "{len}: {error}");
        // Array counts are refused before their elements, everything else where it is cut off.
        assert!(fault.offset >= last_offset, "{len}: {error} goes back");
        last_offset = fault.offset;
        let text = error.to_string();
        assert!(text.contains(" at byte ") && text.contains("the file ends"), "{len}: {text}");
    }
    assert!(open_measured(bytes[..header_len].to_vec()).is_ok());
}
