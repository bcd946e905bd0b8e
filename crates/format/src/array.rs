//! Metadata arrays: found while the header is parsed, left in the file, streamed later.
//!
//! An array of scalars has a length that its count gives; an array of strings must be walked once
//! to find its end, and on that walk its total and its longest string are noted, so that whoever
//! builds tables of them can size those exactly and choose a window that always fits. Nothing
//! here holds more than the window.

use std::fmt;

use crate::cursor::Cursor;
use crate::fault::{Defect, Fault, Field};
use crate::limits;
use crate::source::Source;
use crate::value::{Scalar, ValueType};

/// Where an array lies in the first file of a checkpoint, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayRef {
    element_type: ValueType,
    string_len_bytes_max: u32,
    count: u64,
    offset: u64,
    len_bytes: u64,
    string_len_bytes_total: u64,
}

impl ArrayRef {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Offset in the file of the first element.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of all elements in the file, length prefixes included.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Bytes of all strings without their length prefixes; 0 if the elements are no strings.
    pub fn string_len_bytes_total(&self) -> u64 {
        self.string_len_bytes_total
    }

    /// Bytes of the longest string; 0 if the elements are no strings.
    pub fn string_len_bytes_max(&self) -> u64 {
        u64::from(self.string_len_bytes_max)
    }
}

impl fmt::Display for ArrayRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}] of {} bytes", self.element_type, self.count, self.len_bytes)?;
        if self.element_type == ValueType::String && self.count > 0 {
            write!(f, ", longest {}", self.string_len_bytes_max)?;
        }
        Ok(())
    }
}

/// Reads an array's head and steps over its elements; `depth` is 1 for an outermost array.
pub(crate) fn scan(cursor: &mut Cursor<'_, '_>, depth: u32) -> Result<ArrayRef, Fault> {
    let type_offset = cursor.offset();
    let number = cursor.u32(Field::ArrayType)?;
    let type_fault = |defect| Fault { field: Field::ArrayType, offset: type_offset, defect };
    let element_type = ValueType::from_number(number)
        .ok_or_else(|| type_fault(Defect::UnknownValueType { found: number }))?;
    if depth > limits::ARRAY_DEPTH_MAX {
        let bound = u64::from(limits::ARRAY_DEPTH_MAX);
        return Err(type_fault(Defect::TooLarge { bound, found: u64::from(depth) }));
    }

    let count_offset = cursor.offset();
    let count = cursor.u64(Field::ArrayCount)?;
    let count_fault = |defect| Fault { field: Field::ArrayCount, offset: count_offset, defect };
    if count > limits::ARRAY_COUNT_MAX {
        let bound = limits::ARRAY_COUNT_MAX;
        return Err(count_fault(Defect::TooLarge { bound, found: count }));
    }
    // No overflow: the count is bounded. A count that the file cannot hold is refused at once.
    cursor
        .check(count * element_type.len_bytes_min(), Field::ArrayCount)
        .map_err(|fault| count_fault(fault.defect))?;

    let mut array = ArrayRef {
        element_type,
        string_len_bytes_max: 0,
        count,
        offset: cursor.offset(),
        len_bytes: 0,
        string_len_bytes_total: 0,
    };
    match element_type {
        ValueType::String => scan_strings(cursor, &mut array)?,
        ValueType::Array => (0..count).try_for_each(|_| scan(cursor, depth + 1).map(drop))?,
        ValueType::U8
        | ValueType::I8
        | ValueType::U16
        | ValueType::I16
        | ValueType::U32
        | ValueType::I32
        | ValueType::F32
        | ValueType::Bool
        | ValueType::U64
        | ValueType::I64
        | ValueType::F64 => {
            cursor.skip(count * element_type.len_bytes_min(), Field::ArrayElements)?;
        }
    }
    array.len_bytes = cursor.offset() - array.offset;
    Ok(array)
}

