//! Random plans of a program, right by construction: every order that the data need is there,
//! and bytes are shared only where a plain reading of the rules allows it.
//!
//! Everything is computed the slow way, from pairs of tasks and walks through the flow, so that
//! it can serve as a second opinion on the checker: what is made here must be accepted.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::contract::{self, Access, Mode, slices_disjoint};
use dctms_ir::limits::ALIGNMENT_BYTES;
use dctms_ir::plan::{
    ArenaFigures, Bounds, ColourBuffer, Concurrency, Cost, Envelope, Interval, Machine, Placement,
    Plan, RuntimeBytes, Schedule, Summary, Task,
};
use dctms_ir::program::Program;
use dctms_ir::tensor::Term;
use dctms_ir::{Dtype, EventId, OpId, Residence, TensorId};

use crate::generate::SHARDS_MAX;
use crate::random::Random;

/// A random right plan.
#[must_use]
pub fn plan(random: &mut Random, mut program: Program, lanes: usize) -> Plan {
    assert!(lanes as u64 <= SHARDS_MAX);
    let woven: Vec<Woven> =
        (0..program.phases.len()).map(|phase| weave(random, &program, phase, lanes)).collect();
    let mut placer = Placer::new(&program, &woven);
    let in_place = placer.choose_in_place(random);
    let offsets = placer.place(random);
    for ((phase, op), pairs) in in_place {
        program.phases[phase].ops[op].in_place = pairs;
    }
    let schedules = woven.into_iter().map(|woven| woven.schedule).collect();
    figures(random, program, schedules, &offsets, lanes)
}

/// A task of a phase, in an order that respects all waits.
struct Placed {
    op: usize,
    shard: (u32, u32),
    lane: usize,
    position: usize,
    /// Tasks done before it starts, by index.
    before: BTreeSet<usize>,
}

/// A schedule with everything that is known of it.
struct Woven {
    schedule: Schedule,
    tasks: Vec<Placed>,
    accesses: Vec<Vec<Access>>,
}

fn conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.tensor == b.tensor && (a.mode.writes() || b.mode.writes())))
}

fn weave(random: &mut Random, program: &Program, phase: usize, lanes: usize) -> Woven {
    let ops = &program.phases[phase].ops;
    let accesses: Vec<Vec<Access>> =
        ops.iter().map(|op| contract::accesses(op).expect("operands are right")).collect();
    let mut order: Vec<usize> = (0..ops.len()).collect();
    for _ in 0..ops.len() * 4 {
        if ops.len() < 2 {
            break;
        }
        let at = random.below(ops.len() - 1);
        if !conflict(&accesses[order[at]], &accesses[order[at + 1]]) {
            order.swap(at, at + 1);
        }
    }
    let mut schedule = Schedule { lanes: vec![Vec::new(); lanes], events: 0 };
    let mut tasks: Vec<Placed> = Vec::new();
    let mut signallers: Vec<Vec<usize>> = Vec::new();
    for op in order {
        let shards = match contract::shardable(&ops[op].kind) {
            true => random.between(1, lanes as u64) as u32,
            false => 1,
        };
        let mut seats: Vec<usize> = (0..lanes).collect();
        random.shuffle(&mut seats);
        for shard in 0..shards {
            let lane = match random.once_in(5) {
                true => random.below(lanes),
                false => seats[shard as usize],
            };
            let previous = tasks.iter().rposition(|task| task.lane == lane);
            let mut before = BTreeSet::new();
            let join = |before: &mut BTreeSet<usize>, tasks: &[Placed], index: usize| {
                before.extend(tasks[index].before.iter().copied());
                before.insert(index);
            };
            if let Some(previous) = previous {
                join(&mut before, &tasks, previous);
            }
            let mut waits = Vec::new();
            for earlier in (0..tasks.len()).rev() {
                let needed = tasks[earlier].op != op
                    && accesses[tasks[earlier].op].iter().any(|a| {
                        accesses[op].iter().any(|b| {
                            a.tensor == b.tensor
                                && (a.mode.writes() || b.mode.writes())
                                && !slices_disjoint(
                                    a.split,
                                    tasks[earlier].shard,
                                    b.split,
                                    (shard, shards),
                                )
                        })
                    });
                // Now and then an order that nothing needs, so that some plans are looser or
                // tighter than others.
                let wanted = needed || random.once_in(40);
                if !wanted || before.contains(&earlier) {
                    continue;
                }
                let event = event_of(random, &mut schedule, &tasks, &mut signallers, earlier, op);
                waits.push(EventId::of(event));
                for signaller in signallers[event].clone() {
                    join(&mut before, &tasks, signaller);
                }
            }
            let position = schedule.lanes[lane].len();
            schedule.lanes[lane].push(Task {
                op: OpId::of(op),
                shard,
                shards,
                waits,
                signals: None,
            });
            tasks.push(Placed { op, shard: (shard, shards), lane, position, before });
        }
    }
    Woven { schedule, tasks, accesses }
}

