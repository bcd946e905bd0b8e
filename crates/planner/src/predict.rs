//! How long a step will take, from the plan and a machine's rates.
//!
//! Each lane walks its list ([`crate::timeline`]). A task takes the larger of two times: its
//! arithmetic at the rate of its kernel for this number of tokens, and its bytes at the bandwidth
//! of the level that holds them. At a cut all lanes go on from the latest of them. The sum is the
//! *critical path* of the schedule, in picoseconds.
//!
//! What is left out: writes of activations (they stay in the caches), and whatever else the
//! machine does. See docs/schedule.md.

use std::collections::BTreeSet;

use dctms_ir::contract::{Split, accesses, shardable};
use dctms_ir::ids::PhaseId;
use dctms_ir::join::own_name;
use dctms_ir::op::{AttentionShape, Copies, Op, OpKind};
use dctms_ir::plan::{Bounds, Cost, Placement, Plan, Prediction, Schedule};
use dctms_ir::region::Streams;
use dctms_ir::vision::VisionOp;
use dctms_ir::{Dtype, Program, Residence, Size, TensorId, twin};

use crate::error::PlanError;
use crate::groups::Group;
use crate::rates::{Balance, Element};
use crate::timeline::timeline;

/// A step to be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Tokens of a prompt that it takes; for a decode step its sequences.
    pub tokens: u64,
    /// Position of its first token.
    pub depth: u64,
}

/// What is known of a plan's phase.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The legalised program.
    pub program: &'a Program,
    /// The phase.
    pub phase: PhaseId,
    /// Its schedule.
    pub schedule: &'a Schedule,
    /// Bytes of each tensor.
    pub placements: &'a [Placement],
}

impl<'a> Scene<'a> {
    /// A phase of a finished plan.
    #[must_use]
    pub fn of(plan: &'a Plan, phase: PhaseId) -> Scene<'a> {
        let (program, placements) = (&plan.program, plan.placements.as_slice());
        Scene { program, phase, schedule: &plan.schedules[phase.index()], placements }
    }
}

/// Picoseconds of a prompt of `tokens` tokens from position 0, in steps of `chunk`.
///
/// # Errors
/// An operation that breaks its contract.
pub fn prompt_ps(
    scene: &Scene<'_>,
    balance: &Balance,
    (tokens, chunk): (u64, u64),
) -> Result<f64, PlanError> {
    let chunk = chunk.clamp(1, tokens.max(1));
    let (whole, rest) = (tokens / chunk, tokens % chunk);
    let points = whole.min(STEPS_MAX);
    let mut sum = 0.0;
    for point in 0..points {
        // The middle of each of as many equal runs of steps.
        let depth = (whole * (2 * point + 1) / (2 * points)) * chunk;
        sum += step_ps(scene, balance, Step { tokens: chunk, depth })?;
    }
    let mut mean = sum / points.max(1) as f64 * whole as f64;
    if rest > 0 {
        mean += step_ps(scene, balance, Step { tokens: rest, depth: whole * chunk })?;
    }
    Ok(mean)
}

/// Steps of a prompt that are looked at; time grows evenly with depth between them.
const STEPS_MAX: u64 = 4;

/// What an operation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Arithmetic that the lanes share, picoseconds of one lane.
    pub shared_ps: f64,
    /// Arithmetic that every lane does, picoseconds.
    pub each_ps: f64,
    /// Reading its operands with all lanes, picoseconds.
    pub memory_ps: f64,
}

impl Work {
    /// The time of a lane that does `share` of it beside `lanes` in all.
    #[must_use]
    pub fn lane_ps(&self, share: f64, lanes: f64) -> f64 {
        (self.shared_ps * share + self.each_ps).max(self.memory_ps * share * lanes)
    }
}

/// Picoseconds of one run of a phase.
///
/// # Errors
/// An operation that breaks its contract.
pub fn step_ps(scene: &Scene<'_>, balance: &Balance, step: Step) -> Result<f64, PlanError> {
    Ok(timeline(scene, balance, step)?.end_ps)
}

