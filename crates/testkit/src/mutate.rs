//! Small changes that may spoil a plan: in space, in order, in the program's shape, in the
//! figures. Each says in words what it did. A mutant may still be right; whether it is, the
//! simulator and the checker must decide on their own.

use dctms_ir::contract;
use dctms_ir::limits::ALIGNMENT_BYTES;
use dctms_ir::plan::{Plan, Task};
use dctms_ir::{EventId, OpId, PhaseId, Residence, TensorId};

use crate::random::Random;

/// What a mutation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Another offset for a tensor.
    Offset,
    /// Two tensors at each other's places.
    SwapOffsets,
    /// More or fewer bytes for a tensor.
    Bytes,
    /// A wait less.
    DropWait,
    /// A wait for another event.
    MoveWait,
    /// A signal less.
    DropSignal,
    /// Another event signalled.
    MoveSignal,
    /// Two tasks of a lane in each other's place.
    SwapTasks,
    /// A task on another lane or at another place.
    MoveTask,
    /// Another shard or shard count, a task twice, or a task less.
    Shards,
    /// An in-place pair more or less.
    InPlace,
    /// A way through the flow more or less.
    Flow,
    /// A pair of phases that may run at the same time more or less.
    Overlap,
    /// Another operand.
    Operand,
    /// Two operations of the program in each other's place.
    SwapOps,
    /// Another grain.
    Grain,
    /// Another residence class or phase.
    Residence,
    /// Another size or shape.
    Size,
    /// A wrong figure of the arena, the witness, the colouring or the envelope.
    Figures,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 19] = [
        Kind::Offset,
        Kind::SwapOffsets,
        Kind::Bytes,
        Kind::DropWait,
        Kind::MoveWait,
        Kind::DropSignal,
        Kind::MoveSignal,
        Kind::SwapTasks,
        Kind::MoveTask,
        Kind::Shards,
        Kind::InPlace,
        Kind::Flow,
        Kind::Overlap,
        Kind::Operand,
        Kind::SwapOps,
        Kind::Grain,
        Kind::Residence,
        Kind::Size,
        Kind::Figures,
    ];
}

/// Changes a plan; `None` when it has nothing that this kind could change.
pub fn mutate(random: &mut Random, plan: &mut Plan, kind: Kind) -> Option<String> {
    match kind {
        Kind::Offset => offset(random, plan),
        Kind::SwapOffsets => swap_offsets(random, plan),
        Kind::Bytes => bytes(random, plan),
        Kind::DropWait | Kind::MoveWait => wait(random, plan, kind),
        Kind::DropSignal | Kind::MoveSignal => signal(random, plan, kind),
        Kind::SwapTasks => swap_tasks(random, plan),
        Kind::MoveTask => move_task(random, plan),
        Kind::Shards => shards(random, plan),
        Kind::InPlace => in_place(random, plan),
        Kind::Flow => flow(random, plan),
        Kind::Overlap => overlap(random, plan),
        Kind::Operand => operand(random, plan),
        Kind::SwapOps => swap_ops(random, plan),
        Kind::Grain => grain(random, plan),
        Kind::Residence => residence(random, plan),
        Kind::Size => size(random, plan),
        Kind::Figures => figures(random, plan),
    }
}

fn placed(plan: &Plan) -> Vec<usize> {
    (0..plan.placements.len()).filter(|id| plan.placements[*id].offset.is_some()).collect()
}

fn offset(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let ids = placed(plan);
    if ids.is_empty() {
        return None;
    }
    let (id, other) = (*random.pick(&ids), *random.pick(&ids));
    let old = plan.placements[id].offset?;
    let room = plan.arena.bytes.saturating_sub(plan.placements[id].bytes) / ALIGNMENT_BYTES;
    let new = match random.below(5) {
        0 => plan.placements[other].offset?,
        1 => old.wrapping_add(ALIGNMENT_BYTES),
        2 => old.saturating_sub(ALIGNMENT_BYTES * random.between(1, 8)),
        3 => random.between(0, room) * ALIGNMENT_BYTES,
        _ => old ^ random.between(1, 63),
    };
    plan.placements[id].offset = Some(new);
    Some(format!("{} from {old} to {new}", plan.program.tensors[id].name))
}

