//! A fault of a model file: which field, at which byte, what is wrong, with bound and value.
//!
//! Found by the parser, which does not go on after one. It knows the format's fields, not the
//! file's name; [`Error`](crate::Error) adds that.

use std::fmt;
use std::io;

use crate::ggml_type::GgmlType;
use crate::value::{ValueType, fmt_string};

/// The field of the format that a fault is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The four bytes `GGUF`.
    Magic,
    /// The format's version.
    Version,
    /// Number of tensors.
    TensorCount,
    /// Number of metadata entries.
    MetadataCount,
    /// Length of a metadata key.
    KeyLength,
    /// A metadata key.
    Key,
    /// Type of a metadata value.
    ValueType,
    /// A scalar value.
    Value,
    /// Length of a string value.
    StringLength,
    /// The bytes of a string value.
    String,
    /// Type of an array's elements.
    ArrayType,
    /// Number of an array's elements.
    ArrayCount,
    /// The elements of an array.
    ArrayElements,
    /// Length of a string in an array.
    ArrayStringLength,
    /// The bytes of a string in an array.
    ArrayString,
    /// Length of a tensor's name.
    TensorNameLength,
    /// A tensor's name.
    TensorName,
    /// Number of a tensor's dimensions.
    Rank,
    /// One dimension of a tensor, by its index.
    Dimension(u32),
    /// Element type of a tensor.
    TensorType,
    /// Offset of a tensor's data, relative to the data's beginning.
    TensorOffset,
    /// The header as a whole.
    Header,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Magic => "magic",
            Self::Version => "version",
            Self::TensorCount => "tensor count",
            Self::MetadataCount => "metadata count",
            Self::KeyLength => "key length",
            Self::Key => "key",
            Self::ValueType => "value type",
            Self::Value => "value",
            Self::StringLength => "string length",
            Self::String => "string",
            Self::ArrayType => "array element type",
            Self::ArrayCount => "array count",
            Self::ArrayElements => "array elements",
            Self::ArrayStringLength => "array string length",
            Self::ArrayString => "array string",
            Self::TensorNameLength => "name length",
            Self::TensorName => "name",
            Self::Rank => "dimension count",
            Self::Dimension(index) => return write!(f, "dimension {index}"),
            Self::TensorType => "type",
            Self::TensorOffset => "data offset",
            Self::Header => "header",
        })
    }
}

