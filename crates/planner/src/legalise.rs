//! From logical operations to those that kernels have: fused where a value would be written only
//! to be read once, quantised where the weights are, workspace explicit.
//!
//! Fusions, each of which removes a tensor or a pass over one: norm + quantise; merging attention +
//! quantise; gate and up
//! products + gate·up + quantise, by blocks of rows; product + residual; post-norm + residual; updates of heads (bias, norm, rotation) in
//! the tensor that holds them. The meaning of the program does not change.
//!
//! Where products read few values, each lane makes all of them for itself: a part of a microsecond
//! more, and no lane waits for another's share.

use std::collections::BTreeMap;

use dctms_ir::contract::{partial_floats, workspace_bytes};
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::{ALIGNMENT_BYTES, BLOCK, COPY_BLOCKS, TILE};
use dctms_ir::op::{Activation, AttentionShape, Copies, Epilogue, Op, OpKind};
use dctms_ir::plan::Preference;
use dctms_ir::region::{Streams, stream_of};
use dctms_ir::tensor::{Term, activation_bytes, quantised_bytes};
use dctms_ir::vision::VisionOp;
use dctms_ir::{Dtype, Program, Residence, Size, Tensor};

use crate::choices::{Choice, Shaping};
use crate::error::PlanError;
use crate::groups::Group;

/// Whether products with quantised weights take quantised activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// Blocks of 8 bits: the fast path.
    Quantised,
    /// f32 throughout: the path that parity with a reference is measured on.
    Float,
}

/// Rewrites every phase, for the lanes that each has.
///
/// # Errors
/// A contract that the logical program breaks.
pub fn legalise(
    logical: &Program,
    shaping: &Shaping,
    groups: &[Group],
) -> Result<Program, PlanError> {
    let mut program = logical.clone();
    for (phase, group) in groups.iter().enumerate() {
        let phase = PhaseId::of(phase);
        let ops = std::mem::take(&mut program.phases[phase.index()].ops);
        let shaping = Shaping { lanes: group.count, ..shaping.clone() };
        let mut rewriter = Rewriter::new(&mut program, phase, &ops, &shaping);
        for op in &ops {
            rewriter.rewrite(op);
        }
        let ops = rewriter.emitted;
        program.phases[phase.index()].ops = ops;
    }
    add_workspace(&mut program, groups)?;
    drop_unused(&mut program);
    Ok(program)
}

/// Bytes of gate and up products that a lane keeps in its first caches; larger blocks
/// were measured and are not faster.
const FFN_BLOCK_BYTES: u64 = 64 << 10;

/// Features times tokens that each lane makes for itself: no more of a lane's time than a cut takes.
const COPIED_ELEMENTS_MAX: u64 = 4096;

struct Rewriter<'a> {
    program: &'a mut Program,
    phase: PhaseId,
    shaping: &'a Shaping,
    /// Readers of each tensor in the logical phase.
    readers: BTreeMap<TensorId, Vec<&'a Op>>,
    /// What a logical tensor is called now.
    renamed: BTreeMap<TensorId, TensorId>,
    /// Quantised form of a tensor, and how shards have it.
    quantised: BTreeMap<TensorId, (TensorId, Copies)>,
    /// Operations that wait to be fused into the sum or the gate that alone reads them.
    waiting: BTreeMap<TensorId, Op>,
    emitted: Vec<Op>,
}

impl<'a> Rewriter<'a> {
    fn new(program: &'a mut Program, phase: PhaseId, ops: &'a [Op], shaping: &'a Shaping) -> Self {
        let mut readers: BTreeMap<TensorId, Vec<&Op>> = BTreeMap::new();
        for op in ops {
            for input in &op.inputs {
                readers.entry(*input).or_default().push(op);
            }
        }
        Self {
            program,
            phase,
            shaping,
            readers,
            renamed: BTreeMap::new(),
            quantised: BTreeMap::new(),
            waiting: BTreeMap::new(),
            emitted: Vec::new(),
        }
    }

