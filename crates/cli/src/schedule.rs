//! The schedule of a plan as rows: times, synchronisation, what limits what, what else there
//! could have been. Shared by the table and the page.

use dctms_ir::Plan;
use dctms_ir::plan::Variant;

use dctms_planner::paper::{Counts, KeysAndValues, configuration};

use crate::show::{grouped, milliseconds, printable, signed};
use crate::table::reduction;

/// A phase begins and ends with a barrier of all lanes.
const BARRIERS: u32 = 2;

/// Heads of [`synchronisation`].
pub const SYNCHRONISATION: [&str; 6] =
    ["", "operations", "tasks", "cuts", "with barriers", "saved by alignment"];

/// For each phase: name, operations, tasks, cuts, all points, cuts that aligned slices saved.
#[must_use]
pub fn synchronisation(plan: &Plan) -> Vec<[String; 6]> {
    let phases = plan.program.phases.iter().zip(&plan.schedules);
    let rows = phases.enumerate().map(|(index, (phase, schedule))| {
        let tasks = schedule.lanes.iter().map(Vec::len).sum::<usize>();
        let cuts = schedule.events;
        let saved = plan.concurrency[index].cuts_unaligned.saturating_sub(cuts);
        [
            printable(&phase.name),
            phase.ops.len().to_string(),
            tasks.to_string(),
            cuts.to_string(),
            (cuts + BARRIERS).to_string(),
            saved.to_string(),
        ]
    });
    rows.collect()
}

/// Heads of [`times`].
pub const TIMES: [&str; 4] = ["", "tokens", "from position", "ms"];

/// Expected times: phase, tokens, position of the first, milliseconds.
#[must_use]
pub fn times(plan: &Plan) -> Vec<[String; 4]> {
    let rows = plan.predictions.iter().map(|prediction| {
        [
            printable(&plan.program.phases[prediction.phase.index()].name),
            grouped(prediction.tokens),
            grouped(prediction.depth),
            milliseconds(prediction.nanoseconds),
        ]
    });
    rows.collect()
}

/// Heads of [`roofline`].
pub const ROOFLINE: [&str; 6] =
    ["", "compute-bound", "bandwidth-bound", "sets", "serialised pairs", "pairs that may overlap"];

/// For each phase that computes: operations by what limits them, maximal sets of independent
/// ones, pairs of these run one after the other, pairs of both kinds with no cut between.
#[must_use]
pub fn roofline(plan: &Plan) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for (index, phase) in plan.program.phases.iter().enumerate() {
        if phase.name.ends_with("load") {
            continue;
        }
        let bandwidth = plan.costs[index].iter().filter(|cost| cost.bandwidth_bound).count();
        let report = &plan.concurrency[index];
        rows.push([
            printable(&phase.name),
            (plan.costs[index].len() - bandwidth).to_string(),
            bandwidth.to_string(),
            report.concurrent_sets.len().to_string(),
            report.serialised.len().to_string(),
            report.complementary.len().to_string(),
        ]);
    }
    rows
}

/// Heads of [`orders`].
pub const ORDERS: [&str; 5] = ["", "live at once", "least of all orders", "sets searched", "proof"];

/// For each phase: peak of the plan's order, least peak, sets looked at, whether that is proven.
#[must_use]
pub fn orders(plan: &Plan) -> Vec<[String; 5]> {
    let rows = plan.orders.iter().map(|order| {
        let proof = if order.complete { "exact" } else { "search ended early" };
        [
            printable(&plan.program.phases[order.phase.index()].name),
            grouped(order.plan_bytes),
            grouped(order.least_bytes),
            grouped(order.states),
            proof.to_string(),
        ]
    });
    rows.collect()
}

/// Heads of [`variants`].
pub const VARIANTS: [&str; 7] = [
    "",
    "transients",
    "difference",
    "of M_max",
    "cuts: chunk, step",
    "first chunk, ms",
    "first step, ms",
];

/// The plan and its variants: bytes, differences to the plan, cuts, expected times.
#[must_use]
pub fn variants(plan: &Plan) -> Vec<[String; 7]> {
    let Some(itself) = plan.variants.first() else { return Vec::new() };
    let more = |a: u64, b: u64| signed(i128::from(a) - i128::from(b));
    let rows = plan.variants.iter().enumerate().map(|(index, variant): (usize, &Variant)| {
        let (bytes, total) = match index {
            0 => (String::new(), String::new()),
            _ => (
                more(variant.transient_bytes, itself.transient_bytes),
                more(variant.total_bytes, itself.total_bytes),
            ),
        };
        [
            variant.name.clone(),
            grouped(variant.transient_bytes),
            bytes,
            total,
            format!("{}, {}", variant.cuts[0], variant.cuts[1]),
            milliseconds(variant.predicted_ns[0]),
            milliseconds(variant.predicted_ns[1]),
        ]
    });
    rows.collect()
}

/// Heads of [`paper`].
pub const PAPER: [&str; 4] = ["", "logical tensors", "physical buffers", "reduction, %"];

/// The paper's Table 1 and the same configuration through our colouring.
#[must_use]
pub fn paper() -> Vec<[String; 4]> {
    let passing = configuration(28, KeysAndValues::Passing);
    let kept = configuration(28, KeysAndValues::Kept);
    let ours = [("ours, caches counted apart", passing), ("ours, caches among the buffers", kept)];
    let published = ("the paper", Counts { logical: 448, physical: 122 });
    let rows = ours.into_iter().chain([published]).map(|(name, counts)| {
        [
            name.to_string(),
            counts.logical.to_string(),
            counts.physical.to_string(),
            reduction(counts.logical, counts.physical),
        ]
    });
    rows.collect()
}