/// What is wrong with a field.
#[derive(Debug)]
pub enum Defect {
    /// The file ends inside the field.
    Truncated {
        /// Bytes that the field has.
        needed: u64,
        /// Bytes that the file still has.
        available: u64,
    },
    /// The header goes on past its bound.
    HeaderTooLong {
        /// The bound in bytes.
        bound: u64,
    },
    /// The file does not begin with `GGUF`.
    BadMagic {
        /// Its first four bytes.
        found: [u8; 4],
    },
    /// A version that is not 2 or 3.
    UnsupportedVersion {
        /// The version.
        found: u32,
    },
    /// A version that is 1, 2 or 3 when its bytes are swapped.
    BigEndian {
        /// The version, swapped.
        version: u32,
    },
    /// A count or length over its bound.
    TooLarge {
        /// The largest value that is allowed.
        bound: u64,
        /// The value in the file.
        found: u64,
    },
    /// A value that must not be zero.
    Zero,
    /// A type number that the format does not have.
    UnknownValueType {
        /// The number.
        found: u32,
    },
    /// A tensor type number that is not known, or was withdrawn.
    UnknownTensorType {
        /// The number.
        found: u32,
        /// Its name, if it once was one.
        withdrawn: Option<&'static str>,
    },
    /// A truth value that is neither 0 nor 1.
    NotBool {
        /// The byte.
        found: u8,
    },
    /// A key or name that is no text.
    NotUtf8,
    /// A key or name that is there already.
    Duplicate,
    /// Keys, names and short strings together pass their bound.
    TooMuchText {
        /// The bound in bytes.
        bound: u64,
    },
    /// An alignment that is no power of two.
    NotPowerOfTwo {
        /// The value.
        found: u64,
    },
    /// A value of the wrong type for a key of the format itself.
    WrongType {
        /// What the key must be.
        expected: &'static str,
        /// What it is.
        found: ValueType,
    },
    /// The first dimension is not a whole number of blocks.
    PartialBlock {
        /// The tensor's type.
        ggml_type: GgmlType,
        /// The first dimension.
        found: u64,
    },
    /// Elements, bytes or offsets that no file can have.
    Overflow,
    /// A data offset that is not a multiple of the alignment.
    Misaligned {
        /// The alignment in bytes.
        alignment: u64,
        /// The offset in the file.
        found: u64,
    },
    /// Two tensors have bytes in common.
    Overlap {
        /// The name of the other one.
        other: String,
        /// Its end, relative to the data's beginning.
        other_end: u64,
        /// The beginning of this one.
        found: u64,
    },
    /// A shard that does not belong to its set.
    WrongShard {
        /// The key of the format.
        key: &'static str,
        /// What its place in the set asks for.
        expected: u64,
        /// What it says, if it does.
        found: Option<u64>,
    },
    /// The operating system failed to read.
    Io(io::Error),
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, available } => {
                write!(f, "the file ends: {needed} bytes needed, {available} left")
            }
            Self::HeaderTooLong { bound } => {
                write!(f, "the header passes its bound of {bound} bytes")
            }
            Self::BadMagic { found } => {
                write!(f, "not a GGUF file: begins with \"{}\"", found.escape_ascii())
            }
            Self::UnsupportedVersion { found } => {
                write!(f, "version {found} is not supported (2 and 3 are)")
            }
            Self::BigEndian { version } => {
                write!(f, "big-endian file (version {version}); only little-endian is supported")
            }
            Self::TooLarge { bound, found } => write!(f, "{found} exceeds the bound {bound}"),
            Self::Zero => f.write_str("must not be zero"),
            Self::UnknownValueType { found } => write!(f, "unknown value type {found}"),
            Self::UnknownTensorType { found, withdrawn: None } => {
                write!(f, "unknown tensor type {found}")
            }
            Self::UnknownTensorType { found, withdrawn: Some(name) } => {
                write!(f, "tensor type {found} ({name}) was withdrawn from the format")
            }
            Self::NotBool { found } => write!(f, "bool must be 0 or 1, found {found}"),
            Self::NotUtf8 => f.write_str("not valid UTF-8"),
            Self::Duplicate => f.write_str("occurs twice"),
            Self::TooMuchText { bound } => {
                write!(f, "keys, names and short strings together exceed {bound} bytes")
            }
            Self::NotPowerOfTwo { found } => write!(f, "{found} is not a power of two"),
            Self::WrongType { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            Self::PartialBlock { ggml_type, found } => write!(
                f,
                "{found} is not a multiple of the {} elements in a block of {ggml_type}",
                ggml_type.block_len()
            ),
            Self::Overflow => f.write_str("size overflows what a file can hold"),
            Self::Misaligned { alignment, found } => {
                write!(f, "{found} is not a multiple of the alignment {alignment}")
            }
            Self::Overlap { other, other_end, found } => {
                write!(f, "begins at {found}, inside tensor ")?;
                fmt_string(other.as_bytes(), f)?;
                write!(f, " which ends at {other_end}")
            }
            Self::WrongShard { key, expected, found: Some(found) } => {
                write!(f, "{key}: expected {expected}, found {found}")
            }
            Self::WrongShard { key, expected, found: None } => {
                write!(f, "{key} is missing, expected {expected}")
            }
            Self::Io(error) => write!(f, "cannot read: {error}"),
        }
    }
}

/// What is wrong and where. `Display` gives `FIELD at byte OFFSET: DEFECT`.
#[derive(Debug)]
pub struct Fault {
    /// The field.
    pub field: Field,
    /// Offset in the file of the field's first byte.
    pub offset: u64,
    /// What is wrong.
    pub defect: Defect,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.field, self.offset, self.defect)
    }
}

impl std::error::Error for Fault {}

/// Whose field it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The file's own.
    File,
    /// A metadata entry, by index, with its key if that could be read.
    Metadata {
        /// Index in the file.
        index: u64,
        /// The key, lossily decoded.
        key: Option<String>,
    },
    /// A tensor, by index, with its name if that could be read.
    Tensor {
        /// Index in the file.
        index: u64,
        /// The name, lossily decoded.
        name: Option<String>,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, index, name) = match self {
            Self::File => return f.write_str("header"),
            Self::Metadata { index, key } => ("metadata", index, key),
            Self::Tensor { index, name } => ("tensor", index, name),
        };
        write!(f, "{what} {index}")?;
        match name {
            Some(name) => f.write_str(" ").and_then(|()| fmt_string(name.as_bytes(), f)),
            None => Ok(()),
        }
    }
}

/// A fault with its owner, on its way from a table's parser to the one that knows the file.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) subject: Subject,
    pub(crate) fault: Fault,
}

impl Fault {
    /// Says whose field it is.
    pub(crate) fn about(self, subject: Subject) -> Box<Located> {
        Box::new(Located { subject, fault: self })
    }
}