fn scan_strings(cursor: &mut Cursor<'_, '_>, array: &mut ArrayRef) -> Result<(), Fault> {
    let mut longest = 0;
    for _ in 0..array.count {
        let len = string_len(cursor)?;
        cursor.skip(len, Field::ArrayString)?;
        longest = longest.max(len);
    }
    array.string_len_bytes_max = longest as u32;
    array.string_len_bytes_total = cursor.offset() - array.offset - 8 * array.count;
    Ok(())
}

/// The length prefix of an array's string, not above the bound.
fn string_len(cursor: &mut Cursor<'_, '_>) -> Result<u64, Fault> {
    let offset = cursor.offset();
    let len = cursor.u64(Field::ArrayStringLength)?;
    if len > limits::ARRAY_STRING_LEN_BYTES_MAX {
        let defect = Defect::TooLarge { bound: limits::ARRAY_STRING_LEN_BYTES_MAX, found: len };
        return Err(Fault { field: Field::ArrayStringLength, offset, defect });
    }
    Ok(len)
}

/// Streams the strings of an array in order, as bytes.
pub struct StringReader<'s, 'w> {
    cursor: Cursor<'s, 'w>,
    remaining: u64,
}

impl<'s, 'w> StringReader<'s, 'w> {
    /// # Panics
    /// If the elements are no strings, or the window is too small for the longest (with 8 bytes
    /// of length).
    pub(crate) fn new(source: &'s dyn Source, array: &ArrayRef, window: &'w mut [u8]) -> Self {
        assert_eq!(array.element_type, ValueType::String, "only strings stream as strings");
        assert!(window.len() >= array.string_len_bytes_max as usize && window.len() >= 8);
        let bound = array.offset + array.len_bytes;
        Self { cursor: Cursor::new(source, window, array.offset, bound), remaining: array.count }
    }

    /// The next string, `None` after the last.
    ///
    /// # Errors
    /// When the file cannot be read, or no longer holds what it held when it was opened.
    pub fn next_string(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.remaining == 0 {
            return Ok(None);
        }
        self.remaining -= 1;
        let len = string_len(&mut self.cursor)?;
        if len > self.cursor.window_len_bytes() {
            // Longer than the longest found at opening: the file was changed meanwhile.
            let defect = Defect::TooLarge { bound: self.cursor.window_len_bytes(), found: len };
            return Err(self.cursor.fault(Field::ArrayString, defect));
        }
        self.cursor.take(len as usize, Field::ArrayString).map(Some)
    }
}

/// Streams the numbers or truth values of an array in order.
pub struct ScalarReader<'s, 'w> {
    cursor: Cursor<'s, 'w>,
    element_type: ValueType,
    remaining: u64,
}

impl<'s, 'w> ScalarReader<'s, 'w> {
    /// # Panics
    /// If the elements are strings or arrays, or the window is smaller than 8 bytes.
    pub(crate) fn new(source: &'s dyn Source, array: &ArrayRef, window: &'w mut [u8]) -> Self {
        assert!(array.element_type.scalar_len_bytes().is_some(), "only scalars stream as scalars");
        assert!(window.len() >= 8);
        let bound = array.offset + array.len_bytes;
        let cursor = Cursor::new(source, window, array.offset, bound);
        Self { cursor, element_type: array.element_type, remaining: array.count }
    }

    /// The next value, `None` after the last.
    ///
    /// # Errors
    /// A truth value that is neither 0 nor 1; and when the file cannot be read.
    pub fn next_scalar(&mut self) -> Result<Option<Scalar>, Fault> {
        if self.remaining == 0 {
            return Ok(None);
        }
        self.remaining -= 1;
        decode_scalar(&mut self.cursor, self.element_type, Field::ArrayElements).map(Some)
    }
}

/// Reads one value of a scalar type.
pub(crate) fn decode_scalar(
    cursor: &mut Cursor<'_, '_>,
    kind: ValueType,
    field: Field,
) -> Result<Scalar, Fault> {
    let offset = cursor.offset();
    let len = kind.scalar_len_bytes().expect("the caller has a scalar type");
    let bytes = cursor.take(len, field)?;
    let found = bytes[0];
    Scalar::decode(kind, bytes).ok_or(Fault { field, offset, defect: Defect::NotBool { found } })
}
