//! Each rule of the plan format with an example made by hand that breaks it, and nothing before it.

mod example;

use dctms_ir::plan::{Plan, Task};
use dctms_ir::{EventId, OpId, PhaseId, Residence, Size, TensorId};
use dctms_verifier::{Rule, verify};
use example::{LOAD, SLOT_BYTES, STEP, colour, id, op, plan, put_on, steps};

/// Changes the example and expects a violation of a rule whose text has a part.
fn refuse(rule: Rule, part: &str, change: impl FnOnce(&mut Plan)) {
    let mut plan = plan();
    change(&mut plan);
    let violations = verify(&plan.program, &plan).expect_err(part);
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        violations.iter().zip(&texts).any(|(v, text)| v.rule == rule && text.contains(part)),
        "expected {rule:?} with {part:?}, found {texts:#?}"
    );
}

fn accept(change: impl FnOnce(&mut Plan)) {
    let mut plan = plan();
    change(&mut plan);
    if let Err(violations) = verify(&plan.program, &plan) {
        panic!("{:#?}", violations.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}

/// The task of an operation's shard in the step phase.
fn task<'p>(plan: &'p mut Plan, name: &str, shard: u32) -> &'p mut Task {
    let index = OpId::of(op(plan, name));
    let tasks = plan.schedules[STEP].lanes.iter_mut().flatten();
    tasks.into_iter().find(|task| task.op == index && task.shard == shard).expect("a task")
}

#[test]
fn the_example_is_right() {
    let plan = plan();
    let certificate = verify(&plan.program, &plan).unwrap_or_else(|violations| {
        panic!("{:#?}", violations.iter().map(ToString::to_string).collect::<Vec<_>>())
    });
    assert!(certificate.is_of(&plan));
    assert_eq!(certificate.arena_len_bytes(), plan.arena.bytes);
    let mut other = plan.clone();
    other.arena.witness.reverse();
    assert!(!certificate.is_of(&other));
}

/// Appendix B: the paper puts Q, the attention output and the MLP intermediate into buffer A.
/// Attention is read when the MLP is written, so those two overlap; three buffers are enough all
/// the same.
#[test]
fn appendix_b_has_three_buffers_but_not_the_papers() {
    refuse(Rule::R8, "two tenants live at the same step", |plan| {
        colour(plan, &[("q", 0), ("attn", 0), ("mlp", 0), ("k", 1), ("v", 2)]);
    });
    accept(|plan| colour(plan, &[("q", 0), ("attn", 0), ("k", 1), ("mlp", 1), ("v", 2)]));
    // K and the attention output overlap too.
    refuse(Rule::R8, "two tenants live at the same step", |plan| {
        colour(plan, &[("k", 0), ("attn", 0), ("q", 1), ("v", 2), ("mlp", 2)]);
    });
    // In bytes the paper's assignment is a race, whatever the colouring says.
    refuse(Rule::R2, "attn and mlp share bytes", |plan| put_on(plan, "mlp", "attn"));
}

#[test]
fn another_program_is_refused() {
    let plan = plan();
    let mut program = plan.program.clone();
    program.tensors[0].name.push('x');
    let violations = verify(&program, &plan).expect_err("another program");
    assert_eq!(violations[0].rule, Rule::Form);
}

#[test]
fn r1_a_read_needs_a_write_before_it() {
    refuse(Rule::R1, "step/norm: reads mlp", |plan| {
        let (index, mlp) = (op(plan, "norm"), id(plan, "mlp"));
        plan.program.phases[STEP].ops[index].inputs[0] = mlp;
        steps(plan);
    });
}

#[test]
fn r2_conflicting_accesses_are_ordered() {
    // Read after write.
    refuse(Rule::R2, "step/norm must be done before step/keys", |plan| {
        task(plan, "keys", 1).waits.clear();
    });
    // Write after read: attention is done with the queries' bytes long before; without the wait
    // of `up`, its writes over the keys race with attention's reads.
    refuse(Rule::R2, "k and mlp share bytes", |plan| task(plan, "up", 0).waits.clear());
    // A lane's own order is enough between shards that are cut alike.
    accept(|plan| task(plan, "scores", 0).waits.clear());
    // Scratch that is an input.
    refuse(Rule::R2, "step/sample: out: written and touched by another operand", |plan| {
        let (index, out) = (op(plan, "sample"), id(plan, "out"));
        plan.program.phases[STEP].ops[index].workspace[0] = out;
    });
}