/// The event of a task, made when it has none: its own, or one for its whole operation.
fn event_of(
    random: &mut Random,
    schedule: &mut Schedule,
    tasks: &[Placed],
    signallers: &mut Vec<Vec<usize>>,
    task: usize,
    for_op: usize,
) -> usize {
    if let Some(event) = signallers.iter().position(|list| list.contains(&task)) {
        return event;
    }
    let free = |index: &usize| !signallers.iter().any(|list| list.contains(index));
    let list: Vec<usize> = match random.once_in(2) && tasks[task].op != for_op {
        true => (0..tasks.len())
            .filter(|other| tasks[*other].op == tasks[task].op)
            .filter(free)
            .collect(),
        false => vec![task],
    };
    for index in &list {
        let placed = &tasks[*index];
        schedule.lanes[placed.lane][placed.position].signals = Some(EventId(schedule.events));
    }
    schedule.events += 1;
    signallers.push(list);
    signallers.len() - 1
}

struct Placer<'p> {
    program: &'p Program,
    woven: &'p [Woven],
    /// Sets of tensors at one offset.
    classes: Vec<Vec<TensorId>>,
    /// Used pairs (input, output) by phase and operation.
    pairs: BTreeSet<(TensorId, TensorId)>,
    bytes: Vec<u64>,
}

/// Used pairs (output index, input index) by (phase, operation).
type InPlace = BTreeMap<(usize, usize), Vec<(u32, u32)>>;

impl<'p> Placer<'p> {
    fn new(program: &'p Program, woven: &'p [Woven]) -> Self {
        let dims = program.dims_max();
        let bytes = program.tensors.iter().map(|t| t.size.value(&dims).expect("small")).collect();
        let used: BTreeSet<TensorId> = woven
            .iter()
            .flat_map(|woven| woven.accesses.iter().flatten())
            .map(|access| access.tensor)
            .collect();
        let classes = used.into_iter().map(|id| vec![id]).collect();
        Placer { program, woven, classes, pairs: BTreeSet::new(), bytes }
    }

    /// (task, operation, mode) of every access of a tensor in a phase.
    fn touches(&self, phase: usize, id: TensorId) -> Vec<(usize, usize, Mode)> {
        let woven = &self.woven[phase];
        let mut result = Vec::new();
        for (index, task) in woven.tasks.iter().enumerate() {
            for access in woven.accesses[task.op].iter().filter(|access| access.tensor == id) {
                result.push((index, task.op, access.mode));
            }
        }
        result
    }

    /// Every access of `a` before every write of `b`; accesses of `except` set aside.
    fn precedes(&self, phase: usize, a: TensorId, b: TensorId, except: Option<usize>) -> bool {
        let tasks = &self.woven[phase].tasks;
        let writes = self.touches(phase, b);
        self.touches(phase, a).iter().all(|(x, x_op, _)| {
            writes.iter().filter(|(_, _, mode)| mode.writes()).all(|(w, w_op, _)| {
                (except == Some(*x_op) && except == Some(*w_op)) || tasks[*w].before.contains(x)
            })
        })
    }

    fn first_touch(&self, phase: usize, id: TensorId) -> Option<Mode> {
        let accesses = self.woven[phase].accesses.iter().flatten();
        accesses.into_iter().find(|access| access.tensor == id).map(|access| access.mode)
    }

    fn is_written(&self, phase: usize, id: TensorId) -> bool {
        let accesses = self.woven[phase].accesses.iter().flatten();
        accesses.into_iter().any(|access| access.tensor == id && access.mode.writes())
    }

