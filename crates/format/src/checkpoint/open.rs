//! Opening a checkpoint: one file, or the first of a set and then the others.
//!
//! A set's shards each have a header of their own; the metadata that counts is the first's, the
//! tensor tables are put together. Every shard must say its number, the set's size and, together,
//! the announced number of tensors: a mixed-up set is refused before any of it is used.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::{Checkpoint, Shard};
use crate::error::Error;
use crate::fault::{Defect, Fault, Field, Located, Subject};
use crate::header::{self, Header};
use crate::limits;
use crate::metadata::Metadata;
use crate::shard::{ShardName, shard_file_name};
use crate::source::{FileSource, Source};
use crate::tensor::TensorTable;
use crate::value::Value;

impl Checkpoint {
    /// Opens a file, with all other shards of its set if it is the first of one.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::MissingShard`], [`Error::NotFirstShard`], [`Error::Format`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let source = FileSource::open(path)
            .map_err(|error| Error::Open { path: path.to_path_buf(), error })?;
        let name = file_name(path);
        let mut builder = Builder::new();
        builder.add(name.clone(), Box::new(source))?;
        let count = builder.shard_count;
        if count == 1 {
            return builder.finish();
        }
        let set = ShardName::parse(&name).filter(|set| set.index == 0 && set.count == count);
        let Some(set) = set else {
            return Err(Error::NotFirstShard { file: name, index: 0, count });
        };
        for index in 1..count {
            let path = path.with_file_name(shard_file_name(set.prefix, index, count));
            let source = FileSource::open(&path).map_err(|error| Error::MissingShard {
                path: path.clone(),
                index,
                count,
                error,
            })?;
            builder.add(file_name(&path), Box::new(source))?;
        }
        builder.finish()
    }

    /// Reads a checkpoint from sources, one a shard in order, each with a name for messages.
    ///
    /// # Errors
    /// [`Error::Format`], also when the set has another number of shards than there are sources;
    /// [`Error::NotFirstShard`].
    ///
    /// # Panics
    /// If there is no source.
    pub fn from_sources(
        sources: impl IntoIterator<Item = (String, Box<dyn Source>)>,
    ) -> Result<Self, Error> {
        let mut builder = Builder::new();
        for (name, source) in sources {
            builder.add(name, source)?;
        }
        builder.require_all()?;
        builder.finish()
    }
}

/// A checkpoint with some of its shards.
struct Builder {
    window: Vec<u8>,
    /// The first file's.
    header: Option<Header>,
    tensors: TensorTable,
    shards: Vec<Shard>,
    /// Shards of the set, as the first file says.
    shard_count: u64,
    hasher: Sha256,
}

impl Builder {
    fn new() -> Self {
        Self {
            window: vec![0; limits::WINDOW_LEN_BYTES],
            header: None,
            tensors: TensorTable::new(),
            shards: Vec::new(),
            shard_count: 1,
            hasher: Sha256::new(),
        }
    }

    /// Reads the header of the next shard.
    fn add(&mut self, file_name: String, source: Box<dyn Source>) -> Result<(), Error> {
        let index = self.shards.len() as u64;
        // The bound is on all headers of a set together, so that a large set costs no more time.
        let before: u64 = self.shards.iter().map(|shard| shard.header_len_bytes).sum();
        let bound = limits::HEADER_LEN_BYTES_MAX - before;
        let (window, tensors) = (&mut self.window, &mut self.tensors);
        let header = header::parse(source.as_ref(), window, bound, index as u16, tensors)
            .map_err(|located| format_error(&file_name, *located))?;
        let number = self
            .check_split(index, &header.metadata)
            .map_err(|located| format_error(&file_name, *located))?;
        if number != index {
            let count = self.shard_count;
            return Err(Error::NotFirstShard { file: file_name, index: number, count });
        }
        self.hash(source.as_ref(), header.len_bytes)
            .map_err(|fault| format_error(&file_name, *fault.about(Subject::File)))?;
        self.shards.push(Shard {
            file_name,
            source,
            header_len_bytes: header.len_bytes,
            data_offset: header.data_offset,
        });
        self.header.get_or_insert(header);
        Ok(())
    }