/// Phases that may run at the same time are ordered by nothing.
#[test]
fn r2_phases_that_overlap_touch_no_common_bytes() {
    let overlap = |plan: &mut Plan, pair: (usize, usize)| {
        plan.program.flow.overlap.push((PhaseId::of(pair.0), PhaseId::of(pair.1)));
    };
    // Loading writes what a step reads.
    refuse(Rule::R2, "load beside step", |plan| overlap(plan, (LOAD, STEP)));
    refuse(Rule::R2, "step beside load", |plan| overlap(plan, (STEP, LOAD)));
    refuse(Rule::Form, "an unknown phase", |plan| overlap(plan, (STEP, 7)));
}

#[test]
fn r2_in_place_only_as_the_contract_allows() {
    let in_place = |plan: &mut Plan, name: &str, pair: (u32, u32)| {
        let index = op(plan, name);
        let op = &mut plan.program.phases[STEP].ops[index];
        op.in_place.push(pair);
        let (output, input) = (op.outputs[pair.0 as usize], op.inputs[pair.1 as usize]);
        // Away from the queries, where the example puts it.
        let attn = id(plan, "attn").index();
        plan.placements[attn].offset = Some(attn as u64 * SLOT_BYTES);
        plan.placements[output.index()].offset = plan.placements[input.index()].offset;
    };
    accept(|plan| in_place(plan, "scores", (0, 0)));
    refuse(Rule::R2, "q and s share bytes", |plan| put_on(plan, "s", "q"));
    refuse(Rule::R2, "the contract does not allow it", |plan| in_place(plan, "keys", (0, 0)));
    refuse(Rule::R2, "do not stand at the same bytes", |plan| {
        in_place(plan, "scores", (0, 0));
        put_on(plan, "s", "n");
    });
    // The residual is replaced while another shard still reads it whole.
    refuse(Rule::R2, "reads more of it than it overwrites", |plan| {
        in_place(plan, "attention", (0, 2));
        let index = op(plan, "attention");
        let op = &mut plan.program.phases[STEP].ops[index];
        op.inputs[0] = op.inputs[2];
        steps(plan);
    });
    // Somebody else still reads what is replaced.
    refuse(Rule::R2, "q and s share bytes", |plan| {
        in_place(plan, "scores", (0, 0));
        let (index, q) = (op(plan, "down"), id(plan, "q"));
        plan.program.phases[STEP].ops[index].inputs[0] = q;
        steps(plan);
    });
}

#[test]
fn r3_what_lives_on_is_not_overwritten() {
    refuse(Rule::R3, "writing s destroys matrix", |plan| put_on(plan, "s", "matrix"));
    refuse(Rule::R3, "writing s destroys state", |plan| put_on(plan, "s", "state"));
    // Nothing in the program reads what was sampled, but the host does.
    refuse(Rule::R3, "writing s destroys sampled", |plan| put_on(plan, "s", "sampled"));
    refuse(Rule::R3, "matrix: step may read it before any phase", |plan| {
        plan.program.flow.entry.push(dctms_ir::PhaseId(1));
    });
    refuse(Rule::R3, "s: lives in one phase if and only if it is transient", |plan| {
        let s = id(plan, "s");
        plan.program.tensors[s.index()].phase = None;
    });
    refuse(Rule::R3, "uses it outside its phase", |plan| {
        let s = id(plan, "s");
        plan.program.tensors[s.index()].phase = Some(dctms_ir::PhaseId(0));
    });
}