    fn is_read(&self, id: TensorId) -> bool {
        let all = self.woven.iter().flat_map(|woven| woven.accesses.iter().flatten());
        all.into_iter().any(|access| access.tensor == id && access.mode.reads())
    }

    /// Whether some walk from the start of a phase meets a read of the tensor before a write.
    fn live_at_start(&self, phase: usize, id: TensorId) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = vec![phase];
        while let Some(phase) = open.pop() {
            if !seen.insert(phase) {
                continue;
            }
            match self.first_touch(phase, id) {
                Some(mode) if mode.reads() => return true,
                Some(_) => {}
                None => open.extend(self.program.flow.next[phase].iter().map(|next| next.index())),
            }
        }
        false
    }

    fn lives_through(&self, phase: usize, id: TensorId) -> bool {
        let for_host =
            self.program.tensor(id).residence == Residence::External || !self.is_read(id);
        let next = &self.program.flow.next[phase];
        for_host
            || self.live_at_start(phase, id)
            || next.iter().any(|next| self.live_at_start(next.index(), id))
    }

    /// Whether two tensors may share bytes.
    fn may_share(&self, a: TensorId, b: TensorId) -> bool {
        let lasting = |id: TensorId| self.program.tensor(id).phase.is_none();
        let host = |id: TensorId| {
            matches!(self.program.tensor(id).residence, Residence::External | Residence::State)
        };
        if lasting(a) && lasting(b) && (host(a) && host(b) || self.is_external(a, b)) {
            return false;
        }
        // Constants may be read at any time once they are written.
        if [a, b].into_iter().any(|id| self.program.tensor(id).residence == Residence::Constant) {
            return false;
        }
        let clash = |(p, q): (usize, usize)| {
            [(a, b), (b, a)].into_iter().any(|(a, b)| {
                self.first_touch(p, a).is_some()
                    && self.first_touch(q, b).is_some()
                    && (self.is_written(p, a) || self.is_written(q, b))
            })
        };
        let overlap = &self.program.flow.overlap;
        if overlap.iter().any(|(p, q)| clash((p.index(), q.index()))) {
            return false;
        }
        (0..self.woven.len()).all(|phase| {
            let touched = [a, b].map(|id| self.first_touch(phase, id).is_some());
            for (kept, other) in [(a, b), (b, a)] {
                if lasting(kept) && self.lives_through(phase, kept) && self.is_written(phase, other)
                {
                    return false;
                }
            }
            if touched != [true, true] {
                return true;
            }
            let free = |id: TensorId| !lasting(id) || !self.lives_through(phase, id);
            if !free(a) || !free(b) {
                return true;
            }
            self.pairs.contains(&(a, b))
                || self.pairs.contains(&(b, a))
                || self.precedes(phase, a, b, None)
                || self.precedes(phase, b, a, None)
        })
    }

    fn is_external(&self, a: TensorId, b: TensorId) -> bool {
        [a, b].into_iter().any(|id| self.program.tensor(id).residence == Residence::External)
    }

    fn choose_in_place(&mut self, random: &mut Random) -> InPlace {
        let mut used = InPlace::new();
        for phase in 0..self.woven.len() {
            for op in 0..self.program.phases[phase].ops.len() {
                for pair in contract::may_in_place(&self.program.phases[phase].ops[op].kind) {
                    if random.below(3) > 0 && self.try_in_place(phase, op, *pair) {
                        used.entry((phase, op)).or_default().push(*pair);
                    }
                }
            }
        }
        used
    }

    fn try_in_place(&mut self, phase: usize, op: usize, pair: (u32, u32)) -> bool {
        let program = self.program;
        let operation = &program.phases[phase].ops[op];
        let output = operation.outputs[pair.0 as usize];
        let input = operation.inputs[pair.1 as usize];
        let (from, to) = (program.tensor(input), program.tensor(output));
        let alike = from.phase.is_some()
            && to.phase.is_some()
            && input != output
            && (from.dtype, &from.shape, &from.size) == (to.dtype, &to.shape, &to.size)
            && operation.inputs.iter().filter(|id| **id == input).count() == 1;
        if !alike || !self.precedes(phase, input, output, Some(op)) {
            return false;
        }
        let class_of = |id| self.classes.iter().position(|class| class.contains(&id));
        let (Some(a), Some(b)) = (class_of(input), class_of(output)) else { return false };
        if a == b || self.pairs.iter().any(|(from, to)| *from == input || *to == output) {
            return false;
        }
        self.pairs.insert((input, output));
        let fits =
            self.classes[a].iter().all(|x| self.classes[b].iter().all(|y| self.may_share(*x, *y)));
        if !fits {
            self.pairs.remove(&(input, output));
            return false;
        }
        let joined = self.classes[b].clone();
        self.classes[a].extend(joined);
        self.classes.remove(b);
        true
    }

    /// Gives every class an offset where it fits with all that stand.
    fn place(&self, random: &mut Random) -> BTreeMap<TensorId, u64> {
        let mut order: Vec<&Vec<TensorId>> = self.classes.iter().collect();
        random.shuffle(&mut order);
        let mut offsets: BTreeMap<TensorId, u64> = BTreeMap::new();
        for class in order {
            let bytes = self.bytes[class[0].index()];
            let conflicts: Vec<(u64, u64)> = offsets
                .iter()
                .filter(|(other, _)| class.iter().any(|id| !self.may_share(*id, **other)))
                .map(|(other, offset)| (*offset, offset + self.bytes[other.index()]))
                .collect();
            let mut candidates = vec![0];
            candidates
                .extend(conflicts.iter().map(|(_, end)| end.next_multiple_of(ALIGNMENT_BYTES)));
            candidates.push(random.between(0, 300) * ALIGNMENT_BYTES);
            candidates.retain(|at| {
                conflicts.iter().all(|(start, end)| *end <= *at || at + bytes <= *start)
            });
            let offset = match random.once_in(4) {
                true => *random.pick(&candidates),
                false => *candidates.iter().min().expect("after the last there is room"),
            };
            for id in class {
                offsets.insert(*id, offset);
            }
        }
        offsets
    }
}

