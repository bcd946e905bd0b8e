//! Static lanes: every operation is cut over all lanes, in program order, with as few
//! synchronisation points as the data allow.
//!
//! A *cut* is a point in program order that no lane passes before all lanes have come to it. Each
//! dependency between operations `p < c` that crosses lanes asks for a cut in `(p, c]`. Placing
//! each cut as late as possible, just before the first `c` that needs one, gives the least number
//! of cuts (stabbing intervals by right ends). Operations cut alike (same axis, unit and shards)
//! depend only within a lane and ask for none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dctms_ir::Program;
use dctms_ir::contract::{Access, Split, accesses, shardable};
use dctms_ir::ids::{EventId, OpId, PhaseId, TensorId};
use dctms_ir::op::{Op, OpKind};
use dctms_ir::plan::{Schedule, Task};

use crate::error::PlanError;
use crate::groups::Group;

/// The schedule of one phase on the lanes of `group`, with a cut before each operation of `more`
/// too.
///
/// # Errors
/// An operation that breaks its contract.
pub fn schedule(
    program: &Program,
    phase: PhaseId,
    group: Group,
    more: &BTreeSet<usize>,
) -> Result<Schedule, PlanError> {
    weave(program, phase, group, (more, Alignment::Counts))
}

/// The schedule of a phase in which every dependency asks for a cut, as if no slices lined up.
///
/// # Errors
/// An operation that breaks its contract.
pub fn unaligned(program: &Program, phase: PhaseId, group: Group) -> Result<Schedule, PlanError> {
    weave(program, phase, group, (&BTreeSet::new(), Alignment::Ignored))
}

/// Whether a dependency within a lane is told from one across lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alignment {
    Counts,
    Ignored,
}

fn weave(
    program: &Program,
    phase: PhaseId,
    group: Group,
    (more, alignment): (&BTreeSet<usize>, Alignment),
) -> Result<Schedule, PlanError> {
    let mut weaver = Weaver::new(group.of as usize, alignment);
    weaver.regroup(group.lanes());
    for (index, op) in program.phases[phase.index()].ops.iter().enumerate() {
        if more.contains(&index) {
            weaver.cut_here();
        }
        weaver.op(index, op)?;
    }
    Ok(weaver.finish())
}

/// An access since the last cut, and the lanes that its operation runs on.
struct Seen {
    access: Access,
    lanes: Vec<usize>,
}

/// Weaves operations into the lanes of a group, cut by cut.
pub(crate) struct Weaver {
    schedule: Schedule,
    /// The lanes that operations are cut over.
    group: Range<usize>,
    /// Bytes that each lane loads.
    load: Vec<u64>,
    /// Accesses since the last cut, by tensor.
    seen: BTreeMap<TensorId, Vec<Seen>>,
    /// Length of each lane at the last cut.
    cut_at: Vec<usize>,
    /// The event that each lane's next task must wait for.
    pending: Vec<Option<EventId>>,
    alignment: Alignment,
}

impl Weaver {
    pub(crate) fn new(lanes: usize, alignment: Alignment) -> Self {
        Self {
            schedule: Schedule { lanes: vec![Vec::new(); lanes], events: 0 },
            group: 0..lanes,
            load: vec![0; lanes],
            seen: BTreeMap::new(),
            cut_at: vec![0; lanes],
            pending: vec![None; lanes],
            alignment,
        }
    }

    /// From now on operations are cut over these lanes. What they need of lanes that were in no
    /// group with these is for the caller to order.
    pub(crate) fn regroup(&mut self, group: Range<usize>) {
        self.group = group;
        self.seen.clear();
    }

    /// The next operation, the `index`-th of its phase.
    pub(crate) fn op(&mut self, index: usize, op: &Op) -> Result<(), PlanError> {
        let lanes: Vec<usize> = match shardable(&op.kind) {
            true => self.group.clone().collect(),
            false => vec![self.single_lane(&op.kind)],
        };
        self.add(OpId::of(index), &accesses(op)?, &lanes);
        Ok(())
    }

    /// Loading is spread by bytes; any other operation that cannot be cut runs on the first lane.
    fn single_lane(&mut self, kind: &OpKind) -> usize {
        match kind {
            OpKind::LoadMatrix(source) | OpKind::LoadVector(source) => {
                let lane = self.group.clone().min_by_key(|lane| self.load[*lane]).unwrap_or(0);
                self.load[lane] = self.load[lane].saturating_add(source.bytes);
                lane
            }
            _ => self.group.start,
        }
    }

    fn add(&mut self, op: OpId, touched: &[Access], lanes: &[usize]) {
        if touched.iter().any(|access| self.needs_cut(access, lanes)) {
            self.cut();
        }
        for access in touched {
            let seen = Seen { access: *access, lanes: lanes.to_vec() };
            self.seen.entry(access.tensor).or_default().push(seen);
        }
        for (shard, lane) in lanes.iter().enumerate() {
            let waits = self.pending[*lane].take().into_iter().collect();
            self.schedule.lanes[*lane].push(Task {
                op,
                shard: shard as u32,
                shards: lanes.len() as u32,
                waits,
                signals: None,
            });
        }
    }

    fn needs_cut(&self, access: &Access, lanes: &[usize]) -> bool {
        let Some(earlier) = self.seen.get(&access.tensor) else { return false };
        earlier.iter().any(|seen| {
            let conflict = seen.access.mode.writes() || access.mode.writes();
            let within = match self.alignment {
                Alignment::Counts => within_lanes(seen, access, lanes),
                Alignment::Ignored => self.group.len() == 1,
            };
            conflict && !within
        })
    }

    /// A cut that no data ask for, unless one has just been made or there is one lane.
    fn cut_here(&mut self) {
        let some = self.group.clone().any(|l| self.schedule.lanes[l].len() > self.cut_at[l]);
        if some && self.group.len() > 1 {
            self.cut();
        }
    }

    /// All lanes meet: the last task of each lane since the previous cut signals one event, and
    /// the next task of each lane waits for it.
    pub(crate) fn cut(&mut self) -> EventId {
        let event = EventId(self.schedule.events);
        self.schedule.events += 1;
        for lane in self.group.clone() {
            let tasks = &mut self.schedule.lanes[lane];
            if tasks.len() > self.cut_at[lane] {
                let last = tasks.last_mut().expect("longer than at the cut");
                last.signals = Some(event);
            }
            self.cut_at[lane] = tasks.len();
            self.pending[lane] = Some(event);
        }
        self.seen.clear();
        event
    }

    pub(crate) fn finish(self) -> Schedule {
        self.schedule
    }
}

/// Whether two conflicting accesses meet only inside a lane.
fn within_lanes(seen: &Seen, access: &Access, lanes: &[usize]) -> bool {
    if seen.lanes.len() == 1 && seen.lanes == lanes {
        return true;
    }
    match (seen.access.split, access.split) {
        (Split::Even { axis, unit }, Split::Even { axis: other, unit: other_unit }) => {
            axis == other && unit == other_unit && seen.lanes == lanes
        }
        (Split::Whole, _) | (_, Split::Whole) => false,
    }
}