/// What is expected of a decoder's phases: a chunk and a whole prompt, a decode step at position 0
/// and at the last one; of an encoder's a tile, and a tile beside a chunk; of what runs beside
/// something else, what it takes there ([`crate::gap`]). The times of their operations are written
/// into `costs`, at the last position.
///
/// # Errors
/// An operation that breaks its contract.
pub fn predictions(
    program: &Program,
    schedules: &[Schedule],
    placements: &[Placement],
    (balance, bounds): (&Balance, &Bounds),
    costs: &mut [Vec<Cost>],
) -> Result<Vec<Prediction>, PlanError> {
    let context = bounds.max_input_tokens + bounds.max_output_tokens;
    let mut found = Vec::new();
    for (index, phase) in program.phases.iter().enumerate() {
        let (phase_id, schedule) = (PhaseId::of(index), &schedules[index]);
        let scene = Scene { program, phase: phase_id, schedule, placements };
        let parts = (program, schedules, placements);
        let balance = &crate::gap::balance_of(parts, phase_id, balance);
        let mut add = |step: Step, ps: f64| {
            let (tokens, depth) = (step.tokens, step.depth);
            let nanoseconds = (ps / 1e3) as u64;
            found.push(Prediction { phase: phase_id, tokens, depth, nanoseconds });
        };
        // Of several models each phase has its model's name before its own.
        let name = own_name(&phase.name).trim_end_matches(".beside");
        let name = twin::family(name);
        let last = match name {
            "prefill" => {
                let member = twin::bound(&phase.name);
                let chunk = member.unwrap_or(bounds.prefill_chunk);
                let chunk = chunk.clamp(1, bounds.max_input_tokens.max(1));
                let step = Step { tokens: chunk, depth: 0 };
                add(step, step_ps(&scene, balance, step)?);
                // A smaller member is for one chunk, no whole prompt.
                let whole = Step { tokens: bounds.max_input_tokens, depth: 0 };
                if member.is_none() {
                    add(whole, prompt_ps(&scene, balance, (whole.tokens, chunk))?);
                }
                Step { tokens: chunk, depth: bounds.max_input_tokens.saturating_sub(chunk) }
            }
            "decode" => {
                let first = Step { tokens: bounds.sequences, depth: 0 };
                add(first, step_ps(&scene, balance, first)?);
                let last = Step { depth: context.saturating_sub(1), ..first };
                add(last, step_ps(&scene, balance, last)?);
                last
            }
            // A tile, in the tokens that it becomes.
            "vision" => {
                let placed = phase
                    .ops
                    .iter()
                    .find(|op| matches!(op.kind, OpKind::Vision(VisionOp::PlaceRows)));
                let Some(place) = placed else { continue };
                let shape = &program.tensor(place.inputs[0]).shape;
                let tokens = shape.get(1).and_then(|size| size.value(&program.dims_max()));
                let step = Step { tokens: tokens.unwrap_or(1), depth: 0 };
                add(step, step_ps(&scene, balance, step)?);
                step
            }
            _ if Streams::of(phase).is_some() => {
                let step = crate::region::step(bounds);
                add(step, step_ps(&scene, balance, step)?);
                step
            }
            "sample" => {
                let step = Step { tokens: bounds.sequences, depth: 0 };
                add(step, step_ps(&scene, balance, step)?);
                step
            }
            _ => continue,
        };
        let meter = Meter::new(&scene, balance, last);
        let lanes = f64::from(Group::of_schedule(schedule).count);
        for (op, cost) in phase.ops.iter().zip(&mut costs[index]) {
            let ps = match shardable(&op.kind) {
                true => meter.work(op).lane_ps(1.0 / lanes, lanes),
                false => meter.work(op).lane_ps(1.0, 1.0),
            };
            cost.predicted_ns = (ps / 1e3) as u64;
        }
    }
    Ok(found)
}

/// Bytes of constants that a run of a phase reads: all of them but those of an embedding, of which
/// it reads some rows.
pub(crate) fn constant_bytes(program: &Program, phase: PhaseId, placements: &[Placement]) -> u64 {
    let ops = &program.phases[phase.index()].ops;
    let embedded =
        |op: &Op, id: TensorId| matches!(op.kind, OpKind::EmbedRows { .. }) && op.inputs[1] == id;
    let read: BTreeSet<TensorId> = ops
        .iter()
        .flat_map(|op| op.inputs.iter().filter(|id| !embedded(op, **id)))
        .copied()
        .filter(|id| program.tensor(*id).residence == Residence::Constant)
        .collect();
    read.iter().map(|id| placements[id.index()].bytes).sum()
}

/// The part of an operation's units that a shard has.
pub(crate) fn share(units: u64, shard: u32, shards: u32) -> f64 {
    let (shard, shards) = (u64::from(shard), u64::from(shards));
    let own = (shard + 1) * units / shards - shard * units / shards;
    own as f64 / units.max(1) as f64
}

