//! When each task is expected to run: the walk of a schedule in time.
//!
//! A task starts when its lane has come to it and everything that it waits for has been signalled,
//! and takes what [`crate::predict`] says of its work. An event costs what a cut costs, and lanes
//! that meet wait for the last of them ([`Balance::wait_ps`]): by what they do they would come at
//! one time, and they do not. Nothing is measured here.

use dctms_ir::contract::shardable;
use dctms_ir::ids::OpId;

use crate::clocks::walk;
use crate::error::PlanError;
use crate::groups::Group;
use crate::predict::{Meter, Scene, Step, share};
use crate::rates::Balance;

/// A task in time, picoseconds from the start of its phase's run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Its lane.
    pub lane: usize,
    /// Its operation.
    pub op: OpId,
    /// Start.
    pub start_ps: f64,
    /// End.
    pub end_ps: f64,
}

/// One run of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Every task, in an order in which they could run.
    pub spans: Vec<Span>,
    /// The end: all lanes have met, the next run could start.
    pub end_ps: f64,
}

impl Timeline {
    /// The end of each operation's last task; nothing for operations that the schedule leaves out.
    #[must_use]
    pub fn ends(&self, ops: usize) -> Vec<f64> {
        let mut ends = vec![0.0; ops];
        for span in &self.spans {
            ends[span.op.index()] = span.end_ps.max(ends[span.op.index()]);
        }
        ends
    }
}

/// The times of one run.
///
/// # Errors
/// An operation that breaks its contract.
pub fn timeline(scene: &Scene<'_>, balance: &Balance, step: Step) -> Result<Timeline, PlanError> {
    walked(scene, balance, &Meter::new(scene, balance, step))
}

/// The end of one run with a tile of fewer patches than the largest, where grids vary.
///
/// # Errors
/// An operation that breaks its contract.
pub fn with_patches_ps(
    scene: &Scene<'_>,
    balance: &Balance,
    (step, patches): (Step, u64),
) -> Result<f64, PlanError> {
    let meter = Meter::new(scene, balance, step).with_patches(patches);
    Ok(walked(scene, balance, &meter)?.end_ps)
}

fn walked(scene: &Scene<'_>, balance: &Balance, meter: &Meter<'_>) -> Result<Timeline, PlanError> {
    let ops = &scene.program.phases[scene.phase.index()].ops;
    let works: Vec<_> = ops.iter().map(|op| meter.work(op)).collect();
    let units: Vec<u64> = ops.iter().map(|op| meter.units(op)).collect::<Result<_, _>>()?;
    let lanes = scene.schedule.lanes.len();
    let cut_ps = if lanes > 1 { balance.cut_ps } else { 0.0 };
    let meets = Group::of_schedule(scene.schedule).count > 1;
    let wait_ps = |since_ps: f64| if meets { balance.wait_ps(since_ps) } else { 0.0 };
    let mut clock = vec![0f64; lanes];
    // When each lane met others last.
    let mut met = vec![0f64; lanes];
    let mut events = vec![0f64; scene.schedule.events as usize];
    let mut spans = Vec::with_capacity(scene.schedule.lanes.iter().map(Vec::len).sum());
    walk(scene.schedule, &mut |lane, task| {
        let op = task.op.index();
        let (share, together) = match shardable(&ops[op].kind) {
            true => (share(units[op], task.shard, task.shards), task.shards),
            false => (1.0, 1),
        };
        let there = task.waits.iter().map(|event| events[event.index()]);
        let start_ps = match there.reduce(f64::max) {
            None => clock[lane],
            Some(there) => {
                let last = there.max(clock[lane]);
                let start_ps = last + wait_ps(last - met[lane]) + cut_ps;
                met[lane] = start_ps;
                start_ps
            }
        };
        let memory = f64::from(together) * balance.fewer_lanes(together);
        let end_ps = start_ps + works[op].lane_ps(share, memory) + balance.task_ps;
        clock[lane] = end_ps;
        if let Some(event) = task.signals {
            events[event.index()] = end_ps.max(events[event.index()]);
        }
        spans.push(Span { lane, op: task.op, start_ps, end_ps });
    });
    let latest = clock.iter().copied().fold(0.0, f64::max);
    let since = met.iter().copied().fold(0.0, f64::max);
    let end_ps = latest + wait_ps(latest - since) + cut_ps + balance.run_ps;
    Ok(Timeline { spans, end_ps })
}