#[test]
fn r3_a_carried_value_lives_only_as_long_as_it_is_needed() {
    // `v` is now left for another round, which writes it before it reads it: no phase needs it
    // from outside, so its bytes may be reused inside the phase like a transient's.
    let carry = |plan: &mut Plan| {
        let v = id(plan, "v");
        let tensor = &mut plan.program.tensors[v.index()];
        (tensor.residence, tensor.phase) = (Residence::Carried, None);
        plan.placements[v.index()].interval = None;
        plan.placements[v.index()].buffer = None;
        colour(plan, &[("q", 0), ("attn", 0), ("k", 1), ("mlp", 1)]);
        plan.arena.witness.pop();
        plan.arena.live_peak_bytes = 2 * SLOT_BYTES;
        plan.arena.transient_live_peak_bytes = 2 * SLOT_BYTES;
    };
    accept(carry);
    accept(|plan| {
        carry(plan);
        put_on(plan, "picks", "v");
    });
    // Read before it is written: the value of the last round is needed, through the whole phase.
    refuse(Rule::R3, "writing picks destroys v", |plan| {
        carry(plan);
        put_on(plan, "picks", "v");
        let (norm, v) = (op(plan, "keys"), id(plan, "v"));
        plan.program.phases[STEP].ops[norm].inputs[0] = v;
        steps(plan);
    });
}

/// A constant may be lent to a reader beside any phase: it is written once, and nothing stands on
/// its bytes, be it in a phase after which nobody reads it.
#[test]
fn r3_a_constant_never_changes() {
    // A phase that runs last, when no phase needs a constant any more, and writes `late`.
    let last = |plan: &mut Plan| -> PhaseId {
        let rest = plan.program.add_phase("rest");
        plan.program.flow.next[STEP].push(rest);
        let mut op = plan.program.phases[LOAD].ops[0].clone();
        let (out, scratch) = (op.outputs[0], op.workspace[0]);
        let made = [(out, "late"), (scratch, "stage.late")].map(|(id, name)| {
            let mut tensor = plan.program.tensor(id).clone();
            (tensor.name, tensor.residence) = (name.to_string(), Residence::Transient);
            (tensor.phase, tensor.term) = (Some(rest), dctms_ir::tensor::Term::Intermediate);
            let mut placement = plan.placements[id.index()];
            placement.offset = Some(plan.arena.bytes);
            plan.arena.bytes += SLOT_BYTES;
            plan.placements.push(placement);
            plan.program.add_tensor(tensor)
        });
        (op.outputs, op.workspace) = (vec![made[0]], vec![made[1]]);
        op.name = "late".to_string();
        plan.program.phases[rest.index()].ops.push(op);
        let mut schedule = plan.schedules[LOAD].clone();
        schedule.lanes.iter_mut().for_each(|tasks| tasks.retain(|task| task.op.index() == 0));
        schedule.lanes.iter_mut().flatten().for_each(|task| task.signals = None);
        schedule.events = 0;
        plan.schedules.push(schedule);
        plan.concurrency.push(Default::default());
        plan.costs.push(vec![Default::default()]);
        plan.arena.transient_bytes = plan.arena.bytes;
        plan.envelope.intermediate += 2 * SLOT_BYTES;
        plan.envelope.total += 2 * SLOT_BYTES;
        plan.envelope.load_peak = plan.envelope.total;
        steps(plan);
        rest
    };
    accept(|plan| {
        last(plan);
    });
    for over in ["late", "stage.late"] {
        refuse(Rule::R3, &format!("writing {over} destroys matrix"), |plan| {
            last(plan);
            put_on(plan, over, "matrix");
        });
    }
    // Nor may the host be given its bytes, or another constant.
    refuse(Rule::R2, "state and matrix share bytes", |plan| put_on(plan, "matrix", "state"));
    refuse(Rule::R3, "writing vector destroys matrix", |plan| put_on(plan, "vector", "matrix"));
    // Written by a phase that comes again, and by another one.
    refuse(Rule::R3, "matrix: a constant that is written more than once", |plan| {
        plan.program.flow.next[STEP].push(PhaseId::of(LOAD));
    });
    refuse(Rule::R3, "matrix: a constant that is written more than once", |plan| {
        let rest = last(plan);
        let matrix = id(plan, "matrix");
        plan.program.phases[rest.index()].ops[0].outputs[0] = matrix;
        steps(plan);
    });
    // A value that comes and goes may.
    accept(|plan| {
        for name in ["matrix", "vector"] {
            let id = id(plan, name).index();
            plan.program.tensors[id].residence = Residence::Carried;
        }
        plan.program.flow.next[STEP].push(PhaseId::of(LOAD));
        last(plan);
        put_on(plan, "late", "matrix");
    });
}

