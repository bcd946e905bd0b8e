//! Models that are resident together: what each asks for, what they share, what that saves.
//!
//! Each model is planned again as if it had a process of its own, under the same bounds; the joint
//! plan is compared with the sum of those. Every figure is of a plan.

use std::collections::BTreeSet;

use dctms_engine::EngineError;
use dctms_engine::planning::{PlanSettings, Together, plan_unverified, steps_of};
use dctms_ir::Plan;
use dctms_ir::join::{Steps, label};
use dctms_ir::limits::ALIGNMENT_BYTES;
use dctms_ir::plan::Envelope;
use dctms_ir::tensor::Term;

use crate::show::{Align, Columns, grouped, printable, signed};
use crate::table::envelope_rows;

/// The envelope of each model alone, under the plan's bounds; none for a single model.
///
/// # Errors
/// Any defect of a model.
pub fn alone(
    resident: &Together,
    settings: &PlanSettings,
    plan: &Plan,
) -> Result<Vec<Envelope>, EngineError> {
    if resident.models.len() < 2 {
        return Ok(Vec::new());
    }
    let envelope = |model| Ok(plan_unverified(model, settings, &plan.bounds)?.envelope);
    resident.models.iter().map(|model| envelope(model)).collect()
}

/// What the comparison is called: how the models' steps exclude each other is part of it.
#[must_use]
pub fn title(plan: &Plan) -> String {
    let steps = match steps_of(plan) {
        Steps::Exclusive => "one step at a time",
        Steps::Overlapping => "steps of different models may run at the same time",
    };
    let count = labels(plan).into_iter().flatten().collect::<BTreeSet<_>>().len();
    format!("{count} models resident together ({steps})")
}

/// What stands before the names of each file's tensors in a joint plan; nothing in one of a single
/// model. A vision file has the label of its model.
#[must_use]
pub fn labels(plan: &Plan) -> Vec<Option<String>> {
    let own = |model: usize| {
        let tensors = plan.program.tensors.iter();
        let tensor = tensors.into_iter().find(|tensor| tensor.model as usize == model)?;
        let is_joint = plan.program.phases.first()?.name.contains(':');
        tensor.name.split_once(':').filter(|_| is_joint).map(|(label, _)| printable(label))
    };
    (0..plan.program.models.len()).map(own).collect()
}

/// Rows of the comparison: a name, its depth, then bytes of each model alone, of all in processes
/// of their own, together, and what that changes.
#[must_use]
pub fn rows(plan: &Plan, alone: &[Envelope]) -> Vec<(String, usize, Vec<String>)> {
    let total = |envelope: &Envelope| ("M_max", 0, envelope.total);
    let lines = |envelope: &Envelope| {
        let mut rows = envelope_rows(envelope);
        rows.push(total(envelope));
        rows
    };
    let alone: Vec<_> = alone.iter().map(lines).collect();
    let line = |(index, (name, depth, together)): (usize, (&str, usize, u64))| {
        let each: Vec<u64> = alone.iter().map(|rows| rows[index].2).collect();
        let apart: u64 = each.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let change = i128::from(together) - i128::from(apart);
        let mut cells: Vec<String> = each.into_iter().map(grouped).collect();
        cells.extend([grouped(apart), grouped(together), signed(change)]);
        (name.to_string(), depth, cells)
    };
    lines(&plan.envelope).into_iter().enumerate().map(line).collect()
}

/// Names of the columns of [`rows`].
#[must_use]
pub fn columns(alone: &[Envelope]) -> Vec<String> {
    let labels = (0..alone.len()).map(label);
    labels.chain(["apart", "together", "change"].map(str::to_string)).collect()
}

/// The comparison as text.
#[must_use]
pub fn text(plan: &Plan, alone: &[Envelope]) -> String {
    let mut table = Columns::named();
    table.row(std::iter::once(String::new()).chain(columns(alone)));
    for (name, depth, cells) in rows(plan, alone) {
        let name = format!("{}{name}", "  ".repeat(depth));
        table.row(std::iter::once(name).chain(cells));
    }
    let arenas = |envelope: &Envelope| {
        [envelope.weights, envelope.kv, envelope.persistent, envelope.intermediate]
            .iter()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    };
    let apart: u64 = alone.iter().map(arenas).fold(0, u64::saturating_add);
    let saved = i128::from(apart) - i128::from(plan.arena.bytes);
    format!(
        "{}  one arena takes {} bytes less than separate ones\n",
        table.lines(2),
        grouped(saved)
    )
}

/// What each model asks of a joint plan, for a refusal; nothing for a single model.
#[must_use]
pub fn asked(plan: &Plan) -> String {
    let models = &plan.program.models;
    if models.len() < 2 {
        return String::new();
    }
    let numbers = [Align::Right; 4];
    let mut table = Columns::new(&[[Align::Left].as_slice(), &numbers, &[Align::Left]].concat());
    table.row(["", "weights", "keys and values", "persistent", "intermediate", ""]);
    for ((index, model), label) in models.iter().enumerate().zip(labels(plan)) {
        let bytes = |term: Term| grouped(asked_bytes(plan, index, term));
        let cells = Term::ALL.map(bytes);
        let file = printable(&model.file);
        table.row(std::iter::once(label.unwrap_or_default()).chain(cells).chain([file]));
    }
    format!("\nwhat each model asks for, bytes:\n{}", table.lines(2).trim_end())
}

/// Bytes that a model's tensors of a term take; of transients, the span of its steps.
fn asked_bytes(plan: &Plan, model: usize, term: Term) -> u64 {
    let own = plan.program.tensors.iter().zip(&plan.placements);
    let own = own.filter(|(tensor, _)| tensor.model as usize == model && tensor.term == term);
    let places = own.filter_map(|(_, placement)| Some((placement.offset?, placement.bytes)));
    let places: Vec<(u64, u64)> = places.collect();
    if term == Term::Intermediate {
        let start = places.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        return places.iter().map(|(offset, bytes)| offset + bytes - start).max().unwrap_or(0);
    }
    places.iter().map(|(_, bytes)| bytes.next_multiple_of(ALIGNMENT_BYTES)).sum()
}
