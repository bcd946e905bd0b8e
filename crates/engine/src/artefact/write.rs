//! Writing a compiled model from a loaded one: the constants are copied from the arena, so what
//! is written is what ran.
//!
//! The file is written beside its name and then renamed: nobody ever sees half of it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use dctms_format::Checkpoint;
use dctms_ir::Plan;

use super::hash::xxh64;
use super::{
    ALIGNMENT, CONSTANTS_MAX, FILES_MAX, HEAD_BYTES, LAYOUT, LAYOUT_BYTES, MAGIC, NAME_BYTES_MAX,
    PAGE_BYTES, VERSION, digest, loaded_constants,
};
use crate::error::{Class, EngineError};
use crate::runner::Runner;

/// Heap for each constant, bytes, and for what no constant changes.
const ENTRY_HEAP_BYTES: u64 = 640;
const FIXED_HEAP_BYTES: u64 = 96 << 10;

/// What of a model is known before it is loaded: its headers, and which constants there will be.
#[derive(Debug)]
pub struct Outline {
    headers: Vec<(String, u64, Vec<u8>)>,
    /// In the order of the arena.
    constants: Vec<(String, dctms_ir::TensorId, u64)>,
}

impl Outline {
    /// Reads the headers of a model's files.
    ///
    /// # Errors
    /// Class `File`: a file that cannot be read, or with more parts than a table has.
    pub fn new(checkpoint: &Checkpoint, plan: &Plan) -> Result<Outline, EngineError> {
        let fault = |what: String| EngineError::new(Class::File, what);
        let mut headers = Vec::new();
        for shard in 0..checkpoint.shard_count() {
            let mut bytes = vec![0; checkpoint.header_len_bytes(shard) as usize];
            let source = checkpoint.source(shard);
            source.read_at(0, &mut bytes).map_err(|error| fault(error.to_string()))?;
            headers.push((checkpoint.file_name(shard).to_string(), source.len(), bytes));
        }
        let constants = loaded_constants(plan, headers.len()).map(|id| {
            let bytes = plan.placements[id.index()].bytes;
            (plan.program.tensors[id.index()].name.clone(), id, bytes)
        });
        let mut constants: Vec<_> = constants.collect();
        constants.sort_by_key(|(_, id, _)| plan.placements[id.index()].offset);
        let names = headers.iter().map(|h| &h.0).chain(constants.iter().map(|c| &c.0));
        let longest = names.map(String::len).max().unwrap_or(0) as u64;
        let (files, count) = (headers.len() as u64, constants.len() as u64);
        if files > FILES_MAX || count > CONSTANTS_MAX || longest > NAME_BYTES_MAX {
            let what = format!("{files} files, {count} constants, a name of {longest} bytes");
            return Err(fault(format!("too much for a compiled model: {what}")));
        }
        Ok(Outline { headers, constants })
    }

    /// Heap that the outline and its writing take, bytes.
    #[must_use]
    pub fn heap_bytes(checkpoint: &Checkpoint) -> u64 {
        let shards = 0..checkpoint.shard_count();
        let headers: u64 = shards.map(|shard| checkpoint.header_len_bytes(shard)).sum();
        // The headers are there twice; an entry has two names, in vectors that grow by doubling.
        let entries = (checkpoint.tensor_count() + checkpoint.shard_count()) as u64;
        2 * headers + ENTRY_HEAP_BYTES * entries + FIXED_HEAP_BYTES
    }

    /// Writes the compiled model; gives its length in bytes.
    ///
    /// # Errors
    /// Class `System`: what the operating system said.
    pub fn write(&self, runner: &Runner, path: &Path) -> Result<u64, EngineError> {
        // A name of this process alone, and created by it: nobody else's file is written over.
        let mut beside = path.as_os_str().to_os_string();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = Path::new(&beside);
        let fault = |error| EngineError::new(Class::System, format!("{}: {error}", path.display()));
        let file = File::create_new(beside).map_err(fault)?;
        let written = self.write_to(runner, file).and_then(|len| {
            std::fs::rename(beside, path)?;
            Ok(len)
        });
        written.map_err(|error| {
            let _ = std::fs::remove_file(beside);
            fault(error)
        })
    }

