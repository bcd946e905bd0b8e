//! Random programs over the real operations: small, well-formed, with every kind of lifetime.
//!
//! All activations have one width, so that any operation can read any of them. Phases form a
//! chain from `load` with random ways back, so that what an earlier phase writes is there for a
//! later one, and dead in between on some ways round.

mod vision;

use dctms_ir::join::{Steps, join};
use dctms_ir::op::{
    Activation, AttentionShape, Copies, Epilogue, Op, OpKind, RopeScaling, RopeStyle, Source,
};
use dctms_ir::program::{ModelInfo, Program};
use dctms_ir::region::add_region;
use dctms_ir::tensor::Term;
use dctms_ir::vision::VisionOp;
use dctms_ir::{Dtype, PhaseId, Residence, Size, Tensor, TensorId, contract};

use crate::random::Random;

/// Width of every activation.
const FEATURES: u64 = 128;
const KV_FEATURES: u64 = 64;
const HEAD_DIM: u32 = 32;
/// Shards that scratch is cut for at most.
pub const SHARDS_MAX: u64 = 4;

const SHAPE: AttentionShape = AttentionShape {
    heads: 4,
    kv_heads: 2,
    head_dim: HEAD_DIM,
    capacity: 64,
    window: 0,
    scale: 0.125,
    kv: Dtype::F16,
};

/// Which operations a program is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What a model writes: nothing fused, quantised or cut, no scratch.
    Logical,
    /// What kernels run.
    Legal,
}

/// How large a program is made.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its operations.
    pub level: Level,
    /// Phases beside `load`.
    pub phases: usize,
    /// Operations of a phase, about.
    pub ops: usize,
}

/// A random program.
#[must_use]
pub fn program(random: &mut Random, extent: Extent) -> Program {
    let mut maker = Maker::new(random, extent.level);
    for index in 0..extent.phases {
        maker.phase(index, extent.ops);
    }
    maker.flow(extent.phases);
    maker.program
}

/// A random program with regions of two of its phases.
#[must_use]
pub fn with_regions(random: &mut Random, extent: Extent) -> Program {
    let extent = Extent { phases: extent.phases.max(2), ..extent };
    let mut program = program(random, extent);
    for _ in 0..random.between(1, 2) {
        // Phases form a chain: the one after `behind` may be ahead of it, and any before that one.
        let behind = 1 + random.below(extent.phases - 1);
        let ahead = 1 + random.below(behind + 1);
        let name = format!("phase{}+phase{}", ahead - 1, behind - 1);
        if ahead != behind && program.phase_named(&name).is_none() {
            add_region(&mut program, PhaseId::of(ahead), PhaseId::of(behind));
        }
    }
    program
}

/// Several random programs as one; with [`Steps::Overlapping`] some pairs of their steps overlap.
#[must_use]
pub fn joined(random: &mut Random, count: usize, extent: Extent, steps: Steps) -> Program {
    let programs: Vec<Program> = (0..count).map(|_| program(random, extent)).collect();
    let mut joined = join(&programs, steps).expect("operands are right, phases are few");
    let loose = random.once_in(2);
    joined.flow.overlap.retain(|_| !loose || random.once_in(2));
    joined
}

struct Maker<'r> {
    random: &'r mut Random,
    level: Level,
    program: Program,
    tokens: Size,
    /// Constants by use, written in `load`.
    matrix: TensorId,
    kv_matrix: TensorId,
    vector: TensorId,
    head_vector: TensorId,
    frequencies: TensorId,
    integers: TensorId,
    caches: [TensorId; 2],
    /// Activations that an earlier phase left for later ones.
    carried: Vec<TensorId>,
    host: [TensorId; 4],
    random_state: TensorId,
    /// What only encoders touch.
    vision: vision::Lasting,
}

/// Values that an operation of the phase may read.
#[derive(Default)]
struct Pool {
    wide: Vec<TensorId>,
    quantised: Vec<TensorId>,
    narrow: Vec<TensorId>,
    tables: Vec<TensorId>,
}