#[test]
fn r4_a_state_stands_in_one_place() {
    refuse(Rule::R4, "two tensors are versions of it", |plan| {
        let mut again = plan.program.tensor(id(plan, "state")).clone();
        again.name = "state.again".to_string();
        plan.program.add_tensor(again);
        plan.placements.push(plan.placements[id(plan, "state").index()]);
    });
}

#[test]
fn r5_every_task_starts_and_every_shard_is_there_once() {
    refuse(Rule::R5, "step/keys: 1 tasks are not the shards", |plan| {
        plan.schedules[STEP].lanes[1].remove(2);
    });
    refuse(Rule::R5, "step/keys: 2 tasks are not the shards", |plan| {
        task(plan, "keys", 1).shard = 0;
    });
    refuse(Rule::R5, "load/vector: LoadVector cannot be cut", |plan| {
        let lane = &mut plan.schedules[LOAD].lanes[0];
        lane[1].shards = 2;
        let other = Task { shard: 1, ..lane[1].clone() };
        plan.schedules[LOAD].lanes[1].push(other);
    });
    refuse(Rule::R5, "step/norm: lane 0 waits for ever on event 4", |plan| {
        task(plan, "norm", 0).waits.push(EventId(4));
    });
    // An event is signalled when all that name it are done; here one of them stands behind the
    // waiter on its lane.
    refuse(Rule::R5, "step/keys: lane 1 waits for ever on event 1", |plan| {
        task(plan, "values", 1).signals = Some(EventId(1));
    });
    refuse(Rule::R5, "no task signals event 3", |plan| {
        task(plan, "values", 0).signals = None;
        task(plan, "values", 1).signals = None;
    });
}

#[test]
fn r6_bytes_are_enough_aligned_and_inside() {
    let set = |plan: &mut Plan, name: &str, offset: Option<u64>, bytes: u64| {
        let id = id(plan, name).index();
        plan.placements[id].offset = offset;
        plan.placements[id].bytes = bytes;
    };
    refuse(Rule::R6, "v: 1023 bytes, but its size", |plan| set(plan, "v", Some(0), 1023));
    refuse(Rule::R6, "is not a multiple of 64", |plan| set(plan, "v", Some(32), 1024));
    refuse(Rule::R6, "pass the arena", |plan| set(plan, "v", Some(plan.arena.bytes), 1024));
    refuse(Rule::R6, "pass the arena", |plan| set(plan, "v", Some(u64::MAX - 63), 1024));
    refuse(Rule::R6, "it has no place", |plan| set(plan, "v", None, 1024));
    refuse(Rule::R6, "its type and shape needs", |plan| {
        let v = id(plan, "v").index();
        plan.program.tensors[v].size = Size::Const(64);
        plan.placements[v].bytes = 64;
    });
    refuse(Rule::R6, "picks: 64 bytes a shard, the contract needs 128", |plan| {
        let picks = id(plan, "picks").index();
        plan.program.tensors[picks].size = Size::Const(64);
        plan.program.tensors[picks].shape = vec![Size::Const(64)];
    });
    refuse(Rule::R6, "alignment 32", |plan| plan.arena.alignment = 32);
    refuse(Rule::Contract, "axis 0 is not whole units", |plan| {
        let index = op(plan, "scores");
        plan.program.phases[STEP].ops[index].grain = 48;
    });
}

