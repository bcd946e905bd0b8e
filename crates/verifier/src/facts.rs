//! Who touches what in each phase, and the clocks of operations and tensors.
//!
//! Two summaries make every later question one comparison of a few numbers. `through` of an
//! operation or a tensor says, for each lane, after how many tasks all of its accesses are done;
//! `before` says, for each lane, how many tasks are done before the first of them starts. Then
//! "all of a before all of b" is `through(a) ≤ before(b)` on every lane.

use dctms_ir::contract::{self, Access, Split};
use dctms_ir::plan::Schedule;
use dctms_ir::program::Phase;
use dctms_ir::{OpId, Plan, TensorId};

use crate::order::{self, Order, Seat, Stuck, covers, join, meet};
use crate::violation::{Found, Rule, place};

/// One access of one operation.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) op: OpId,
    pub(crate) access: Access,
}

/// What is known of a phase.
pub(crate) struct PhaseFacts {
    order: Order,
    /// For each operation its tasks in shard order.
    seats: Vec<Vec<Seat>>,
    /// Touches grouped by tensor, in program order.
    touches: Vec<Touch>,
    touch_starts: Vec<u32>,
    op_through: Clocks,
    op_before: Clocks,
    tensor_through: Clocks,
    tensor_write_before: Clocks,
}

/// A row of one entry a lane for each item.
struct Clocks {
    lanes: usize,
    rows: Vec<u32>,
}

impl Clocks {
    fn new(items: usize, lanes: usize, value: u32) -> Self {
        Clocks { lanes, rows: vec![value; items * lanes] }
    }

    fn row(&self, item: usize) -> &[u32] {
        &self.rows[item * self.lanes..][..self.lanes]
    }

    fn row_mut(&mut self, item: usize) -> &mut [u32] {
        &mut self.rows[item * self.lanes..][..self.lanes]
    }
}

impl PhaseFacts {
    /// Touches of a tensor in program order.
    pub(crate) fn touches(&self, tensor: TensorId) -> &[Touch] {
        let start = self.touch_starts[tensor.index()] as usize;
        &self.touches[start..self.touch_starts[tensor.index() + 1] as usize]
    }

    /// Tasks of an operation in shard order.
    pub(crate) fn seats(&self, op: OpId) -> &[Seat] {
        &self.seats[op.index()]
    }

    /// Whether all tasks of one operation are done before any of another starts.
    pub(crate) fn op_precedes(&self, first: OpId, second: OpId) -> bool {
        covers(self.op_before.row(second.index()), self.op_through.row(first.index()))
    }

    /// Whether every access of one tensor is done before any write of another starts.
    pub(crate) fn precedes(&self, first: TensorId, second: TensorId) -> bool {
        covers(self.tensor_write_before.row(second.index()), self.tensor_through.row(first.index()))
    }

    /// Whether shards whose slices are not disjoint are ordered, the first touch before the second.
    pub(crate) fn touch_precedes(&self, first: &Touch, second: &Touch) -> bool {
        let (a, b) = (self.seats(first.op), self.seats(second.op));
        let alike = match (first.access.split, second.access.split) {
            (Split::Even { .. }, Split::Even { .. }) => {
                first.access.split == second.access.split && a.len() == b.len()
            }
            (Split::Whole, _) | (_, Split::Whole) => false,
        };
        if !alike {
            return self.op_precedes(first.op, second.op);
        }
        a.iter().zip(b).all(|(a, b)| self.order.is_before(*a, *b))
    }
}

/// The facts of every phase; empty when a schedule cannot run (R5, C1).
pub(crate) fn phases(plan: &Plan, found: &mut Found) -> Vec<PhaseFacts> {
    let tensors = plan.program.tensors.len();
    let rows = plan.program.phases.iter().zip(&plan.schedules);
    let facts: Vec<_> = rows
        .map(|(phase, schedule)| {
            let seats = seats(phase, schedule, found);
            let order = run(phase, schedule, found);
            Some(facts(phase, tensors, seats?, order?))
        })
        .collect();
    facts.into_iter().collect::<Option<_>>().unwrap_or_default()
}

