//! Runs a plan on shadow memory under a chosen interleaving and says what it reads wrongly.
//!
//! The reference is the program's meaning: operations one after the other, every tensor in memory
//! of its own. The plan runs in one shadow arena. A task is not a moment but a stretch: at its
//! start it reads and writes, at its end it reads and writes once more, and between the two any
//! other running task may do the same. What is read must each time be what the reference reads,
//! save where the contract lets the task itself overwrite it; what was written must still stand
//! at the end. Whoever runs too early, too late or on the wrong bytes is caught by a stamp.
//!
//! It must not know the verifier: contracts and the rules of order are all it shares with it.

use std::ops::Range;

use dctms_ir::contract::{self, Access, Mode, Split};
use dctms_ir::plan::{Schedule, Task};
use dctms_ir::{OpId, Plan, Residence, TensorId};

use crate::random::Random;
use crate::shadow::{Runs, Shadow, Stamp};

/// What went wrong in one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// A task read bytes that are not what the program's meaning puts there.
    Read {
        /// Phase.
        phase: String,
        /// Operation.
        op: String,
        /// Tensor.
        tensor: String,
    },
    /// Bytes that a task had written did not stand until its end.
    Lost {
        /// Phase.
        phase: String,
        /// Operation.
        op: String,
        /// Tensor.
        tensor: String,
    },
    /// The host found other bytes than were left for it.
    Host {
        /// Tensor.
        tensor: String,
    },
    /// No task could start and not all were done.
    Stuck {
        /// Phase.
        phase: String,
    },
    /// The program itself reads what nothing has written.
    Unwritten {
        /// Phase.
        phase: String,
        /// Operation.
        op: String,
        /// Tensor.
        tensor: String,
    },
    /// A tensor in use has no place in the arena.
    Nowhere {
        /// Tensor.
        tensor: String,
    },
}

/// How the next action is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Any action with equal chance.
    Uniform,
    /// Lanes in a random order of priority, which changes now and then.
    Priorities,
    /// Every task that can start does, before any ends.
    Eager,
    /// A task ends before another starts.
    Serial,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 4] =
        [Policy::Uniform, Policy::Priorities, Policy::Eager, Policy::Serial];
}

/// Runs a random walk of `runs` phases through the flow, with random dims and host writes; where
/// phases may overlap, several of the walk at once count as one.
///
/// # Errors
/// The first corruption met.
pub fn simulate(
    plan: &Plan,
    random: &mut Random,
    policy: Policy,
    runs: usize,
) -> Result<(), Corruption> {
    let mut machine = Machine::new(plan);
    machine.host_first_values()?;
    let mut choices = plan.program.flow.entry.clone();
    for _ in 0..runs {
        if choices.is_empty() {
            break;
        }
        let first = random.pick(&choices).index();
        let phases = beside(plan, random, first);
        let dims: Vec<u64> = plan
            .program
            .dims
            .iter()
            .map(|dim| match random.below(4) {
                0 => dim.min,
                1 => random.between(dim.min, dim.max),
                _ => dim.max,
            })
            .collect();
        machine.host_writes(|| random.once_in(2))?;
        let seats = phases.iter().map(|phase| plan.schedules[*phase].lanes.len()).sum();
        let mut priority: Vec<usize> = (0..seats).collect();
        random.shuffle(&mut priority);
        machine.run(&phases, &dims, &mut |starts, ends| {
            choose(random, policy, starts, ends, &mut priority)
        })?;
        machine.host_reads()?;
        choices.clone_from(&plan.program.flow.next[phases[phases.len() - 1]]);
    }
    Ok(())
}