    fn rewrite(&mut self, op: &Op) {
        match &op.kind {
            OpKind::RmsNorm { epsilon } => self.norm(op, *epsilon),
            OpKind::MatMul { .. } => self.product(op),
            OpKind::Add => self.sum(op),
            OpKind::GatedMul(activation) => self.gate(op, *activation),
            OpKind::BiasAdd | OpKind::HeadNorm { .. } | OpKind::Rope { .. } => self.update(op),
            OpKind::Vision(VisionOp::GatedProducts { .. }) => self.gated_products(op),
            OpKind::Vision(vision) if vision.updates() => self.update(op),
            OpKind::Attention(shape) => self.attention(op, *shape),
            OpKind::LoadMatrix(_)
            | OpKind::LoadVector(_)
            | OpKind::LoadRopeFrequencies { .. }
            | OpKind::LoadTokenizer { .. }
            | OpKind::RopeTable { .. }
            | OpKind::EmbedRows { .. }
            | OpKind::RmsNormQuantise { .. }
            | OpKind::RmsNormAdd { .. }
            | OpKind::Quantise
            | OpKind::KvAppend(_)
            | OpKind::AttentionPrefill(_)
            | OpKind::AttentionDecodePartial(_)
            | OpKind::AttentionDecodeMerge(_)
            | OpKind::AttentionDecodeMergeQuantise { .. }
            | OpKind::GatedMulQuantise(_)
            | OpKind::GatedMatMul { .. }
            | OpKind::SelectRows
            | OpKind::Sample { .. }
            | OpKind::Vision(_) => self.emit(op.clone()),
        }
    }

    fn emit(&mut self, mut op: Op) {
        for id in op.inputs.iter_mut().chain(op.outputs.iter_mut()) {
            *id = self.renamed.get(id).copied().unwrap_or(*id);
        }
        self.emitted.push(op);
    }

    /// Emits an operation as a kind that writes the quantised form of its output.
    fn emit_quantised(&mut self, op: &Op, kind: OpKind, copies: Copies) {
        let blocks = self.quantised_like(op.outputs[0], copies);
        self.quantised.insert(op.outputs[0], (blocks, copies));
        self.emit(Op { kind, outputs: vec![blocks], ..op.clone() });
    }

    fn takes_quantised(&self, matrix: TensorId) -> bool {
        self.shaping.activations == Activations::Quantised
            && self.program.tensor(matrix).dtype.is_quantised()
    }

    /// Whether a value ends with its phase: only then may it be replaced by another form of it.
    fn is_passing(&self, value: TensorId) -> bool {
        self.program.tensor(value).residence == Residence::Transient
    }

    fn feeds_quantised_products(&self, value: TensorId) -> bool {
        let readers = self.readers.get(&value).map_or(&[][..], Vec::as_slice);
        self.is_passing(value)
            && !readers.is_empty()
            && readers.iter().all(|reader| {
                let quantised = match reader.kind {
                    OpKind::MatMul { .. } => self.takes_quantised(reader.inputs[1]),
                    OpKind::Vision(VisionOp::GatedProducts { .. }) => self.takes_both(reader),
                    _ => false,
                };
                quantised && reader.inputs[0] == value
            })
    }

    /// Whether both products of a gated pair take quantised activations.
    fn takes_both(&self, pair: &Op) -> bool {
        self.takes_quantised(pair.inputs[1]) && self.takes_quantised(pair.inputs[3])
    }

    /// Whether a residual sum alone reads a value.
    fn only_sum(&self, value: TensorId) -> bool {
        self.only_reader(value).is_some_and(|reader| matches!(reader.kind, OpKind::Add))
    }

    /// Whether a product may wait for the gate that alone reads it: then both products of the gate
    /// have one input and quantised weights, and what the gate gives is quantised too.
    fn only_gate(&self, product: &Op) -> bool {
        let value = product.outputs[0];
        let fused = self.shaping.choices.has(Choice::GateFusion);
        fused
            && self.only_reader(value).is_some_and(|reader| {
                matches!(reader.kind, OpKind::GatedMul(_))
                    && reader.inputs[0] != reader.inputs[1]
                    && self.feeds_quantised_products(reader.outputs[0])
                    && reader
                        .inputs
                        .iter()
                        .all(|input| self.is_product_of(*input, product.inputs[0]))
            })
    }

    /// Whether a value is a product of quantised weights with `x` that one operation reads.
    fn is_product_of(&self, value: TensorId, x: TensorId) -> bool {
        let readers = self.readers.get(&x).map_or(&[][..], Vec::as_slice);
        self.only_reader(value).is_some()
            && readers.iter().any(|op| {
                let whole_blocks = match &op.kind {
                    OpKind::MatMul { rows, .. } => rows.is_multiple_of(BLOCK),
                    _ => false,
                };
                whole_blocks
                    && op.outputs[0] == value
                    && op.inputs[0] == x
                    && self.takes_quantised(op.inputs[1])
            })
    }