impl<'r> Maker<'r> {
    fn new(random: &'r mut Random, level: Level) -> Self {
        let mut program = Program::default();
        program.models.push(ModelInfo {
            file: "random.gguf".to_string(),
            header_sha256: "00".to_string(),
            sha256: None,
            file_complete: true,
            architecture: "random".to_string(),
            parameters: 0,
        });
        let most = random.between(1, 4);
        let tokens = Size::Dim(program.add_dim("tokens", 1, most));
        let load = program.add_phase("load");
        program.flow.entry.push(load);
        let mut maker = Maker {
            random,
            level,
            program,
            tokens,
            matrix: TensorId(0),
            kv_matrix: TensorId(0),
            vector: TensorId(0),
            head_vector: TensorId(0),
            frequencies: TensorId(0),
            integers: TensorId(0),
            caches: [TensorId(0); 2],
            carried: Vec::new(),
            host: [TensorId(0); 4],
            random_state: TensorId(0),
            vision: vision::Lasting::NONE,
        };
        let constant = (load, Residence::Constant);
        maker.matrix = maker.weight("matrix", constant, FEATURES, FEATURES);
        maker.kv_matrix = maker.weight("kv_matrix", constant, KV_FEATURES, FEATURES);
        maker.vector = maker.weight("vector", constant, 1, FEATURES);
        maker.head_vector = maker.weight("head_vector", constant, 1, HEAD_DIM.into());
        maker.frequencies = maker.lasting("frequencies", Residence::Constant, &[16], 4);
        let kind = OpKind::LoadRopeFrequencies {
            base: 1e4,
            rotary_dim: HEAD_DIM,
            scaling: RopeScaling::None,
            factors: None,
        };
        maker.op(load, "frequencies", kind, &[], &[maker.frequencies]);
        maker.integers = maker.lasting("integers", Residence::External, &[4], 4);
        for part in 0..2 {
            let heads = u64::from(SHAPE.kv_heads);
            let shape = [heads, 1, u64::from(SHAPE.capacity), u64::from(HEAD_DIM)];
            maker.caches[part] =
                maker.lasting(&format!("cache{part}"), Residence::State, &shape, 2);
        }
        for (index, name) in ["logits", "parameters", "history", "sampled"].into_iter().enumerate()
        {
            maker.host[index] = maker.lasting(name, Residence::External, &[16], 4);
        }
        maker.random_state = maker.lasting("random", Residence::State, &[8], 4);
        maker.vision = vision::Lasting::of(&mut maker);
        maker
    }

    fn lasting(&mut self, name: &str, residence: Residence, shape: &[u64], bytes: u64) -> TensorId {
        let dtype = if bytes == 2 { Dtype::F16 } else { Dtype::F32 };
        let term = match residence {
            Residence::Constant => Term::Weights,
            Residence::State => Term::Kv,
            Residence::External | Residence::Carried | Residence::Transient => Term::Persistent,
        };
        self.program.add_tensor(Tensor {
            name: name.to_string(),
            model: 0,
            dtype,
            shape: shape.iter().copied().map(Size::Const).collect(),
            size: Size::Const(shape.iter().product::<u64>() * bytes),
            residence,
            term,
            phase: None,
            state: (residence == Residence::State).then(|| name.to_string()),
        })
    }

    /// A weight and the operation that loads it: a constant, or one that comes and goes.
    fn weight(
        &mut self,
        name: &str,
        (phase, residence): (PhaseId, Residence),
        rows: u64,
        cols: u64,
    ) -> TensorId {
        let shape = [rows, cols];
        let shape = if rows == 1 { &shape[1..] } else { &shape[..] };
        let id = self.lasting(name, residence, shape, 4);
        // Blocks of 8 bits for some matrices, so that products take quantised activations.
        let dtype = match rows > 1 && self.random.once_in(2) {
            true => Dtype::Q8_0,
            false => Dtype::F32,
        };
        let bytes = dtype.packed_bytes(rows.next_multiple_of(16), cols).expect("whole blocks");
        if rows > 1 {
            let tensor = &mut self.program.tensors[id.index()];
            (tensor.dtype, tensor.size) = (dtype, Size::Const(bytes));
        }
        let source = Source {
            tensor: name.to_string(),
            file: 0,
            offset: 0,
            bytes: contract::file_row_bytes(dtype, cols).expect("whole blocks") * rows,
            dtype,
            rows,
            cols,
        };
        let kind = if rows == 1 { OpKind::LoadVector(source) } else { OpKind::LoadMatrix(source) };
        self.op(phase, &format!("load.{name}"), kind, &[], &[id]);
        id
    }