    /// Refuses a set that has more or fewer shards than were added.
    fn require_all(&self) -> Result<(), Error> {
        const KEY: &str = "split.count";
        let expected = self.shards.len() as u64;
        if self.shard_count == expected {
            return Ok(());
        }
        let header = self.header.as_ref().expect("at least one file was added");
        let found = Some(self.shard_count);
        let defect = Defect::WrongShard { key: KEY, expected, found };
        let located = split_fault(&header.metadata, KEY, defect);
        Err(format_error(&self.shards[0].file_name, *located))
    }

    /// Checks the table of all shards as a whole.
    fn finish(mut self) -> Result<Checkpoint, Error> {
        let name = |shard: usize| self.shards[shard].file_name.as_str();
        self.tensors.index().map_err(|(shard, located)| format_error(name(shard), *located))?;
        let header = self.header.expect("at least one file was added");
        check_tensor_total(&header.metadata, self.tensors.len() as u64)
            .map_err(|located| format_error(name(0), *located))?;
        Ok(Checkpoint {
            version: header.version,
            alignment: header.alignment,
            metadata: header.metadata,
            tensors: self.tensors,
            shards: self.shards,
            header_sha256: self.hasher.finalize().into(),
        })
    }

    /// Takes the set's size from the first shard; number and size of the others must agree with
    /// it. Gives the number that the shard says it has (only the first may say another one).
    fn check_split(&mut self, index: u64, metadata: &Metadata) -> Result<u64, Box<Located>> {
        let count = header_split(metadata, "split.count")?;
        let number = header_split(metadata, "split.no")?;
        if index == 0 {
            self.shard_count = count.unwrap_or(1);
            return if self.shard_count == 0 {
                Err(split_fault(metadata, "split.count", Defect::Zero))
            } else if self.shard_count > limits::SHARD_COUNT_MAX {
                let (bound, found) = (limits::SHARD_COUNT_MAX, self.shard_count);
                Err(split_fault(metadata, "split.count", Defect::TooLarge { bound, found }))
            } else {
                Ok(number.unwrap_or(0))
            };
        }
        let wrong = |key, expected, found: Option<u64>| {
            let defect = Defect::WrongShard { key, expected, found };
            Err(split_fault(metadata, key, defect))
        };
        if count != Some(self.shard_count) {
            return wrong("split.count", self.shard_count, count);
        }
        if number != Some(index) {
            return wrong("split.no", index, number);
        }
        Ok(index)
    }

    fn hash(&mut self, source: &dyn Source, len_bytes: u64) -> Result<(), Fault> {
        let mut offset = 0;
        while offset < len_bytes {
            let piece = (len_bytes - offset).min(self.window.len() as u64) as usize;
            source.read_at(offset, &mut self.window[..piece]).map_err(|error| Fault {
                field: Field::Header,
                offset,
                defect: Defect::Io(error),
            })?;
            self.hasher.update(&self.window[..piece]);
            offset += piece as u64;
        }
        Ok(())
    }
}

/// The total that the first shard announces, if it does.
fn check_tensor_total(metadata: &Metadata, found: u64) -> Result<(), Box<Located>> {
    const KEY: &str = "split.tensors.count";
    match header_split(metadata, KEY)? {
        Some(expected) if expected != found => {
            let defect = Defect::WrongShard { key: KEY, expected, found: Some(found) };
            Err(split_fault(metadata, KEY, defect))
        }
        Some(_) | None => Ok(()),
    }
}

/// An integer of the `split.*` keys.
fn header_split(metadata: &Metadata, key: &str) -> Result<Option<u64>, Box<Located>> {
    let Some(entry) = metadata.find(key) else { return Ok(None) };
    let scalar = match entry.value {
        Value::Scalar(scalar) => scalar.as_u64(),
        Value::String(_) | Value::LongString(_) | Value::Array(_) => None,
    };
    let defect = Defect::WrongType { expected: "unsigned integer", found: entry.value_type };
    scalar.map(Some).ok_or_else(|| metadata.value_fault(key, entry.offset, defect))
}

fn split_fault(metadata: &Metadata, key: &str, defect: Defect) -> Box<Located> {
    let offset = metadata.find(key).map_or(0, |entry| entry.offset);
    metadata.value_fault(key, offset, defect)
}

fn format_error(file: &str, located: Located) -> Error {
    let Located { subject, fault } = located;
    Error::Format { file: file.to_string(), subject, fault: Box::new(fault) }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
