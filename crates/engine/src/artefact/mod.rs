//! A compiled model: the headers of its files as they were, and its constants as they stand in
//! memory.
//!
//! ```text
//! ┌ head ┬ table ┬ headers of the model's files ┬ … ┬ constants, as in the arena ┐
//! │ 96 B │ SHA-256 in the head                  │pad│ a fast checksum each       │
//! └──────┴───────┴──────────────────────────────┴───┴────────────────────────────┘
//! ```
//!
//! A compiled model is opened like the files it was made from: the checkpoint is read from the
//! headers inside, so a plan of it is the plan of those files, whatever the bounds; only loading
//! is shorter, since packed weights are read to where they stay. The head, the table and the
//! headers are checked by SHA-256 whenever the file is opened, the constants by XXH64 when asked.
//!
//! Believes nothing of the file: every count is compared with a limit, every range with the
//! file's length. Must not know how constants are computed.

pub mod hash;
pub mod write;

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dctms_format::{Checkpoint, Source};
use dctms_ir::Plan;
use dctms_ir::op::OpKind;
use dctms_models::{names, phases};
use sha2::{Digest, Sha256};

use crate::error::{Class, EngineError};
use hash::xxh64;

/// First bytes of every compiled model.
const MAGIC: [u8; 8] = *b"DCTMSCM\n";
/// Version of the file's form.
const VERSION: u64 = 1;
/// The layout of packed weights that this program computes with (`kernels::packed`); another one
/// is refused by name.
pub const LAYOUT: &str = "rows16-k32-v1";
/// Bytes of the layout's name in the head.
const LAYOUT_BYTES: usize = 32;
/// Bytes of the head: magic, version, length of what SHA-256 covers, length of the file, layout,
/// SHA-256.
const HEAD_BYTES: usize = 96;
/// The first constant is at a multiple of this, so that it can be mapped, and the others follow as
/// they do in the arena.
const PAGE_BYTES: u64 = 4096;
/// Alignment of every constant, as of every tensor of the arena.
const ALIGNMENT: u64 = 64;
/// Most bytes that SHA-256 covers.
const COVERED_BYTES_MAX: u64 = 36 << 20;
/// Most files of a model, most constants, longest name.
const FILES_MAX: u64 = 1024;
const CONSTANTS_MAX: u64 = 8192;
const NAME_BYTES_MAX: u64 = 512;
/// Bytes read at once, between two looks at whether to stop.
const READ_BYTES: usize = 8 << 20;
/// Bytes after a header that a reader may look at without meaning them: its window.
const WINDOW_BYTES: u64 = 64 << 10;

const _: () = assert!(HEAD_BYTES == 8 + 3 * 8 + LAYOUT_BYTES + 32 && LAYOUT.len() < LAYOUT_BYTES);

/// An opened compiled model.
#[derive(Debug)]
pub struct Artefact {
    file: Arc<File>,
    name: String,
    headers: Vec<Header>,
    constants: Vec<ConstantEntry>,
}

/// The header of one of the model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    name: String,
    /// The length of the whole file that it is the header of.
    file_len: u64,
    at: u64,
    header_len: u64,
}

/// A constant as it stands in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConstantEntry {
    name: String,
    at: u64,
    len: u64,
    checksum: u64,
}

/// Whether constants are compared with their checksums while loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// The head and the headers only.
    #[default]
    Headers,
    /// Every byte.
    All,
}

/// The checkpoint of a model file or of a compiled model.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Artefact::open`].
pub fn checkpoint(path: &Path) -> Result<Checkpoint, EngineError> {
    match Artefact::open(path)? {
        Some(artefact) => artefact.checkpoint(),
        None => Ok(Checkpoint::open(path)?),
    }
}

/// Where weights are while a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// In the arena, locked where that is allowed.
    #[default]
    Resident,
    /// In the page cache of a compiled model, which the kernel may take and bring back.
    Mapped,
}

/// Bytes of the file that stand as they are at the arena's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Their offset in the file.
    pub at: u64,
    /// How many, in whole pages.
    pub len_bytes: usize,
}