fn swap_offsets(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let ids = placed(plan);
    if ids.len() < 2 {
        return None;
    }
    let (a, b) = (*random.pick(&ids), *random.pick(&ids));
    let first = plan.placements[a].offset;
    plan.placements[a].offset = plan.placements[b].offset;
    plan.placements[b].offset = first;
    let name = |id: usize| &plan.program.tensors[id].name;
    Some(format!("{} and {} swapped", name(a), name(b)))
}

fn bytes(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let ids = placed(plan);
    if ids.is_empty() {
        return None;
    }
    let id = *random.pick(&ids);
    let placement = &mut plan.placements[id];
    placement.bytes = match random.below(4) {
        0 => placement.bytes.saturating_sub(1),
        1 => placement.bytes / 2,
        2 => placement.bytes + ALIGNMENT_BYTES,
        _ => placement.bytes * 2,
    };
    Some(format!("{} now of {} bytes", plan.program.tensors[id].name, placement.bytes))
}

/// (phase, lane, position) of the tasks that a test picks.
fn tasks(plan: &Plan, wanted: impl Fn(&Task) -> bool) -> Vec<(usize, usize, usize)> {
    let mut result = Vec::new();
    for (phase, schedule) in plan.schedules.iter().enumerate() {
        for (lane, list) in schedule.lanes.iter().enumerate() {
            for (position, task) in list.iter().enumerate() {
                if wanted(task) {
                    result.push((phase, lane, position));
                }
            }
        }
    }
    result
}

fn wait(random: &mut Random, plan: &mut Plan, kind: Kind) -> Option<String> {
    let seats = tasks(plan, |task| !task.waits.is_empty());
    if seats.is_empty() {
        return None;
    }
    let seat = *random.pick(&seats);
    let events = plan.schedules[seat.0].events as usize;
    let task = &mut plan.schedules[seat.0].lanes[seat.1][seat.2];
    let which = random.below(task.waits.len());
    if kind == Kind::DropWait {
        task.waits.remove(which);
    } else {
        task.waits[which] = EventId::of(random.below(events));
    }
    Some(format!("waits of task {seat:?} now {:?}", task.waits))
}

fn signal(random: &mut Random, plan: &mut Plan, kind: Kind) -> Option<String> {
    let seats = tasks(plan, |task| task.signals.is_some());
    if seats.is_empty() {
        return None;
    }
    let seat = *random.pick(&seats);
    let schedule = &mut plan.schedules[seat.0];
    let event = match kind == Kind::DropSignal {
        true => None,
        false => Some(EventId::of(random.below(schedule.events as usize))),
    };
    schedule.lanes[seat.1][seat.2].signals = event;
    // Now and then on another task of the operation, so that the event is still signalled.
    if kind == Kind::MoveSignal && random.once_in(2) {
        let lane = random.below(schedule.lanes.len());
        if let Some(last) = schedule.lanes[lane].last_mut() {
            last.signals = last.signals.or(event);
        }
    }
    Some(format!("task {seat:?} now signals {event:?}"))
}

fn swap_tasks(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, lane) = long_lane(random, plan)?;
    let list = &mut plan.schedules[phase].lanes[lane];
    let a = random.below(list.len() - 1);
    let b = if random.once_in(2) { a + 1 } else { random.below(list.len()) };
    list.swap(a, b);
    // The orders may stay with the places or go with the tasks.
    if random.once_in(2) {
        let waits = std::mem::take(&mut list[a].waits);
        list[a].waits = std::mem::replace(&mut list[b].waits, waits);
        let signals = list[a].signals.take();
        list[a].signals = list[b].signals.take();
        list[b].signals = signals;
    }
    Some(format!("tasks {a} and {b} of lane {lane}, phase {phase}, swapped"))
}

fn long_lane(random: &mut Random, plan: &Plan) -> Option<(usize, usize)> {
    let mut lanes = Vec::new();
    for (phase, schedule) in plan.schedules.iter().enumerate() {
        for (lane, list) in schedule.lanes.iter().enumerate() {
            if list.len() > 1 {
                lanes.push((phase, lane));
            }
        }
    }
    if lanes.is_empty() { None } else { Some(*random.pick(&lanes)) }
}

fn move_task(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, lane) = long_lane(random, plan)?;
    let schedule = &mut plan.schedules[phase];
    let from = random.below(schedule.lanes[lane].len());
    let mut task = schedule.lanes[lane].remove(from);
    if random.once_in(3) {
        task.waits.clear();
    }
    let onto = random.below(schedule.lanes.len());
    let to = match random.once_in(2) {
        true => from.min(schedule.lanes[onto].len()),
        false => random.below(schedule.lanes[onto].len() + 1),
    };
    schedule.lanes[onto].insert(to, task);
    Some(format!("task {from} of lane {lane}, phase {phase}, now {to} of lane {onto}"))
}

