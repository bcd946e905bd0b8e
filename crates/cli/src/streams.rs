//! The concurrent regions of a plan as rows: whose lanes, what running together is worth, and
//! which part of a prompt waits for what. Shared by the table and the page.

use dctms_ir::Plan;
use dctms_ir::plan::{Arrival, RegionReport};
use dctms_planner::second_unit::{SecondUnitTimes, Side};

use crate::show::{grouped, milliseconds, printable};

/// Heads of [`streams`].
pub const STREAMS: [&str; 5] =
    ["", "lanes", "operations on them", "alone, ms", "bound by bandwidth"];

/// Heads of [`segments`].
pub const SEGMENTS: [&str; 2] = ["part of a prompt", "waits for"];

/// What a region is called.
#[must_use]
pub fn title(plan: &Plan, region: &RegionReport) -> String {
    format!("streams of {}", name(plan, region.phase.index()))
}

fn name(plan: &Plan, phase: usize) -> String {
    printable(&plan.program.phases[phase].name)
}

/// For each stream: name, lanes of its own, operations that run on those, its time alone, the part
/// of it that bandwidth limits.
#[must_use]
pub fn streams(plan: &Plan, region: &RegionReport) -> Vec<[String; 5]> {
    let rows = region.streams.iter().map(|stream| {
        let last = stream.first_lane + stream.lanes - 1;
        let lanes = match stream.lanes {
            1 => last.to_string(),
            _ => format!("{}-{last}", stream.first_lane),
        };
        let ops = plan.program.phases[stream.phase.index()].ops.len();
        [
            name(plan, stream.phase.index()),
            lanes,
            format!("{} of {ops}", stream.ops_apart),
            milliseconds(stream.alone_ns),
            format!("{} %", stream.bandwidth_percent),
        ]
    });
    rows.collect()
}

/// What the region is worth, and why no more.
#[must_use]
pub fn verdict(region: &RegionReport) -> Vec<String> {
    let together = milliseconds(region.together_ns);
    if region.streams.is_empty() {
        return vec![format!(
            "every operation runs over all lanes ({together} ms): lanes for each stream gain nothing"
        )];
    }
    let alone: u64 = region.streams.iter().map(|stream| stream.alone_ns).sum();
    let gain = 100.0 * (1.0 - region.together_ns as f64 / alone.max(1) as f64);
    let bound = region.streams.iter().filter(|stream| stream.bandwidth_percent >= 50).count();
    let why = match bound {
        0 => {
            "both are bound by arithmetic: on cores that one of them fills, idle time and cuts are \
             all that there is to recover"
        }
        1 => "one is bound by arithmetic and one by bandwidth: each leaves what the other needs",
        _ => "both are bound by bandwidth: side by side they share it",
    };
    vec![
        format!(
            "together {together} ms, one after the other {} ms: {gain:.1} % less (a whole chunk, the \
             largest tile; expected)",
            milliseconds(alone)
        ),
        why.to_string(),
        match region.least_patches {
            0 => "entered with every whole chunk that is ready".to_string(),
            least => format!(
                "entered with every whole chunk that is ready and a tile of {} patches or more",
                grouped(least)
            ),
        },
        format!("{} orders between the streams", grouped(region.hand_overs.len() as u64)),
    ]
}

/// What the lines of [`gap`] are.
pub const GAP: &str = "a picture that arrives while an answer is written";

/// The longest gap between two tokens while the largest picture arrives, of a model with eyes.
#[must_use]
pub fn gap(plan: &Plan) -> Vec<String> {
    let Some(gap) = &plan.gap else { return Vec::new() };
    let when = match gap.arrival {
        Arrival::Beside => "its tiles are encoded beside the steps",
        Arrival::AfterAnswer => "it waits for the end of the answer, which nothing interrupts",
    };
    vec![
        format!(
            "longest gap between tokens: {} ms expected; {when}",
            milliseconds(gap.expected_ns)
        ),
        format!(
            "no gap is longer than {} ms, unless a lane is made to stand still for longer than {} \
             ms at a time",
            milliseconds(gap.bound_ns),
            milliseconds(gap.pause_ns)
        ),
        format!(
            "all of it between two tokens ({} tiles, {} tokens of the prompt) would be a gap of {} \
             ms",
            grouped(gap.picture_tiles),
            grouped(gap.picture_tokens),
            milliseconds(gap.picture_ns)
        ),
    ]
}

/// Parts of a prompt and what each waits for.
#[must_use]
pub fn segments(region: &RegionReport) -> Vec<[String; 2]> {
    let rows = region.segments.iter().map(|segment| {
        let waits = segment.waits_for.iter().map(|name| printable(name)).collect::<Vec<_>>();
        let waits = if waits.is_empty() { "nothing".to_string() } else { waits.join(", ") };
        [printable(&segment.name), waits]
    });
    rows.collect()
}

/// What the prediction of a second unit is called.
pub const SECOND_UNIT: &str =
    "PREDICTED, not measured: a second unit for vision on the same memory";

/// What was assumed of a second unit, and what would come of it.
#[must_use]
pub fn second_unit(times: &SecondUnitTimes) -> Vec<String> {
    let saved = 100.0 * (1.0 - times.together_ns as f64 / times.lanes_alone_ns.max(1) as f64);
    vec![
        format!(
            "assumed: {} times the lanes' f32 peak, {:.0} % of the bandwidth while both work \
             (--second-unit PEAK:SHARE)",
            times.unit.peak_ratio,
            100.0 * times.unit.bandwidth_share
        ),
        format!(
            "the largest request: {} ms in place of {} on the lanes alone, {saved:.1} % less; the \
             lanes work {} % of it, the unit {} %",
            milliseconds(times.together_ns),
            milliseconds(times.lanes_alone_ns),
            times.busy_percent(Side::Lanes),
            times.busy_percent(Side::Unit)
        ),
    ]
}

/// Columns of [`gantt`].
const GANTT_COLUMNS: u64 = 64;
/// Steps that [`gantt`] shows.
const GANTT_ROWS: usize = 24;

/// The predicted timeline: a line for each step of either side.
#[must_use]
pub fn gantt(times: &SecondUnitTimes) -> Vec<String> {
    let width = times.jobs.iter().map(|job| job.name.len()).max().unwrap_or(0);
    let column = |ns: u64| (ns * GANTT_COLUMNS / times.together_ns.max(1)).min(GANTT_COLUMNS);
    let line = |job: &dctms_planner::second_unit::Job| {
        let (start, end) = (column(job.start_ns), column(job.end_ns));
        let side = match job.side {
            Side::Lanes => "lanes",
            Side::Unit => "unit ",
        };
        let bar = "█".repeat((end - start).max(1) as usize);
        let before = " ".repeat(start.min(GANTT_COLUMNS - 1) as usize);
        format!("{side}  {:<width$}  {before}{bar}", job.name)
    };
    let mut lines: Vec<String> = times.jobs.iter().take(GANTT_ROWS).map(line).collect();
    if times.jobs.len() > GANTT_ROWS {
        lines.push(format!("… and {} more", times.jobs.len() - GANTT_ROWS));
    }
    lines
}
