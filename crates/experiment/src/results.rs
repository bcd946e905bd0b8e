//! What an experiment leaves in its folder while it runs, and how it goes on from there.
//!
//! | file | holds |
//! |---|---|
//! | `calls.csv` | a line for each call, written when it is done |
//! | `cells.jsonl` | a line for each cell that is over before it is done, and each refused prompt |
//! | `rss.csv` | the resident set of the first round |
//! | `facts.json` | the product's bound, limits of groups, and whether everything is there |
//!
//! Lines are only ever added. A line that was cut off, by a kill or by a full disk, is no line: it
//! is left out the next time, and what it told is measured again. Whole files are replaced by
//! renaming, so an end at any moment leaves the old one or the new one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::record::{Call, HEADER, parse_calls};
use crate::watch::Sample;

/// What became of a system under a condition, where it is not simply done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name of the condition.
    pub condition: String,
    /// Name of the system.
    pub system: String,
    /// Id of the prompt that the system does not take; `None` where the cell is over.
    pub prompt: Option<String>,
    /// One word: `skipped`, `refused`, `ended`, `thrashed`, `cut-off`, `changed`.
    pub status: String,
    /// Why.
    pub detail: String,
}

/// The status of a cell that could not be tried here and now, and is tried again the next time.
pub const SKIPPED: &str = "skipped";
/// The status of a cell whose system is not the one that it was: it states another bound.
pub const CHANGED: &str = "changed";

/// What is known of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Every call.
    pub calls: Vec<Call>,
    /// Cells that are not simply done.
    pub cells: Vec<Cell>,
    /// The product's bound, bytes.
    pub m_max_bytes: Option<u64>,
    /// Limits of memory groups, bytes, by condition; folders of before they were kept have none.
    pub limits: BTreeMap<String, u64>,
    /// Whether nothing is left to be tried.
    pub complete: bool,
}

impl Results {
    /// Systems without a single call under any condition, and why: status and detail of the cell
    /// that ended first.
    #[must_use]
    pub fn not_measured(&self) -> Vec<&Cell> {
        let mut first: Vec<&Cell> = Vec::new();
        for cell in &self.cells {
            let is_measured = self.calls.iter().any(|call| call.system == cell.system);
            if !is_measured && first.iter().all(|known| known.system != cell.system) {
                first.push(cell);
            }
        }
        first
    }
}

/// What an earlier run left.
///
/// # Errors
/// A file that cannot be read.
pub fn read_results(out: &Path) -> Result<Results> {
    let text = |name: &str| match read_to_string(out.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        other => other,
    };
    let calls = parse_calls(&text("calls.csv")?);
    let cells = text("cells.jsonl")?.lines().filter_map(parse_cell).collect();
    let facts: Value = serde_json::from_str(&text("facts.json")?).unwrap_or(Value::Null);
    let m_max_bytes = facts["m_max_bytes"].as_u64();
    let limits = facts["group_limits_bytes"].as_object().into_iter().flatten();
    let limits = limits.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect();
    let complete = facts["complete"].as_bool().unwrap_or(false);
    Ok(Results { calls, cells, m_max_bytes, limits, complete })
}

/// Which cells that are over are forgotten, so that they are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Those that could not be tried.
    Skipped,
    /// All of them.
    Everything,
}

/// The columns of `rss.csv`.
const SERIES_HEADER: &str = "condition,system,prompt,ms,resident_bytes\n";

/// The files that lines are added to.
#[derive(Debug)]
pub struct Store {
    out: PathBuf,
    calls: File,
    cells: File,
    series: File,
}

impl Store {
    /// Opens what is there, without lines that were cut off and cells that are tried again, which
    /// are taken out of `results` too.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn open(out: &Path, results: &mut Results, retry: Retry) -> Result<Store> {
        results.cells.retain(|cell| match retry {
            Retry::Skipped => cell.status != SKIPPED,
            Retry::Everything => false,
        });
        let calls = results.calls.iter().map(|call| call.line() + "\n");
        let calls: String = std::iter::once(format!("{HEADER}\n")).chain(calls).collect();
        replace(&out.join("calls.csv"), calls.as_bytes())?;
        let cells: String = results.cells.iter().map(cell_line).collect();
        replace(&out.join("cells.jsonl"), cells.as_bytes())?;
        let append = |name: &str| OpenOptions::new().create(true).append(true).open(out.join(name));
        let (calls, cells) = (append("calls.csv")?, append("cells.jsonl")?);
        let mut series = append("rss.csv")?;
        if series.metadata()?.len() == 0 {
            series.write_all(SERIES_HEADER.as_bytes())?;
        }
        Ok(Store { out: out.to_path_buf(), calls, cells, series })
    }

    /// Adds a call.
    ///
    /// # Errors
    /// A line that could not be written whole.
    pub fn add_call(&mut self, call: &Call) -> Result<()> {
        self.calls.write_all(format!("{}\n", call.line()).as_bytes())
    }

    /// Adds the series of a call.
    ///
    /// # Errors
    /// As for calls.
    pub fn add_series(&mut self, call: &Call, samples: &[Sample]) -> Result<()> {
        let Call { condition, system, prompt, .. } = call;
        let line =
            |(ms, bytes): &Sample| format!("{condition},{system},{prompt},{ms:.0},{bytes}\n");
        let lines: String = samples.iter().map(line).collect();
        self.series.write_all(lines.as_bytes())
    }

    /// Adds a cell that is over.
    ///
    /// # Errors
    /// As for calls.
    pub fn add_cell(&mut self, cell: &Cell) -> Result<()> {
        self.cells.write_all(cell_line(cell).as_bytes())
    }

    /// Writes what is known beside calls.
    ///
    /// # Errors
    /// A file that cannot be written: calls whose bound is not kept could not be judged.
    pub fn keep_facts(&self, results: &Results) -> Result<()> {
        let Results { m_max_bytes, limits, complete, .. } = results;
        let facts = json!({
            "m_max_bytes": m_max_bytes, "group_limits_bytes": limits, "complete": complete,
        });
        replace(&self.out.join("facts.json"), facts.to_string().as_bytes())
    }
}

