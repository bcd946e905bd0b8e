//! Questions about a checkpoint's metadata, with typed refusals.

use super::Checkpoint;
use crate::array::{ArrayRef, ScalarReader, StringReader};
use crate::error::Error;
use crate::fault::{Fault, Subject};
use crate::limits;
use crate::metadata::EntryRef;
use crate::value::{Scalar, Value, ValueType};

/// Metadata. `find_*` gives `None` for a key that is not there, `get_*` refuses; both refuse a
/// value of another type.
impl Checkpoint {
    /// All keys with their types and values, in the file's order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, ValueType, Value<'_>)> {
        self.metadata.iter().map(|entry| (entry.key, entry.value_type, entry.value))
    }

    /// The value of a key, of whatever type.
    pub fn find(&self, key: &str) -> Option<Value<'_>> {
        self.metadata.find(key).map(|entry| entry.value)
    }

    /// An integer of any width that is in the range of `u32`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn find_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.find_as(key, "u32", |value| u32::try_from(scalar(value)?.as_u64()?).ok())
    }

    /// An integer of any width that is in the range of `u32`.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn get_u32(&self, key: &str) -> Result<u32, Error> {
        self.require(key, "u32", self.find_u32(key)?)
    }

    /// An integer of any width that is in the range of `u64`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn find_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.find_as(key, "u64", |value| scalar(value)?.as_u64())
    }

    /// An integer of any width that is in the range of `u64`.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn get_u64(&self, key: &str) -> Result<u64, Error> {
        self.require(key, "u64", self.find_u64(key)?)
    }

    /// A float; doubles are rounded.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.find_as(key, "f32", |value| scalar(value)?.as_f32())
    }

    /// A float; doubles are rounded.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn get_f32(&self, key: &str) -> Result<f32, Error> {
        self.require(key, "f32", self.find_f32(key)?)
    }

    /// A truth value.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.find_as(key, "bool", |value| scalar(value)?.as_bool())
    }

    /// A truth value.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn get_bool(&self, key: &str) -> Result<bool, Error> {
        self.require(key, "bool", self.find_bool(key)?)
    }

    /// A short string: at most [`limits::SHORT_STRING_LEN_BYTES_MAX`].
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::StringTooLong`], [`Error::NotUtf8`].
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, Error> {
        let Some(entry) = self.metadata.find(key) else { return Ok(None) };
        match entry.value {
            Value::String(bytes) => {
                str::from_utf8(bytes).map(Some).map_err(|_| self.not_utf8(&entry))
            }
            Value::LongString(found) => {
                Err(self.too_long(&entry, found, limits::SHORT_STRING_LEN_BYTES_MAX))
            }
            Value::Scalar(_) | Value::Array(_) => Err(self.wrong_type(&entry, "string")),
        }
    }

    /// A short string: at most [`limits::SHORT_STRING_LEN_BYTES_MAX`].
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::StringTooLong`], [`Error::NotUtf8`].
    pub fn get_str(&self, key: &str) -> Result<&str, Error> {
        self.require(key, "string", self.find_str(key)?)
    }

    /// A string of any length that the format's limits allow, read from the file.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::NotUtf8`], [`Error::Read`].
    pub fn read_string(&self, key: &str) -> Result<Option<String>, Error> {
        let Some(entry) = self.metadata.find(key) else { return Ok(None) };
        let bytes = match entry.value {
            Value::String(bytes) => bytes.to_vec(),
            Value::LongString(len_bytes) => {
                // Bounded when the header was parsed, and known to be in the file.
                let mut bytes = vec![0; len_bytes as usize];
                let offset = entry.offset + 8;
                self.source(0).read_at(offset, &mut bytes).map_err(|error| Error::Read {
                    file: self.main_file(),
                    name: key.to_string(),
                    offset,
                    error,
                })?;
                bytes
            }
            Value::Scalar(_) | Value::Array(_) => {
                return Err(self.wrong_type(&entry, "string"));
            }
        };
        String::from_utf8(bytes).map(Some).map_err(|_| self.not_utf8(&entry))
    }

    /// An array whose elements are of one of the types.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn find_array(&self, key: &str, types: &[ValueType]) -> Result<Option<ArrayRef>, Error> {
        let Some(entry) = self.metadata.find(key) else { return Ok(None) };
        match entry.value {
            Value::Array(array) if types.contains(&array.element_type()) => Ok(Some(array)),
            Value::Array(_) | Value::Scalar(_) | Value::String(_) | Value::LongString(_) => {
                Err(self.wrong_type(&entry, &array_of(types)))
            }
        }
    }

    /// An array whose elements are of one of the types.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn get_array(&self, key: &str, types: &[ValueType]) -> Result<ArrayRef, Error> {
        self.require(key, &array_of(types), self.find_array(key, types)?)
    }

    /// Streams an array of strings through a window, which must hold the longest and 8 bytes.
    ///
    /// # Panics
    /// If the elements are no strings or the window is too small.
    pub fn strings<'c, 'w>(
        &'c self,
        array: &ArrayRef,
        window: &'w mut [u8],
    ) -> StringReader<'c, 'w> {
        StringReader::new(self.source(0), array, window)
    }

    /// Streams an array of numbers or truth values through a window of at least 8 bytes.
    ///
    /// # Panics
    /// If the elements are strings or arrays, or the window is too small.
    pub fn scalars<'c, 'w>(
        &'c self,
        array: &ArrayRef,
        window: &'w mut [u8],
    ) -> ScalarReader<'c, 'w> {
        ScalarReader::new(self.source(0), array, window)
    }

    /// Hands the strings of an array in order, with their indices, to `each`, through a window
    /// of [`limits::WINDOW_LEN_BYTES`] on the heap. Stops at the first error.
    ///
    /// # Errors
    /// [`Error::Format`] when the file cannot be read; what `each` returns.
    ///
    /// # Panics
    /// If the elements are no strings.
    pub fn for_each_string<E: From<Error>>(
        &self,
        array: &ArrayRef,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut window = vec![0; limits::WINDOW_LEN_BYTES];
        let mut reader = self.strings(array, &mut window);
        let mut index = 0;
        while let Some(string) =
            reader.next_string().map_err(|fault| self.array_error(array, fault))?
        {
            each(index, string)?;
            index += 1;
        }
        Ok(())
    }

    /// Hands the numbers or truth values of an array in order, with their indices, to `each`,
    /// as [`Checkpoint::for_each_string`] does.
    ///
    /// # Errors
    /// [`Error::Format`] for a truth value that is neither 0 nor 1 and when the file cannot be
    /// read; what `each` returns.
    ///
    /// # Panics
    /// If the elements are strings or arrays.
    pub fn for_each_scalar<E: From<Error>>(
        &self,
        array: &ArrayRef,
        mut each: impl FnMut(u64, Scalar) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut window = vec![0; limits::WINDOW_LEN_BYTES];
        let mut reader = self.scalars(array, &mut window);
        let mut index = 0;
        while let Some(scalar) =
            reader.next_scalar().map_err(|fault| self.array_error(array, fault))?
        {
            each(index, scalar)?;
            index += 1;
        }
        Ok(())
    }

    fn find_as<'c, T>(
        &'c self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(Value<'c>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(entry) = self.metadata.find(key) else { return Ok(None) };
        convert(entry.value).map(Some).ok_or_else(|| self.wrong_type(&entry, expected))
    }

    fn require<T>(&self, key: &str, expected: &str, found: Option<T>) -> Result<T, Error> {
        found.ok_or_else(|| Error::MissingKey {
            file: self.main_file(),
            key: key.to_string(),
            expected: expected.to_string(),
        })
    }

    fn wrong_type(&self, entry: &EntryRef<'_>, expected: &str) -> Error {
        Error::WrongType {
            file: self.main_file(),
            key: entry.key.to_string(),
            expected: expected.to_string(),
            found: match entry.value {
                Value::Array(_) => entry.value.to_string(),
                Value::Scalar(_) | Value::String(_) | Value::LongString(_) => {
                    format!("{} {}", entry.value_type, entry.value)
                }
            },
            offset: entry.offset,
        }
    }

    /// Puts a fault met while streaming on the array's key.
    fn array_error(&self, array: &ArrayRef, fault: Fault) -> Error {
        let is_it = |entry: &EntryRef<'_>| matches!(entry.value, Value::Array(a) if a == *array);
        let entry = self.metadata.iter().enumerate().find(|(_, entry)| is_it(entry));
        let subject = entry.map_or(Subject::File, |(index, entry)| Subject::Metadata {
            index: index as u64,
            key: Some(entry.key.to_string()),
        });
        Error::Format { file: self.main_file(), subject, fault: Box::new(fault) }
    }

    fn not_utf8(&self, entry: &EntryRef<'_>) -> Error {
        let (file, key) = (self.main_file(), entry.key.to_string());
        Error::NotUtf8 { file, key, offset: entry.offset }
    }

    fn too_long(&self, entry: &EntryRef<'_>, found: u64, bound: u64) -> Error {
        let (file, key) = (self.main_file(), entry.key.to_string());
        Error::StringTooLong { file, key, bound, found, offset: entry.offset }
    }

    pub(super) fn main_file(&self) -> String {
        self.file_name(0).to_string()
    }
}

fn scalar(value: Value<'_>) -> Option<Scalar> {
    match value {
        Value::Scalar(scalar) => Some(scalar),
        Value::String(_) | Value::LongString(_) | Value::Array(_) => None,
    }
}

fn array_of(types: &[ValueType]) -> String {
    let names: Vec<_> = types.iter().map(|kind| kind.name()).collect();
    format!("array of {}", names.join(" or "))
}