fn figures(
    random: &mut Random,
    program: Program,
    schedules: Vec<Schedule>,
    offsets: &BTreeMap<TensorId, u64>,
    lanes: usize,
) -> Plan {
    let dims = program.dims_max();
    let mut placements: Vec<Placement> = program
        .tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| Placement {
            offset: offsets.get(&TensorId::of(index)).copied(),
            bytes: tensor.size.value(&dims).expect("small"),
            interval: None,
            buffer: None,
        })
        .collect();
    let end = |placement: &Placement| placement.offset.map_or(0, |offset| offset + placement.bytes);
    let arena_bytes =
        placements.iter().map(end).max().unwrap_or(0).next_multiple_of(ALIGNMENT_BYTES);
    intervals(&program, &mut placements);
    let buffers = colour(&program, &mut placements);
    let witness = witness(random, &program, &placements);
    let aligned = |id: &TensorId| placements[id.index()].bytes.next_multiple_of(ALIGNMENT_BYTES);
    let peak = witness.iter().map(aligned).sum();
    let summary = summary(&program, &placements);
    let terms = terms(&program, &placements, arena_bytes);
    let runtime = RuntimeBytes { heap: 4096, stacks: 8192, image: 100, io: 0 };
    let total = arena_bytes + runtime.total().expect("small");
    let phases = program.phases.len();
    Plan {
        bounds: Bounds {
            max_input_tokens: 4,
            max_output_tokens: 4,
            sequences: 1,
            prefill_chunk: 4,
            logit_rows: 1,
            kv_type: Dtype::F16,
            max_images: 0,
            max_image_tokens: 0,
        },
        machine: Machine {
            memory_bytes: 1 << 30,
            memory_source: "flag".to_string(),
            lanes: lanes as u32,
            isa: "scalar".to_string(),
            profile_sha256: "builtin".to_string(),
        },
        schedules,
        concurrency: vec![Concurrency::default(); phases],
        costs: program.phases.iter().map(|p| vec![Cost::default(); p.ops.len()]).collect(),
        predictions: Vec::new(),
        preference: Default::default(),
        orders: Vec::new(),
        variants: Vec::new(),
        regions: Vec::new(),
        gap: None,
        placements,
        buffers,
        arena: ArenaFigures {
            bytes: arena_bytes,
            alignment: ALIGNMENT_BYTES,
            live_peak_bytes: peak,
            witness,
            transient_bytes: arena_bytes,
            transient_live_peak_bytes: peak,
            transient_offset: 0,
        },
        summary,
        envelope: Envelope {
            weights: terms[0],
            kv: terms[1],
            persistent: terms[2],
            intermediate: terms[3],
            runtime,
            total,
            load_peak: total,
            hardware: 1 << 30,
            not_covered: Vec::new(),
        },
        program,
    }
}

