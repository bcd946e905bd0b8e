//! Happens-before as vector clocks, from a schedule that was woven in program order.
//!
//! `before[l]` is the number of tasks of lane `l` that happen before a task; `through` counts the
//! task itself too. A task `a` is before `b` iff `through(a) ≤ before(b)` on every lane.

use dctms_ir::ids::OpId;
use dctms_ir::plan::Schedule;

/// Clocks of one task.
#[derive(Clone, Debug)]
pub struct TaskClock {
    /// Lane of the task.
    pub lane: usize,
    /// Tasks of each lane before it.
    pub before: Vec<u32>,
    /// The same with the task itself.
    pub through: Vec<u32>,
}

/// Clocks of every operation's tasks, in shard order.
#[must_use]
pub fn clocks(schedule: &Schedule, ops: usize) -> Vec<Vec<TaskClock>> {
    let lanes = schedule.lanes.len();
    let mut result = vec![Vec::new(); ops];
    let mut next = vec![0usize; lanes];
    let mut now = vec![vec![0u32; lanes]; lanes];
    let mut events = vec![vec![0u32; lanes]; schedule.events as usize];
    for (op, tasks) in result.iter_mut().enumerate() {
        for lane in 0..lanes {
            let Some(task) = schedule.lanes[lane].get(next[lane]) else { continue };
            if task.op != OpId::of(op) {
                continue;
            }
            next[lane] += 1;
            let mut before = now[lane].clone();
            for event in &task.waits {
                join(&mut before, &events[event.index()]);
            }
            let mut through = before.clone();
            through[lane] += 1;
            if let Some(event) = task.signals {
                join(&mut events[event.index()], &through);
            }
            now[lane] = through.clone();
            tasks.push(TaskClock { lane, before, through });
        }
    }
    result
}

/// Whether a task with this `through` is before one with this `before`.
#[must_use]
pub fn precedes(through: &[u32], before: &[u32]) -> bool {
    through.iter().zip(before).all(|(a, b)| a <= b)
}

/// Componentwise maximum.
pub fn join(into: &mut [u32], other: &[u32]) {
    for (a, b) in into.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

/// Componentwise minimum.
pub fn meet(into: &mut [u32], other: &[u32]) {
    for (a, b) in into.iter_mut().zip(other) {
        *a = (*a).min(*b);
    }
}
