//! The CSV form of an interval problem, as MiniMalloc reads and writes it: a header line, then
//! one buffer a line with an id, a half-open lifetime `[lower, upper)` and a size; columns in any
//! order, further columns ignored. Untrusted text in, typed problem or typed error out.
//!
//! The reader believes nothing: numbers are plain unsigned decimals that fit 64 bits, lifetimes
//! are not empty, ids are distinct. It allocates in proportion to the lines it has accepted.
//! Ids are kept as text because they are only printed back.

use std::collections::BTreeMap;
use std::fmt;

use crate::limits;
use crate::problem::{Buffer, Conflicts, Interval, Problem};

/// A problem read from CSV and the ids of its buffers.
#[derive(Clone, Debug)]
pub struct Table {
    /// Id of each buffer, as in the file.
    pub ids: Vec<String>,
    /// The problem, its conflicts as intervals, without a capacity.
    pub problem: Problem,
}

/// The columns that have a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Name of the buffer, any text without a comma.
    Id,
    /// First step at which it is live.
    Lower,
    /// First step at which it is no longer live.
    Upper,
    /// Bytes.
    Size,
    /// Optional: the alignment, a power of two; 1 if the column is absent or the cell empty.
    Alignment,
}

impl Column {
    const ALL: [Self; 5] = [Self::Id, Self::Lower, Self::Upper, Self::Size, Self::Alignment];

    /// The column's heading.
    #[must_use]
    pub fn heading(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Lower => "lower",
            Self::Upper => "upper",
            Self::Size => "size",
            Self::Alignment => "alignment",
        }
    }
}

/// What is wrong with the text, and on which line (from 1, the header included).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: Fault,
}

/// What may be wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The text has no line but blank ones.
    NoHeader,
    /// The header lacks a required column.
    MissingColumn(Column),
    /// The header has a column twice.
    RepeatedColumn(Column),
    /// The line has not as many cells as the header.
    CellCount {
        /// Cells in the header.
        expected: usize,
        /// Cells in this line.
        found: usize,
    },
    /// A cell that is no unsigned decimal below 2⁶⁴.
    NotANumber(Column),
    /// `upper ≤ lower`.
    EmptyLifetime {
        /// The lower end.
        lower: u64,
        /// The upper end.
        upper: u64,
    },
    /// An id without text.
    EmptyId,
    /// An id that an earlier line has.
    RepeatedId {
        /// The earlier line.
        first_line: usize,
    },
    /// More buffers than [`limits::BUFFERS_MAX`].
    TooManyBuffers,
    /// A quoted cell: ids with commas are not supported.
    Quoted,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.fault {
            Fault::NoHeader => write!(f, "no header; expected the columns id,lower,upper,size"),
            Fault::MissingColumn(c) => write!(f, "the header lacks the column '{}'", c.heading()),
            Fault::RepeatedColumn(c) => write!(f, "the column '{}' appears twice", c.heading()),
            Fault::CellCount { expected, found } => {
                write!(f, "{found} cells where the header has {expected}")
            }
            Fault::NotANumber(c) => {
                write!(f, "'{}' is not an unsigned decimal below 2^64", c.heading())
            }
            Fault::EmptyLifetime { lower, upper } => {
                write!(f, "the lifetime [{lower}, {upper}) is empty (upper is exclusive)")
            }
            Fault::EmptyId => write!(f, "the id is empty"),
            Fault::RepeatedId { first_line } => {
                write!(f, "the id is that of line {first_line}")
            }
            Fault::TooManyBuffers => {
                write!(f, "more than {} buffers", limits::BUFFERS_MAX)
            }
            Fault::Quoted => write!(f, "quoted cells are not supported"),
        }
    }
}

impl std::error::Error for CsvError {}

/// Reads a problem. Blank lines are skipped, `\r\n` is accepted, cells are trimmed.
///
/// # Errors
/// The first fault, with its line.
pub fn read(text: &str) -> Result<Table, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (line, header) = lines.next().ok_or(CsvError { line: 1, fault: Fault::NoHeader })?;
    let header = Header::read(header).map_err(|fault| CsvError { line, fault })?;
    let mut lines_by_id: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut buffers, mut intervals) = (Vec::new(), Vec::new());
    for (line, text) in lines {
        let row = header.row(text).map_err(|fault| CsvError { line, fault })?;
        if let Some(first_line) = lines_by_id.insert(row.id, line) {
            return Err(CsvError { line, fault: Fault::RepeatedId { first_line } });
        }
        if buffers.len() == limits::BUFFERS_MAX {
            return Err(CsvError { line, fault: Fault::TooManyBuffers });
        }
        buffers.push(row.buffer);
        intervals.push(row.interval);
    }
    let mut ids: Vec<(usize, &str)> = lines_by_id.into_iter().map(|(id, l)| (l, id)).collect();
    ids.sort_unstable();
    let ids = ids.into_iter().map(|(_, id)| id.to_owned()).collect();
    let conflicts = Conflicts::Intervals(intervals);
    Ok(Table { ids, problem: Problem { buffers, conflicts, capacity: None } })
}