/// Runs some phases one after the other at the dims' maxima, every interleaving of the last one.
/// How many were tried; at most `limit`, then it stops.
///
/// # Errors
/// The first corruption met.
pub fn exhaust(plan: &Plan, phases: &[usize], limit: usize) -> Result<usize, Corruption> {
    let dims = plan.program.dims_max();
    // The choices of the current interleaving, and out of how many each was made.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for tried in 1..=limit {
        let mut machine = Machine::new(plan);
        machine.host_first_values()?;
        for (index, phase) in phases.iter().enumerate() {
            machine.host_writes(|| true)?;
            let mut at = 0;
            machine.run(&[*phase], &dims, &mut |starts, ends| {
                let choices: Vec<usize> = ends.iter().chain(starts).copied().collect();
                if index + 1 < phases.len() {
                    return choices[0];
                }
                if at == path.len() {
                    path.push((0, choices.len()));
                }
                at += 1;
                choices[path[at - 1].0]
            })?;
            machine.host_reads()?;
        }
        while path.pop_if(|(choice, count)| *choice + 1 == *count).is_some() {}
        match path.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return Ok(tried),
        }
    }
    Ok(limit)
}

/// One access of an operation, with what the reference says of it.
#[derive(Clone)]
struct Step {
    access: Access,
    /// What the reference holds of the whole tensor when the operation reads it.
    expected: Shadow,
    stamp: Stamp,
    /// Outputs that may replace it in place, as indices of steps.
    may_replace: Vec<usize>,
}

struct Machine<'p> {
    plan: &'p Plan,
    arena: Shadow,
    /// The reference: every tensor in memory of its own.
    own: Vec<Shadow>,
    next_stamp: Stamp,
    /// Whether any phase reads the tensor; what none reads is for the host.
    read: Vec<bool>,
}

impl<'p> Machine<'p> {
    fn new(plan: &'p Plan) -> Self {
        let tensors = plan.program.tensors.len();
        let mut read = vec![false; tensors];
        for op in plan.program.phases.iter().flat_map(|phase| &phase.ops) {
            for access in contract::accesses(op).unwrap_or_default() {
                read[access.tensor.index()] |= access.mode.reads();
            }
        }
        Machine {
            plan,
            arena: Shadow::default(),
            own: vec![Shadow::default(); tensors],
            next_stamp: 1,
            read,
        }
    }

    fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.next_stamp
    }

    fn name(&self, tensor: TensorId) -> String {
        self.plan.program.tensor(tensor).name.clone()
    }

    /// Bytes of a tensor's slice in its own memory.
    fn slice(&self, access: &Access, (shard, shards): (u32, u32), dims: &[u64]) -> Range<u64> {
        let tensor = self.plan.program.tensor(access.tensor);
        let bytes = tensor.size.value(dims).unwrap_or(0);
        let Split::Even { axis, unit } = access.split else { return 0..bytes };
        let extent = tensor.shape.get(axis as usize).and_then(|size| size.value(dims)).unwrap_or(0);
        let units = extent / unit.max(1);
        if units == 0 || shards == 0 {
            return 0..0;
        }
        let at = |shard: u64| {
            let unit = u128::from(shard) * u128::from(units) / u128::from(shards);
            (unit * u128::from(bytes) / u128::from(units)) as u64
        };
        at(shard.into())..at(u64::from(shard) + 1)
    }

    /// The same bytes in the arena.
    fn place(&self, tensor: TensorId, slice: &Range<u64>) -> Result<Range<u64>, Corruption> {
        match self.plan.placements[tensor.index()].offset {
            Some(offset) => Ok(offset + slice.start..offset + slice.end),
            None if slice.is_empty() => Ok(0..0),
            None => Err(Corruption::Nowhere { tensor: self.name(tensor) }),
        }
    }

    fn whole(&self, tensor: TensorId) -> Range<u64> {
        let dims = self.plan.program.dims_max();
        0..self.plan.program.tensor(tensor).size.value(&dims).unwrap_or(0)
    }

    /// Lasting tensors in use, in id order.
    fn lasting(&self) -> Vec<TensorId> {
        let program = &self.plan.program;
        let used = program.phases.iter().flat_map(|phase| &phase.ops);
        let used: std::collections::BTreeSet<TensorId> = used
            .flat_map(|op| op.inputs.iter().chain(&op.outputs).chain(&op.workspace).copied())
            .collect();
        used.into_iter().filter(|id| program.tensor(*id).phase.is_none()).collect()
    }

    /// The host gives state and external tensors their first value.
    fn host_first_values(&mut self) -> Result<(), Corruption> {
        for id in self.lasting() {
            match self.plan.program.tensor(id).residence {
                Residence::External | Residence::State => self.host_write(id)?,
                Residence::Constant | Residence::Carried | Residence::Transient => {}
            }
        }
        Ok(())
    }

    fn host_write(&mut self, id: TensorId) -> Result<(), Corruption> {
        let stamp = self.stamp();
        let slice = self.whole(id);
        let place = self.place(id, &slice)?;
        self.own[id.index()].write(slice, stamp);
        self.arena.write(place, stamp);
        Ok(())
    }

    /// Between two phases the host may write some of the external tensors.
    fn host_writes(&mut self, mut wants: impl FnMut() -> bool) -> Result<(), Corruption> {
        for id in self.lasting() {
            if self.plan.program.tensor(id).residence == Residence::External && wants() {
                self.host_write(id)?;
            }
        }
        Ok(())
    }

    /// After a phase the host may read external tensors, whatever no phase reads, and constants
    /// that have been written.
    fn host_reads(&self) -> Result<(), Corruption> {
        for id in self.lasting() {
            let slice = self.whole(id);
            let written = || self.own[id.index()].read(slice.clone()).iter().all(|run| run.1 != 0);
            let reads = match self.plan.program.tensor(id).residence {
                Residence::External => true,
                Residence::Constant => written(),
                Residence::State | Residence::Carried | Residence::Transient => {
                    !self.read[id.index()]
                }
            };
            if !reads {
                continue;
            }
            let place = self.place(id, &slice)?;
            if !holds(&self.arena, place, &self.own[id.index()], &slice) {
                return Err(Corruption::Host { tensor: self.name(id) });
            }
        }
        Ok(())
    }

    /// Runs the reference of a phase and notes what each access should see.
    fn reference(&mut self, phase: usize, dims: &[u64]) -> Result<Vec<Vec<Step>>, Corruption> {
        let plan = self.plan;
        for (id, tensor) in plan.program.tensors.iter().enumerate() {
            if tensor.phase.is_some() {
                self.own[id] = Shadow::default();
            }
        }
        let mut result = Vec::new();
        for op in &plan.program.phases[phase].ops {
            let accesses = contract::accesses(op).unwrap_or_default();
            let mut steps = Vec::new();
            for access in &accesses {
                let expected = self.own[access.tensor.index()].clone();
                if access.mode.reads() {
                    let seen = expected.read(self.slice(access, (0, 1), dims));
                    if seen.iter().any(|(_, stamp)| *stamp == 0) {
                        return Err(Corruption::Unwritten {
                            phase: plan.program.phases[phase].name.clone(),
                            op: op.name.clone(),
                            tensor: self.name(access.tensor),
                        });
                    }
                }
                let stamp = if access.mode.writes() { self.stamp() } else { 0 };
                steps.push(Step { access: *access, expected, stamp, may_replace: Vec::new() });
            }
            for step in &steps {
                if step.access.mode.writes() {
                    let slice = self.slice(&step.access, (0, 1), dims);
                    self.own[step.access.tensor.index()].write(slice, step.stamp);
                }
            }
            may_replace(op, &mut steps);
            result.push(steps);
        }
        Ok(result)
    }

    /// Runs phases that were begun in this order: each waits for the end of those before it that
    /// it does not overlap, and brings lanes of its own.
    fn run(
        &mut self,
        phases: &[usize],
        dims: &[u64],
        choose: &mut dyn FnMut(&[usize], &[usize]) -> usize,
    ) -> Result<(), Corruption> {
        let plan = self.plan;
        let mut running = Vec::new();
        for phase in phases {
            let steps = self.reference(*phase, dims)?;
            running.push(Running::new(*phase, &plan.schedules[*phase], steps));
        }
        loop {
            let (mut starts, mut ends, mut seats) = (Vec::new(), Vec::new(), Vec::new());
            for (index, one) in running.iter().enumerate() {
                let waits = running[..index]
                    .iter()
                    .any(|earlier| !earlier.is_done() && !overlap(plan, earlier.phase, one.phase));
                for lane in 0..one.next.len() {
                    match one.busy[lane] {
                        true => ends.push(seats.len()),
                        false if !waits && one.can_start(lane) => starts.push(seats.len()),
                        false => {}
                    }
                    seats.push((index, lane));
                }
            }
            if starts.is_empty() && ends.is_empty() {
                break;
            }
            let (index, lane) = seats[choose(&starts, &ends)];
            let one = &mut running[index];
            let task = &one.schedule.lanes[lane][one.next[lane]];
            if one.busy[lane] {
                self.end(one.phase, task, &one.steps, dims)?;
                one.busy[lane] = false;
                one.next[lane] += 1;
                if let Some(event) = task.signals {
                    one.pending[event.index()] -= 1;
                }
            } else {
                self.start(one.phase, task, &one.steps, dims)?;
                one.busy[lane] = true;
            }
        }
        match running.iter().find(|one| !one.is_done()) {
            None => Ok(()),
            Some(stuck) => {
                let phase = plan.program.phases[stuck.phase].name.clone();
                Err(Corruption::Stuck { phase })
            }
        }
    }

    fn start(
        &mut self,
        phase: usize,
        task: &Task,
        steps: &[Vec<Step>],
        dims: &[u64],
    ) -> Result<(), Corruption> {
        for step in &steps[task.op.index()] {
            if step.access.mode.reads() {
                self.check_read(phase, task, step, dims)?;
            }
        }
        self.write(task, &steps[task.op.index()], dims)
    }

    fn end(
        &mut self,
        phase: usize,
        task: &Task,
        steps: &[Vec<Step>],
        dims: &[u64],
    ) -> Result<(), Corruption> {
        let steps = &steps[task.op.index()];
        let shard = (task.shard, task.shards);
        for step in steps {
            let slice = self.slice(&step.access, shard, dims);
            let place = self.place(step.access.tensor, &slice)?;
            if step.access.mode.writes() {
                if !holds_only(&self.arena, place, step.stamp) {
                    let (phase, op) = self.names(phase, task.op);
                    let tensor = self.name(step.access.tensor);
                    return Err(Corruption::Lost { phase, op, tensor });
                }
                continue;
            }
            let replaced = step.may_replace.iter().any(|output| {
                let output = &steps[*output].access;
                let onto = self.place(output.tensor, &self.slice(output, shard, dims));
                onto.is_ok_and(|onto| onto == place)
            });
            if !replaced {
                self.check_read(phase, task, step, dims)?;
            }
        }
        self.write(task, steps, dims)
    }

    fn write(&mut self, task: &Task, steps: &[Step], dims: &[u64]) -> Result<(), Corruption> {
        for step in steps {
            if step.access.mode.writes() {
                let slice = self.slice(&step.access, (task.shard, task.shards), dims);
                let place = self.place(step.access.tensor, &slice)?;
                self.arena.write(place, step.stamp);
            }
        }
        Ok(())
    }

    fn check_read(
        &self,
        phase: usize,
        task: &Task,
        step: &Step,
        dims: &[u64],
    ) -> Result<(), Corruption> {
        let slice = self.slice(&step.access, (task.shard, task.shards), dims);
        let place = self.place(step.access.tensor, &slice)?;
        if holds(&self.arena, place, &step.expected, &slice) {
            return Ok(());
        }
        let (phase, op) = self.names(phase, task.op);
        Err(Corruption::Read { phase, op, tensor: self.name(step.access.tensor) })
    }

    fn names(&self, phase: usize, op: OpId) -> (String, String) {
        let phase = &self.plan.program.phases[phase];
        (phase.name.clone(), phase.ops[op.index()].name.clone())
    }
}

