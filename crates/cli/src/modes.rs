//! Which weights of a model with eyes are resident when: both modes planned, one picked.
//!
//! Serial where it fits as well as the other mode: it reads no weights while it runs. The other,
//! phase-resident, where only that one fits, or with a longer input than serial has room for.

use std::collections::BTreeSet;

use dctms_engine::bench::pictures::{Tile, expected, largest};
use dctms_engine::planning::{PlanSettings, Resident, plan_unverified};
use dctms_engine::{EngineError, VisionMode};
use dctms_ir::plan::{Bounds, Envelope, Plan};

use crate::args::UsageError;
use crate::choice::{Choice, Wish, choose};
use crate::commands::files::note;
use crate::failure::Failure;
use crate::show::{Align, Columns, grouped, mebibytes};

/// A mode, planned.
pub struct Planned {
    /// Settings with this mode.
    pub settings: PlanSettings,
    /// Bounds and where they came from.
    pub choice: Choice,
    /// The plan, not verified.
    pub plan: Plan,
}

/// What a mode would take, for the table.
#[derive(Clone, Debug)]
pub struct ModeRow {
    /// The mode.
    pub mode: VisionMode,
    /// Its envelope.
    pub envelope: Envelope,
    /// Seconds that the largest request is expected to take, weights that come and go not counted.
    pub expected_s: Option<f64>,
    /// Input tokens that it has room for.
    pub max_input_tokens: u64,
    /// Whether the plan is of this mode.
    pub chosen: bool,
}

/// Whether any of the models has a vision file.
fn sees(resident: &dyn Resident) -> bool {
    resident.models().iter().any(|model| model.eyes.is_some())
}

/// Plans the modes and picks one: `asked`, or by what fits. The rows are of every mode; none for
/// models without eyes.
///
/// # Errors
/// As [`choose`]; a mode asked for of models that have no eyes.
pub fn pick(
    resident: &dyn Resident,
    settings: &PlanSettings,
    given: &BTreeSet<String>,
    (wish, asked): (Wish, Option<VisionMode>),
) -> Result<(Planned, Vec<ModeRow>), Failure> {
    let planned = |mode: VisionMode| -> Result<Planned, EngineError> {
        let settings = PlanSettings { mode, ..settings.clone() };
        let (choice, plan) = choose(resident, &settings, given, wish)?;
        Ok(Planned { settings, choice, plan })
    };
    if !sees(resident) {
        if asked.is_some() {
            let message = "--mode is of a model with a vision file (--mmproj FILE)".to_string();
            return Err(UsageError::Wrong(message).into());
        }
        return Ok((planned(VisionMode::Serial)?, Vec::new()));
    }
    let mut plans = VisionMode::ALL.map(planned).into_iter().collect::<Result<Vec<_>, _>>()?;
    let room = |planned: &Planned| match planned.plan.envelope.fits() {
        true => planned.choice.bounds.max_input_tokens,
        false => 0,
    };
    let at = |mode: VisionMode| VisionMode::ALL.iter().position(|known| *known == mode);
    let named = |mode: VisionMode| at(mode).expect("ALL holds every mode");
    let (serial, other) = (named(VisionMode::Serial), named(VisionMode::PhaseResident));
    let index = match asked {
        Some(asked) => at(asked).unwrap_or(serial),
        None if room(&plans[serial]) > 0 && room(&plans[serial]) >= room(&plans[other]) => serial,
        None => other,
    };
    let rows = plans.iter().enumerate().map(|(at, planned)| {
        Ok(ModeRow {
            mode: planned.settings.mode,
            envelope: planned.plan.envelope.clone(),
            expected_s: expected_s(resident, planned)?,
            max_input_tokens: planned.choice.bounds.max_input_tokens,
            chosen: at == index,
        })
    });
    let rows = rows.collect::<Result<Vec<_>, EngineError>>()?;
    Ok((plans.swap_remove(index), rows))
}

/// Seconds of the largest request that the bounds of a mode allow: its tiles and its prompt. Of one
/// model only.
fn expected_s(resident: &dyn Resident, planned: &Planned) -> Result<Option<f64>, EngineError> {
    let models = resident.models();
    let [model] = models.as_slice() else { return Ok(None) };
    let Some(eyes) = &model.eyes else { return Ok(None) };
    let tile = Tile::largest_within(eyes, &planned.plan.bounds);
    let request = largest(&planned.plan.bounds, &tile);
    let expected = expected(&planned.plan, &planned.settings.balance, &request, &tile)?;
    Ok(Some(expected.overlapped_s))
}

/// The settings of a run under bounds: serial, unless only phase-resident fits; then it is said.
///
/// # Errors
/// Any defect of the model; a mode asked for of a model that has no eyes.
pub fn of_run(
    resident: &dyn Resident,
    settings: PlanSettings,
    bounds: &Bounds,
    asked: Option<VisionMode>,
) -> Result<PlanSettings, Failure> {
    match asked {
        Some(_) if !sees(resident) => {
            let message = "--mode is of a model with a vision file (--mmproj FILE)".to_string();
            return Err(UsageError::Wrong(message).into());
        }
        Some(mode) => return Ok(PlanSettings { mode, ..settings }),
        None if !sees(resident) => return Ok(settings),
        None => {}
    }
    if plan_unverified(resident, &settings, bounds)?.envelope.fits() {
        return Ok(settings);
    }
    let other = PlanSettings { mode: VisionMode::PhaseResident, ..settings.clone() };
    let envelope = plan_unverified(resident, &other, bounds)?.envelope;
    if !envelope.fits() {
        return Ok(settings);
    }
    note(&format!(
        "dctms: both weight sets do not fit into {} bytes; phase-resident needs {}: each set is \
         loaded when its turn comes\n",
        grouped(envelope.hardware),
        grouped(envelope.total),
    ));
    Ok(other)
}

/// Rows of the comparison: mode, M_max in bytes and MiB, weights, intermediate, input, seconds,
/// verdict.
#[must_use]
pub fn cells(rows: &[ModeRow]) -> Vec<[String; 8]> {
    let row = |row: &ModeRow| {
        let envelope = &row.envelope;
        let fits = if envelope.fits() { "fits" } else { "does not fit" };
        let chosen = if row.chosen { ", chosen" } else { "" };
        [
            row.mode.name().to_string(),
            grouped(envelope.total),
            mebibytes(envelope.total),
            grouped(envelope.weights),
            grouped(envelope.intermediate),
            grouped(row.max_input_tokens),
            row.expected_s.map_or(String::new(), |seconds| format!("{seconds:.3}")),
            format!("{fits}{chosen}"),
        ]
    };
    rows.iter().map(row).collect()
}

/// What the comparison is called.
pub const TITLE: &str = "vision modes (s: expected for the largest input, pictures last; phase-resident loads weights \
     again for each turn with pictures, which is not in it)";

/// Names of the columns of [`cells`].
pub const COLUMNS: [&str; 8] =
    ["", "M_max", "MiB", "weights", "intermediate", "max input", "s", ""];

/// The comparison as text.
#[must_use]
pub fn text(rows: &[ModeRow]) -> String {
    let numbers = [Align::Right; 6];
    let mut table = Columns::new(&[&[Align::Left][..], &numbers, &[Align::Left]].concat());
    table.row(COLUMNS);
    for cells in cells(rows) {
        table.row(cells);
    }
    table.lines(2)
}
