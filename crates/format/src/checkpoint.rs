//! A checkpoint: the headers of one file or of a set of shards, put together and asked.
//!
//! Opening reads headers only; a file that ends before its last tensor opens, so that its plan
//! can be made, and [`Checkpoint::require_complete`] refuses it before anything is run. Questions
//! about metadata have answers or typed errors that name the key, what was expected, what was
//! found, and where. Which questions to ask is a model family's business.

mod ask;
mod open;

use crate::error::Error;
use crate::ggml_type::GgmlType;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::tensor::{Tensor, TensorTable};

/// One file of a checkpoint.
struct Shard {
    file_name: String,
    source: Box<dyn Source>,
    header_len_bytes: u64,
    data_offset: u64,
}

/// A model file, or a set of shards, whose header has been read and checked.
pub struct Checkpoint {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: TensorTable,
    shards: Vec<Shard>,
    header_sha256: [u8; 32],
}

/// How many tensors, elements and bytes a checkpoint has of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramRow {
    /// The type.
    pub ggml_type: GgmlType,
    /// Tensors of the type.
    pub tensor_count: u64,
    /// Their elements.
    pub element_count: u64,
    /// Their bytes in the file.
    pub len_bytes: u64,
}

/// The files.
impl Checkpoint {
    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment in bytes of tensor data in the first file.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Number of files.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Name of a file, without its directory.
    pub fn file_name(&self, shard: usize) -> &str {
        &self.shards[shard].file_name
    }

    /// The bytes of a file.
    pub fn source(&self, shard: usize) -> &dyn Source {
        self.shards[shard].source.as_ref()
    }

    /// Bytes of a file's header: from the magic to the end of its tensor table.
    pub fn header_len_bytes(&self, shard: usize) -> u64 {
        self.shards[shard].header_len_bytes
    }

    /// Offset in a file of its tensor data.
    pub fn data_offset(&self, shard: usize) -> u64 {
        self.shards[shard].data_offset
    }

    /// SHA-256 over the header bytes of all files in order.
    pub fn header_sha256(&self) -> &[u8; 32] {
        &self.header_sha256
    }

    /// [`Checkpoint::header_sha256`] in hexadecimal.
    pub fn header_sha256_hex(&self) -> String {
        self.header_sha256.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether every tensor's data is in the files.
    pub fn file_complete(&self) -> bool {
        self.first_past_end().is_none()
    }

    /// Refuses a checkpoint that lacks tensor data.
    ///
    /// # Errors
    /// [`Error::Incomplete`] with the first tensor, by offset, that passes its file's end.
    pub fn require_complete(&self) -> Result<(), Error> {
        let Some(tensor) = self.first_past_end() else { return Ok(()) };
        Err(Error::Incomplete {
            file: self.file_name(tensor.shard).to_string(),
            name: tensor.name.to_string(),
            offset: tensor.offset,
            len_bytes: tensor.len_bytes,
            file_len_bytes: self.source(tensor.shard).len(),
        })
    }

    fn first_past_end(&self) -> Option<Tensor<'_>> {
        self.tensors()
            .filter(|tensor| tensor.offset + tensor.len_bytes > self.source(tensor.shard).len())
            .min_by_key(|tensor| (tensor.shard, tensor.offset))
    }
}

/// Tensors.
impl Checkpoint {
    /// All tensors in the files' order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.tensors.len()).map(|index| self.tensors.get(index))
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// The tensor of a name.
    pub fn find_tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensors.find(name)
    }

    /// The tensor of a name, of these dimensions (innermost first; ones at the end do not count)
    /// and of a type that the engine can run.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], [`Error::WrongShape`], [`Error::UnsupportedType`].
    pub fn require_tensor(&self, name: &str, dims: &[u64]) -> Result<Tensor<'_>, Error> {
        let Some(tensor) = self.find_tensor(name) else {
            return Err(Error::MissingTensor {
                file: self.main_file(),
                name: name.to_string(),
                expected: dims.to_vec(),
            });
        };
        if trim_ones(tensor.dims) != trim_ones(dims) {
            return Err(Error::WrongShape {
                file: self.file_name(tensor.shard).to_string(),
                name: name.to_string(),
                expected: dims.to_vec(),
                found: tensor.dims.to_vec(),
                offset: tensor.entry_offset,
            });
        }
        self.require_supported_type(&tensor)?;
        Ok(tensor)
    }

    /// Refuses a tensor of a type that the engine cannot run.
    ///
    /// # Errors
    /// [`Error::UnsupportedType`].
    pub fn require_supported_type(&self, tensor: &Tensor<'_>) -> Result<(), Error> {
        if tensor.ggml_type.is_supported() {
            return Ok(());
        }
        Err(Error::UnsupportedType {
            file: self.file_name(tensor.shard).to_string(),
            name: tensor.name.to_string(),
            ggml_type: tensor.ggml_type,
            offset: tensor.entry_offset,
        })
    }

    /// Fills `buffer` with a tensor's data from byte `start` on.
    ///
    /// # Errors
    /// [`Error::Incomplete`] when the file ends before; [`Error::Read`].
    ///
    /// # Panics
    /// If the range is not inside the tensor.
    pub fn read_tensor(
        &self,
        tensor: &Tensor<'_>,
        start: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let end = start.checked_add(buffer.len() as u64);
        assert!(end.is_some_and(|end| end <= tensor.len_bytes), "a read outside {}", tensor.name);
        let source = self.source(tensor.shard);
        let offset = tensor.offset + start;
        if offset + buffer.len() as u64 > source.len() {
            return Err(Error::Incomplete {
                file: self.file_name(tensor.shard).to_string(),
                name: tensor.name.to_string(),
                offset: tensor.offset,
                len_bytes: tensor.len_bytes,
                file_len_bytes: source.len(),
            });
        }
        source.read_at(offset, buffer).map_err(|error| Error::Read {
            file: self.file_name(tensor.shard).to_string(),
            name: tensor.name.to_string(),
            offset,
            error,
        })
    }

    /// Sum of all tensors' elements.
    pub fn parameter_count(&self) -> u64 {
        self.tensors().fold(0u64, |sum, tensor| sum.saturating_add(tensor.element_count()))
    }

    /// Tensors, elements and bytes a type, for the types that occur, in ggml's order.
    pub fn histogram(&self) -> Vec<HistogramRow> {
        let row = |&ggml_type: &GgmlType| {
            let zero = HistogramRow { ggml_type, tensor_count: 0, element_count: 0, len_bytes: 0 };
            self.tensors().filter(|t| t.ggml_type == ggml_type).fold(zero, |row, tensor| {
                HistogramRow {
                    ggml_type,
                    tensor_count: row.tensor_count + 1,
                    element_count: row.element_count.saturating_add(tensor.element_count()),
                    len_bytes: row.len_bytes.saturating_add(tensor.len_bytes),
                }
            })
        };
        GgmlType::ALL.iter().map(row).filter(|row| row.tensor_count > 0).collect()
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<_> = self.shards.iter().map(|shard| shard.file_name.as_str()).collect();
        f.debug_struct("Checkpoint").field("files", &files).finish_non_exhaustive()
    }
}

fn trim_ones(dims: &[u64]) -> &[u64] {
    let len = dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    &dims[..len]
}
