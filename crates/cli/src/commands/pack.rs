//! `dctms pack`: places the buffers of a CSV file in one arena; all of the thinking is in the
//! `dctms-pack` crate.

use std::path::PathBuf;

use dctms_engine::{Class, EngineError};
use dctms_pack::{Drawing, Goal, PackOptions, Verdict, pack_csv};
use dctms_system::heap::Region;
use lexopt::prelude::*;

use super::files::{CSV_BYTES_MAX, named, note, open_reading_heap, read_text, write};
use super::say;
use crate::HEAP;
use crate::args::{UsageError, bytes, count, unknown};
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Usage; a malformed file (exit code 2); no packing within the capacity (3).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let (path, svg, options) = parse(parser)?;
    open_reading_heap()?;
    let _scope = HEAP.scope(Region::Compile);
    let text = read_text(&path, CSV_BYTES_MAX)?;
    let report = pack_csv(&text, &options)
        .map_err(|error| EngineError::new(Class::File, format!("{}: {error}", named(&path))))?;
    if let (Some(path), Some(drawing)) = (&svg, &report.svg) {
        write(path, drawing)?;
    }
    say(&report.csv)?;
    note(&report.summary);
    match report.verdict {
        Verdict::Packed => Ok(()),
        Verdict::Impossible | Verdict::NotFound => {
            Err(Failure::Reported(Class::DoesNotFit.exit_code()))
        }
    }
}

fn parse(
    parser: &mut lexopt::Parser,
) -> Result<(PathBuf, Option<PathBuf>, PackOptions), UsageError> {
    let mut options = PackOptions::default();
    let (mut path, mut svg, mut minimize) = (None, None, false);
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) if path.is_none() => path = Some(PathBuf::from(value)),
            Long("capacity") => options.capacity = Some(bytes(parser, "capacity")?),
            Long("minimize") => minimize = true,
            Long("budget") => options.steps = count(parser, "budget")?,
            Long("svg") => {
                svg = Some(PathBuf::from(parser.value()?));
                options.drawing = Drawing::Svg;
            }
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other)),
        }
    }
    // With a capacity, anything within it will do, unless the smallest is asked for.
    options.goal = match (options.capacity, minimize) {
        (Some(_), false) => Goal::Fit,
        (Some(_), true) | (None, _) => Goal::Minimize,
    };
    let usage = "pack FILE.csv [--capacity N] [--minimize] [--budget STEPS] [--svg FILE]";
    Ok((path.ok_or_else(|| UsageError::Wrong(usage.to_string()))?, svg, options))
}