pub(crate) fn intervals(program: &Program, placements: &mut [Placement]) {
    for phase in &program.phases {
        for (index, op) in (0u32..).zip(&phase.ops) {
            // A mutated program may break a contract; then its operands have no steps.
            for access in contract::accesses(op).unwrap_or_default() {
                let (tensor, id) = (program.tensor(access.tensor), access.tensor.index());
                if tensor.phase.is_some() {
                    let interval = placements[id].interval;
                    let first = interval.map_or(index, |interval| interval.first);
                    placements[id].interval = Some(Interval { first, last: index });
                }
            }
        }
    }
}

/// Colours the transients of each phase, in order of their first step.
fn colour(program: &Program, placements: &mut [Placement]) -> Vec<ColourBuffer> {
    let mut buffers: Vec<ColourBuffer> = Vec::new();
    for phase in 0..program.phases.len() {
        let mut ids: Vec<usize> = (0..placements.len())
            .filter(|id| program.tensors[*id].phase.is_some_and(|own| own.index() == phase))
            .filter(|id| placements[*id].interval.is_some())
            .collect();
        ids.sort_by_key(|id| placements[*id].interval.map(|interval| interval.first));
        let mut last = vec![None; buffers.len()];
        for id in ids {
            let interval = placements[id].interval.expect("kept above");
            let free = last.iter().position(|end| end.is_none_or(|end| end < interval.first));
            let buffer = free.unwrap_or_else(|| {
                buffers.push(ColourBuffer { bytes: 0 });
                last.push(None);
                last.len() - 1
            });
            last[buffer] = Some(interval.last);
            buffers[buffer].bytes = buffers[buffer].bytes.max(placements[id].bytes);
            placements[id].buffer = Some(buffer as u32);
        }
    }
    buffers
}

/// Transients that one operation touches together, none of them in place of another.
fn witness(random: &mut Random, program: &Program, placements: &[Placement]) -> Vec<TensorId> {
    let ops: Vec<_> = program.phases.iter().flat_map(|phase| &phase.ops).collect();
    let op = *random.pick(&ops);
    let mut ids: BTreeSet<TensorId> = contract::accesses(op)
        .expect("operands are right")
        .iter()
        .map(|access| access.tensor)
        .filter(|id| program.tensor(*id).phase.is_some())
        .collect();
    for (output, _) in &op.in_place {
        ids.remove(&op.outputs[*output as usize]);
    }
    let has_bytes = |id: &TensorId| placements[id.index()].bytes > 0;
    ids.into_iter().filter(has_bytes).collect()
}

fn summary(program: &Program, placements: &[Placement]) -> Summary {
    let mut counts: BTreeMap<usize, (u64, BTreeSet<u32>, u64)> = BTreeMap::new();
    for (tensor, placement) in program.tensors.iter().zip(placements) {
        if let (Some(phase), Some(buffer)) = (tensor.phase, placement.buffer) {
            let (tensors, buffers, bytes) = counts.entry(phase.index()).or_default();
            *tensors += 1;
            buffers.insert(buffer);
            *bytes += placement.bytes;
        }
    }
    let most = counts.into_values().max_by_key(|(tensors, _, _)| *tensors).unwrap_or_default();
    Summary {
        logical_tensors: most.0,
        physical_buffers: most.1.len() as u64,
        sum_of_tensor_bytes: most.2,
    }
}

/// Each line of the arena counts for the first term that has a tensor on it.
fn terms(program: &Program, placements: &[Placement], arena_bytes: u64) -> [u64; 4] {
    let mut terms = [0u64; 4];
    for line in 0..arena_bytes / ALIGNMENT_BYTES {
        let (start, end) = (line * ALIGNMENT_BYTES, (line + 1) * ALIGNMENT_BYTES);
        let owners = program.tensors.iter().zip(placements).filter(|(_, placement)| {
            placement.offset.is_some_and(|at| at < end && start < at + placement.bytes)
        });
        let owner = owners.map(|(tensor, _)| tensor.term).min().unwrap_or(Term::Intermediate);
        terms[owner as usize] += ALIGNMENT_BYTES;
    }
    terms
}