/// Each operation's tasks in shard order, when each shard has exactly one.
fn seats(phase: &Phase, schedule: &Schedule, found: &mut Found) -> Option<Vec<Vec<Seat>>> {
    let mut tasks: Vec<Vec<(u32, u32, Seat)>> = vec![Vec::new(); phase.ops.len()];
    for (lane, list) in (0..).zip(&schedule.lanes) {
        for (position, task) in (0..).zip(list) {
            let seat = Seat { lane, position };
            tasks[task.op.index()].push((task.shard, task.shards, seat));
        }
    }
    let mut complete = true;
    let mut seats = Vec::with_capacity(tasks.len());
    for (op, mut list) in phase.ops.iter().zip(tasks) {
        list.sort_unstable_by_key(|(shard, _, _)| *shard);
        let count = list.len();
        let once = (0u32..)
            .zip(&list)
            .all(|(expected, (shard, shards, _))| *shard == expected && *shards as usize == count);
        let what = if !once || count == 0 {
            format!("{count} tasks are not the shards 0 to n − 1, each once")
        } else if count > 1 && !contract::shardable(&op.kind) {
            format!("{} cannot be cut, but has {count} shards", op.kind.name())
        } else {
            seats.push(list.into_iter().map(|(_, _, seat)| seat).collect());
            continue;
        };
        complete = false;
        found.add(Rule::R5, &place(phase, op), what);
    }
    complete.then_some(seats)
}

fn run(phase: &Phase, schedule: &Schedule, found: &mut Found) -> Option<Order> {
    let add = |stuck: Stuck| match stuck.waits {
        None => {
            found.add(Rule::R5, &phase.name, format!("no task signals event {}", stuck.event));
        }
        Some((lane, position)) => {
            let op = &phase.ops[schedule.lanes[lane][position].op.index()];
            let what = format!("lane {lane} waits for ever on event {}", stuck.event);
            found.add(Rule::R5, &place(phase, op), what);
        }
    };
    order::derive(schedule).map_err(|stuck| stuck.into_iter().for_each(add)).ok()
}

fn facts(phase: &Phase, tensors: usize, seats: Vec<Vec<Seat>>, order: Order) -> PhaseFacts {
    let lanes = order.lanes();
    let ops = phase.ops.len();
    let mut op_through = Clocks::new(ops, lanes, 0);
    let mut op_before = Clocks::new(ops, lanes, u32::MAX);
    for (op, tasks) in seats.iter().enumerate() {
        for seat in tasks {
            let through = &mut op_through.row_mut(op)[seat.lane as usize];
            *through = (*through).max(seat.position + 1);
            meet(op_before.row_mut(op), order.before(*seat));
        }
    }
    let mut tensor_through = Clocks::new(tensors, lanes, 0);
    let mut tensor_write_before = Clocks::new(tensors, lanes, u32::MAX);
    let mut by_tensor = Vec::new();
    for (index, op) in phase.ops.iter().enumerate() {
        // The form check saw that every operation has its contract's operands.
        for access in contract::accesses(op).unwrap_or_default() {
            let tensor = access.tensor.index();
            join(tensor_through.row_mut(tensor), op_through.row(index));
            if access.mode.writes() {
                meet(tensor_write_before.row_mut(tensor), op_before.row(index));
            }
            by_tensor.push((tensor, Touch { op: OpId::of(index), access }));
        }
    }
    by_tensor.sort_by_key(|(tensor, _)| *tensor);
    let first = |tensor: usize| by_tensor.partition_point(|(at, _)| *at < tensor) as u32;
    let touch_starts = (0..=tensors).map(first).collect();
    let touches = by_tensor.into_iter().map(|(_, touch)| touch).collect();
    PhaseFacts {
        order,
        seats,
        touches,
        touch_starts,
        op_through,
        op_before,
        tensor_through,
        tensor_write_before,
    }
}