    /// The operation that alone reads a value that ends with its phase.
    fn only_reader(&self, value: TensorId) -> Option<&'a Op> {
        match self.readers.get(&value).map(Vec::as_slice) {
            Some([reader]) if self.is_passing(value) => Some(reader),
            _ => None,
        }
    }

    fn norm(&mut self, op: &Op, epsilon: f32) {
        if self.only_sum(op.outputs[0]) {
            self.waiting.insert(op.outputs[0], op.clone());
        } else if self.feeds_quantised_products(op.outputs[0]) {
            let copies = self.copies(op.outputs[0]);
            self.emit_quantised(op, OpKind::RmsNormQuantise { epsilon, copies }, copies);
        } else {
            self.emit(op.clone());
        }
    }

    /// How the shards have the quantised values that one operation makes and products alone read.
    fn copies(&self, value: TensorId) -> Copies {
        let readers = self.readers.get(&value).map_or(&[][..], Vec::as_slice);
        let products = readers.iter().all(|reader| matches!(reader.kind, OpKind::MatMul { .. }));
        let (tensor, dims) = (self.program.tensor(value), self.program.dims_max());
        let extent = |axis: usize| tensor.shape[axis].value(&dims).unwrap_or(u64::MAX);
        let features = extent(0).saturating_mul(TILE);
        let few = features.saturating_mul(extent(1)) <= COPIED_ELEMENTS_MAX;
        // The streams of a region may have fewer lanes than the phase.
        let region = Streams::of(&self.program.phases[self.phase.index()]).is_some();
        let chosen = self.shaping.choices.has(Choice::OwnCopies) && self.shaping.lanes > 1;
        match chosen && products && few && !region {
            true => Copies::Own { blocks: features.div_ceil(BLOCK).next_multiple_of(COPY_BLOCKS) },
            false => Copies::Shared,
        }
    }

    fn product(&mut self, op: &Op) {
        let waits = self.only_sum(op.outputs[0]) || self.only_gate(op);
        let mut op = op.clone();
        if self.takes_quantised(op.inputs[1]) {
            let (blocks, made) = self.quantise(op.inputs[0], &op);
            op.inputs[0] = blocks;
            if let OpKind::MatMul { copies, .. } = &mut op.kind {
                *copies = made;
            }
        }
        match waits {
            true => {
                self.waiting.insert(op.outputs[0], op);
            }
            false => self.emit(op),
        }
    }

    fn gated_products(&mut self, op: &Op) {
        let mut pair = op.clone();
        if self.takes_both(op) {
            (pair.inputs[0], _) = self.quantise(op.inputs[0], op);
        }
        self.emit(pair);
    }

    /// activation(gate)·up; with both its products where these wait for it.
    fn gate(&mut self, op: &Op, activation: Activation) {
        let products = op.inputs.iter().map(|input| self.waiting.remove(input));
        let products: Vec<Op> = products.flatten().collect();
        let [gate, up] = products.as_slice() else {
            debug_assert!(products.is_empty(), "both products wait, or neither");
            return match self.feeds_quantised_products(op.outputs[0]) {
                true => {
                    self.emit_quantised(op, OpKind::GatedMulQuantise(activation), Copies::Shared);
                }
                false => self.emit(op.clone()),
            };
        };
        let OpKind::MatMul { rows, cols, copies, .. } = gate.kind else {
            unreachable!("{} never waits for a gate", gate.kind.name())
        };
        let tokens = &self.program.tensor(op.outputs[0]).shape[1];
        let tokens = tokens.value(&self.program.dims_max()).unwrap_or(1).max(1);
        let choices = &self.shaping.choices;
        let block_rows = match (choices.has(Choice::RowBlocks), choices.preference) {
            (false, _) => rows.div_ceil(u64::from(self.shaping.lanes)),
            (true, Preference::LatencyFirst) => FFN_BLOCK_BYTES / (8 * tokens) / BLOCK * BLOCK,
            (true, Preference::MemoryFirst) => BLOCK,
        };
        let block_rows = block_rows.next_multiple_of(BLOCK).clamp(BLOCK, rows);
        let inputs = vec![gate.inputs[0], gate.inputs[1], up.inputs[1]];
        let kind = OpKind::GatedMatMul { rows, cols, activation, block_rows, copies };
        self.emit_quantised(&Op { inputs, ..op.clone() }, kind, Copies::Shared);
    }

    /// The quantised form of a value, made now unless it is there already.
    fn quantise(&mut self, value: TensorId, reader: &Op) -> (TensorId, Copies) {
        if let Some(made) = self.quantised.get(&value) {
            return *made;
        }
        let blocks = self.quantised_like(value, Copies::Shared);
        self.quantised.insert(value, (blocks, Copies::Shared));
        let producer = self.program.tensor(value).name.clone();
        let short = producer.split_once('.').map_or(producer.as_str(), |(_, rest)| rest);
        // In a region a value that both streams see is quantised by the one that reads it first.
        let stream = stream_of(reader);
        let region = Streams::of(&self.program.phases[self.phase.index()]).is_some();
        let name = match region && short.split('.').next() != Some(stream) {
            true => format!("{stream}.{short}.quantise"),
            false => format!("{short}.quantise"),
        };
        self.emit(Op {
            name,
            kind: OpKind::Quantise,
            inputs: vec![value],
            outputs: vec![blocks],
            workspace: Vec::new(),
            grain: BLOCK,
            in_place: Vec::new(),
        });
        (blocks, Copies::Shared)
    }

    /// A residual sum absorbs the product or the norm that feeds it.
    fn sum(&mut self, op: &Op) {
        let fed = op.inputs.iter().find(|input| self.waiting.contains_key(input)).copied();
        let Some(branch) = fed else { return self.emit(op.clone()) };
        let residual = match op.inputs[0] == branch {
            true => op.inputs[1],
            false => op.inputs[0],
        };
        let mut fused = self.waiting.remove(&branch).expect("found above");
        fused.kind = match fused.kind {
            OpKind::RmsNorm { epsilon } => OpKind::RmsNormAdd { epsilon },
            OpKind::MatMul { rows, cols, copies, .. } => {
                OpKind::MatMul { rows, cols, epilogue: Epilogue::Add, copies }
            }
            other => unreachable!("{} never waits", other.name()),
        };
        // An operation may wait on either side of the sum; the one not absorbed goes first.
        if let Some(other) = self.waiting.remove(&residual) {
            self.emit(other);
        }
        fused.inputs.push(residual);
        fused.outputs = op.outputs.clone();
        self.emit(fused);
    }

    /// Changes a value where it stands when nobody else reads the old one.
    fn update(&mut self, op: &Op) {
        let alone = self.readers.get(&op.inputs[0]).is_some_and(|readers| readers.len() == 1);
        if alone && self.is_passing(op.inputs[0]) && self.is_passing(op.outputs[0]) {
            let target = self.renamed.get(&op.inputs[0]).copied().unwrap_or(op.inputs[0]);
            self.renamed.insert(op.outputs[0], target);
        }
        self.emit(op.clone());
    }

    fn attention(&mut self, op: &Op, shape: AttentionShape) {
        let tokens = self.program.tensor(op.inputs[0]).shape[1].clone();
        let one_per_sequence =
            self.program.dim_named("sequences").is_some_and(|dim| tokens == Size::Dim(dim));
        // Where whole groups divide over the lanes, a lane needs only the caches of its own heads,
        // and there is nothing to merge. Else a step is cut by segments too, to be even.
        let whole_groups = shape.kv_heads.is_multiple_of(self.shaping.lanes);
        if !one_per_sequence || whole_groups {
            return self.emit(Op { kind: OpKind::AttentionPrefill(shape), ..op.clone() });
        }
        let partials = self.partials(op, shape);
        self.emit(Op {
            name: format!("{}.partial", op.name),
            kind: OpKind::AttentionDecodePartial(shape),
            outputs: vec![partials],
            grain: 1,
            ..op.clone()
        });
        let merge = Op {
            name: format!("{}.merge", op.name),
            kind: OpKind::AttentionDecodeMerge(shape),
            inputs: vec![partials, op.inputs[3], op.inputs[4]],
            ..op.clone()
        };
        let whole_blocks = u64::from(shape.head_dim).is_multiple_of(BLOCK);
        if !whole_blocks || !self.feeds_quantised_products(op.outputs[0]) {
            return self.emit(merge);
        }
        let copies = self.copies(op.outputs[0]);
        let kind = OpKind::AttentionDecodeMergeQuantise { shape, copies };
        self.emit_quantised(&merge, kind, copies);
    }

    fn partials(&mut self, op: &Op, shape: AttentionShape) -> TensorId {
        let dim = match shape.window {
            0 => self.program.dim_named("segments"),
            _ => self.program.dim_named("segments.window"),
        }
        .expect("a decoder has its segment dims");
        let group = u64::from(shape.heads / shape.kv_heads);
        let floats = partial_floats(group, u64::from(shape.head_dim));
        let items = Size::Dim(dim).times(u64::from(shape.kv_heads));
        let name = format!("{}.{}.partials", self.phase_name(), op.name);
        self.program.add_tensor(Tensor {
            name,
            model: 0,
            dtype: Dtype::F32,
            shape: vec![items.clone(), Size::Const(floats)],
            size: items.times(floats * 4),
            residence: Residence::Transient,
            term: Term::Intermediate,
            phase: Some(self.phase),
            state: None,
        })
    }

    fn phase_name(&self) -> String {
        self.program.phases[self.phase.index()].name.clone()
    }

    /// A block tensor of the same features and tokens as an activation, or a copy for each lane.
    fn quantised_like(&mut self, value: TensorId, copies: Copies) -> TensorId {
        let tensor = self.program.tensor(value).clone();
        let tiles = tensor.shape[0].value(&[]).expect("feature tiles are constant");
        let features = tiles * TILE;
        debug_assert_eq!(tensor.size, activation_bytes(features, &tensor.shape[1]));
        let blocks = match copies {
            Copies::Shared => features.div_ceil(BLOCK),
            Copies::Own { blocks } => blocks * u64::from(self.shaping.lanes),
        };
        self.program.add_tensor(Tensor {
            name: format!("{}.q8", tensor.name),
            dtype: Dtype::U8,
            shape: vec![
                Size::Const(blocks),
                tensor.shape[1].clone(),
                Size::Const(dctms_ir::limits::ACTIVATION_BLOCK_BYTES),
            ],
            size: quantised_bytes(blocks * BLOCK, &tensor.shape[1]),
            ..tensor
        })
    }
}

