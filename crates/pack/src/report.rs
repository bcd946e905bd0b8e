//! The `pack` command as a function: text in, texts out. It reads no file, prints nothing and
//! exits nowhere; whoever calls it decides where the texts go.

use std::fmt;

use crate::csv::{self, CsvError, Table};
use crate::problem::{Budget, Error, Goal, Packing, Proof, Status};
use crate::{pack, svg, validate};

/// What to do with the CSV.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// Arena that suffices, in bytes; a packing beyond it is no answer.
    pub capacity: Option<u64>,
    /// Stop within the capacity, or look for the smallest arena.
    pub goal: Goal,
    /// Budget in steps.
    pub steps: u64,
    /// Is a drawing wanted?
    pub drawing: Drawing,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            capacity: None,
            goal: Goal::Minimize,
            steps: Budget::THOROUGH.steps,
            drawing: Drawing::Omit,
        }
    }
}

/// Is a drawing wanted?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawing {
    /// None.
    Omit,
    /// As SVG.
    Svg,
}

/// The answer in one word, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packing is within the capacity, or none was given.
    Packed,
    /// No packing within the capacity exists.
    Impossible,
    /// None was found within the budget; one may exist.
    NotFound,
}

/// What the command has to say.
#[derive(Clone, Debug)]
pub struct PackReport {
    /// The answer in one word.
    pub verdict: Verdict,
    /// For standard output: header `id,lower,upper,size,offset` and one line a buffer; empty
    /// unless the verdict is `Packed`.
    pub csv: String,
    /// For standard error: lower bound, arena, gap, and whether it is proved minimal.
    pub summary: String,
    /// The drawing, if it was wanted.
    pub svg: Option<String>,
    /// The packing itself.
    pub packing: Packing,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackError {
    /// The text is no problem.
    Csv(CsvError),
    /// The problem is refused; `id` is the buffer's where one is to blame.
    Problem(Error),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csv(error) => error.fmt(f),
            Self::Problem(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PackError {}

/// Packs a problem in MiniMalloc's CSV form.
///
/// # Errors
/// If the text is malformed or its problem beyond the limits.
///
/// # Panics
/// If the packing does not pass [`validate`]: a bug here, never an answer.
pub fn pack_csv(text: &str, options: &PackOptions) -> Result<PackReport, PackError> {
    let mut table = csv::read(text).map_err(PackError::Csv)?;
    table.problem.capacity = options.capacity;
    let budget = Budget { steps: options.steps, goal: options.goal };
    let packing = pack(&table.problem, &budget).map_err(PackError::Problem)?;
    let arena = validate(&table.problem, &packing.offsets).expect("a packing passes the check");
    assert_eq!(arena, packing.arena_bytes, "the arena is the largest end");
    let verdict = verdict(&packing, options.capacity);
    let csv = match verdict {
        Verdict::Packed => csv::write(&table, &packing.offsets),
        Verdict::Impossible | Verdict::NotFound => String::new(),
    };
    let svg = match options.drawing {
        Drawing::Omit => None,
        Drawing::Svg => Some(svg::draw(&table, &packing)),
    };
    Ok(PackReport { verdict, csv, summary: summary(&table, &packing, verdict), svg, packing })
}

fn verdict(packing: &Packing, capacity: Option<u64>) -> Verdict {
    match capacity {
        Some(capacity) if packing.lower_bound > capacity => Verdict::Impossible,
        Some(capacity) if packing.arena_bytes > capacity => Verdict::NotFound,
        Some(_) | None => Verdict::Packed,
    }
}

fn summary(table: &Table, packing: &Packing, verdict: Verdict) -> String {
    let (arena, bound) = (packing.arena_bytes, packing.lower_bound);
    let gap = arena - bound;
    let ratio = if bound == 0 { 1.0 } else { arena as f64 / bound as f64 };
    let proof = match packing.status {
        Status::Optimal(Proof::Witness) => "proven minimal: the witness needs as much",
        Status::Optimal(Proof::Pinned) => "proven minimal: a pinned buffer ends there",
        Status::Optimal(Proof::Exhausted) => "proven minimal: the complete search excluded less",
        Status::Gap => "not proven minimal",
    };
    let answer = match (verdict, table.problem.capacity) {
        (Verdict::Packed, None) => String::new(),
        (Verdict::Packed, Some(c)) => format!("capacity: {c} bytes, met\n"),
        (Verdict::Impossible, Some(c)) => {
            format!("capacity: {c} bytes, impossible: {} more are needed\n", bound - c)
        }
        (Verdict::NotFound, Some(c)) => format!(
            "capacity: {c} bytes, not met within the budget, {} over; not proven impossible\n",
            arena - c
        ),
        (Verdict::Impossible | Verdict::NotFound, None) => unreachable!("no capacity to miss"),
    };
    format!(
        "buffers: {}\nlower bound: {bound} bytes (witness of {} buffers: {} bytes)\n\
         arena: {arena} bytes\ngap: {gap} bytes, ratio {ratio:.4}, {proof}\n{answer}steps: {}\n",
        table.ids.len(),
        packing.witness.len(),
        packing.witness_bytes,
        packing.steps
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str =
        "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

    fn run(capacity: Option<u64>, goal: Goal) -> PackReport {
        let options = PackOptions { capacity, goal, drawing: Drawing::Svg, ..Default::default() };
        pack_csv(EXAMPLE, &options).expect("well formed")
    }

    #[test]
    fn the_example_fits_its_bound() {
        let report = run(Some(12), Goal::Fit);
        assert_eq!(report.verdict, Verdict::Packed);
        assert!(report.csv.starts_with("id,lower,upper,size,offset\nb1,0,3,4,"));
        assert!(report.summary.contains("gap: 0 bytes, ratio 1.0000, proven minimal"));
        assert!(report.svg.expect("wanted").matches("<rect").count() == 6);
    }

    #[test]
    fn below_the_bound_is_impossible() {
        let report = run(Some(11), Goal::Fit);
        assert_eq!((report.verdict, report.csv.as_str()), (Verdict::Impossible, ""));
        assert!(report.summary.contains("impossible: 1 more are needed"));
    }

    #[test]
    fn faults_are_errors_not_panics() {
        let text = "id,lower,upper,size\na,0,1,18446744073709551615\nb,0,1,18446744073709551615\n";
        let error = pack_csv(text, &PackOptions::default()).map(|_| ());
        assert_eq!(error, Err(PackError::Problem(Error::TooManyBytes { buffer: 0 })));
        let empty = pack_csv("id,lower,upper,size\n", &PackOptions::default());
        assert_eq!(empty.expect("nothing to pack").packing.arena_bytes, 0);
    }
}