/// Computes the work of operations at one step's sizes.
pub struct Meter<'a> {
    program: &'a Program,
    placements: &'a [Placement],
    balance: &'a Balance,
    step: Step,
    dims: Vec<u64>,
    /// Whether the tokens are of a sequence each.
    is_decode: bool,
    /// Whether what the phase reads stays in the last-level cache from run to run.
    cached: bool,
}

impl<'a> Meter<'a> {
    /// A meter of one step.
    #[must_use]
    pub fn new(scene: &Scene<'a>, balance: &'a Balance, step: Step) -> Meter<'a> {
        let program = scene.program;
        let dims = step_dims(program, scene.phase, step);
        let is_decode = is_decode(program, scene.phase);
        let bytes = constant_bytes(program, scene.phase, scene.placements);
        let cached = (bytes as f64) < balance.cache_bytes;
        Meter { program, placements: scene.placements, balance, step, dims, is_decode, cached }
    }

    /// The same for a tile of so many patches, where grids vary: its tokens are in proportion.
    #[must_use]
    pub fn with_patches(mut self, patches: u64) -> Meter<'a> {
        let most = patches_max(self.program).unwrap_or(patches).max(1);
        for (dim, value) in self.program.dims.iter().zip(&mut self.dims) {
            if dim.name == PATCHES || dim.name == IMAGE_TOKENS {
                *value = (dim.max * patches / most).clamp(dim.min, dim.max);
            }
        }
        self
    }

    /// Units along which an operation is cut.
    pub(crate) fn units(&self, op: &Op) -> Result<u64, PlanError> {
        if let OpKind::AttentionDecodePartial(shape) = &op.kind {
            let segments = self.seen(shape, 0).div_ceil(dctms_ir::limits::SEGMENT);
            return Ok(u64::from(shape.kv_heads) * segments * self.step.tokens);
        }
        let output = op.outputs[0];
        let units = accesses(op)?.iter().find_map(|access| match access.split {
            Split::Even { axis, unit } if access.tensor == output => {
                let extent = self.program.tensor(output).shape.get(axis as usize)?;
                Some(extent.value(&self.dims)?.div_ceil(unit))
            }
            Split::Even { .. } | Split::Whole => None,
        });
        Ok(units.unwrap_or(1))
    }

    /// Positions that the `token`-th token of the step sees.
    fn seen(&self, shape: &AttentionShape, token: u64) -> u64 {
        let position = self.step.depth + token + 1;
        match shape.window {
            0 => position,
            window => position.min(u64::from(window)),
        }
    }

    fn element(&self, element: Element, count: u64) -> Work {
        let shared_ps = self.balance.element(element) * count as f64;
        Work { shared_ps, ..Work::default() }
    }

    /// Features times tokens of an activation, or of its quantised form.
    fn elements(&self, id: TensorId) -> u64 {
        let tensor = self.program.tensor(id);
        let extent = |size: &Size| size.value(&self.dims).unwrap_or(1);
        match (tensor.dtype, tensor.shape.as_slice()) {
            (Dtype::U8, [blocks, tokens, _]) => extent(blocks) * extent(tokens) * 32,
            (_, shape) => shape.iter().map(extent).product(),
        }
    }

    fn tokens(&self, id: TensorId) -> u64 {
        let shape = &self.program.tensor(id).shape;
        shape.get(1).and_then(|size| size.value(&self.dims)).unwrap_or(1)
    }

    fn product(&self, op: &Op, matrix: TensorId, (rows, cols): (u64, u64)) -> Work {
        let quantised = self.program.tensor(op.inputs[0]).dtype == Dtype::U8;
        let rates = self.balance.product(self.program.tensor(matrix).dtype, quantised);
        let weights = (rows * cols) as f64;
        let bytes = self.placements[matrix.index()].bytes as f64;
        let faster = match self.cached {
            true => self.balance.cache_read_bytes_per_s / self.balance.read_bytes_per_s,
            false => 1.0,
        };
        let tokens = self.tokens(op.inputs[0]);
        let outputs = self.balance.element(Element::Output) * (rows * tokens) as f64;
        Work {
            shared_ps: weights * rates.weight_ps_at(tokens) + outputs,
            each_ps: 0.0,
            memory_ps: bytes / (rates.stream_bytes_per_s * faster.max(1.0)) * 1e12,
        }
    }

    fn norm(&self, op: &Op, [sum, write]: [Element; 2]) -> Work {
        let count = self.elements(op.inputs[0]);
        let each_ps = self.balance.element(sum) * count as f64;
        Work { each_ps, ..self.element(write, count) }
    }

    fn attention(&self, op: &Op, shape: &AttentionShape, element: Element) -> Work {
        let tokens = self.tokens(op.inputs[0]);
        let decode = element == Element::AttentionDecode;
        let seen = match decode {
            // Sequences stand at one depth each.
            true => self.seen(shape, 0) * tokens,
            false => (0..tokens).map(|token| self.seen(shape, token)).sum(),
        };
        let pairs = seen * u64::from(shape.heads) * u64::from(shape.head_dim);
        let positions = if decode { seen } else { self.seen(shape, tokens) };
        let caches: u64 = op.inputs[1..3].iter().map(|id| self.placements[id.index()].bytes).sum();
        let capacity = (u64::from(shape.capacity) * self.slots(op.inputs[1])).max(1);
        let bytes = caches as f64 / capacity as f64 * positions as f64;
        let memory_ps = bytes / self.balance.read_bytes_per_s * 1e12;
        Work { memory_ps, ..self.element(element, pairs) }
    }

    fn slots(&self, cache: TensorId) -> u64 {
        let shape = &self.program.tensor(cache).shape;
        shape.get(1).and_then(|size| size.value(&self.dims)).unwrap_or(1)
    }

    /// What an operation takes.
    #[must_use]
    pub fn work(&self, op: &Op) -> Work {
        match &op.kind {
            OpKind::MatMul { rows, cols, .. } => self.product(op, op.inputs[1], (*rows, *cols)),
            OpKind::GatedMatMul { rows, cols, .. } => {
                let gate = self.product(op, op.inputs[1], (*rows, *cols));
                let up = self.product(op, op.inputs[2], (*rows, *cols));
                let gated = self.element(Element::Gated, rows * self.tokens(op.inputs[0]));
                Work {
                    shared_ps: gate.shared_ps + up.shared_ps + gated.shared_ps,
                    each_ps: 0.0,
                    memory_ps: gate.memory_ps + up.memory_ps,
                }
            }
            OpKind::RmsNormQuantise { copies, .. } => {
                copied(*copies, self.norm(op, [Element::NormSum, Element::NormWrite]))
            }
            OpKind::RmsNorm { .. } | OpKind::RmsNormAdd { .. } => {
                self.norm(op, [Element::NormSum, Element::NormWrite])
            }
            OpKind::HeadNorm { .. } => self.element(Element::HeadNorm, self.elements(op.inputs[0])),
            OpKind::Quantise => self.element(Element::Quantise, self.elements(op.inputs[0])),
            OpKind::Rope { .. } => self.element(Element::Rope, self.elements(op.inputs[0])),
            OpKind::GatedMul(_) | OpKind::GatedMulQuantise(_) => {
                self.element(Element::Gated, self.elements(op.inputs[0]))
            }
            OpKind::BiasAdd | OpKind::Add | OpKind::SelectRows => {
                self.element(Element::Copy, self.elements(op.outputs[0]))
            }
            OpKind::KvAppend(_) => {
                let both = self.elements(op.inputs[0]) + self.elements(op.inputs[1]);
                self.element(Element::Append, both)
            }
            OpKind::EmbedRows { .. } => self.element(Element::Embed, self.elements(op.outputs[0])),
            OpKind::RopeTable { .. } => {
                self.element(Element::RopeTable, self.elements(op.outputs[0]) / 2)
            }
            OpKind::Attention(shape) | OpKind::AttentionPrefill(shape) => {
                let element = match self.is_decode {
                    true => Element::AttentionDecode,
                    false => Element::AttentionPrefill,
                };
                self.attention(op, shape, element)
            }
            OpKind::AttentionDecodePartial(shape) => {
                self.attention(op, shape, Element::AttentionDecode)
            }
            OpKind::AttentionDecodeMerge(shape) => {
                let segments = self.seen(shape, 0).div_ceil(dctms_ir::limits::SEGMENT);
                self.element(Element::AttentionMerge, self.elements(op.outputs[0]) * segments)
            }
            OpKind::AttentionDecodeMergeQuantise { shape, copies } => {
                let segments = self.seen(shape, 0).div_ceil(dctms_ir::limits::SEGMENT);
                let features = u64::from(shape.heads) * u64::from(shape.head_dim);
                let elements = features * self.tokens(op.outputs[0]);
                let merge = self.element(Element::AttentionMerge, elements * segments);
                let quantise = self.element(Element::Quantise, elements);
                copied(*copies, Work { shared_ps: merge.shared_ps + quantise.shared_ps, ..merge })
            }
            OpKind::Sample { vocabulary } => {
                self.element(Element::Sample, vocabulary * self.step.tokens)
            }
            OpKind::Vision(VisionOp::FullAttention(shape)) => {
                let tokens = self.tokens(op.inputs[0]);
                let features = u64::from(shape.heads) * u64::from(shape.head_dim);
                self.element(Element::AttentionFull, tokens * tokens * features)
            }
            OpKind::Vision(VisionOp::WindowAttention { shape, .. }) => {
                let features = u64::from(shape.heads) * u64::from(shape.head_dim);
                let pairs = self.tokens(op.inputs[0]) * u64::from(shape.positions);
                self.element(Element::AttentionFull, pairs * features)
            }
            OpKind::Vision(VisionOp::GatedProducts { rows, cols, .. }) => {
                let gate = self.product(op, op.inputs[1], (*rows, *cols));
                let up = self.product(op, op.inputs[3], (*rows, *cols));
                let gated = self.element(Element::Gated, self.elements(op.outputs[0]));
                Work {
                    shared_ps: gate.shared_ps + up.shared_ps + gated.shared_ps,
                    each_ps: 0.0,
                    memory_ps: gate.memory_ps + up.memory_ps,
                }
            }
            OpKind::Vision(
                VisionOp::PatchRopeTable { .. } | VisionOp::SectionedRopeTable { .. },
            ) => self.element(Element::RopeTable, self.elements(op.outputs[0]) / 2),
            OpKind::Vision(VisionOp::LayerNorm { .. }) => {
                self.norm(op, [Element::LayerNormSum, Element::LayerNormWrite])
            }
            OpKind::Vision(VisionOp::Activate(_)) => {
                self.element(Element::Activate, self.elements(op.inputs[0]))
            }
            OpKind::Vision(VisionOp::Patchify(_)) => {
                self.element(Element::Patchify, self.elements(op.outputs[0]))
            }
            OpKind::Vision(VisionOp::PlaceRows) => {
                self.element(Element::Rearrange, self.elements(op.inputs[0]))
            }
            OpKind::Vision(
                VisionOp::AddPositions { .. }
                | VisionOp::MergePatches { .. }
                | VisionOp::SpliceRows,
            ) => self.element(Element::Rearrange, self.elements(op.outputs[0])),
            OpKind::Vision(VisionOp::FeatureScale) => {
                self.element(Element::Copy, self.elements(op.outputs[0]))
            }
            OpKind::LoadMatrix(_)
            | OpKind::LoadVector(_)
            | OpKind::LoadRopeFrequencies { .. }
            | OpKind::LoadTokenizer { .. } => Work::default(),
        }
    }
}

