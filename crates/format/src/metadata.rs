//! The metadata of one file as a compact table.
//!
//! Scalars and short strings are kept decoded; long strings and arrays as offset and length. The
//! table is sorted by key through an index, so that looking up is a binary search and a key that
//! occurs twice is found. Which keys a model needs is not known here, but for the two of the
//! format itself (`general.alignment`, `split.*`), which others ask for.

use std::cmp::Ordering;

use crate::array::{self, ArrayRef};
use crate::cursor::Cursor;
use crate::fault::{Defect, Fault, Field, Located, Subject};
use crate::limits;
use crate::text::{Text, TextTable};
use crate::value::{Scalar, Value, ValueType};

/// What is kept of a value.
#[derive(Clone, Copy, Debug)]
enum Payload {
    Scalar(Scalar),
    Short(Text),
    Long { len_bytes: u64 },
    Array(ArrayRef),
}

/// One key and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    key: Text,
    value_type: ValueType,
    /// Offset in the file of the value (behind its type).
    offset: u64,
    payload: Payload,
}

/// All entries of a file, in the file's order.
#[derive(Debug)]
pub(crate) struct Metadata {
    text: TextTable,
    entries: Vec<Entry>,
    /// Indices of entries, sorted by key.
    by_key: Vec<u16>,
}

/// An entry, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRef<'m> {
    pub(crate) key: &'m str,
    pub(crate) value_type: ValueType,
    pub(crate) offset: u64,
    pub(crate) value: Value<'m>,
}

impl Metadata {
    /// Reads `count` entries at the cursor.
    pub(crate) fn parse(cursor: &mut Cursor<'_, '_>, count: u64) -> Result<Self, Box<Located>> {
        let text = TextTable::new(limits::METADATA_TEXT_LEN_BYTES_MAX);
        let mut metadata = Self { text, entries: Vec::new(), by_key: Vec::new() };
        for index in 0..count {
            let key = parse_key(cursor, &mut metadata.text)
                .map_err(|fault| fault.about(Subject::Metadata { index, key: None }))?;
            let entry = parse_value(cursor, &mut metadata.text, key)
                .map_err(|fault| fault.about(metadata.subject(index, key)))?;
            metadata.entries.push(entry);
        }
        metadata.index()?;
        Ok(metadata)
    }

    /// The entry of a key.
    pub(crate) fn find(&self, key: &str) -> Option<EntryRef<'_>> {
        let order = |&index: &u16| self.key_of(index).cmp(key.as_bytes());
        let position = self.by_key.binary_search_by(order).ok()?;
        Some(self.entry(&self.entries[usize::from(self.by_key[position])]))
    }

    /// The entries in the file's order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = EntryRef<'_>> {
        self.entries.iter().map(|entry| self.entry(entry))
    }

    /// A refusal of an entry's value.
    pub(crate) fn value_fault(&self, key: &str, offset: u64, defect: Defect) -> Box<Located> {
        let subject = match self.iter().position(|entry| entry.key == key) {
            Some(index) => Subject::Metadata { index: index as u64, key: Some(key.to_string()) },
            None => Subject::File,
        };
        Fault { field: Field::Value, offset, defect }.about(subject)
    }

    fn entry(&self, entry: &Entry) -> EntryRef<'_> {
        let value = match entry.payload {
            Payload::Scalar(scalar) => Value::Scalar(scalar),
            Payload::Short(text) => Value::String(self.text.bytes(text)),
            Payload::Long { len_bytes } => Value::LongString(len_bytes),
            Payload::Array(array) => Value::Array(array),
        };
        EntryRef {
            key: self.text.str(entry.key),
            value_type: entry.value_type,
            offset: entry.offset,
            value,
        }
    }

    fn key_of(&self, index: u16) -> &[u8] {
        self.text.bytes(self.entries[usize::from(index)].key)
    }

    fn subject(&self, index: u64, key: Text) -> Subject {
        Subject::Metadata { index, key: Some(self.text.str(key).to_string()) }
    }

    /// Sorts by key, the file's order among equals, and refuses equals.
    fn index(&mut self) -> Result<(), Box<Located>> {
        let mut by_key: Vec<u16> = (0..self.entries.len()).map(|index| index as u16).collect();
        by_key.sort_unstable_by(|&a, &b| self.key_of(a).cmp(self.key_of(b)).then(a.cmp(&b)));
        let order = |pair: &&[u16]| self.key_of(pair[0]).cmp(self.key_of(pair[1]));
        if let Some(pair) = by_key.windows(2).find(|pair| order(pair) == Ordering::Equal) {
            let entry = self.entries[usize::from(pair[1])];
            // The key's bytes lie just before the 4 of the value's type.
            let offset = entry.offset - 4 - self.text.bytes(entry.key).len() as u64;
            let fault = Fault { field: Field::Key, offset, defect: Defect::Duplicate };
            return Err(fault.about(self.subject(u64::from(pair[1]), entry.key)));
        }
        self.by_key = by_key;
        Ok(())
    }
}

fn parse_key(cursor: &mut Cursor<'_, '_>, text: &mut TextTable) -> Result<Text, Fault> {
    let offset = cursor.offset();
    let len = cursor.u64(Field::KeyLength)?;
    let length_fault = |defect| Fault { field: Field::KeyLength, offset, defect };
    if len == 0 {
        return Err(length_fault(Defect::Zero));
    }
    if len > limits::KEY_LEN_BYTES_MAX {
        let bound = limits::KEY_LEN_BYTES_MAX;
        return Err(length_fault(Defect::TooLarge { bound, found: len }));
    }
    text.parse_name(cursor, len as usize, Field::Key)
}

fn parse_value(
    cursor: &mut Cursor<'_, '_>,
    text: &mut TextTable,
    key: Text,
) -> Result<Entry, Fault> {
    let type_offset = cursor.offset();
    let number = cursor.u32(Field::ValueType)?;
    let value_type = ValueType::from_number(number).ok_or(Fault {
        field: Field::ValueType,
        offset: type_offset,
        defect: Defect::UnknownValueType { found: number },
    })?;
    let offset = cursor.offset();
    let payload = match value_type {
        ValueType::String => parse_string(cursor, text)?,
        ValueType::Array => Payload::Array(array::scan(cursor, 1)?),
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
            Payload::Scalar(array::decode_scalar(cursor, value_type, Field::Value)?)
        }
    };
    Ok(Entry { key, value_type, offset, payload })
}

fn parse_string(cursor: &mut Cursor<'_, '_>, text: &mut TextTable) -> Result<Payload, Fault> {
    let offset = cursor.offset();
    let len_bytes = cursor.u64(Field::StringLength)?;
    if len_bytes > limits::STRING_LEN_BYTES_MAX {
        let defect = Defect::TooLarge { bound: limits::STRING_LEN_BYTES_MAX, found: len_bytes };
        return Err(Fault { field: Field::StringLength, offset, defect });
    }
    if len_bytes > limits::SHORT_STRING_LEN_BYTES_MAX {
        cursor.skip(len_bytes, Field::String)?;
        return Ok(Payload::Long { len_bytes });
    }
    let offset = cursor.offset();
    let bytes = cursor.take(len_bytes as usize, Field::String)?;
    let too_much = Fault { field: Field::String, offset, defect: text.too_much() };
    text.push(bytes).map(Payload::Short).ok_or(too_much)
}
