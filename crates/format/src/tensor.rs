//! The tensor table of a checkpoint, all shards together, as compact entries.
//!
//! Each entry is checked as it is read: a name, dimensions that are not zero, a known type, a
//! first dimension of whole blocks, sizes and ends that a file can hold, an aligned offset. The
//! table as a whole is then checked for names that occur twice and for tensors that have bytes in
//! common. Whether the file is long enough is asked later, because a plan does not need it to be.

use std::cmp::Ordering;

use crate::cursor::Cursor;
use crate::fault::{Defect, Fault, Field, Located, Subject};
use crate::ggml_type::GgmlType;
use crate::limits;
use crate::text::{Text, TextTable};

/// What is kept of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorEntry {
    name: Text,
    /// Offset in its file of the table entry.
    entry_offset: u32,
    shard: u16,
    ggml_type: GgmlType,
    rank: u8,
    dims: [u64; limits::RANK_MAX as usize],
    /// Offset in its file of the data; relative to the data's beginning until that is known.
    offset: u64,
    len_bytes: u64,
}

/// A tensor of a checkpoint, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor<'c> {
    /// Index in the checkpoint's table.
    pub index: usize,
    /// Name, unique in the checkpoint.
    pub name: &'c str,
    /// Element type.
    pub ggml_type: GgmlType,
    /// Dimensions in elements, innermost (contiguous) first; none for a single element.
    pub dims: &'c [u64],
    /// Index of the file that holds the data.
    pub shard: usize,
    /// Offset in that file of the data, in bytes.
    pub offset: u64,
    /// Length of the data in bytes.
    pub len_bytes: u64,
    /// Offset in that file of the table entry, in bytes: for messages.
    pub entry_offset: u64,
}

impl Tensor<'_> {
    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// All tensors in the files' order.
#[derive(Debug)]
pub(crate) struct TensorTable {
    text: TextTable,
    entries: Vec<TensorEntry>,
    /// Indices of entries, sorted by name.
    by_name: Vec<u16>,
}

impl TensorTable {
    pub(crate) fn new() -> Self {
        let text = TextTable::new(limits::TENSOR_TEXT_LEN_BYTES_MAX);
        Self { text, entries: Vec::new(), by_name: Vec::new() }
    }

    /// Adds the `count` entries at the cursor. Their data offsets stay relative until
    /// [`TensorTable::place`].
    pub(crate) fn parse(
        &mut self,
        cursor: &mut Cursor<'_, '_>,
        count: u64,
        shard: u16,
        alignment: u64,
    ) -> Result<(), Box<Located>> {
        for index in 0..count {
            let entry_offset = cursor.offset() as u32;
            let name = parse_name(cursor, &mut self.text)
                .map_err(|fault| fault.about(Subject::Tensor { index, name: None }))?;
            let entry = parse_entry(cursor, alignment)
                .map_err(|fault| fault.about(self.subject(index, name)))?;
            self.entries.push(TensorEntry { name, entry_offset, shard, ..entry });
        }
        Ok(())
    }

    /// Makes the data offsets of a shard's tensors absolute.
    pub(crate) fn place(&mut self, shard: u16, data_offset: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.shard == shard) {
            // `parse_entry` left room for any header below every end.
            entry.offset += data_offset;
        }
    }

    /// Sorts by name; refuses a name that occurs twice and tensors that share bytes. The number
    /// is the index of the shard at fault.
    pub(crate) fn index(&mut self) -> Result<(), (usize, Box<Located>)> {
        let mut order: Vec<u16> = (0..self.entries.len()).map(|index| index as u16).collect();
        order.sort_unstable_by_key(|&index| {
            let entry = self.entry(index);
            (entry.shard, entry.offset, index)
        });
        for pair in order.windows(2) {
            let (first, second) = (self.entry(pair[0]), self.entry(pair[1]));
            let first_end = first.offset + first.len_bytes;
            if first.shard == second.shard && second.offset < first_end {
                return Err(self.overlap(pair[0], pair[1]));
            }
        }
        order.sort_unstable_by(|&a, &b| self.name_of(a).cmp(self.name_of(b)).then(a.cmp(&b)));
        let same = |pair: &&[u16]| self.name_of(pair[0]).cmp(self.name_of(pair[1]));
        if let Some(pair) = order.windows(2).find(|pair| same(pair) == Ordering::Equal) {
            let offset = u64::from(self.entry(pair[1]).entry_offset) + 8;
            let fault = Fault { field: Field::TensorName, offset, defect: Defect::Duplicate };
            return Err(self.located(pair[1], fault));
        }
        self.by_name = order;
        Ok(())
    }

    /// Number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The tensor at an index below [`TensorTable::len`].
    pub(crate) fn get(&self, index: usize) -> Tensor<'_> {
        let entry = &self.entries[index];
        Tensor {
            index,
            name: self.text.str(entry.name),
            ggml_type: entry.ggml_type,
            dims: &entry.dims[..usize::from(entry.rank)],
            shard: usize::from(entry.shard),
            offset: entry.offset,
            len_bytes: entry.len_bytes,
            entry_offset: u64::from(entry.entry_offset),
        }
    }

    /// The tensor of a name.
    pub(crate) fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let order = |&index: &u16| self.name_of(index).cmp(name.as_bytes());
        let position = self.by_name.binary_search_by(order).ok()?;
        Some(self.get(usize::from(self.by_name[position])))
    }

    fn entry(&self, index: u16) -> &TensorEntry {
        &self.entries[usize::from(index)]
    }

    fn name_of(&self, index: u16) -> &[u8] {
        self.text.bytes(self.entry(index).name)
    }

    fn subject(&self, index: u64, name: Text) -> Subject {
        Subject::Tensor { index, name: Some(self.text.str(name).to_string()) }
    }

    /// Puts a fault on an entry; its index counts within its file.
    fn located(&self, index: u16, fault: Fault) -> (usize, Box<Located>) {
        let entry = self.entry(index);
        let first = self.entries.iter().position(|other| other.shard == entry.shard);
        let index = usize::from(index) - first.expect("the entry itself is in its shard");
        (usize::from(entry.shard), fault.about(self.subject(index as u64, entry.name)))
    }

    fn overlap(&self, first: u16, second: u16) -> (usize, Box<Located>) {
        let (other, this) = (self.entry(first), self.entry(second));
        let defect = Defect::Overlap {
            other: self.text.str(other.name).to_string(),
            other_end: other.offset + other.len_bytes,
            found: this.offset,
        };
        // The offset is the entry's last field: behind name, rank, dimensions and type.
        let name_len = self.name_of(second).len() as u64;
        let fields_len = 8 + name_len + 4 + 8 * u64::from(this.rank) + 4;
        let offset = u64::from(this.entry_offset) + fields_len;
        self.located(second, Fault { field: Field::TensorOffset, offset, defect })
    }
}

