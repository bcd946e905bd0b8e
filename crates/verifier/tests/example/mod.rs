//! The paper's Appendix B as a program: queries, keys and values, an attention output, an MLP
//! intermediate, on two lanes with a meeting after every operation.
//!
//! Steps are finer than the paper's (an operation here has one output), the overlaps are the same:
//! Q with K and V, K and V with each other and with the attention output, that with the MLP.

use dctms_ir::op::{Copies, Epilogue, Op, OpKind, Source};
use dctms_ir::plan::{
    ArenaFigures, Bounds, ColourBuffer, Concurrency, Cost, Envelope, Interval, Machine, Placement,
    Plan, RuntimeBytes, Schedule, Summary, Task,
};
use dctms_ir::program::Program;
use dctms_ir::tensor::Term;
use dctms_ir::{Dtype, EventId, OpId, PhaseId, Residence, Size, Tensor, TensorId, contract};

/// Width of every activation.
const FEATURES: u64 = 64;
/// Bytes of an activation at its maximum, and of everything else at most.
pub const SLOT_BYTES: u64 = 1024;

pub const LOAD: usize = 0;
pub const STEP: usize = 1;

/// The tensor of a name.
pub fn id(plan: &Plan, name: &str) -> TensorId {
    plan.program.tensor_named(name).expect("a tensor of the example")
}

/// The operation of a name in the step phase.
pub fn op(plan: &Plan, name: &str) -> usize {
    let ops = &plan.program.phases[STEP].ops;
    ops.iter().position(|op| op.name == name).expect("an operation of the example")
}

/// Moves one tensor to another's offset.
pub fn put_on(plan: &mut Plan, name: &str, other: &str) {
    let (id, other) = (id(plan, name).index(), id(plan, other).index());
    plan.placements[id].offset = plan.placements[other].offset;
}

/// A right plan: every tensor at bytes of its own, save that the attention output stands where the
/// queries stood and the MLP intermediate where the keys stood.
pub fn plan() -> Plan {
    let program = program();
    let schedules: Vec<Schedule> =
        program.phases.iter().map(|phase| meet_always(&phase.ops)).collect();
    let mut plan = Plan {
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
            lanes: 2,
            isa: "scalar".to_string(),
            profile_sha256: "builtin".to_string(),
        },
        concurrency: vec![Concurrency::default(); 2],
        costs: program.phases.iter().map(|phase| vec![Cost::default(); phase.ops.len()]).collect(),
        predictions: Vec::new(),
        preference: Default::default(),
        orders: Vec::new(),
        variants: Vec::new(),
        regions: Vec::new(),
        gap: None,
        placements: vec![Placement::default(); program.tensors.len()],
        schedules,
        program,
        buffers: Vec::new(),
        arena: ArenaFigures::default(),
        summary: Summary::default(),
        envelope: Envelope::default(),
    };
    place(&mut plan);
    put_on(&mut plan, "attn", "q");
    put_on(&mut plan, "mlp", "k");
    steps(&mut plan);
    colour(&mut plan, &[("q", 0), ("attn", 0), ("k", 1), ("mlp", 1), ("v", 2)]);
    account(&mut plan);
    plan
}