    fn transient(&mut self, phase: PhaseId, dtype: Dtype, shape: Vec<Size>, unit: u64) -> TensorId {
        let name = format!("{}.t{}", phase.0, self.program.tensors.len());
        let size = Size::product(&shape).times(unit);
        self.program.add_tensor(Tensor {
            name,
            model: 0,
            dtype,
            shape,
            size,
            residence: Residence::Transient,
            term: Term::Intermediate,
            phase: Some(phase),
            state: None,
        })
    }

    fn activation(&mut self, phase: PhaseId, features: u64) -> TensorId {
        let shape = vec![Size::Const(features / 16), self.tokens.clone(), Size::Const(16)];
        self.transient(phase, Dtype::F32, shape, 4)
    }

    fn quantised(&mut self, phase: PhaseId) -> TensorId {
        let shape = vec![Size::Const(FEATURES / 32), self.tokens.clone(), Size::Const(40)];
        self.transient(phase, Dtype::U8, shape, 1)
    }

    /// Adds an operation with a random grain and the scratch that it needs.
    fn op(
        &mut self,
        phase: PhaseId,
        name: &str,
        kind: OpKind,
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) {
        let features = match kind {
            OpKind::KvAppend(_) => KV_FEATURES,
            OpKind::MatMul { rows, .. } => rows,
            OpKind::Vision(
                VisionOp::PatchRopeTable { .. } | VisionOp::SectionedRopeTable { .. },
            ) => vision::TABLE_FEATURES,
            _ => FEATURES,
        };
        let piece = contract::grain_piece(&kind);
        let grains: Vec<u64> = (0..4)
            .map(|power| piece << power)
            .filter(|grain| piece > 1 && features.is_multiple_of(*grain))
            .collect();
        let grain = if grains.is_empty() { 1 } else { *self.random.pick(&grains) };
        let count = self.program.phases[phase.index()].ops.len();
        let mut op = Op {
            name: format!("{count}.{name}"),
            kind,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            workspace: Vec::new(),
            grain,
            in_place: Vec::new(),
        };
        // A logical program has no scratch; making it explicit is part of planning.
        let scratch = match self.level {
            Level::Logical => 0,
            Level::Legal => contract::arity(&op.kind).2,
        };
        let bytes = contract::workspace_bytes(&self.program, &op).expect("operands are right");
        for _ in 0..scratch {
            let shards = if contract::shardable(&op.kind) { SHARDS_MAX } else { 1 };
            let shape = vec![Size::Const(shards), Size::Const(bytes)];
            op.workspace.push(self.transient(phase, Dtype::U8, shape, 1));
        }
        self.program.phases[phase.index()].ops.push(op);
    }

    fn phase(&mut self, index: usize, ops: usize) {
        let phase = self.program.add_phase(&format!("phase{index}"));
        let mut pool = Pool { wide: self.carried.clone(), ..Pool::default() };
        // A weight of this phase alone: dead wherever this phase must come first.
        let passing = (phase, Residence::Carried);
        let own = self.weight(&format!("own{index}"), passing, 1, FEATURES);
        for _ in 0..ops {
            self.step(phase, &mut pool, own);
        }
        if self.random.once_in(3) {
            let [logits, parameters, history, sampled] = self.host;
            let kind = OpKind::Sample { vocabulary: 16 };
            let outputs = [sampled, self.random_state];
            self.op(phase, "sample", kind, &[logits, parameters, history], &outputs);
        }
        if self.random.once_in(2) {
            let shape = [FEATURES / 16, 4, 16];
            let name = format!("carried{index}");
            let id = self.lasting(&name, Residence::Carried, &shape, 4);
            let x = self.wide(phase, &mut pool);
            self.op(phase, "carry", OpKind::BiasAdd, &[x, self.vector], &[id]);
            self.carried.push(id);
        }
    }

    /// An activation to read; the first one comes from an embedding.
    fn wide(&mut self, phase: PhaseId, pool: &mut Pool) -> TensorId {
        if pool.wide.is_empty() || self.random.once_in(12) {
            let id = self.activation(phase, FEATURES);
            let inputs = [self.integers, self.matrix];
            self.op(phase, "embed", OpKind::EmbedRows { scale: 1.0 }, &inputs, &[id]);
            pool.wide.push(id);
        }
        // Recent values more often: long chains, with some long lives between.
        let count = pool.wide.len();
        let from = if self.random.once_in(3) { 0 } else { count.saturating_sub(3) };
        pool.wide[from + self.random.below(count - from)]
    }

