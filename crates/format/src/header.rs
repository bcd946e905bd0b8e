//! The header of one file: the order of its parts.
//!
//! ```text
//!   ┌───────┬─────────┬──────────────┬────────────────┬──────────┬──────────────┬─────────┬──────
//!   │ GGUF  │ version │ tensor count │ metadata count │ metadata │ tensor table │ padding │ data
//!   └───────┴─────────┴──────────────┴────────────────┴──────────┴──────────────┴─────────┴──────
//!   0       4         8              16               24                        ▲ header  ▲ data
//!                                                                               └ end     └ offset
//! ```
//!
//! It knows the two versions whose layout this is (2 and 3, little endian), and the one key that
//! the layout depends on, `general.alignment`.

use crate::cursor::Cursor;
use crate::fault::{Defect, Fault, Field, Located, Subject};
use crate::limits;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::tensor::TensorTable;
use crate::value::Value;

/// What one file's header says, without its tensors.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) alignment: u64,
    /// Bytes from the magic to the end of the tensor table.
    pub(crate) len_bytes: u64,
    /// Offset of the data.
    pub(crate) data_offset: u64,
}

/// Parses the header of the file with index `shard`, at most `bound` bytes of it, and adds its
/// tensors to the table.
pub(crate) fn parse(
    source: &dyn Source,
    window: &mut [u8],
    bound: u64,
    shard: u16,
    tensors: &mut TensorTable,
) -> Result<Header, Box<Located>> {
    let cursor = &mut Cursor::new(source, window, 0, bound);
    let of_file = |fault: Fault| fault.about(Subject::File);
    parse_magic(cursor).map_err(of_file)?;
    let version = parse_version(cursor).map_err(of_file)?;
    let tensor_count_max = limits::TENSOR_COUNT_MAX - tensors.len() as u64;
    let tensor_count =
        parse_count(cursor, Field::TensorCount, tensor_count_max).map_err(of_file)?;
    let metadata_count =
        parse_count(cursor, Field::MetadataCount, limits::METADATA_COUNT_MAX).map_err(of_file)?;

    let metadata = Metadata::parse(cursor, metadata_count)?;
    let alignment = alignment(&metadata)?;
    tensors.parse(cursor, tensor_count, shard, alignment)?;

    let len_bytes = cursor.offset();
    let data_offset = len_bytes.next_multiple_of(alignment);
    tensors.place(shard, data_offset);
    Ok(Header { version, metadata, alignment, len_bytes, data_offset })
}

fn parse_magic(cursor: &mut Cursor<'_, '_>) -> Result<(), Fault> {
    let found: [u8; 4] = cursor.u32(Field::Magic)?.to_le_bytes();
    if found != *b"GGUF" {
        let defect = Defect::BadMagic { found };
        return Err(Fault { field: Field::Magic, offset: 0, defect });
    }
    Ok(())
}

fn parse_version(cursor: &mut Cursor<'_, '_>) -> Result<u32, Fault> {
    let offset = cursor.offset();
    let found = cursor.u32(Field::Version)?;
    let defect = match (found, found.swap_bytes()) {
        (2 | 3, _) => return Ok(found),
        (_, version @ 1..=3) => Defect::BigEndian { version },
        _ => Defect::UnsupportedVersion { found },
    };
    Err(Fault { field: Field::Version, offset, defect })
}

fn parse_count(cursor: &mut Cursor<'_, '_>, field: Field, bound: u64) -> Result<u64, Fault> {
    let offset = cursor.offset();
    let found = cursor.u64(field)?;
    if found > bound {
        return Err(Fault { field, offset, defect: Defect::TooLarge { bound, found } });
    }
    Ok(found)
}

/// The data's alignment: a power of two up to the bound.
fn alignment(metadata: &Metadata) -> Result<u64, Box<Located>> {
    const KEY: &str = "general.alignment";
    let Some(entry) = metadata.find(KEY) else { return Ok(limits::ALIGNMENT_BYTES_DEFAULT) };
    let scalar = match entry.value {
        Value::Scalar(scalar) => scalar.as_u64(),
        Value::String(_) | Value::LongString(_) | Value::Array(_) => None,
    };
    let defect = match scalar {
        None => Defect::WrongType { expected: "u32", found: entry.value_type },
        Some(found) if !found.is_power_of_two() => Defect::NotPowerOfTwo { found },
        Some(found) if found > limits::ALIGNMENT_BYTES_MAX => {
            Defect::TooLarge { bound: limits::ALIGNMENT_BYTES_MAX, found }
        }
        Some(found) => return Ok(found),
    };
    Err(metadata.value_fault(KEY, entry.offset, defect))
}
