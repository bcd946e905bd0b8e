//! From a certified plan to commands.
//!
//! Believes the certificate and nothing else: which bytes a task touches comes from the same
//! contracts that the verifier used. All allocation happens here, once.

mod vision;

use dctms_ir::contract::shardable;
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::{BLOCK, TILE};
use dctms_ir::op::{AttentionShape, Copies, Op, OpKind};
use dctms_ir::plan::Task;
use dctms_ir::vision::VisionOp;
use dctms_ir::{Dtype, Plan, Size, Tensor};

use crate::command::{Body, Command, Extent, Positions, Slice};
use crate::memory::Place;

/// The commands of one phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseCode {
    /// For each lane its commands.
    pub lanes: Vec<Vec<Command>>,
    /// Wait lists: (event, signals that one run gives it).
    pub waits: Vec<(u32, u32)>,
    /// Events of the phase.
    pub events: u32,
}

/// The commands of every phase, in phase order.
#[must_use]
pub fn link(plan: &Plan) -> Vec<PhaseCode> {
    (0..plan.program.phases.len()).map(|phase| link_phase(plan, PhaseId::of(phase))).collect()
}

fn link_phase(plan: &Plan, phase: PhaseId) -> PhaseCode {
    let schedule = &plan.schedules[phase.index()];
    let mut signals = vec![0u32; schedule.events as usize];
    for task in schedule.lanes.iter().flatten() {
        if let Some(event) = task.signals {
            signals[event.index()] += 1;
        }
    }
    let mut code = PhaseCode { events: schedule.events, ..PhaseCode::default() };
    for tasks in &schedule.lanes {
        let mut commands = Vec::with_capacity(tasks.len());
        for task in tasks {
            let first = code.waits.len() as u32;
            code.waits.extend(task.waits.iter().map(|event| (event.0, signals[event.index()])));
            let op = plan.program.op(phase, task.op);
            commands.push(Command {
                waits: (first, code.waits.len() as u32),
                signals: task.signals.map(|event| event.0),
                tokens: tokens(plan, op),
                body: Resolver { plan, op, task }.body(),
            });
        }
        code.lanes.push(commands);
    }
    code.waits.shrink_to_fit();
    code
}

/// Tokens of an operation: the second axis of the activation that it makes or reads; rows for a
/// sampler.
fn tokens(plan: &Plan, op: &Op) -> Extent {
    if let OpKind::Sample { .. } = op.kind {
        let rows = plan.program.dim_named("rows").expect("a program that samples counts rows");
        return Extent::Dim(rows.index());
    }
    let activation = |id: &TensorId| {
        let tensor = plan.program.tensor(*id);
        (tensor.shape.len() == 3).then(|| extent(&tensor.shape[1])).flatten()
    };
    // Patches become fewer tokens: the kernel's tokens are those that it makes.
    let merges = matches!(op.kind, OpKind::Vision(VisionOp::MergePatches { .. }));
    let inputs = if merges { &[][..] } else { &op.inputs[..] };
    let dims: Vec<Extent> = inputs.iter().chain(&op.outputs).filter_map(activation).collect();
    // A host buffer has a fixed extent; the step's own tensors have a dim.
    let of_dim = dims.iter().rev().find(|extent| matches!(extent, Extent::Dim(_)));
    of_dim.or(dims.first()).copied().unwrap_or(Extent::Fixed(1))
}

fn extent(size: &Size) -> Option<Extent> {
    match size {
        Size::Const(value) => Some(Extent::Fixed(*value as usize)),
        Size::Dim(dim) => Some(Extent::Dim(dim.index())),
        Size::Add(_) | Size::Mul(_) | Size::CeilDiv(..) | Size::Min(_) | Size::Max(_) => None,
    }
}

/// Resolves the operands of one task.
struct Resolver<'a> {
    plan: &'a Plan,
    op: &'a Op,
    task: &'a Task,
}