fn program() -> Program {
    let mut program = Program::default();
    let tokens = Size::Dim(program.add_dim("tokens", 1, 4));
    let load = program.add_phase("load");
    let step = program.add_phase("step");
    program.flow.entry.push(load);
    program.flow.next = vec![vec![step], vec![step]];
    let tiles = vec![Size::Const(FEATURES / 16), tokens, Size::Const(16)];
    let x = |program: &mut Program, name: &str| {
        let shape = tiles.clone();
        add(program, name, Residence::Transient, Some(step), (Dtype::F32, shape))
    };
    let fixed = |len: &[u64]| len.iter().copied().map(Size::Const).collect::<Vec<_>>();
    let constant = |program: &mut Program, name: &str, len: &[u64]| {
        let id = add(program, name, Residence::Constant, None, (Dtype::U8, fixed(len)));
        let scratch = vec![Size::Const(SLOT_BYTES)];
        let scratch = add(
            program,
            &format!("stage.{name}"),
            Residence::Transient,
            Some(load),
            (Dtype::U8, scratch),
        );
        let source = Source {
            tensor: name.to_string(),
            file: 0,
            offset: 0,
            bytes: 64,
            dtype: Dtype::U8,
            rows: 1,
            cols: 64,
        };
        operation(program, load, name, OpKind::LoadVector(source), &[], &[id], &[scratch]);
        id
    };
    let matrix = constant(&mut program, "matrix", &[FEATURES, 16]);
    let vector = constant(&mut program, "vector", &[FEATURES]);
    let ids = add(&mut program, "ids", Residence::External, None, (Dtype::I32, fixed(&[4])));
    let out = add(
        &mut program,
        "out",
        Residence::External,
        None,
        (Dtype::F32, {
            let mut shape = tiles.clone();
            shape[1] = Size::Const(4);
            shape
        }),
    );
    let state = add(&mut program, "state", Residence::State, None, (Dtype::U8, fixed(&[32])));
    let names = ["x", "n", "k", "v", "q", "s", "attn", "mlp"];
    let [e, n, k, v, q, s, attn, mlp] = names.map(|name| x(&mut program, name));
    let (rows, epilogue, copies) = (FEATURES, Epilogue::Store, Copies::Shared);
    let matmul = OpKind::MatMul { rows, cols: 16, epilogue, copies };
    let norm_add = OpKind::RmsNormAdd { epsilon: 1e-5 };
    let p = &mut program;
    operation(p, step, "embed", OpKind::EmbedRows { scale: 1.0 }, &[ids, matrix], &[e], &[]);
    operation(p, step, "norm", OpKind::RmsNorm { epsilon: 1e-5 }, &[e, vector], &[n], &[]);
    operation(p, step, "keys", matmul.clone(), &[n, matrix], &[k], &[]);
    operation(p, step, "values", matmul.clone(), &[n, matrix], &[v], &[]);
    operation(p, step, "queries", matmul.clone(), &[n, matrix], &[q], &[]);
    operation(p, step, "scores", OpKind::BiasAdd, &[q, vector], &[s], &[]);
    operation(p, step, "attention", norm_add.clone(), &[k, s, v], &[attn], &[]);
    operation(p, step, "up", matmul, &[attn, matrix], &[mlp], &[]);
    operation(p, step, "down", OpKind::BiasAdd, &[mlp, vector], &[out], &[]);
    let sample = OpKind::Sample { vocabulary: 16 };
    let scratch = vec![Size::Const(SLOT_BYTES)];
    let scratch = add(p, "picks", Residence::Transient, Some(step), (Dtype::U8, scratch));
    let sampled = add(p, "sampled", Residence::External, None, (Dtype::I32, vec![Size::Const(4)]));
    operation(p, step, "sample", sample, &[out, ids, ids], &[sampled, state], &[scratch]);
    program
}

fn add(
    program: &mut Program,
    name: &str,
    residence: Residence,
    phase: Option<PhaseId>,
    (dtype, shape): (Dtype, Vec<Size>),
) -> TensorId {
    let term = match residence {
        Residence::Transient => Term::Intermediate,
        Residence::Constant => Term::Weights,
        Residence::State => Term::Kv,
        Residence::External | Residence::Carried => Term::Persistent,
    };
    program.add_tensor(Tensor {
        name: name.to_string(),
        model: 0,
        dtype,
        size: Size::product(&shape).times(dtype.packed_block().1),
        shape,
        residence,
        term,
        phase,
        state: (residence == Residence::State).then(|| name.to_string()),
    })
}