/// What lanes share they all do where each has a copy of its own.
fn copied(copies: Copies, work: Work) -> Work {
    match copies {
        Copies::Shared => work,
        Copies::Own { .. } => {
            Work { shared_ps: 0.0, each_ps: work.each_ps + work.shared_ps, ..work }
        }
    }
}

/// Dims of an encoder whose grids vary: patches and tokens of a tile.
const PATCHES: &str = "vision.patches";
const IMAGE_TOKENS: &str = "vision.tokens";

/// Patches of the largest tile, where grids vary.
#[must_use]
pub fn patches_max(program: &Program) -> Option<u64> {
    program.dim_named(PATCHES).map(|dim| program.dims[dim.index()].max)
}

/// Whether a phase takes tokens of a sequence each, not of one prompt.
fn is_decode(program: &Program, phase: PhaseId) -> bool {
    !twin::family(&program.phases[phase.index()].name).ends_with("prefill")
}

/// The dims of a step: logits are wanted for its last token, or for each of its sequences.
fn step_dims(program: &Program, phase: PhaseId, step: Step) -> Vec<u64> {
    let own = |name| twin::family(own_name(name));
    let decode = is_decode(program, phase);
    let dims = program.dims.iter().map(|dim| match (own(&dim.name), decode) {
        ("tokens", false) | ("sequences" | "rows", true) => step.tokens.clamp(dim.min, dim.max),
        ("rows", false) => dim.min,
        _ => dim.max,
    });
    dims.collect()
}