impl Resolver<'_> {
    fn tensor(&self, id: TensorId) -> &Tensor {
        self.plan.program.tensor(id)
    }

    fn place(&self, id: TensorId) -> Place {
        let placement = &self.plan.placements[id.index()];
        let offset = placement.offset.expect("every tensor of a linked plan stands in the arena");
        Place { offset: offset as usize, len: placement.bytes as usize }
    }

    fn input(&self, index: usize) -> Place {
        self.place(self.op.inputs[index])
    }

    fn output(&self, index: usize) -> Place {
        self.place(self.op.outputs[index])
    }

    /// The shard's range of `count` units, in grains of `grain` units.
    fn range(&self, count: usize, grain: usize) -> (usize, usize) {
        let grains = count / grain;
        let (shard, shards) = match shardable(&self.op.kind) {
            true => (self.task.shard as usize, self.task.shards as usize),
            false => (0, 1),
        };
        (shard * grains / shards * grain, (shard + 1) * grains / shards * grain)
    }

    /// The shard's slice of an activation, `features_of_unit` being 16 or 32.
    fn slice(&self, id: TensorId, features_of_unit: usize) -> Slice {
        let Some(Size::Const(units)) = self.tensor(id).shape.first() else {
            unreachable!("activations have a constant number of tiles")
        };
        let grain = (self.op.grain as usize / features_of_unit).max(1);
        let (start, end) = self.range(*units as usize, grain);
        Slice { place: self.place(id), start, end }
    }

    fn tiles_in(&self, index: usize) -> Slice {
        self.slice(self.op.inputs[index], TILE as usize)
    }

    fn tiles_out(&self) -> Slice {
        self.slice(self.op.outputs[0], TILE as usize)
    }

    fn blocks_out(&self) -> Slice {
        self.slice(self.op.outputs[0], 2 * TILE as usize)
    }

    /// The shard's part of its workspace.
    fn workspace(&self) -> Place {
        let id = self.op.workspace[0];
        let shape = &self.tensor(id).shape;
        let (Size::Const(_), Size::Const(bytes)) = (&shape[0], &shape[1]) else {
            unreachable!("workspace has constant extents")
        };
        let shard = if shardable(&self.op.kind) { self.task.shard as usize } else { 0 };
        self.place(id).part(shard * *bytes as usize, *bytes as usize)
    }

    fn positions(&self, first: usize) -> Positions {
        Positions { positions: self.input(first), slots: self.input(first + 1) }
    }

    /// Heads of the shard, `head_dim` features each.
    fn heads(&self, count: u32, head_dim: u32) -> (usize, usize) {
        self.range(count as usize, (self.op.grain as usize / head_dim as usize).max(1))
    }

    fn slots(&self, cache: TensorId) -> usize {
        match self.tensor(cache).shape.get(1) {
            Some(Size::Const(slots)) => *slots as usize,
            _ => unreachable!("a cache has a constant number of slots"),
        }
    }

    fn body(&self) -> Option<Body> {
        let body = match &self.op.kind {
            OpKind::LoadMatrix(source) => Body::LoadMatrix {
                source: source.clone(),
                out: self.output(0),
                staging: self.workspace(),
            },
            OpKind::LoadVector(source) => Body::LoadVector {
                source: source.clone(),
                out: self.output(0),
                staging: self.workspace(),
            },
            OpKind::LoadRopeFrequencies { base, rotary_dim, scaling, factors } => {
                Body::LoadRopeFrequencies {
                    base: *base,
                    rotary_dim: *rotary_dim,
                    scaling: scaling.clone(),
                    factors: factors.clone().map(|source| (source, self.workspace())),
                    out: self.output(0),
                }
            }
            OpKind::LoadTokenizer { offset, bytes } => Body::LoadTokenizer {
                offset: *offset,
                out: self.output(0),
                staging: self.workspace().part(0, *bytes as usize),
            },
            OpKind::RopeTable { magnitude } => Body::RopeTable {
                magnitude: *magnitude,
                positions: self.input(0),
                frequencies: self.input(1),
                out: self.output(0),
            },
            OpKind::EmbedRows { scale } => self.embed(*scale),
            OpKind::RmsNorm { epsilon } => Body::RmsNorm {
                epsilon: *epsilon,
                x: self.input(0),
                weight: self.input(1),
                out: self.tiles_out(),
            },
            OpKind::RmsNormQuantise { epsilon, copies } => self.norm_to_blocks(*epsilon, *copies),
            OpKind::RmsNormAdd { epsilon } => Body::RmsNormAdd {
                epsilon: *epsilon,
                x: self.input(0),
                weight: self.input(1),
                residual: self.tiles_in(2),
                out: self.tiles_out(),
            },
            OpKind::HeadNorm { epsilon, .. } => Body::HeadNorm {
                epsilon: *epsilon,
                x: self.tiles_in(0),
                weight: self.input(1),
                out: self.tiles_out(),
            },
            OpKind::Quantise => Body::Quantise { x: self.tiles_in(0), out: self.blocks_out() },
            OpKind::MatMul { .. } => self.product(),
            OpKind::BiasAdd => {
                let out = self.tiles_out();
                let bias = self.input(1).part(out.start * 64, out.len() * 64);
                Body::BiasAdd { x: self.tiles_in(0), bias, out }
            }
            OpKind::Add => {
                Body::Add { a: self.tiles_in(0), b: self.tiles_in(1), out: self.tiles_out() }
            }
            OpKind::Rope { style, head_dim, rotary_dim } => Body::Rope {
                style: *style,
                head_dim: *head_dim as usize,
                rotary_dim: *rotary_dim as usize,
                table: self.input(1),
                x: self.tiles_in(0),
                out: self.tiles_out(),
            },
            OpKind::KvAppend(shape) => self.append(*shape),
            OpKind::Attention(_) => unreachable!("legalising leaves no logical attention"),
            OpKind::AttentionPrefill(shape) => self.attention_prefill(*shape),
            OpKind::AttentionDecodePartial(shape) => Body::AttentionDecodePartial {
                shape: *shape,
                slots: self.slots(self.op.inputs[1]),
                shard: (self.task.shard as usize, self.task.shards as usize),
                items: self.segments(self.op.outputs[0]),
                q: self.input(0),
                keys: self.input(1),
                values: self.input(2),
                at: self.positions(3),
                partials: self.output(0),
                workspace: self.workspace(),
            },
            OpKind::AttentionDecodeMerge(shape) => self.merge(*shape, None),
            OpKind::AttentionDecodeMergeQuantise { shape, copies } => {
                self.merge(*shape, Some(*copies))
            }
            OpKind::GatedMul(activation) => Body::GatedMul {
                activation: *activation,
                gate: self.tiles_in(0),
                up: self.tiles_in(1),
                out: self.tiles_out(),
            },
            OpKind::GatedMulQuantise(activation) => Body::GatedMulQuantise {
                activation: *activation,
                gate: self.tiles_in(0),
                up: self.tiles_in(1),
                out: self.blocks_out(),
            },
            OpKind::GatedMatMul { .. } => self.gated_products(),
            OpKind::SelectRows => Body::SelectRows {
                x: self.tiles_in(0),
                from: extent(&self.tensor(self.op.inputs[0]).shape[1]).expect("a dim"),
                rows: self.input(1),
                out: self.tiles_out(),
            },
            OpKind::Sample { vocabulary } => Body::Sample {
                vocabulary: *vocabulary as usize,
                logits: self.input(0),
                parameters: self.input(1),
                history: self.input(2),
                sampled: self.output(0),
                random: self.output(1),
                workspace: self.workspace(),
            },
            OpKind::Vision(op) => Body::Vision(self.vision(op)),
        };
        (!is_idle(&body)).then_some(body)
    }

    fn embed(&self, scale: f32) -> Body {
        let table = self.op.inputs[1];
        let kind = self.tensor(table).dtype;
        let out = self.tiles_out();
        Body::EmbedRows {
            scale,
            ids: self.input(0),
            kind,
            cols: self.cols(table),
            table: self.place(table),
            out,
        }
    }

    fn cols(&self, matrix: TensorId) -> usize {
        match self.tensor(matrix).shape.get(1) {
            Some(Size::Const(cols)) => *cols as usize,
            _ => unreachable!("a matrix has constant columns"),
        }
    }

    /// Tiles `start..end` of a matrix.
    fn matrix_tiles(&self, matrix: TensorId, start: usize, end: usize) -> Place {
        let place = self.place(matrix);
        let tiles = match self.tensor(matrix).shape.first() {
            Some(Size::Const(rows)) => (*rows / TILE) as usize,
            _ => unreachable!("a matrix has constant rows"),
        };
        let tile_bytes = place.len / tiles;
        place.part(start * tile_bytes, (end - start) * tile_bytes)
    }

    /// The shard's part of the blocks, or its own copy of all.
    fn norm_to_blocks(&self, epsilon: f32, copies: Copies) -> Body {
        let Some(Size::Const(tiles)) = self.tensor(self.op.inputs[0]).shape.first() else {
            unreachable!("activations have a constant number of tiles")
        };
        let out = match copies {
            Copies::Shared => self.blocks_out(),
            Copies::Own { .. } => {
                self.copy(self.op.outputs[0], copies, tiles.div_ceil(BLOCK / TILE) as usize)
            }
        };
        let tiles = match copies {
            Copies::Shared => (2 * out.start, 2 * out.end),
            Copies::Own { .. } => (0, *tiles as usize),
        };
        let (x, weight) = (self.input(0), self.input(1));
        Body::RmsNormQuantise { epsilon, x, weight, tiles, out }
    }

    /// The first `units` of an operand that shards share, or of the shard's own copy.
    fn copy(&self, id: TensorId, copies: Copies, units: usize) -> Slice {
        let start = match copies {
            Copies::Shared => 0,
            Copies::Own { blocks } => self.task.shard as usize * blocks as usize,
        };
        Slice { place: self.place(id), start, end: start + units }
    }

    fn gated_products(&self) -> Body {
        let OpKind::GatedMatMul { cols, activation, block_rows, copies, .. } = self.op.kind else {
            unreachable!("{} is no pair of gated products", self.op.name)
        };
        let out = self.blocks_out();
        let [gate, up] = [self.op.inputs[1], self.op.inputs[2]];
        let tiles = |matrix| self.matrix_tiles(matrix, 2 * out.start, 2 * out.end);
        Body::GatedMatMul {
            kinds: [gate, up].map(|matrix| self.tensor(matrix).dtype),
            cols: cols as usize,
            activation,
            block_rows: block_rows as usize,
            x: self.copy(self.op.inputs[0], copies, (cols / BLOCK) as usize),
            gate: tiles(gate),
            up: tiles(up),
            out,
            workspace: self.workspace(),
        }
    }

    fn product(&self) -> Body {
        let OpKind::MatMul { cols, epilogue, copies, .. } = self.op.kind else {
            unreachable!("{} is no product", self.op.name)
        };
        let [x, matrix] = [self.op.inputs[0], self.op.inputs[1]];
        let out = self.tiles_out();
        let quantised = self.tensor(x).dtype == Dtype::U8;
        let units = if quantised { cols / BLOCK } else { cols.div_ceil(TILE) };
        Body::MatMul {
            kind: self.tensor(matrix).dtype,
            cols: cols as usize,
            quantised,
            x: self.copy(x, copies, units as usize),
            weights: self.matrix_tiles(matrix, out.start, out.end),
            epilogue,
            residual: self.op.inputs.get(2).map(|id| self.slice(*id, TILE as usize)),
            out,
        }
    }

    fn append(&self, shape: AttentionShape) -> Body {
        let (start, end) = self.heads(shape.kv_heads, shape.head_dim);
        let part = |place: Place| {
            let head = place.len / shape.kv_heads as usize;
            place.part(start * head, (end - start) * head)
        };
        Body::KvAppend {
            shape,
            slots: self.slots(self.op.outputs[0]),
            heads: (start, end),
            k: self.tiles_in(0),
            v: self.tiles_in(1),
            at: self.positions(2),
            keys: part(self.output(0)),
            values: part(self.output(1)),
        }
    }

    /// A shard of whole groups is given the caches of its own heads alone, as its contract says,
    /// and a shape of that many heads; any other shard reads them all.
    fn attention_prefill(&self, shape: AttentionShape) -> Body {
        let (start, end) = self.heads(shape.heads, shape.head_dim);
        let group = shape.heads / shape.kv_heads;
        let whole_groups = self.op.grain == u64::from(group * shape.head_dim);
        let (keys, values) = (self.input(1), self.input(2));
        let q = self.tiles_in(0);
        let (shape, heads, keys, values) = match whole_groups {
            true => {
                let (first, last) = (start / group as usize, end / group as usize);
                let part = |place: Place| {
                    let head = place.len / shape.kv_heads as usize;
                    place.part(first * head, (last - first) * head)
                };
                let kv_heads = (last - first) as u32;
                let own = AttentionShape { heads: kv_heads * group, kv_heads, ..shape };
                (own, (0, end - start), part(keys), part(values))
            }
            false => (shape, (start, end), keys, values),
        };
        Body::AttentionPrefill {
            shape,
            slots: self.slots(self.op.inputs[1]),
            heads,
            q,
            keys,
            values,
            at: self.positions(3),
            out: self.tiles_out(),
            workspace: self.workspace(),
        }
    }

    /// The shard's heads, or all for its own copy; floats where there are no `copies`.
    fn merge(&self, shape: AttentionShape, copies: Option<Copies>) -> Body {
        let own = self.heads(shape.heads, shape.head_dim);
        let (heads, out) = match copies {
            None => (own, self.tiles_out()),
            Some(Copies::Shared) => (own, self.blocks_out()),
            Some(copies @ Copies::Own { .. }) => {
                let blocks = u64::from(shape.heads) * u64::from(shape.head_dim) / BLOCK;
                let out = self.copy(self.op.outputs[0], copies, blocks as usize);
                ((0, shape.heads as usize), out)
            }
        };
        Body::AttentionDecodeMerge {
            shape,
            quantised: copies.is_some(),
            heads,
            items: self.segments(self.op.inputs[0]),
            partials: self.input(0),
            at: self.positions(1),
            slots: self.plan.bounds.sequences as usize,
            out,
        }
    }

    /// The dim that counts a decode step's segments: the one in the partials' extent.
    fn segments(&self, partials: TensorId) -> Extent {
        fn dim(size: &Size) -> Option<Extent> {
            match size {
                Size::Dim(dim) => Some(Extent::Dim(dim.index())),
                Size::Mul(parts) => parts.iter().find_map(dim),
                Size::Const(_) | Size::Add(_) | Size::CeilDiv(..) | Size::Min(_) | Size::Max(_) => {
                    None
                }
            }
        }
        dim(&self.tensor(partials).shape[0]).expect("partials are counted by a dim")
    }
}