    fn quantised_or_wide(&mut self, phase: PhaseId, pool: &mut Pool) -> TensorId {
        match pool.quantised.last() {
            Some(id) if self.level == Level::Legal && self.random.once_in(2) => *id,
            _ => self.wide(phase, pool),
        }
    }

    fn narrow(&mut self, phase: PhaseId, pool: &mut Pool) -> TensorId {
        if pool.narrow.is_empty() || self.random.once_in(2) {
            let id = self.activation(phase, KV_FEATURES);
            let x = self.quantised_or_wide(phase, pool);
            let kind = product(KV_FEATURES, Epilogue::Store);
            self.op(phase, "project", kind, &[x, self.kv_matrix], &[id]);
            pool.narrow.push(id);
        }
        *self.random.pick(&pool.narrow)
    }

    /// The output of an operation that gives one activation: a new tensor, or now and then the
    /// very tensor of an input that the kind may replace.
    fn push_wide(
        &mut self,
        phase: PhaseId,
        pool: &mut Pool,
        name: &str,
        kind: OpKind,
        inputs: &[TensorId],
    ) {
        let update =
            contract::may_in_place(&kind).first().map(|(_, input)| inputs[*input as usize]);
        if let Some(id) = update
            && self.level == Level::Legal
            && self.random.once_in(4)
            && self.program.tensor(id).residence == Residence::Transient
            && inputs.iter().filter(|input| **input == id).count() == 1
        {
            self.op(phase, name, kind, inputs, &[id]);
            return;
        }
        let id = self.activation(phase, FEATURES);
        self.op(phase, name, kind, inputs, &[id]);
        pool.wide.push(id);
    }

    fn step(&mut self, phase: PhaseId, pool: &mut Pool, own: TensorId) {
        let x = self.wide(phase, pool);
        let y = self.wide(phase, pool);
        let vector = if self.random.once_in(2) { own } else { self.vector };
        let integers = self.integers;
        // Fused and quantising operations are not for a model to write.
        let choice = match (self.level, self.random.below(18)) {
            (Level::Logical, 1..=3 | 7) => 9,
            (_, choice) => choice,
        };
        match choice {
            0 => {
                self.push_wide(phase, pool, "norm", OpKind::RmsNorm { epsilon: 1e-5 }, &[x, vector])
            }
            1 => {
                let kind = OpKind::RmsNormAdd { epsilon: 1e-5 };
                self.push_wide(phase, pool, "norm_add", kind, &[x, vector, y]);
            }
            2 => {
                let id = self.quantised(phase);
                let kind = OpKind::RmsNormQuantise { epsilon: 1e-5, copies: Copies::Shared };
                self.op(phase, "norm_q", kind, &[x, vector], &[id]);
                pool.quantised.push(id);
            }
            3 => {
                let id = self.quantised(phase);
                self.op(phase, "quantise", OpKind::Quantise, &[x], &[id]);
                pool.quantised.push(id);
            }
            4 => {
                let kind = OpKind::HeadNorm { epsilon: 1e-5, head_dim: HEAD_DIM };
                self.push_wide(phase, pool, "head_norm", kind, &[x, self.head_vector]);
            }
            5 | 6 => {
                let a = self.quantised_or_wide(phase, pool);
                let kind = product(FEATURES, Epilogue::Store);
                self.push_wide(phase, pool, "matmul", kind, &[a, self.matrix]);
            }
            7 => {
                let a = self.quantised_or_wide(phase, pool);
                let kind = product(FEATURES, Epilogue::Add);
                self.push_wide(phase, pool, "matmul_add", kind, &[a, self.matrix, x]);
            }
            8 => self.push_wide(phase, pool, "bias", OpKind::BiasAdd, &[x, vector]),
            9 => self.push_wide(phase, pool, "add", OpKind::Add, &[x, y]),
            10 => {
                if pool.tables.is_empty() {
                    let shape = vec![Size::Const(2), Size::Const(16), self.tokens.clone()];
                    let id = self.transient(phase, Dtype::F32, shape, 4);
                    let kind = OpKind::RopeTable { magnitude: 1.0 };
                    self.op(phase, "table", kind, &[integers, self.frequencies], &[id]);
                    pool.tables.push(id);
                }
                let kind = OpKind::Rope {
                    style: RopeStyle::Halves,
                    head_dim: HEAD_DIM,
                    rotary_dim: HEAD_DIM,
                };
                let table = *self.random.pick(&pool.tables);
                self.push_wide(phase, pool, "rope", kind, &[x, table]);
            }
            11 => {
                let (k, v) = (self.narrow(phase, pool), self.narrow(phase, pool));
                let inputs = [k, v, integers, integers];
                let caches = self.caches;
                self.op(phase, "append", OpKind::KvAppend(SHAPE), &inputs, &caches);
            }
            12 => {
                let inputs = [x, self.caches[0], self.caches[1], integers, integers];
                if self.level == Level::Logical {
                    self.push_wide(phase, pool, "attention", OpKind::Attention(SHAPE), &inputs);
                } else if self.random.once_in(2) {
                    let kind = OpKind::AttentionPrefill(SHAPE);
                    self.push_wide(phase, pool, "attention", kind, &inputs);
                } else {
                    let shape = vec![Size::Const(3), Size::Const(64), self.tokens.clone()];
                    let partials = self.transient(phase, Dtype::F32, shape, 4);
                    let kind = OpKind::AttentionDecodePartial(SHAPE);
                    self.op(phase, "partial", kind, &inputs, &[partials]);
                    let kind = OpKind::AttentionDecodeMerge(SHAPE);
                    self.push_wide(phase, pool, "merge", kind, &[partials, integers, integers]);
                }
            }
            14..18 => {
                let kind = self.random.below(vision::KINDS);
                self.vision_step((phase, kind), pool, [vector, own]);
            }
            _ => {
                if self.level == Level::Logical || self.random.once_in(2) {
                    let kind = OpKind::GatedMul(Activation::Silu);
                    self.push_wide(phase, pool, "gated", kind, &[x, y]);
                } else if let Some(q) = pool.quantised.last().copied() {
                    let id = self.quantised(phase);
                    let (rows, cols, activation) = (FEATURES, FEATURES, Activation::Silu);
                    let (block_rows, copies) = (32, Copies::Shared);
                    let kind = OpKind::GatedMatMul { rows, cols, activation, block_rows, copies };
                    self.op(phase, "gated_products", kind, &[q, self.matrix, self.matrix], &[id]);
                    pool.quantised.push(id);
                } else {
                    let id = self.quantised(phase);
                    let kind = OpKind::GatedMulQuantise(Activation::GeluTanh);
                    self.op(phase, "gated_q", kind, &[x, y], &[id]);
                    pool.quantised.push(id);
                }
            }
        }
    }