/// Writes a file whole or not at all. One that has these bytes already is left alone.
///
/// # Errors
/// A file that cannot be written; the old one is still there.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn cell_line(cell: &Cell) -> String {
    let Cell { condition, system, prompt, status, detail } = cell;
    let line = json!({
        "condition": condition, "system": system, "prompt": prompt, "status": status,
        "detail": detail,
    });
    format!("{line}\n")
}

fn parse_cell(line: &str) -> Option<Cell> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| value[name].as_str().map(str::to_string);
    Some(Cell {
        condition: text("condition")?,
        system: text("system")?,
        prompt: text("prompt"),
        status: text("status")?,
        detail: text("detail")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(system: &str, status: &str) -> Cell {
        let (condition, detail) = ("none".to_string(), "why".to_string());
        let (system, status) = (system.to_string(), status.to_string());
        Cell { condition, system, prompt: None, status, detail }
    }

    fn call(system: &str) -> Call {
        let (condition, prompt) = ("none".to_string(), "P1".to_string());
        Call { condition, system: system.to_string(), prompt, ..Call::default() }
    }

    #[test]
    fn what_was_cut_off_goes_and_skipped_cells_are_tried_again() {
        let out = std::env::temp_dir().join(format!("experiment-store-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir_all(&out).unwrap();
        let mut store = Store::open(&out, &mut Results::default(), Retry::Skipped).unwrap();
        store.add_call(&call("a")).unwrap();
        store.add_call(&call("b")).unwrap();
        let refused = Cell { prompt: Some("P2".to_string()), ..cell("d", "refused") };
        let cells = [cell("c", SKIPPED), refused, cell("d", "thrashed")];
        cells.iter().for_each(|cell| store.add_cell(cell).unwrap());
        for (name, cut) in [("calls.csv", 5), ("cells.jsonl", 3)] {
            let text = std::fs::read(out.join(name)).unwrap();
            std::fs::write(out.join(name), &text[..text.len() - cut]).unwrap();
        }
        let mut results = read_results(&out).unwrap();
        assert_eq!(results.calls, [call("a")], "b's line is not whole");
        assert_eq!(results.cells, cells[..2]);
        let mut store = Store::open(&out, &mut results, Retry::Skipped).unwrap();
        assert_eq!(results.cells, cells[1..2]);
        store.add_call(&call("e")).unwrap();
        store.add_cell(&cells[2]).unwrap();
        let mut results = read_results(&out).unwrap();
        assert_eq!(results.calls, [call("a"), call("e")]);
        assert_eq!(results.cells, cells[1..]);
        Store::open(&out, &mut results, Retry::Everything).unwrap();
        assert_eq!(read_results(&out).unwrap().cells, []);
        assert!(!out.join("calls.csv.part").exists());
        // Facts are kept; an older folder has fewer, and what it lacks is not known.
        results.limits.insert("group-m-max".to_string(), 7);
        (results.m_max_bytes, results.complete) = (Some(5), true);
        store.keep_facts(&results).unwrap();
        let again = read_results(&out).unwrap();
        assert_eq!((&again.limits, again.m_max_bytes), (&results.limits, Some(5)));
        std::fs::write(out.join("facts.json"), r#"{"complete":true}"#).unwrap();
        let older = read_results(&out).unwrap();
        assert!(older.complete && older.limits.is_empty() && older.m_max_bytes.is_none());
        assert_eq!(std::fs::read_to_string(out.join("rss.csv")).unwrap(), SERIES_HEADER);
        std::fs::remove_dir_all(&out).unwrap();
    }

    #[test]
    fn a_system_is_measured_with_its_first_call() {
        let cells = vec![cell("a", "refused"), cell("b", "ended"), cell("b", SKIPPED)];
        let results = Results { calls: vec![call("a")], cells, ..Results::default() };
        let names: Vec<&str> = results.not_measured().iter().map(|it| &it.status[..]).collect();
        assert_eq!(names, ["ended"]);
    }
}