/// Writes a packing in the order of the table: header `id,lower,upper,size,offset`.
///
/// # Panics
/// If there is not one offset a buffer, or the problem is not one of intervals.
#[must_use]
pub fn write(table: &Table, offsets: &[u64]) -> String {
    use fmt::Write;
    let Conflicts::Intervals(intervals) = &table.problem.conflicts else {
        panic!("a table's conflicts are intervals");
    };
    assert_eq!(offsets.len(), intervals.len(), "one offset a buffer");
    let mut out = String::from("id,lower,upper,size,offset\n");
    let rows = table.ids.iter().zip(&table.problem.buffers).zip(intervals).zip(offsets);
    for (((id, buffer), life), offset) in rows {
        let (lower, upper, size) = (life.lower, life.upper, buffer.size);
        writeln!(out, "{id},{lower},{upper},{size},{offset}").expect("a string takes any text");
    }
    out
}

/// Where each column stands.
struct Header {
    places: [Option<usize>; Column::ALL.len()],
    cells: usize,
}

struct Row<'a> {
    id: &'a str,
    buffer: Buffer,
    interval: Interval,
}

impl Header {
    fn read(line: &str) -> Result<Self, Fault> {
        let mut header = Self { places: [None; Column::ALL.len()], cells: 0 };
        for cell in line.split(',').map(str::trim) {
            let known = Column::ALL.into_iter().find(|c| c.heading() == cell);
            if let Some(column) = known {
                let place = &mut header.places[column as usize];
                if place.is_some() {
                    return Err(Fault::RepeatedColumn(column));
                }
                *place = Some(header.cells);
            }
            header.cells += 1;
        }
        for column in [Column::Id, Column::Lower, Column::Upper, Column::Size] {
            if header.places[column as usize].is_none() {
                return Err(Fault::MissingColumn(column));
            }
        }
        Ok(header)
    }

    fn row<'a>(&self, line: &'a str) -> Result<Row<'a>, Fault> {
        if line.contains('"') {
            return Err(Fault::Quoted);
        }
        let found = line.split(',').count();
        if found != self.cells {
            return Err(Fault::CellCount { expected: self.cells, found });
        }
        let cell = |column: Column| {
            self.places[column as usize].and_then(|place| line.split(',').nth(place)).map(str::trim)
        };
        let number =
            |column: Column| cell(column).and_then(decimal).ok_or(Fault::NotANumber(column));
        let id = cell(Column::Id).filter(|id| !id.is_empty()).ok_or(Fault::EmptyId)?;
        let (lower, upper) = (number(Column::Lower)?, number(Column::Upper)?);
        if upper <= lower {
            return Err(Fault::EmptyLifetime { lower, upper });
        }
        let alignment = match cell(Column::Alignment) {
            None | Some("") => 1,
            Some(_) => number(Column::Alignment)?,
        };
        let buffer = Buffer { size: number(Column::Size)?, alignment, pinned: None };
        Ok(Row { id, buffer, interval: Interval { lower, upper } })
    }
}

/// Digits only: no sign, no space, no separators.
fn decimal(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str, line: usize, fault: Fault) {
        assert_eq!(read(text).map(|_| ()), Err(CsvError { line, fault }), "{text:?}");
    }

    #[test]
    fn columns_come_in_any_order() {
        let text = "size,note,upper,id,lower\r\n4,x,9,b 1,3\r\n\r\n 5 ,,4,b2,0\n";
        let table = read(text).expect("well formed");
        assert_eq!(table.ids, ["b 1", "b2"]);
        assert_eq!(table.problem.buffers, [Buffer::new(4), Buffer::new(5)]);
        let out = write(&table, &[5, 0]);
        assert_eq!(out, "id,lower,upper,size,offset\nb 1,3,9,4,5\nb2,0,4,5,0\n");
        let again = read(&out).expect("what is written can be read");
        assert_eq!(again.ids, table.ids);
    }

    #[test]
    fn a_header_alone_is_an_empty_problem() {
        assert!(read("id,lower,upper,size\n").expect("well formed").ids.is_empty());
    }

    #[test]
    fn faults_name_their_line() {
        fails("", 1, Fault::NoHeader);
        fails("\n \n", 1, Fault::NoHeader);
        fails("\nid,lower,upper\n", 2, Fault::MissingColumn(Column::Size));
        fails("id,id,lower,upper,size\n", 1, Fault::RepeatedColumn(Column::Id));
        let h = "id,lower,upper,size\n";
        fails(&format!("{h}a,1,2\n"), 2, Fault::CellCount { expected: 4, found: 3 });
        fails(&format!("{h}a,1,2,3,4\n"), 2, Fault::CellCount { expected: 4, found: 5 });
        fails(&format!("{h}a,1,2,-3\n"), 2, Fault::NotANumber(Column::Size));
        fails(&format!("{h}a,1,2,+3\n"), 2, Fault::NotANumber(Column::Size));
        fails(&format!("{h}a,1,2,\n"), 2, Fault::NotANumber(Column::Size));
        fails(&format!("{h}a,0x1,2,3\n"), 2, Fault::NotANumber(Column::Lower));
        let over = "18446744073709551616";
        fails(&format!("{h}a,1,{over},3\n"), 2, Fault::NotANumber(Column::Upper));
        fails(&format!("{h}a,2,2,3\n"), 2, Fault::EmptyLifetime { lower: 2, upper: 2 });
        fails(&format!("{h}a,3,2,3\n"), 2, Fault::EmptyLifetime { lower: 3, upper: 2 });
        fails(&format!("{h},1,2,3\n"), 2, Fault::EmptyId);
        fails(&format!("{h}a,1,2,3\n\na,2,3,4\n"), 4, Fault::RepeatedId { first_line: 2 });
        fails(&format!("{h}\"a\",1,2,3\n"), 2, Fault::Quoted);
    }
}