fn parse_name(cursor: &mut Cursor<'_, '_>, text: &mut TextTable) -> Result<Text, Fault> {
    let offset = cursor.offset();
    let len = cursor.u64(Field::TensorNameLength)?;
    let length_fault = |defect| Fault { field: Field::TensorNameLength, offset, defect };
    if len == 0 {
        return Err(length_fault(Defect::Zero));
    }
    if len > limits::TENSOR_NAME_LEN_BYTES_MAX {
        let bound = limits::TENSOR_NAME_LEN_BYTES_MAX;
        return Err(length_fault(Defect::TooLarge { bound, found: len }));
    }
    text.parse_name(cursor, len as usize, Field::TensorName)
}

/// Reads what follows the name. Name, place of the entry and shard are the caller's to fill in.
fn parse_entry(cursor: &mut Cursor<'_, '_>, alignment: u64) -> Result<TensorEntry, Fault> {
    let (rank, dims) = parse_dims(cursor)?;
    let used = &dims[..rank as usize];

    let type_offset = cursor.offset();
    let number = cursor.u32(Field::TensorType)?;
    let type_fault = |defect| Fault { field: Field::TensorType, offset: type_offset, defect };
    let ggml_type = GgmlType::from_number(number).ok_or_else(|| {
        let withdrawn = GgmlType::withdrawn_name(number);
        type_fault(Defect::UnknownTensorType { found: number, withdrawn })
    })?;
    let row_len = used.first().copied().unwrap_or(1);
    if !row_len.is_multiple_of(ggml_type.block_len()) {
        return Err(type_fault(Defect::PartialBlock { ggml_type, found: row_len }));
    }
    let len_bytes = ggml_type
        .tensor_len_bytes(used)
        .filter(|&len| len <= limits::FILE_LEN_BYTES_MAX)
        .ok_or_else(|| type_fault(Defect::Overflow))?;

    let offset_offset = cursor.offset();
    let offset = cursor.u64(Field::TensorOffset)?;
    let offset_fault = |defect| Fault { field: Field::TensorOffset, offset: offset_offset, defect };
    if !offset.is_multiple_of(alignment) {
        return Err(offset_fault(Defect::Misaligned { alignment, found: offset }));
    }
    // With room for the largest header and for padding on both sides, so that no later sum of
    // an offset of this table can overflow.
    let room = limits::HEADER_LEN_BYTES_MAX + 2 * limits::ALIGNMENT_BYTES_MAX;
    let end = offset.checked_add(len_bytes).and_then(|end| end.checked_add(room));
    if end.is_none_or(|end| end > limits::FILE_LEN_BYTES_MAX) {
        return Err(offset_fault(Defect::Overflow));
    }
    let (name, rank) = (Text::default(), rank as u8);
    Ok(TensorEntry { name, entry_offset: 0, shard: 0, ggml_type, rank, dims, offset, len_bytes })
}

fn parse_dims(
    cursor: &mut Cursor<'_, '_>,
) -> Result<(u32, [u64; limits::RANK_MAX as usize]), Fault> {
    let offset = cursor.offset();
    let rank = cursor.u32(Field::Rank)?;
    if rank > limits::RANK_MAX {
        let (bound, found) = (u64::from(limits::RANK_MAX), u64::from(rank));
        let defect = Defect::TooLarge { bound, found };
        return Err(Fault { field: Field::Rank, offset, defect });
    }
    let mut dims = [1; limits::RANK_MAX as usize];
    let mut element_count: u64 = 1;
    for (index, dim) in dims.iter_mut().enumerate().take(rank as usize) {
        let field = Field::Dimension(index as u32);
        let offset = cursor.offset();
        *dim = cursor.u64(field)?;
        if *dim == 0 {
            return Err(Fault { field, offset, defect: Defect::Zero });
        }
        element_count = element_count
            .checked_mul(*dim)
            .filter(|&count| count <= limits::FILE_LEN_BYTES_MAX)
            .ok_or(Fault { field, offset, defect: Defect::Overflow })?;
    }
    Ok((rank, dims))
}
