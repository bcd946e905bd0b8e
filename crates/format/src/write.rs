//! Writes GGUF files: what tests and the maker of synthetic models need.
//!
//! The layout is the one drawn in the header's parser; this file and that one share only the
//! numbers of types, so that a mistake in one shows in the round trip. Nothing is checked that a
//! test might want to get wrong, but for lengths: a tensor must write as many bytes as its type
//! and dimensions say.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::ggml_type::GgmlType;
use crate::limits;
use crate::shard::shard_file_name;
use crate::value::ValueType;

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// Unsigned 8 bits.
    U8(u8),
    /// Signed 8 bits.
    I8(i8),
    /// Unsigned 16 bits.
    U16(u16),
    /// Signed 16 bits.
    I16(i16),
    /// Unsigned 32 bits.
    U32(u32),
    /// Signed 32 bits.
    I32(i32),
    /// IEEE binary32.
    F32(f32),
    /// One byte, 0 or 1.
    Bool(bool),
    /// Bytes, written as they are.
    String(Vec<u8>),
    /// Elements, which must be of the type.
    Array(ValueType, Vec<MetadataValue>),
    /// Unsigned 64 bits.
    U64(u64),
    /// Signed 64 bits.
    I64(i64),
    /// IEEE binary64.
    F64(f64),
}

impl MetadataValue {
    /// A string array.
    pub fn strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Self {
        let strings = strings.into_iter().map(|s| Self::String(s.as_ref().to_vec()));
        Self::Array(ValueType::String, strings.collect())
    }

    /// An array of single-precision numbers.
    pub fn f32s(values: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, values.into_iter().map(Self::F32).collect())
    }

    /// An array of signed 32-bit integers.
    pub fn i32s(values: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, values.into_iter().map(Self::I32).collect())
    }

    /// The type in the file.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::U8(value) => out.write_all(&value.to_le_bytes()),
            Self::I8(value) => out.write_all(&value.to_le_bytes()),
            Self::U16(value) => out.write_all(&value.to_le_bytes()),
            Self::I16(value) => out.write_all(&value.to_le_bytes()),
            Self::U32(value) => out.write_all(&value.to_le_bytes()),
            Self::I32(value) => out.write_all(&value.to_le_bytes()),
            Self::F32(value) => out.write_all(&value.to_le_bytes()),
            Self::Bool(value) => out.write_all(&[u8::from(*value)]),
            Self::String(bytes) => write_string(out, bytes),
            Self::Array(element_type, elements) => {
                out.write_all(&element_type.number().to_le_bytes())?;
                out.write_all(&(elements.len() as u64).to_le_bytes())?;
                elements.iter().try_for_each(|element| element.write(out))
            }
            Self::U64(value) => out.write_all(&value.to_le_bytes()),
            Self::I64(value) => out.write_all(&value.to_le_bytes()),
            Self::F64(value) => out.write_all(&value.to_le_bytes()),
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),*) => { $(
        impl From<$from> for MetadataValue {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )* };
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32,
    bool => Bool, &str => String, u64 => U64, i64 => I64, f64 => F64);

/// Writes a tensor's bytes, all of them, in one call.
pub type StreamTensor<'d> = Box<dyn FnMut(&mut dyn Write) -> io::Result<()> + 'd>;

enum Data<'d> {
    Bytes(Cow<'d, [u8]>),
    Stream(StreamTensor<'d>),
}

struct TensorSpec<'d> {
    name: String,
    ggml_type: GgmlType,
    dims: Vec<u64>,
    len_bytes: u64,
    data: Data<'d>,
}

