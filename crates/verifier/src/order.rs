//! Happens-before of one phase, from lane order and events alone.
//!
//! The schedule is run once, each lane as far as its waits allow, and every task gets a vector
//! clock: for each lane, how many of its tasks are done before this one starts. Task `a`, the
//! `i`-th of lane `l` counting from 0, happens before `b` iff `before(b)[l] > i`. An event is
//! signalled when *all* tasks that name it are done, so its clock is the join of theirs.

use dctms_ir::plan::{Schedule, Task};

/// What keeps a schedule from running to its end: an event that no task signals, or that the task
/// at a lane and position waits for.
pub(crate) struct Stuck {
    pub(crate) event: u32,
    pub(crate) waits: Option<(usize, usize)>,
}

/// A task: its lane and its place there.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) lane: u32,
    pub(crate) position: u32,
}

/// The clocks of a phase.
pub(crate) struct Order {
    lanes: usize,
    /// Index of each lane's first task.
    starts: Vec<usize>,
    /// One row of `lanes` entries a task.
    before: Vec<u32>,
}

impl Order {
    /// For each lane, how many of its tasks are done before this one starts.
    pub(crate) fn before(&self, seat: Seat) -> &[u32] {
        let row = self.starts[seat.lane as usize] + seat.position as usize;
        &self.before[row * self.lanes..][..self.lanes]
    }

    /// Number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether `first` is done before `second` starts; a task is not before itself.
    pub(crate) fn is_before(&self, first: Seat, second: Seat) -> bool {
        self.before(second)[first.lane as usize] > first.position
    }
}

struct Run<'s> {
    schedule: &'s Schedule,
    order: Order,
    /// Tasks of each lane done so far.
    done: Vec<usize>,
    /// Clock of each lane, the last task included.
    now: Vec<u32>,
    /// Clock of each event so far.
    events: Vec<u32>,
    /// Tasks that must still signal each event.
    pending: Vec<u32>,
    /// Lanes stopped at each event.
    stopped: Vec<Vec<usize>>,
}

/// The order that a schedule gives. Identities are in range (form).
pub(crate) fn derive(schedule: &Schedule) -> Result<Order, Vec<Stuck>> {
    let lanes = schedule.lanes.len();
    let events = schedule.events as usize;
    let mut starts = Vec::with_capacity(lanes);
    let mut tasks = 0;
    for lane in &schedule.lanes {
        starts.push(tasks);
        tasks += lane.len();
    }
    let mut pending = vec![0u32; events];
    for task in schedule.lanes.iter().flatten() {
        if let Some(event) = task.signals {
            pending[event.index()] += 1;
        }
    }
    let silent = (0u32..).zip(&pending).filter(|(_, count)| **count == 0);
    let mut stuck: Vec<Stuck> = silent.map(|(event, _)| Stuck { event, waits: None }).collect();
    let mut run = Run {
        schedule,
        order: Order { lanes, starts, before: vec![0; tasks * lanes] },
        done: vec![0; lanes],
        now: vec![0; lanes * lanes],
        events: vec![0; events * lanes],
        // An event without a signaller never completes.
        pending: pending
            .into_iter()
            .map(|count| if count == 0 { u32::MAX } else { count })
            .collect(),
        stopped: vec![Vec::new(); events],
    };
    let mut ready: Vec<usize> = (0..lanes).collect();
    while let Some(lane) = ready.pop() {
        run.advance(lane, &mut ready);
    }
    for lane in 0..lanes {
        let position = run.done[lane];
        let Some(task) = schedule.lanes[lane].get(position) else { continue };
        if let Some(event) = run.missing(task) {
            stuck.push(Stuck { event: event as u32, waits: Some((lane, position)) });
        }
    }
    if stuck.is_empty() { Ok(run.order) } else { Err(stuck) }
}

impl Run<'_> {
    fn missing(&self, task: &Task) -> Option<usize> {
        task.waits.iter().map(|event| event.index()).find(|event| self.pending[*event] > 0)
    }

    /// Runs a lane's tasks until one must wait; adds the lanes that this frees to `ready`.
    fn advance(&mut self, lane: usize, ready: &mut Vec<usize>) {
        let lanes = self.order.lanes;
        let schedule = self.schedule;
        for task in &schedule.lanes[lane][self.done[lane]..] {
            if let Some(event) = self.missing(task) {
                self.stopped[event].push(lane);
                return;
            }
            let now = &mut self.now[lane * lanes..][..lanes];
            for event in &task.waits {
                join(now, &self.events[event.index() * lanes..][..lanes]);
            }
            let row = self.order.starts[lane] + self.done[lane];
            self.order.before[row * lanes..][..lanes].copy_from_slice(now);
            self.done[lane] += 1;
            now[lane] += 1;
            if let Some(event) = task.signals {
                let event = event.index();
                join(&mut self.events[event * lanes..][..lanes], now);
                self.pending[event] -= 1;
                if self.pending[event] == 0 {
                    ready.append(&mut self.stopped[event]);
                }
            }
        }
    }
}

/// The greater of each entry.
pub(crate) fn join(clock: &mut [u32], other: &[u32]) {
    for (a, b) in clock.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

/// The lesser of each entry.
pub(crate) fn meet(clock: &mut [u32], other: &[u32]) {
    for (a, b) in clock.iter_mut().zip(other) {
        *a = (*a).min(*b);
    }
}

/// Whether all that `through` counts is done before what `before` belongs to.
pub(crate) fn covers(before: &[u32], through: &[u32]) -> bool {
    through.iter().zip(before).all(|(through, before)| through <= before)
}