/// A phase on its way.
struct Running<'p> {
    phase: usize,
    schedule: &'p Schedule,
    steps: Vec<Vec<Step>>,
    /// Tasks that have still to signal each event, and whether any does.
    pending: Vec<u32>,
    named: Vec<bool>,
    /// For each lane its next task, and whether that has been started.
    next: Vec<usize>,
    busy: Vec<bool>,
}

impl<'p> Running<'p> {
    fn new(phase: usize, schedule: &'p Schedule, steps: Vec<Vec<Step>>) -> Self {
        let lanes = schedule.lanes.len();
        let mut pending = vec![0u32; schedule.events as usize];
        for event in schedule.lanes.iter().flatten().filter_map(|task| task.signals) {
            pending[event.index()] += 1;
        }
        let named = pending.iter().map(|count| *count > 0).collect();
        let (next, busy) = (vec![0; lanes], vec![false; lanes]);
        Running { phase, schedule, steps, pending, named, next, busy }
    }

    fn can_start(&self, lane: usize) -> bool {
        let signalled = |event: &dctms_ir::EventId| {
            self.named[event.index()] && self.pending[event.index()] == 0
        };
        let task = self.schedule.lanes[lane].get(self.next[lane]);
        task.is_some_and(|task| task.waits.iter().all(signalled))
    }