/// A file in the making: metadata and tensors are written in the order in which they are added.
pub struct Writer<'d> {
    version: u32,
    alignment: u64,
    metadata: Vec<(String, MetadataValue)>,
    tensors: Vec<TensorSpec<'d>>,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'d> Writer<'d> {
    /// An empty file of version 3 with the default alignment.
    pub fn new() -> Self {
        let alignment = limits::ALIGNMENT_BYTES_DEFAULT;
        Self { version: 3, alignment, metadata: Vec::new(), tensors: Vec::new() }
    }

    /// Sets the version number; the layout is that of 2 and 3.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the alignment in bytes and adds the key that says so.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = u64::from(alignment);
        self.metadata("general.alignment", alignment)
    }

    /// Adds a metadata entry.
    pub fn metadata(mut self, key: &str, value: impl Into<MetadataValue>) -> Self {
        self.metadata.push((key.to_string(), value.into()));
        self
    }

    /// Adds a tensor (dimensions innermost first) with its bytes.
    ///
    /// # Panics
    /// If the bytes are not as many as type and dimensions say.
    pub fn tensor(
        self,
        name: &str,
        ggml_type: GgmlType,
        dims: &[u64],
        bytes: impl Into<Cow<'d, [u8]>>,
    ) -> Self {
        let bytes = bytes.into();
        assert_eq!(ggml_type.tensor_len_bytes(dims), Some(bytes.len() as u64), "{name}");
        self.push(name, ggml_type, dims, Data::Bytes(bytes))
    }

    /// Adds a tensor (dimensions innermost first) whose bytes are made while they are written.
    ///
    /// # Panics
    /// If the first dimension is not a whole number of blocks or the length overflows.
    pub fn tensor_stream(
        self,
        name: &str,
        ggml_type: GgmlType,
        dims: &[u64],
        stream: StreamTensor<'d>,
    ) -> Self {
        self.push(name, ggml_type, dims, Data::Stream(stream))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// What `out` reports; `InvalidData` when a stream wrote another length than its tensor has.
    pub fn write(&mut self, out: &mut impl Write) -> io::Result<()> {
        let tensors = 0..self.tensors.len();
        self.write_part(out, tensors, &[])
    }

    /// The file as bytes.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn to_bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a set of shards of at most `tensors_per_shard` tensors into a directory, metadata
    /// in the first, and gives the paths.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write_shards(
        &mut self,
        directory: &Path,
        prefix: &str,
        tensors_per_shard: usize,
    ) -> io::Result<Vec<PathBuf>> {
        let total = self.tensors.len();
        let count = total.div_ceil(tensors_per_shard).max(1);
        let mut paths = Vec::new();
        for index in 0..count {
            let start = index * tensors_per_shard;
            let part = start..(start + tensors_per_shard).min(total);
            let split = [
                ("split.no", MetadataValue::U16(index as u16)),
                ("split.count", MetadataValue::U16(count as u16)),
                ("split.tensors.count", MetadataValue::I32(total as i32)),
            ];
            let name = shard_file_name(prefix, index as u64, count as u64);
            let path = directory.join(name);
            let mut out = BufWriter::new(File::create(&path)?);
            self.write_part(&mut out, part, &split)?;
            out.flush()?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn push(mut self, name: &str, ggml_type: GgmlType, dims: &[u64], data: Data<'d>) -> Self {
        let len_bytes = ggml_type.tensor_len_bytes(dims).expect("whole blocks, no overflow");
        let (name, dims) = (name.to_string(), dims.to_vec());
        self.tensors.push(TensorSpec { name, ggml_type, dims, len_bytes, data });
        self
    }

    fn write_part(
        &mut self,
        out: &mut impl Write,
        part: std::ops::Range<usize>,
        split: &[(&str, MetadataValue)],
    ) -> io::Result<()> {
        let out = &mut Counted { out, len: 0 };
        let is_whole_or_first = part.start == 0;
        // The alignment holds for a file, so each shard says it.
        let kept =
            self.metadata.iter().filter(|(key, _)| is_whole_or_first || key == "general.alignment");
        let metadata: Vec<_> = kept
            .map(|(key, value)| (key.as_str(), value))
            .chain(split.iter().map(|(key, value)| (*key, value)))
            .collect();

        out.write_all(b"GGUF")?;
        out.write_all(&self.version.to_le_bytes())?;
        out.write_all(&(part.len() as u64).to_le_bytes())?;
        out.write_all(&(metadata.len() as u64).to_le_bytes())?;
        for (key, value) in metadata {
            write_string(out, key.as_bytes())?;
            out.write_all(&value.value_type().number().to_le_bytes())?;
            value.write(out)?;
        }
        let mut offset = 0;
        for tensor in &self.tensors[part.clone()] {
            write_tensor_entry(out, tensor, offset)?;
            offset = (offset + tensor.len_bytes).next_multiple_of(self.alignment);
        }
        for tensor in &mut self.tensors[part] {
            pad(out, self.alignment)?;
            write_data(out, tensor)?;
        }
        pad(out, self.alignment)
    }
}

/// Counts what passes, for padding and for the lengths of streams.
struct Counted<'o, W> {
    out: &'o mut W,
    len: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write_string(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)
}

fn write_tensor_entry(out: &mut impl Write, tensor: &TensorSpec, offset: u64) -> io::Result<()> {
    write_string(out, tensor.name.as_bytes())?;
    out.write_all(&(tensor.dims.len() as u32).to_le_bytes())?;
    tensor.dims.iter().try_for_each(|dim| out.write_all(&dim.to_le_bytes()))?;
    out.write_all(&tensor.ggml_type.number().to_le_bytes())?;
    out.write_all(&offset.to_le_bytes())
}

fn write_data<W: Write>(out: &mut Counted<'_, W>, tensor: &mut TensorSpec) -> io::Result<()> {
    let start = out.len;
    match &mut tensor.data {
        Data::Bytes(bytes) => out.write_all(bytes)?,
        Data::Stream(stream) => stream(out)?,
    }
    let written = out.len - start;
    if written != tensor.len_bytes {
        let (name, expected) = (&tensor.name, tensor.len_bytes);
        let message = format!("tensor {name:?} has {expected} bytes, {written} were written");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(())
}

fn pad<W: Write>(out: &mut Counted<'_, W>, alignment: u64) -> io::Result<()> {
    let mut missing = out.len.next_multiple_of(alignment) - out.len;
    while missing > 0 {
        let piece = missing.min(64);
        out.write_all(&[0; 64][..piece as usize])?;
        missing -= piece;
    }
    Ok(())
}