impl Artefact {
    /// Opens a file if it is a compiled model, `None` if it is something else.
    ///
    /// # Errors
    /// Class `File`: cut off, damaged, or of another version or layout.
    pub fn open(path: &Path) -> Result<Option<Artefact>, EngineError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // What cannot be opened is for the reader of model files to tell.
        let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
        let Some(mut file) = is_file.then(|| File::open(path).ok()).flatten() else {
            return Ok(None);
        };
        let mut head = [0; HEAD_BYTES];
        if file.read_exact(&mut head[..8]).is_err() || head[..8] != MAGIC {
            return Ok(None);
        }
        let fault = |what: String| EngineError::new(Class::File, format!("{name}: {what}"));
        file.read_exact(&mut head[8..]).map_err(|_| fault("cut off in its head".to_string()))?;
        let covered_len = check_head(&head, &file).map_err(fault)?;
        let mut covered = vec![0; covered_len as usize];
        file.read_exact_at(&mut covered, 0).map_err(|error| fault(error.to_string()))?;
        if digest(&covered)[..] != head[HEAD_BYTES - 32..] {
            return Err(fault("its head does not have the SHA-256 that it states".to_string()));
        }
        let file_len = word(&head, 3);
        let (headers, constants) = table(&covered, file_len).map_err(fault)?;
        Ok(Some(Artefact { file: Arc::new(file), name, headers, constants }))
    }

    /// The checkpoint that it was made from.
    ///
    /// # Errors
    /// Class `File`, as for any model file.
    pub fn checkpoint(&self) -> Result<Checkpoint, EngineError> {
        let sources = self.headers.iter().map(|header| {
            let source = HeaderSource { file: Arc::clone(&self.file), header: header.clone() };
            (header.name.clone(), Box::new(source) as Box<dyn Source>)
        });
        Ok(Checkpoint::from_sources(sources)?)
    }

    /// Where a plan has each constant, and where the file has it.
    ///
    /// # Errors
    /// Class `File` when the file lacks a constant, or has another length of it.
    pub fn pieces(&self, plan: &Plan) -> Result<Pieces, EngineError> {
        let mut pieces = Vec::with_capacity(self.constants.len());
        for id in loaded_constants(plan, self.headers.len()) {
            let (tensor, placement) =
                (&plan.program.tensors[id.index()], &plan.placements[id.index()]);
            let found = self.constants.iter().find(|entry| entry.name == tensor.name);
            let entry = found.filter(|entry| entry.len == placement.bytes).ok_or_else(|| {
                let what = match found {
                    None => "is missing".to_string(),
                    Some(entry) => format!("has {} bytes", entry.len),
                };
                let (name, bytes) = (&tensor.name, placement.bytes);
                let file = &self.name;
                let what = format!("{file}: {name} {what}, the plan needs {bytes} bytes of it");
                EngineError::new(Class::File, what)
            })?;
            let arena_offset = placement.offset.unwrap_or(u64::MAX);
            let (at, len, checksum) = (entry.at, entry.len, entry.checksum);
            pieces.push(Piece { arena_offset, at, len, checksum });
        }
        pieces.sort_unstable_by_key(|piece| piece.arena_offset);
        let header = self.headers.first().map_or((0, 0), |header| (header.at, header.header_len));
        // A descriptor of its own: the pieces outlive the stage in which the model was opened.
        let file = self
            .file
            .try_clone()
            .map_err(|error| EngineError::new(Class::System, format!("{}: {error}", self.name)))?;
        Ok(Pieces { file, header, pieces })
    }
}

/// The constants of a plan that loading computes from the first `files` files; a vision file comes
/// after them. The tokeniser's tables are none: those are made from the header.
fn loaded_constants(plan: &Plan, files: usize) -> impl Iterator<Item = dctms_ir::TensorId> + '_ {
    // Where weights come and go, the decoder's have a phase of their own.
    let loads = [phases::LOAD, phases::LOAD_TEXT].into_iter();
    let loads = loads.filter_map(|name| plan.program.phase_named(name));
    let ops = loads.flat_map(|id| &plan.program.phases[id.index()].ops);
    ops.filter(move |op| match &op.kind {
        OpKind::LoadMatrix(source) | OpKind::LoadVector(source) => (source.file as usize) < files,
        // An encoder's own are computed whenever it is loaded, like all that is of its file.
        OpKind::LoadRopeFrequencies { .. } => {
            plan.program.tensor(op.outputs[0]).name != names::VISION_FREQUENCIES
        }
        _ => false,
    })
    .map(|op| op.outputs[0])
}

/// What loading reads of a compiled model.
#[derive(Debug)]
pub struct Pieces {
    file: File,
    /// Where the first header is, and its length.
    header: (u64, u64),
    /// By arena offset.
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    arena_offset: u64,
    at: u64,
    len: u64,
    checksum: u64,
}

impl Pieces {
    /// What can be mapped: the weights, in the order and at the distances of the arena, one behind
    /// the other with no room between for anything else, but for what the last page shares with
    /// something else.
    #[must_use]
    pub fn mapping(&self) -> Option<Mapping> {
        let at = self.pieces.first()?.at;
        let mut end = 0_u64;
        for piece in &self.pieces {
            let next = end.checked_next_multiple_of(ALIGNMENT) == Some(piece.arena_offset);
            if !next || piece.at.checked_sub(at) != Some(piece.arena_offset) {
                break;
            }
            end = piece.arena_offset + piece.len;
        }
        let len_bytes = (end / PAGE_BYTES * PAGE_BYTES) as usize;
        (at.is_multiple_of(PAGE_BYTES) && len_bytes > 0).then_some(Mapping { at, len_bytes })
    }