fn operation(
    program: &mut Program,
    phase: PhaseId,
    name: &str,
    kind: OpKind,
    inputs: &[TensorId],
    outputs: &[TensorId],
    workspace: &[TensorId],
) {
    program.phases[phase.index()].ops.push(Op {
        name: name.to_string(),
        grain: contract::grain_piece(&kind).max(16),
        kind,
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        workspace: workspace.to_vec(),
        in_place: Vec::new(),
    });
}

/// Every operation on both lanes if it can be cut, and all meet after each.
fn meet_always(ops: &[Op]) -> Schedule {
    let mut lanes = vec![Vec::new(); 2];
    for (index, op) in ops.iter().enumerate() {
        let shards = if contract::shardable(&op.kind) { 2 } else { 1 };
        for shard in 0..shards {
            lanes[shard as usize].push(Task {
                op: OpId::of(index),
                shard,
                shards,
                waits: if index == 0 { Vec::new() } else { vec![EventId::of(index - 1)] },
                signals: (index + 1 < ops.len()).then(|| EventId::of(index)),
            });
        }
    }
    Schedule { lanes, events: ops.len() as u32 - 1 }
}

fn place(plan: &mut Plan) {
    let dims = plan.program.dims_max();
    for (index, tensor) in plan.program.tensors.iter().enumerate() {
        plan.placements[index].bytes = tensor.size.value(&dims).expect("small");
        plan.placements[index].offset = Some(index as u64 * SLOT_BYTES);
    }
}

/// First and last step of every transient.
pub fn steps(plan: &mut Plan) {
    for (index, tensor) in plan.program.tensors.iter().enumerate() {
        plan.placements[index].interval = None;
        let Some(phase) = tensor.phase else { continue };
        for (step, op) in (0u32..).zip(&plan.program.phases[phase.index()].ops) {
            let id = TensorId::of(index);
            if [&op.inputs, &op.outputs, &op.workspace].iter().any(|list| list.contains(&id)) {
                let interval = &mut plan.placements[index].interval;
                let first = interval.map_or(step, |interval| interval.first);
                *interval = Some(Interval { first, last: step });
            }
        }
    }
}

/// States a colouring of some transients.
pub fn colour(plan: &mut Plan, assignment: &[(&str, u32)]) {
    let buffers = assignment.iter().map(|(_, buffer)| buffer + 1).max().unwrap_or(0);
    plan.buffers = vec![ColourBuffer { bytes: SLOT_BYTES }; buffers as usize];
    for placement in &mut plan.placements {
        placement.buffer = None;
    }
    for (name, buffer) in assignment {
        let id = id(plan, name).index();
        plan.placements[id].buffer = Some(*buffer);
    }
    plan.summary = Summary {
        logical_tensors: assignment.len() as u64,
        physical_buffers: u64::from(buffers),
        sum_of_tensor_bytes: assignment.len() as u64 * SLOT_BYTES,
    };
}

fn account(plan: &mut Plan) {
    let bytes = plan.placements.len() as u64 * SLOT_BYTES;
    plan.arena = ArenaFigures {
        bytes,
        alignment: 64,
        live_peak_bytes: 3 * SLOT_BYTES,
        witness: ["q", "k", "v"].map(|name| id(plan, name)).to_vec(),
        transient_bytes: bytes,
        transient_live_peak_bytes: 3 * SLOT_BYTES,
        transient_offset: 0,
    };
    let runtime = RuntimeBytes { heap: 4096, stacks: 4096, image: 4096, io: 0 };
    plan.envelope = Envelope {
        weights: 2 * SLOT_BYTES,
        kv: SLOT_BYTES,
        persistent: 3 * SLOT_BYTES,
        intermediate: bytes - 6 * SLOT_BYTES,
        runtime,
        total: bytes + 3 * 4096,
        load_peak: bytes + 3 * 4096,
        hardware: 1 << 30,
        not_covered: Vec::new(),
    };
}
