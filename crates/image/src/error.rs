//! What can be wrong with a picture: each says what, where, which bound and which value.
//!
//! Believes: nothing. Must not know: how an error is reported.

use crate::header::Format;
use std::fmt;

/// Why a picture was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The first bytes are those of no format that is read here.
    UnknownFormat {
        /// The first four bytes (zero where the file is shorter).
        first: [u8; 4],
    },
    /// The file is longer than a picture within the bounds can be.
    FileTooLong {
        /// Most bytes.
        bound: u64,
        /// Bytes of the file.
        value: u64,
    },
    /// An edge of no pixels.
    Empty {
        /// The format.
        format: Format,
        /// Pixels a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// An edge is too long.
    EdgeTooLong {
        /// The format.
        format: Format,
        /// Pixels a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Most pixels of an edge.
        bound: u32,
    },
    /// Too many pixels.
    TooManyPixels {
        /// The format.
        format: Format,
        /// Pixels a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Most pixels.
        bound: u64,
    },
    /// The file ends too early or contradicts itself.
    Damaged {
        /// The format.
        format: Format,
        /// Byte of the file at which it was found, where that is known.
        offset: Option<u64>,
        /// What the decoder says.
        reason: String,
    },
    /// A kind of picture that is not read.
    Unsupported {
        /// The format.
        format: Format,
        /// Which kind.
        what: String,
    },
    /// The file could not be read.
    Read {
        /// What the system says.
        reason: String,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::UnknownFormat { first } => {
                let [a, b, c, d] = first;
                write!(
                    f,
                    "no picture: the first bytes {a:02x} {b:02x} {c:02x} {d:02x} are not those \
                     of PNG, JPEG, WebP or GIF"
                )
            }
            ImageError::FileTooLong { bound, value } => {
                write!(f, "the file has {value} bytes, at most {bound} are taken for a picture")
            }
            ImageError::Empty { format, width, height } => {
                write!(f, "{format} header: {width}x{height} pixels, at least 1x1 are wanted")
            }
            ImageError::EdgeTooLong { format, width, height, bound } => write!(
                f,
                "{format} header: {width}x{height} pixels, an edge may have at most {bound} \
                 (see --max-image-size)"
            ),
            ImageError::TooManyPixels { format, width, height, bound } => write!(
                f,
                "{format} header: {width}x{height} = {} pixels, at most {bound} are allowed (see \
                 --max-image-size)",
                u64::from(*width) * u64::from(*height)
            ),
            ImageError::Damaged { format, offset: Some(offset), reason } => {
                write!(f, "{format} damaged at byte {offset}: {reason}")
            }
            ImageError::Damaged { format, offset: None, reason } => {
                write!(f, "{format} damaged: {reason}")
            }
            ImageError::Unsupported { format, what } => {
                write!(f, "{format}: {what} is not supported")
            }
            ImageError::Read { reason } => write!(f, "cannot read the picture: {reason}"),
        }
    }
}

impl std::error::Error for ImageError {}

impl From<std::io::Error> for ImageError {
    fn from(error: std::io::Error) -> ImageError {
        ImageError::Read { reason: error.to_string() }
    }
}