fn shards(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let seats = tasks(plan, |_| true);
    if seats.is_empty() {
        return None;
    }
    let seat = *random.pick(&seats);
    let list = &mut plan.schedules[seat.0].lanes[seat.1];
    let task = &mut list[seat.2];
    match random.below(5) {
        0 => task.shard = random.below(4) as u32,
        1 => task.shards = random.below(5) as u32,
        2 => {
            list.remove(seat.2);
        }
        3 => {
            let again = Task { signals: None, ..task.clone() };
            list.push(again);
        }
        _ => {
            // Two pieces instead of one, on one lane.
            if task.shards != 1 {
                return None;
            }
            (task.shard, task.shards) = (0, 2);
            let other = Task { shard: 1, ..task.clone() };
            list.insert(seat.2, other);
        }
    }
    Some(format!("shards at task {seat:?}"))
}

/// A phase and an operation.
fn any_op(random: &mut Random, plan: &Plan) -> Option<(usize, usize)> {
    let phases: Vec<usize> = (0..plan.program.phases.len())
        .filter(|phase| !plan.program.phases[*phase].ops.is_empty())
        .collect();
    if phases.is_empty() {
        return None;
    }
    let phase = *random.pick(&phases);
    Some((phase, random.below(plan.program.phases[phase].ops.len())))
}

fn in_place(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, index) = any_op(random, plan)?;
    let op = &mut plan.program.phases[phase].ops[index];
    let mut moved = None;
    match op.in_place.pop() {
        Some(pair) if random.once_in(2) => moved = Some(pair),
        Some(pair) => {
            // The same pair at other bytes, or another input.
            op.in_place.push((pair.0, random.below(3) as u32));
        }
        None => {
            let allowed = contract::may_in_place(&op.kind);
            let pair = match allowed.is_empty() || random.once_in(4) {
                true => (0, random.below(3) as u32),
                false => *random.pick(allowed),
            };
            op.in_place.push(pair);
            let output = *op.outputs.get(pair.0 as usize)?;
            let input = *op.inputs.get(pair.1 as usize)?;
            plan.placements[output.index()].offset = plan.placements[input.index()].offset;
        }
    }
    Some(format!(
        "in-place pairs of {}, dropped {moved:?}",
        plan.program.phases[phase].ops[index].name
    ))
}

fn flow(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let phases = plan.program.phases.len();
    let flow = &mut plan.program.flow;
    let (from, to) = (random.below(phases), PhaseId::of(random.below(phases)));
    match random.below(4) {
        0 => flow.entry.push(to),
        1 => {
            let count = flow.next[from].len();
            if count == 0 {
                return None;
            }
            flow.next[from].remove(random.below(count));
        }
        _ => flow.next[from].push(to),
    }
    Some(format!("flow between {from} and {to:?}"))
}

fn overlap(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let phases = plan.program.phases.len();
    let pairs = &mut plan.program.flow.overlap;
    if !pairs.is_empty() && random.once_in(3) {
        let gone = pairs.remove(random.below(pairs.len()));
        return Some(format!("{gone:?} no longer overlap"));
    }
    let pair = (PhaseId::of(random.below(phases)), PhaseId::of(random.below(phases)));
    pairs.push(pair);
    Some(format!("{pair:?} overlap"))
}

fn operand(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, index) = any_op(random, plan)?;
    let program = &plan.program;
    let op = &program.phases[phase].ops[index];
    let total = op.inputs.len() + op.outputs.len() + op.workspace.len();
    let which = random.below(total);
    let all: Vec<TensorId> =
        op.inputs.iter().chain(&op.outputs).chain(&op.workspace).copied().collect();
    let old = program.tensor(all[which]);
    // Of the same layout mostly, so that the change is one of time and place.
    let alike: Vec<TensorId> = (0..program.tensors.len())
        .map(TensorId::of)
        .filter(|id| {
            let other = program.tensor(*id);
            other.dtype == old.dtype && other.shape == old.shape
        })
        .collect();
    let new = match random.once_in(6) {
        true => TensorId::of(random.below(program.tensors.len())),
        false => *random.pick(&alike),
    };
    let op = &mut plan.program.phases[phase].ops[index];
    let (inputs, outputs) = (op.inputs.len(), op.outputs.len());
    match which {
        which if which < inputs => op.inputs[which] = new,
        which if which < inputs + outputs => op.outputs[which - inputs] = new,
        which => op.workspace[which - inputs - outputs] = new,
    }
    refresh_intervals(plan);
    Some(format!("operand {which} of {index} in phase {phase}"))
}