    /// A chain from `load`, with random ways back.
    fn flow(&mut self, phases: usize) {
        let next = &mut self.program.flow.next;
        for (from, next) in next.iter_mut().enumerate() {
            let mut after = Vec::new();
            if from < phases {
                after.push(PhaseId::of(from + 1));
            } else if phases > 0 {
                after.push(PhaseId::of(1));
            }
            for back in 1..=from {
                if self.random.once_in(3) && !after.contains(&PhaseId::of(back)) {
                    after.push(PhaseId::of(back));
                }
            }
            *next = after;
        }
    }
}

/// A product of all features.
fn product(rows: u64, epilogue: Epilogue) -> OpKind {
    OpKind::MatMul { rows, cols: FEATURES, epilogue, copies: Copies::Shared }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every operation that a model may write is drawn, and every one that kernels run.
    #[test]
    fn every_kind_of_operation_is_drawn() {
        let drawn = |level: Level| -> BTreeSet<String> {
            let extent = Extent { level, phases: 2, ops: 12 };
            let programs = (0..60).map(|seed| program(&mut Random::new(seed), extent));
            let phases = programs.flat_map(|program| program.phases);
            phases.flat_map(|phase| phase.ops).map(|op| op.kind.name().to_string()).collect()
        };
        let both = [
            "LayerNorm",
            "Activate",
            "FeatureScale",
            "Patchify",
            "AddPositions",
            "FullAttention",
            "WindowAttention",
            "PatchRopeTable",
            "SectionedRopeTable",
            "GatedProducts",
            "MergePatches",
            "PlaceRows",
            "SpliceRows",
            "MatMul",
            "Rope",
            "KvAppend",
            "Sample",
        ];
        let legal = ["GatedMatMul", "RmsNormQuantise", "RmsNormAdd", "AttentionDecodePartial"];
        let (logical, legal_drawn) = (drawn(Level::Logical), drawn(Level::Legal));
        for name in both {
            assert!(logical.contains(name) && legal_drawn.contains(name), "{name}");
        }
        for name in legal {
            assert!(!logical.contains(name) && legal_drawn.contains(name), "{name}");
        }
    }
}
