//! Metadata values: their types in the file and a borrowed view for printing and decoding.
//!
//! Scalars and short strings are here decoded; long strings and arrays are only described (their
//! bytes are in the file). Nothing here reads a file.

use std::fmt;

use crate::array::ArrayRef;

/// Longest piece of a string that [`Value`]'s `Display` prints, in characters.
const DISPLAY_LEN_MAX: usize = 80;

/// Type of a metadata value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ValueType {
    /// Unsigned 8 bits.
    U8 = 0,
    /// Signed 8 bits.
    I8 = 1,
    /// Unsigned 16 bits.
    U16 = 2,
    /// Signed 16 bits.
    I16 = 3,
    /// Unsigned 32 bits.
    U32 = 4,
    /// Signed 32 bits.
    I32 = 5,
    /// IEEE binary32.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Bytes that ought to be UTF-8.
    String = 8,
    /// Values of one type.
    Array = 9,
    /// Unsigned 64 bits.
    U64 = 10,
    /// Signed 64 bits.
    I64 = 11,
    /// IEEE binary64.
    F64 = 12,
}

impl ValueType {
    /// The type with this number in the file.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The number in the file.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Bytes of one value, `None` for strings and arrays.
    pub const fn scalar_len_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Bytes that one value takes at least: what a claimed count is compared with.
    pub(crate) const fn len_bytes_min(self) -> u64 {
        match self.scalar_len_bytes() {
            Some(len) => len as u64,
            // A length; an element type and a count.
            None => match self {
                Self::String => 8,
                _ => 12,
            },
        }
    }

    /// Short name, as `inspect` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One number or truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Any unsigned type.
    Unsigned(u64),
    /// Any signed type.
    Signed(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// Truth value.
    Bool(bool),
}

impl Scalar {
    /// Decodes the little-endian bytes of a scalar type; `None` for a bool that is neither 0
    /// nor 1.
    ///
    /// # Panics
    /// If `bytes` is not as long as the type, or the type is no scalar.
    pub(crate) fn decode(kind: ValueType, bytes: &[u8]) -> Option<Self> {
        assert_eq!(kind.scalar_len_bytes(), Some(bytes.len()), "the length is the type's");
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Some(match kind {
            ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => {
                Self::Unsigned(bits)
            }
            ValueType::I8 => Self::Signed(i64::from(bits as i8)),
            ValueType::I16 => Self::Signed(i64::from(bits as i16)),
            ValueType::I32 => Self::Signed(i64::from(bits as i32)),
            ValueType::I64 => Self::Signed(bits as i64),
            ValueType::F32 => Self::F32(f32::from_bits(bits as u32)),
            ValueType::F64 => Self::F64(f64::from_bits(bits)),
            ValueType::Bool => match bits {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                _ => return None,
            },
            ValueType::String | ValueType::Array => unreachable!("no scalar"),
        })
    }

    /// The value as an unsigned integer, if it is one or a signed one that is not negative.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) => None,
        }
    }

    /// The value as a signed integer, if it is an integer that fits.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(value).ok(),
            Self::Signed(value) => Some(value),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) => None,
        }
    }

    /// The value as a float, if it is one; doubles are rounded.
    pub fn as_f32(self) -> Option<f32> {
        match self {
            Self::F32(value) => Some(value),
            Self::F64(value) => Some(value as f32),
            Self::Unsigned(_) | Self::Signed(_) | Self::Bool(_) => None,
        }
    }

    /// The value as a truth value, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            Self::Unsigned(_) | Self::Signed(_) | Self::F32(_) | Self::F64(_) => None,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            Self::F32(value) => write!(f, "{value:?}"),
            Self::F64(value) => write!(f, "{value:?}"),
            Self::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// A metadata value as the checkpoint holds it. `Display` is one line: strings are quoted,
/// escaped and clipped, arrays summarised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number or truth value.
    Scalar(Scalar),
    /// A short string, as its bytes (not checked to be UTF-8).
    String(&'a [u8]),
    /// A string left in the file: its length in bytes.
    LongString(u64),
    /// An array left in the file.
    Array(ArrayRef),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => write!(f, "{scalar}"),
            Self::String(bytes) => fmt_string(bytes, f),
            Self::LongString(len) => write!(f, "string of {len} bytes"),
            Self::Array(array) => write!(f, "{array}"),
        }
    }
}

/// Writes untrusted text so that it cannot move a terminal's cursor, and not all of it.
pub(crate) fn fmt_string(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(DISPLAY_LEN_MAX * 4)]);
    let clipped = text.chars().take(DISPLAY_LEN_MAX).collect::<String>();
    write!(f, "{clipped:?}")?;
    if text.chars().nth(DISPLAY_LEN_MAX).is_some() {
        write!(f, "… ({} bytes)", bytes.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for number in 0..13 {
            assert_eq!(ValueType::from_number(number).unwrap().number(), number);
        }
        assert_eq!(ValueType::from_number(13), None);
        assert_eq!(ValueType::from_number(u32::MAX), None);
    }

    #[test]
    fn scalars_keep_sign_and_refuse_odd_truth() {
        let minus_two = Scalar::decode(ValueType::I16, &[0xfe, 0xff]).unwrap();
        assert_eq!(minus_two, Scalar::Signed(-2));
        assert_eq!((minus_two.as_u64(), minus_two.as_i64()), (None, Some(-2)));
        assert_eq!(Scalar::decode(ValueType::Bool, &[2]), None);
        let half = Scalar::decode(ValueType::F32, &0.5f32.to_le_bytes()).unwrap();
        assert_eq!((half.as_f32(), half.as_u64()), (Some(0.5), None));
    }

    #[test]
    fn display_is_one_clipped_line() {
        let check = |value: Value<'_>, expected: &str| assert_eq!(value.to_string(), expected);
        check(Value::Scalar(Scalar::F32(1.0)), "1.0");
        check(Value::String(b"a\n\x1b[2J\"\xff"), "\"a\\n\\u{1b}[2J\\\"\u{fffd}\"");
        check(Value::LongString(7000), "string of 7000 bytes");
        let long = Value::String(&[b'x'; 200]).to_string();
        assert_eq!(long, format!("\"{}\"… (200 bytes)", "x".repeat(80)));
    }
}