    fn write_to(&self, runner: &Runner, file: File) -> io::Result<u64> {
        let constant =
            |id| runner.constant(id).ok_or_else(|| io::Error::other("a constant is not loaded"));
        let sums = self.constants.iter().map(|(_, id, _)| Ok(xxh64(constant(*id)?.bytes())));
        let sums: Vec<u64> = sums.collect::<io::Result<_>>()?;
        let covered = self.covered(&sums);
        let mut out = BufWriter::new(file);
        out.write_all(&covered.bytes)?;
        let mut at = covered.bytes.len() as u64;
        for (index, (_, id, _)) in self.constants.iter().enumerate() {
            let (constant, pad) = (constant(*id)?, pad(index, at));
            out.write_all(&[0; PAGE_BYTES as usize][..pad as usize])?;
            out.write_all(constant.bytes())?;
            at += pad + constant.bytes().len() as u64;
        }
        assert_eq!(at, covered.file_len, "the table states what is written");
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(at)
    }

    /// Head, table and headers, for constants with these checksums.
    fn covered(&self, sums: &[u64]) -> Covered {
        let names = self.headers.iter().map(|h| h.0.len()).sum::<usize>()
            + self.constants.iter().map(|c| c.0.len()).sum::<usize>();
        let numbers = 2 + 4 * self.headers.len() + 4 * self.constants.len();
        let headers_at = HEAD_BYTES + names + 8 * numbers;
        let headers_len: usize = self.headers.iter().map(|header| header.2.len()).sum();
        let covered_len = (headers_at + headers_len) as u64;
        let mut table = Vec::new();
        numbers_to(&mut table, &[self.headers.len() as u64]);
        let mut at = headers_at as u64;
        for (text, file_len, bytes) in &self.headers {
            name_to(&mut table, text);
            numbers_to(&mut table, &[*file_len, at, bytes.len() as u64]);
            at += bytes.len() as u64;
        }
        numbers_to(&mut table, &[self.constants.len() as u64]);
        for (index, ((text, _, len), sum)) in self.constants.iter().zip(sums).enumerate() {
            name_to(&mut table, text);
            at += pad(index, at);
            numbers_to(&mut table, &[at, *len, *sum]);
            at += len;
        }
        let mut bytes = Vec::with_capacity(covered_len as usize);
        bytes.extend(MAGIC);
        numbers_to(&mut bytes, &[VERSION, covered_len, at]);
        let mut layout = [0; LAYOUT_BYTES];
        layout[..LAYOUT.len()].copy_from_slice(LAYOUT.as_bytes());
        bytes.extend(layout);
        bytes.extend([0; 32]);
        bytes.extend(table);
        self.headers.iter().for_each(|header| bytes.extend(&header.2));
        assert_eq!(bytes.len() as u64, covered_len, "the head states what it covers");
        let digest = digest(&bytes);
        bytes[HEAD_BYTES - 32..HEAD_BYTES].copy_from_slice(&digest);
        Covered { bytes, file_len: at }
    }
}

struct Covered {
    bytes: Vec<u8>,
    file_len: u64,
}

fn numbers_to(table: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| table.extend(value.to_le_bytes()));
}

fn name_to(table: &mut Vec<u8>, text: &str) {
    numbers_to(table, &[text.len() as u64]);
    table.extend(text.as_bytes());
}

/// Bytes from `at` to where the `index`-th constant may begin.
fn pad(index: usize, at: u64) -> u64 {
    let multiple = if index == 0 { PAGE_BYTES } else { ALIGNMENT };
    at.next_multiple_of(multiple) - at
}