fn swap_ops(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, a) = any_op(random, plan)?;
    let ops = &mut plan.program.phases[phase].ops;
    let b = if random.once_in(2) { (a + 1) % ops.len() } else { random.below(ops.len()) };
    ops.swap(a, b);
    // The schedule still runs each operation where it ran before.
    for task in plan.schedules[phase].lanes.iter_mut().flatten() {
        let op = task.op.index();
        if op == a || op == b {
            task.op = OpId::of(a + b - op);
        }
    }
    refresh_intervals(plan);
    Some(format!("operations {a} and {b} of phase {phase} swapped"))
}

/// Makes the intervals true again and takes the colouring away, so that a changed program is
/// judged by its order and places.
fn refresh_intervals(plan: &mut Plan) {
    for placement in &mut plan.placements {
        placement.interval = None;
        placement.buffer = None;
    }
    plan.buffers.clear();
    plan.summary = dctms_ir::plan::Summary::default();
    crate::arrange::intervals(&plan.program, &mut plan.placements);
}

fn grain(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let (phase, index) = any_op(random, plan)?;
    let op = &mut plan.program.phases[phase].ops[index];
    op.grain = match random.below(3) {
        0 => op.grain * 2,
        1 => op.grain / 2,
        _ => random.between(0, 256),
    };
    Some(format!("grain of {} now {}", op.name, op.grain))
}

fn residence(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let phases = plan.program.phases.len();
    let index = random.below(plan.program.tensors.len());
    let tensor = &mut plan.program.tensors[index];
    match random.below(3) {
        0 => tensor.residence = *random.pick(&Residence::ALL),
        1 => {
            // A consistent change: the value now has to last.
            tensor.residence = *random.pick(&[Residence::Carried, Residence::Constant]);
            tensor.phase = None;
            plan.placements[index].interval = None;
            refresh_intervals(plan);
        }
        _ => tensor.phase = Some(PhaseId::of(random.below(phases))),
    }
    Some(format!("residence of {}", plan.program.tensors[index].name))
}

fn size(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let tensor = random.below(plan.program.tensors.len());
    let tensor = &mut plan.program.tensors[tensor];
    let axis = random.below(tensor.shape.len().max(1));
    match random.below(3) {
        0 => tensor.size = tensor.size.times(2),
        1 => {
            let extent = tensor.shape.get_mut(axis)?;
            *extent = extent.times(2);
        }
        _ => tensor.size = dctms_ir::Size::Const(random.between(0, 8192)),
    }
    Some(format!("size of {}", tensor.name))
}

fn figures(random: &mut Random, plan: &mut Plan) -> Option<String> {
    let other = TensorId::of(random.below(plan.placements.len()));
    let index = random.below(plan.placements.len());
    let arena = &mut plan.arena;
    let choice = random.below(12);
    match choice {
        0 => arena.witness.push(other),
        1 => drop(arena.witness.pop()?),
        2 => arena.live_peak_bytes += ALIGNMENT_BYTES,
        3 => arena.transient_live_peak_bytes /= 2,
        4 => arena.bytes = arena.bytes.saturating_sub(ALIGNMENT_BYTES * random.between(1, 40)),
        5 => arena.alignment = *random.pick(&[0, 1, 32, 96, 128, 4096]),
        6 => arena.transient_offset += ALIGNMENT_BYTES,
        7 => plan.envelope.total = plan.envelope.total.wrapping_sub(1),
        8 => {
            let envelope = &mut plan.envelope;
            let moved = envelope.weights.min(ALIGNMENT_BYTES * random.between(1, 100));
            envelope.weights -= moved;
            envelope.intermediate += moved;
        }
        9 => plan.buffers.first_mut()?.bytes += ALIGNMENT_BYTES,
        10 => plan.placements[index].buffer = plan.placements[other.index()].buffer,
        _ => plan.placements[index].interval = plan.placements[other.index()].interval,
    }
    Some(format!("figure {choice}"))
}
