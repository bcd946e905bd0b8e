//! Numbers and names for people: thousands, mebibytes, escaped text, columns.
//!
//! Whole-number arithmetic throughout, so that the same plan prints the same text on any machine.
//! It believes nothing of a name: what comes from a file may not move a cursor or reverse a line.

/// A number with its thousands apart.
#[must_use]
pub fn grouped(value: impl Into<i128>) -> String {
    let value = value.into();
    let digits = value.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    if value < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as mebibytes with two decimals, rounded to nearest.
#[must_use]
pub fn mebibytes(bytes: impl Into<i128>) -> String {
    let bytes = bytes.into();
    let hundredths = (bytes.unsigned_abs() * 100 + (1 << 19)) >> 20;
    let sign = if bytes < 0 && hundredths > 0 { "-" } else { "" };
    let whole = grouped((hundredths / 100) as i128);
    format!("{sign}{whole}.{:02}", hundredths % 100)
}

/// A difference with its sign.
#[must_use]
pub fn signed(value: i128) -> String {
    let sign = if value > 0 { "+" } else { "" };
    format!("{sign}{}", grouped(value))
}

/// Nanoseconds in milliseconds, to the microsecond.
#[must_use]
pub fn milliseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", grouped(nanoseconds / 1_000_000), nanoseconds / 1000 % 1000)
}

/// `a / b` with three decimals, rounded up: 1.000 is said only of equals.
#[must_use]
pub fn ratio(a: u64, b: u64) -> String {
    if b == 0 {
        return if a == 0 { "1.000".to_string() } else { "-".to_string() };
    }
    let thousandths = (u128::from(a) * 1000).div_ceil(u128::from(b));
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// Text of a file, safe on a terminal: controls and marks of direction are escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}');
        match letter.is_control() || turns {
            true => safe.extend(letter.escape_default()),
            false => safe.push(letter),
        }
    }
    safe
}

/// At most `max` characters, the last an ellipsis when something is left out.
#[must_use]
pub fn clipped(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_string();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// Where a cell stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells as lines, two spaces between.
pub struct Columns {
    rows: Vec<Vec<String>>,
    aligns: Vec<Align>,
}

impl Columns {
    /// No rows yet. Columns beyond those named are of numbers.
    #[must_use]
    pub fn new(aligns: &[Align]) -> Columns {
        Columns { rows: Vec::new(), aligns: aligns.to_vec() }
    }

    /// A column of names and then numbers.
    #[must_use]
    pub fn named() -> Columns {
        Columns::new(&[Align::Left])
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, each indented and ended.
    #[must_use]
    pub fn lines(&self, indent: usize) -> String {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..count).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, cell) in row.iter().enumerate() {
                let pad = widths[column] - cell.chars().count();
                let (before, after) = match self.aligns.get(column) {
                    Some(Align::Left) => (0, pad),
                    Some(Align::Right) | None => (pad, 0),
                };
                if column > 0 {
                    line.push_str("  ");
                }
                line.push_str(&" ".repeat(before));
                line.push_str(cell);
                line.push_str(&" ".repeat(after));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0u64), "0");
        assert_eq!(grouped(1000u64), "1,000");
        assert_eq!(grouped(-1_234_567i64), "-1,234,567");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(mebibytes(1u64 << 20), "1.00");
        assert_eq!(mebibytes(5242u64), "0.00");
        assert_eq!(mebibytes(5243u64), "0.01");
        assert_eq!(mebibytes(-(3i64 << 19)), "-1.50");
        assert_eq!(mebibytes(1u64 << 40), "1,048,576.00");
        assert_eq!(signed(5), "+5");
        assert_eq!(signed(-5), "-5");
        assert_eq!(ratio(1000, 1000), "1.000");
        assert_eq!(ratio(1_000_001, 1_000_000), "1.001");
        assert_eq!(ratio(0, 0), "1.000");
    }

    #[test]
    fn text_of_files_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("\u{202e}evil"), "\\u{202e}evil");
        assert_eq!(printable("é 日本"), "é 日本");
        assert_eq!(clipped("abcdef", 4), "abc…");
        assert_eq!(clipped("abcd", 4), "abcd");
    }

    #[test]
    fn columns_line_up() {
        let mut columns = Columns::named();
        columns.row(["a", "10", "x"]);
        columns.row(["bcd", "5"]);
        assert_eq!(columns.lines(2), "  a    10  x\n  bcd   5\n");
    }
}