    fn is_done(&self) -> bool {
        self.schedule.lanes.iter().zip(&self.next).all(|(tasks, next)| tasks.len() == *next)
    }
}

fn overlap(plan: &Plan, one: usize, other: usize) -> bool {
    let pairs = &plan.program.flow.overlap;
    pairs.iter().any(|(a, b)| {
        let pair = (a.index(), b.index());
        pair == (one, other) || pair == (other, one)
    })
}

/// A phase, and some that may follow before it ends: begun in this order, run at once.
fn beside(plan: &Plan, random: &mut Random, phase: usize) -> Vec<usize> {
    let mut phases = vec![phase];
    while phases.len() < 4 && !random.once_in(4) {
        let next = plan.program.flow.next[phases[phases.len() - 1]].iter();
        let next = next.map(|phase| phase.index());
        let may = |phase: &usize| phases.iter().any(|other| overlap(plan, *phase, *other));
        let candidates: Vec<usize> = next.filter(may).collect();
        if candidates.is_empty() {
            break;
        }
        phases.push(*random.pick(&candidates));
    }
    phases
}

/// Notes which reads of an operation its outputs may replace.
fn may_replace(op: &dctms_ir::Op, steps: &mut [Step]) {
    // Inputs that are also outputs were joined with them; the others stand first, in order.
    let inputs: Vec<u32> = (0u32..)
        .zip(&op.inputs)
        .filter(|(_, id)| !op.outputs.contains(id))
        .map(|(index, _)| index)
        .collect();
    for (output, input) in contract::may_in_place(&op.kind) {
        let Some(read) = inputs.iter().position(|index| index == input) else { continue };
        let write = inputs.len() + *output as usize;
        debug_assert!(steps[write].access.mode != Mode::Read);
        steps[read].may_replace.push(write);
    }
}

fn choose(
    random: &mut Random,
    policy: Policy,
    starts: &[usize],
    ends: &[usize],
    priority: &mut [usize],
) -> usize {
    match policy {
        Policy::Uniform => {
            let at = random.below(starts.len() + ends.len());
            if at < starts.len() { starts[at] } else { ends[at - starts.len()] }
        }
        Policy::Eager if !starts.is_empty() => *random.pick(starts),
        Policy::Serial if !ends.is_empty() => *random.pick(ends),
        Policy::Eager => *random.pick(ends),
        Policy::Serial => *random.pick(starts),
        Policy::Priorities => {
            if random.once_in(8) {
                let (a, b) = (random.below(priority.len()), random.below(priority.len()));
                priority.swap(a, b);
            }
            let enabled = |lane: &&usize| starts.contains(lane) || ends.contains(lane);
            *priority.iter().find(enabled).expect("an enabled lane")
        }
    }
}

fn holds(arena: &Shadow, place: Range<u64>, own: &Shadow, slice: &Range<u64>) -> bool {
    arena.read(place) == own.read(slice.clone())
}

fn holds_only(arena: &Shadow, place: Range<u64>, stamp: Stamp) -> bool {
    let runs: Runs = arena.read(place);
    runs.iter().all(|(_, found)| *found == stamp)
}