    /// Fills the constant that stands at an arena offset, or its rest from there on; `None` where
    /// the file has none.
    ///
    /// # Errors
    /// A file that cannot be read, or bytes that do not have their checksum.
    pub fn fill(
        &self,
        arena_offset: usize,
        out: &mut [u8],
        verify: Verify,
    ) -> Result<Option<()>, String> {
        let arena_offset = arena_offset as u64;
        let after = self.pieces.partition_point(|piece| piece.arena_offset <= arena_offset);
        let Some(piece) = after.checked_sub(1).map(|index| self.pieces[index]) else {
            return Ok(None);
        };
        let skipped = arena_offset - piece.arena_offset;
        if skipped >= piece.len {
            return Ok(None);
        }
        if out.len() as u64 != piece.len - skipped {
            return Err(format!("{} bytes are compiled, {} planned", piece.len, out.len()));
        }
        for (index, part) in out.chunks_mut(READ_BYTES).enumerate() {
            if dctms_system::interrupt::stop_requested() {
                return Err("stopped".to_string());
            }
            let at = piece.at + skipped + (index * READ_BYTES) as u64;
            self.file
                .read_exact_at(part, at)
                .map_err(|error| format!("{} bytes at offset {at}: {error}", part.len()))?;
        }
        if verify == Verify::All && skipped == 0 && xxh64(out) != piece.checksum {
            let (at, len) = (piece.at, piece.len);
            return Err(format!("{len} bytes at offset {at} do not have their checksum"));
        }
        Ok(Some(()))
    }

    /// Fills a buffer from the header of the model's first file.
    ///
    /// # Errors
    /// A range outside of the header.
    pub fn read_header(&self, offset: u64, buffer: &mut [u8]) -> Result<(), String> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.header.1) {
            return Err(format!("{} bytes at offset {offset} are not compiled", buffer.len()));
        }
        self.file.read_exact_at(buffer, self.header.0 + offset).map_err(|error| error.to_string())
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Checks everything in the head but the digest; gives the length that the digest covers.
fn check_head(head: &[u8; HEAD_BYTES], file: &File) -> Result<u64, String> {
    let version = word(head, 1);
    if version != VERSION {
        return Err(format!("compiled model of version {version}, this program reads {VERSION}"));
    }
    let layout = &head[32..32 + LAYOUT_BYTES];
    let layout = layout.split(|byte| *byte == 0).next().unwrap_or_default();
    if layout != LAYOUT.as_bytes() {
        return Err(format!(
            "compiled for the weight layout {}, this program computes with {LAYOUT}: compile the \
             model again",
            layout.escape_ascii()
        ));
    }
    let (covered, file_len) = (word(head, 2), word(head, 3));
    let len = file.metadata().map_err(|error| error.to_string())?.len();
    if len != file_len {
        return Err(format!("has {len} bytes, its head states {file_len}: cut off or damaged"));
    }
    if !(HEAD_BYTES as u64..=COVERED_BYTES_MAX.min(file_len)).contains(&covered) {
        return Err(format!("its head states a table of {covered} bytes"));
    }
    Ok(covered)
}