/// Gives every operation the scratch that its contract asks for, one slice a shard.
fn add_workspace(program: &mut Program, groups: &[Group]) -> Result<(), PlanError> {
    for (phase, group) in groups.iter().enumerate() {
        for op in 0..program.phases[phase].ops.len() {
            let operation = &program.phases[phase].ops[op];
            let bytes = workspace_bytes(program, operation)?;
            if bytes == 0 {
                continue;
            }
            let bytes = bytes.next_multiple_of(ALIGNMENT_BYTES);
            let shards = match dctms_ir::contract::shardable(&operation.kind) {
                true => u64::from(group.count),
                false => 1,
            };
            let name = format!("{}.{}.workspace", program.phases[phase].name, operation.name);
            let model = program.tensor(operation.outputs[0]).model;
            let id = program.add_tensor(Tensor {
                name,
                model,
                dtype: Dtype::U8,
                shape: vec![Size::Const(shards), Size::Const(bytes)],
                size: Size::Const(shards * bytes),
                residence: Residence::Transient,
                term: Term::Intermediate,
                phase: Some(PhaseId::of(phase)),
                state: None,
            });
            program.phases[phase].ops[op].workspace = vec![id];
        }
    }
    Ok(())
}

/// Removes the tensors that no operation names any more, and renumbers the rest.
fn drop_unused(program: &mut Program) {
    let mut used = vec![false; program.tensors.len()];
    for op in program.phases.iter().flat_map(|phase| &phase.ops) {
        for id in op.inputs.iter().chain(&op.outputs).chain(&op.workspace) {
            used[id.index()] = true;
        }
    }
    for (index, tensor) in program.tensors.iter().enumerate() {
        used[index] |= tensor.residence != Residence::Transient;
    }
    let mut renumbered = vec![TensorId(u32::MAX); used.len()];
    let mut kept = Vec::new();
    for (index, tensor) in std::mem::take(&mut program.tensors).into_iter().enumerate() {
        if used[index] {
            renumbered[index] = TensorId::of(kept.len());
            kept.push(tensor);
        }
    }
    program.tensors = kept;
    for op in program.phases.iter_mut().flat_map(|phase| &mut phase.ops) {
        for id in op.inputs.iter_mut().chain(&mut op.outputs).chain(&mut op.workspace) {
            *id = renumbered[id.index()];
        }
    }
}
