//! The programs of models that are resident together, and whether a joint plan has phases for all
//! of them: each member of a family is one, so what passes the limit may be mended by fewer members.

use dctms_ir::Program;
use dctms_ir::limits::PHASES_MAX;
use dctms_ir::plan::Bounds;

use super::{PhaseSettings, Resident, program};
use crate::error::{Class, EngineError};

/// The program of each model.
///
/// # Errors
/// Any defect of a model; class `Usage` for more of them, or for larger families, than the phases of
/// one plan are enough for, with what would do.
pub fn programs(
    resident: &dyn Resident,
    bounds: &Bounds,
    settings: PhaseSettings,
) -> Result<Vec<Program>, EngineError> {
    let of = |settings| -> Result<Vec<Program>, EngineError> {
        resident.models().into_iter().map(|model| program(model, bounds, settings)).collect()
    };
    let programs = of(settings)?;
    let (count, phases) = (programs.len(), phases_of(&programs));
    if count < 2 || phases <= PHASES_MAX {
        return Ok(programs);
    }
    let sees = resident.models().iter().any(|model| model.eyes.is_some());
    let members = settings.smaller_chunks.max(if sees { settings.smaller_tiles } else { 0 });
    let mut help = String::new();
    for smaller in (0..=members).rev() {
        let (smaller_chunks, smaller_tiles) =
            (settings.smaller_chunks.min(smaller), settings.smaller_tiles.min(smaller));
        let fewer = of(PhaseSettings { smaller_chunks, smaller_tiles, ..settings })?;
        help = help_of(&fewer, smaller + 1);
        if phases_of(&fewer) <= PHASES_MAX {
            break;
        }
    }
    let message = format!(
        "together the {count} models have {phases} phases with --family {}, at most {PHASES_MAX}: \
         {help}",
        members + 1
    );
    Err(EngineError::new(Class::Usage, message))
}

fn phases_of(programs: &[Program]) -> usize {
    programs.iter().map(|program| program.phases.len()).sum()
}

/// How many of the programs that such families make have few enough phases.
fn help_of(programs: &[Program], family: u32) -> String {
    let mut counts = (1..=programs.len()).rev();
    let fitting = counts.find(|count| phases_of(&programs[..*count]) <= PHASES_MAX);
    match fitting {
        Some(count) if count == programs.len() => format!("--family {family} fits"),
        fitting => format!("with --family {family} the first {} fit", fitting.unwrap_or(0)),
    }
}