/// The `index`-th 64-bit number of the head.
fn word(head: &[u8], index: usize) -> u64 {
    head.as_chunks::<8>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// SHA-256 of the covered bytes, the digest itself taken as zeros.
fn digest(covered: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(&covered[..HEAD_BYTES - 32]);
    hash.update([0; 32]);
    hash.update(&covered[HEAD_BYTES..]);
    hash.finalize().into()
}

/// Reads the table, whose ranges must be inside: headers in the covered bytes, constants after.
fn table(covered: &[u8], file_len: u64) -> Result<(Vec<Header>, Vec<ConstantEntry>), String> {
    let mut fields = Fields { bytes: &covered[HEAD_BYTES..] };
    let covered_len = covered.len() as u64;
    let inside = |at: u64, len: u64, first: u64, end: u64| {
        at >= first && at.checked_add(len).is_some_and(|stop| stop <= end)
    };
    let mut headers = Vec::new();
    for _ in 0..fields.number("files", FILES_MAX)? {
        let (name, file_len) = (fields.name()?, fields.number("a file's length", u64::MAX)?);
        let at = fields.number("a header's offset", u64::MAX)?;
        let len = fields.number("a header's length", file_len)?;
        if !inside(at, len, HEAD_BYTES as u64, covered_len) {
            return Err(format!("the header of {name} at {at} + {len} is outside of its table"));
        }
        headers.push(Header { name, file_len, at, header_len: len });
    }
    if headers.is_empty() {
        return Err("it has no header of a model file".to_string());
    }
    let mut constants = Vec::new();
    for _ in 0..fields.number("constants", CONSTANTS_MAX)? {
        let (name, at) = (fields.name()?, fields.number("a constant's offset", u64::MAX)?);
        let len = fields.number("a constant's length", u64::MAX)?;
        let checksum = fields.number("a checksum", u64::MAX)?;
        if !inside(at, len, covered_len, file_len) || at % ALIGNMENT != 0 {
            return Err(format!("{name} at {at} + {len} is outside of the file, or not aligned"));
        }
        constants.push(ConstantEntry { name, at, len, checksum });
    }
    Ok((headers, constants))
}

/// Fields of the table, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn number(&mut self, what: &str, most: u64) -> Result<u64, String> {
        let (bytes, rest) =
            self.bytes.split_first_chunk::<8>().ok_or("its table is cut off".to_string())?;
        self.bytes = rest;
        let number = u64::from_le_bytes(*bytes);
        match number <= most {
            true => Ok(number),
            false => Err(format!("its table states {number} for {what}, at most {most}")),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let len = self.number("the length of a name", NAME_BYTES_MAX)? as usize;
        let cut = || "its table is cut off".to_string();
        let (bytes, rest) = self.bytes.split_at_checked(len).ok_or_else(cut)?;
        self.bytes = rest;
        let text = std::str::from_utf8(bytes);
        text.map(str::to_string).map_err(|_| "a name in its table is no text".to_string())
    }
}

/// A model file of which only the header is there.
#[derive(Debug)]
struct HeaderSource {
    file: Arc<File>,
    header: Header,
}

impl Source for HeaderSource {
    fn len(&self) -> u64 {
        self.header.file_len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let Header { file_len, at, header_len: len, .. } = self.header;
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= file_len);
        // A window may reach over the header's end; nothing there is part of it.
        let near = end.is_some_and(|end| end <= len.saturating_add(WINDOW_BYTES));
        if !near {
            let what = "only the header is in a compiled model";
            return Err(Error::new(ErrorKind::UnexpectedEof, what));
        }
        let there = len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (inside, beyond) = buffer.split_at_mut(there);
        self.file.read_exact_at(inside, at + offset)?;
        beyond.fill(0);
        Ok(())
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what stands behind each other in file and arena alike is mapped: a hole between two
    /// constants is a place of something else, whatever the file has there.
    #[test]
    fn no_hole_is_mapped() {
        let mapped = |places: &[(u64, u64, u64)]| {
            let piece = |&(arena_offset, at, len)| Piece { arena_offset, at, len, checksum: 0 };
            let pieces = places.iter().map(piece).collect();
            let file = File::open(std::env::current_exe().expect("a path")).expect("this program");
            Pieces { file, header: (0, 0), pieces }.mapping().map(|mapping| mapping.len_bytes)
        };
        let (first, page) = ((0, 8192, 5000), PAGE_BYTES);
        assert_eq!(mapped(&[first]), Some(4096));
        // 5000 bytes end at 5056 for whoever comes next.
        assert_eq!(mapped(&[first, (5056, 8192 + 5056, 8000)]), Some(12_288));
        for apart in [64, 4096] {
            let offset = 5056 + apart;
            assert_eq!(mapped(&[first, (offset, 8192 + offset, 8000)]), Some(4096), "{apart}");
        }
        // Other distances in the file, a first constant elsewhere, a file's page that is cut.
        assert_eq!(mapped(&[first, (5056, 8192 + 5120, 8000)]), Some(4096));
        assert_eq!(mapped(&[(page, 8192, 5000)]), None);
        assert_eq!(mapped(&[(0, 64, 5000)]), None);
        assert_eq!(mapped(&[(0, 8192, 4000)]), None);
        assert_eq!(mapped(&[]), None);
    }

    #[test]
    fn no_table_makes_a_reader_panic() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> 33
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut covered = vec![0; HEAD_BYTES];
            let numbers = [0, 1, 1, 2, 4, 96, 100, 4096, 8192, next(), u64::MAX - next() % 5];
            for _ in 0..next() % 16 {
                covered.extend(numbers[next() as usize % numbers.len()].to_le_bytes());
            }
            let pad = next() as usize % 9;
            covered.resize(covered.len() + pad, 0);
            match table(&covered, 16_384) {
                Ok((headers, constants)) => {
                    read += 1;
                    let covered = covered.len() as u64;
                    assert!(headers.iter().all(|header| header.at + header.header_len <= covered));
                    assert!(constants.iter().all(|constant| constant.at + constant.len <= 16_384));
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    }
}
