//! Happens-before as vector clocks, from a schedule whose lanes and events have some order.
//!
//! `before[l]` is the number of tasks of lane `l` that happen before a task; `through` counts the
//! task itself too. A task `a` is before `b` iff `through(a) ≤ before(b)` on every lane.

use dctms_ir::plan::{Schedule, Task};

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

/// Clocks of every operation's tasks, by lane.
#[must_use]
pub fn clocks(schedule: &Schedule, ops: usize) -> Vec<Vec<TaskClock>> {
    let lanes = schedule.lanes.len();
    let mut result = vec![Vec::new(); ops];
    let mut now = vec![vec![0u32; lanes]; lanes];
    let mut events = vec![vec![0u32; lanes]; schedule.events as usize];
    walk(schedule, &mut |lane, task| {
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
        result[task.op.index()].push(TaskClock { lane, before, through });
    });
    for tasks in &mut result {
        tasks.sort_by_key(|task| task.lane);
    }
    result
}

/// Gives every task once, each after those of its lane before it and after all that signal what it
/// waits for.
pub fn walk<'s>(schedule: &'s Schedule, visit: &mut dyn FnMut(usize, &'s Task)) {
    let mut pending = vec![0u32; schedule.events as usize];
    for event in schedule.lanes.iter().flatten().filter_map(|task| task.signals) {
        pending[event.index()] += 1;
    }
    let mut next = vec![0usize; schedule.lanes.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (lane, tasks) in schedule.lanes.iter().enumerate() {
            while let Some(task) = tasks.get(next[lane]) {
                if task.waits.iter().any(|event| pending[event.index()] > 0) {
                    break;
                }
                visit(lane, task);
                if let Some(event) = task.signals {
                    pending[event.index()] -= 1;
                }
                next[lane] += 1;
                moved = true;
            }
        }
    }
    let whole = next.iter().zip(&schedule.lanes).all(|(next, tasks)| *next == tasks.len());
    assert!(whole, "a schedule in which every task can start");
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
