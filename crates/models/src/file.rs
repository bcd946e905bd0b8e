//! What a model family needs to know of a file: typed metadata and a tensor table.
//!
//! A trait, so that families can be tested without files, and so that another container can be
//! added without touching them. It must not know how bytes are read.

use dctms_ir::Dtype;
use dctms_ir::op::Source;

use crate::error::ModelError;

/// A tensor as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Name.
    pub name: String,
    /// Element type; `Err` holds the name of one that is not supported.
    pub dtype: Result<Dtype, String>,
    /// Extents, innermost (contiguous) first, as the file format orders them.
    pub dims: Vec<u64>,
    /// File (shard) that holds it.
    pub file: u32,
    /// Absolute byte offset.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Elements of an array of numbers that a family may ask for.
pub const FLOATS_MAX: u64 = 64;

/// A model file, as a family sees it.
pub trait ModelFile {
    /// An integer, `None` when the key is missing.
    ///
    /// # Errors
    /// When the value has another type.
    fn integer(&self, key: &str) -> Result<Option<u64>, ModelError>;
    /// A float, `None` when the key is missing.
    ///
    /// # Errors
    /// When the value has another type.
    fn float(&self, key: &str) -> Result<Option<f32>, ModelError>;
    /// A string, `None` when the key is missing.
    ///
    /// # Errors
    /// When the value has another type.
    fn text(&self, key: &str) -> Result<Option<String>, ModelError>;
    /// Number of elements of an array, `None` when the key is missing.
    ///
    /// # Errors
    /// When the value is not an array.
    fn array_len(&self, key: &str) -> Result<Option<u64>, ModelError>;
    /// A truth value, `None` when the key is missing.
    ///
    /// # Errors
    /// When the value has another type.
    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError>;
    /// A short array of floats (at most [`FLOATS_MAX`]), `None` when the key is missing.
    ///
    /// # Errors
    /// When the value is no such array.
    fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError>;
    /// A short array of 32-bit integers (at most [`FLOATS_MAX`]), none below 0; `None` when the
    /// key is missing.
    ///
    /// # Errors
    /// When the value is no such array.
    fn integers(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError>;
    /// A tensor by name.
    fn tensor(&self, name: &str) -> Option<FileTensor>;
    /// Every tensor's name, in file order.
    fn tensor_names(&self) -> Vec<String>;
}

/// Looks tensors up with the shape and type that their use needs, and remembers which were used.
pub struct Lookup<'a> {
    file: &'a dyn ModelFile,
    used: std::collections::BTreeSet<String>,
}

impl<'a> Lookup<'a> {
    /// A look-up with nothing used yet.
    #[must_use]
    pub fn new(file: &'a dyn ModelFile) -> Self {
        Self { file, used: std::collections::BTreeSet::new() }
    }

    /// Whether the file has a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A tensor's extents, innermost first.
    #[must_use]
    pub fn dims(&self, name: &str) -> Option<Vec<u64>> {
        self.file.tensor(name).map(|tensor| tensor.dims)
    }

    /// A matrix of `rows` outputs by `cols` inputs.
    ///
    /// # Errors
    /// Missing, of another shape, or of an unsupported type.
    pub fn matrix(&mut self, name: &str, rows: u64, cols: u64) -> Result<Source, ModelError> {
        self.matrix_of(name, &[cols, rows], rows, cols)
    }

    /// A matrix whose extents in the file are `dims`, innermost first: several make the columns.
    ///
    /// # Errors
    /// As [`Lookup::matrix`].
    pub fn matrix_of(
        &mut self,
        name: &str,
        dims: &[u64],
        rows: u64,
        cols: u64,
    ) -> Result<Source, ModelError> {
        let source = self.find(name, dims, rows, cols)?;
        if source.dtype.packed_bytes(rows, cols).is_none() {
            return Err(ModelError::WrongType {
                name: name.to_string(),
                found: source.dtype.name().to_string(),
                expected: "a type whose blocks divide the row",
            });
        }
        Ok(source)
    }

    /// A vector of floats.
    ///
    /// # Errors
    /// Missing, of another length, or not of a float type.
    pub fn vector(&mut self, name: &str, len: u64) -> Result<Source, ModelError> {
        let source = self.find(name, &[len], 1, len)?;
        match source.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => Ok(source),
            other => Err(ModelError::WrongType {
                name: name.to_string(),
                found: other.name().to_string(),
                expected: "f32, f16 or bf16",
            }),
        }
    }

    /// Fails on the first tensor of the file that was never looked up.
    ///
    /// # Errors
    /// Names that tensor.
    pub fn finish(self, architecture: &str) -> Result<(), ModelError> {
        let names = self.file.tensor_names();
        match names.into_iter().find(|name| !self.used.contains(name)) {
            None => Ok(()),
            Some(name) => {
                Err(ModelError::UnknownTensor { name, architecture: architecture.to_string() })
            }
        }
    }

    /// Marks a tensor as known although the program does not read it.
    pub fn ignore(&mut self, name: &str) {
        self.used.insert(name.to_string());
    }

    fn find(
        &mut self,
        name: &str,
        expected: &[u64],
        rows: u64,
        cols: u64,
    ) -> Result<Source, ModelError> {
        let tensor = self.file.tensor(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.to_string(),
            expected: expected.to_vec(),
        })?;
        let mut found = tensor.dims.clone();
        while found.len() > expected.len() && found.last() == Some(&1) {
            found.pop();
        }
        if found != expected {
            return Err(ModelError::WrongShape {
                name: name.to_string(),
                expected: expected.to_vec(),
                found: tensor.dims,
            });
        }
        let dtype = tensor.dtype.map_err(|found| ModelError::WrongType {
            name: name.to_string(),
            found,
            expected: "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k … q6_k",
        })?;
        self.used.insert(name.to_string());
        Ok(Source {
            tensor: name.to_string(),
            file: tensor.file,
            offset: tensor.offset,
            bytes: tensor.bytes,
            dtype,
            rows,
            cols,
        })
    }
}