/// Whether a shard has no features of its own.
fn is_idle(body: &Body) -> bool {
    match body {
        Body::EmbedRows { out, .. }
        | Body::RmsNorm { out, .. }
        | Body::RmsNormQuantise { out, .. }
        | Body::RmsNormAdd { out, .. }
        | Body::HeadNorm { out, .. }
        | Body::Quantise { out, .. }
        | Body::MatMul { out, .. }
        | Body::BiasAdd { out, .. }
        | Body::Add { out, .. }
        | Body::Rope { out, .. }
        | Body::AttentionPrefill { out, .. }
        | Body::AttentionDecodeMerge { out, .. }
        | Body::GatedMul { out, .. }
        | Body::GatedMulQuantise { out, .. }
        | Body::GatedMatMul { out, .. }
        | Body::SelectRows { out, .. } => out.is_empty(),
        Body::KvAppend { heads, .. } => heads.0 == heads.1,
        Body::Vision(body) => body.written().is_empty(),
        Body::LoadMatrix { .. }
        | Body::LoadVector { .. }
        | Body::LoadRopeFrequencies { .. }
        | Body::LoadTokenizer { .. }
        | Body::RopeTable { .. }
        | Body::AttentionDecodePartial { .. }
        | Body::Sample { .. } => false,
    }
}
