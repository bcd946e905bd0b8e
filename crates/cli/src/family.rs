//! The members of families as rows: for tiles and chunks up to which size each is planned, what it
//! takes of the arena, and how long it is expected to take. Shared by the table and the page.

use dctms_ir::ids::PhaseId;
use dctms_ir::join::own_name;
use dctms_ir::{Plan, Residence, twin};
use dctms_models::phases;

use crate::show::{grouped, milliseconds, printable};

/// What the rows are.
pub const TITLE: &str = "families of plans by size (one arena: no more than its largest)";

/// Heads of [`rows`].
pub const HEADS: [&str; 5] = ["", "tokens", "transient bytes", "ms expected", "for"];

/// For each member of each family, the largest first; nothing where there is one size only.
#[must_use]
pub fn rows(plan: &Plan) -> Vec<[String; 5]> {
    let families = [(phases::VISION, "patches of a tile"), (phases::PREFILL, "tokens of a chunk")];
    let rows = families.into_iter().flat_map(|(family, what)| {
        let phases = plan.program.phases.iter().enumerate();
        let members = phases.filter(|(_, phase)| twin::family(own_name(&phase.name)) == family);
        let rows: Vec<[String; 5]> =
            members.map(|(index, _)| row(plan, PhaseId::of(index), what)).collect();
        if rows.len() < 2 { Vec::new() } else { rows }
    });
    rows.collect()
}

fn row(plan: &Plan, phase: PhaseId, what: &str) -> [String; 5] {
    let name = &plan.program.phases[phase.index()].name;
    let known = plan.predictions.iter().find(|known| known.phase == phase);
    let bound = twin::bound(name).map(|most| format!("up to {} {what}", grouped(most)));
    [
        printable(name),
        known.map_or_else(String::new, |known| grouped(known.tokens)),
        grouped(transient_bytes(plan, phase)),
        known.map_or_else(String::new, |known| milliseconds(known.nanoseconds)),
        bound.unwrap_or_else(|| "any that the bounds allow".to_string()),
    ]
}

/// From the first byte of a phase's transients to the last.
fn transient_bytes(plan: &Plan, phase: PhaseId) -> u64 {
    let own = plan.program.tensors.iter().zip(&plan.placements).filter(|(tensor, _)| {
        tensor.phase == Some(phase) && tensor.residence == Residence::Transient
    });
    let ranges = own.filter_map(|(_, place)| Some((place.offset?, place.offset? + place.bytes)));
    let (first, last) =
        ranges.fold((u64::MAX, 0), |(first, last), (start, end)| (first.min(start), last.max(end)));
    last.saturating_sub(first)
}