#[test]
fn r7_the_witness_shows_the_bound() {
    refuse(Rule::R7, "names q twice", |plan| {
        let q = id(plan, "q");
        plan.arena.witness.push(q);
    });
    refuse(Rule::R7, "live peak 3136, but the witness adds up to 3072", |plan| {
        plan.arena.live_peak_bytes += 64;
    });
    refuse(Rule::R7, "q and attn are not needed at once", |plan| {
        let attn = id(plan, "attn");
        plan.arena.witness[1] = attn;
        plan.arena.witness.swap(0, 1);
    });
    refuse(Rule::R7, "not all of one phase", |plan| {
        let stage = id(plan, "stage.vector");
        plan.arena.witness[1] = stage;
    });
    // What is written for the host alone lives on by no rule of the format.
    refuse(Rule::R7, "not all of one phase", |plan| {
        let sampled = id(plan, "sampled");
        plan.arena.witness.push(sampled);
    });
    accept(|plan| {
        let matrix = id(plan, "matrix");
        plan.arena.witness.push(matrix);
        plan.arena.live_peak_bytes += SLOT_BYTES;
    });
    refuse(Rule::R7, "bytes of the arena", |plan| plan.arena.live_peak_bytes = 1 << 40);
    refuse(Rule::R7, "is outside the transient region", |plan| {
        plan.arena.transient_offset = 10 * SLOT_BYTES;
        plan.arena.transient_bytes = 4 * SLOT_BYTES;
    });
    // A tensor blown up lifts the bound with it.
    refuse(Rule::R7, "q has more bytes than its size", |plan| {
        let q = id(plan, "q").index();
        plan.placements[q].bytes += 64;
        plan.arena.live_peak_bytes += 64;
        plan.arena.transient_live_peak_bytes += 64;
    });
}

#[test]
fn r8_colouring_and_envelope_are_true() {
    refuse(Rule::R8, "its largest tenant has 1024", |plan| plan.buffers[1].bytes = 2048);
    refuse(Rule::R8, "no such buffer", |plan| {
        plan.placements[TensorId(9).index()].buffer = Some(7);
    });
    refuse(Rule::R8, "but its operations give", |plan| {
        let v = id(plan, "v").index();
        plan.placements[v].interval.as_mut().expect("a transient").last -= 1;
    });
    refuse(Rule::R8, "counts no phase's colouring", |plan| plan.summary.physical_buffers -= 1);
    refuse(Rule::R8, "do not add up", |plan| plan.envelope.total += 1);
    refuse(Rule::R8, "are not", |plan| plan.envelope.weights += 64);
    refuse(Rule::R8, "load peak", |plan| plan.envelope.load_peak += 1);
    refuse(Rule::R8, "is not the machine's", |plan| plan.envelope.hardware += 1);
    refuse(Rule::R8, "weights 1024, but its tensors take 1088 bytes", |plan| {
        plan.envelope.weights -= SLOT_BYTES;
        plan.envelope.intermediate += SLOT_BYTES;
    });
    // Not fitting is reported by the envelope itself; it breaks no rule.
    accept(|plan| {
        plan.machine.memory_bytes = 1;
        plan.envelope.hardware = 1;
    });
}

#[test]
fn what_cannot_be_read_as_a_plan_is_refused_without_panic() {
    refuse(Rule::Form, "placements", |plan| plan.placements.truncate(3));
    refuse(Rule::Form, "schedules", |plan| drop(plan.schedules.pop()));
    refuse(Rule::Form, "flow rows", |plan| drop(plan.program.flow.next.pop()));
    refuse(Rule::Form, "an unknown phase", |plan| {
        plan.program.flow.entry.push(dctms_ir::PhaseId(9));
    });
    refuse(Rule::Form, "an unknown tensor", |plan| {
        plan.program.phases[STEP].ops[0].inputs[0] = TensorId(99);
    });
    refuse(Rule::Form, "an unknown operation", |plan| {
        task(plan, "keys", 0).op = OpId(99);
    });
    refuse(Rule::Form, "an unknown operation or event", |plan| {
        task(plan, "keys", 0).signals = Some(EventId(99));
    });
    refuse(Rule::R5, "events for", |plan| plan.schedules[STEP].events = u32::MAX);
    refuse(Rule::Form, "least value", |plan| plan.program.dims[0].min = 5);
    refuse(Rule::Contract, "takes 2 inputs", |plan| {
        plan.program.phases[STEP].ops[1].inputs.pop();
    });
}
