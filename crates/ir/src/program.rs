//! The program: what is to be computed, with no word of when or where.
//!
//! The meaning of a program is the sequential execution of a phase's operations in order, with
//! every tensor in memory of its own. A plan is right when it computes the same.

use crate::ids::{DimId, OpId, PhaseId, TensorId};
use crate::op::{Op, OpKind};
use crate::tensor::Tensor;

/// A bounded run-time size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Its name.
    pub name: String,
    /// Least value in a run.
    pub min: u64,
    /// Greatest value in a run.
    pub max: u64,
}

/// A straight list of operations, with a barrier of all lanes before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name: `load`, `prefill`, `decode`, `sample`, …
    pub name: String,
    /// Operations in program order, which is a topological order.
    pub ops: Vec<Op>,
}

impl Phase {
    /// Whether it does nothing but read files.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.ops.iter().all(|op| {
            matches!(
                op.kind,
                OpKind::LoadMatrix(_)
                    | OpKind::LoadVector(_)
                    | OpKind::LoadRopeFrequencies { .. }
                    | OpKind::LoadTokenizer { .. }
            )
        })
    }
}

/// Which phase may run after which, and which beside which.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Flow {
    /// Phases that may run first.
    pub entry: Vec<PhaseId>,
    /// For each phase, those that may follow it.
    pub next: Vec<Vec<PhaseId>>,
    /// Pairs of phases that may run at the same time: where one follows the other, it need not
    /// wait for its end. Empty where every step excludes every other.
    pub overlap: Vec<(PhaseId, PhaseId)>,
}

impl Flow {
    /// Lets a phase follow whatever another may follow, and be followed by whatever may follow it.
    pub fn add_like(&mut self, phase: PhaseId, twin: PhaseId) {
        self.next[twin.index()] = self.next[phase.index()].clone();
        for next in self.next.iter_mut().filter(|next| next.contains(&phase)) {
            next.push(twin);
        }
    }
}

/// Facts of a model file that a plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// File name without its folder.
    pub file: String,
    /// SHA-256 of the header's bytes, lower-case hexadecimal.
    pub header_sha256: String,
    /// SHA-256 of the whole file, when asked for.
    pub sha256: Option<String>,
    /// Whether the file holds every tensor that its header names.
    pub file_complete: bool,
    /// Architecture name.
    pub architecture: String,
    /// Elements of all tensors.
    pub parameters: u64,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Program {
    /// Models that it computes.
    pub models: Vec<ModelInfo>,
    /// Bounded sizes.
    pub dims: Vec<Dim>,
    /// All tensors of all phases.
    pub tensors: Vec<Tensor>,
    /// Phases.
    pub phases: Vec<Phase>,
    /// Order of phases.
    pub flow: Flow,
}

impl Program {
    /// The dims' maxima, in id order.
    #[must_use]
    pub fn dims_max(&self) -> Vec<u64> {
        self.dims.iter().map(|dim| dim.max).collect()
    }

    /// A tensor by id.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// Adds a tensor.
    pub fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId::of(self.tensors.len() - 1)
    }

    /// Adds a dim.
    pub fn add_dim(&mut self, name: &str, min: u64, max: u64) -> DimId {
        self.dims.push(Dim { name: name.to_string(), min, max });
        DimId::of(self.dims.len() - 1)
    }

    /// Adds an empty phase.
    pub fn add_phase(&mut self, name: &str) -> PhaseId {
        self.phases.push(Phase { name: name.to_string(), ops: Vec::new() });
        self.flow.next.push(Vec::new());
        PhaseId::of(self.phases.len() - 1)
    }

    /// An operation.
    #[must_use]
    pub fn op(&self, phase: PhaseId, op: OpId) -> &Op {
        &self.phases[phase.index()].ops[op.index()]
    }

    /// The phase of a name.
    #[must_use]
    pub fn phase_named(&self, name: &str) -> Option<PhaseId> {
        self.phases.iter().position(|phase| phase.name == name).map(PhaseId::of)
    }

    /// The tensor of a name.
    #[must_use]
    pub fn tensor_named(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().position(|tensor| tensor.name == name).map(TensorId::of)
    }

    /// The dim of a name.
    #[must_use]
    pub fn dim_named(&self, name: &str) -> Option<DimId> {
        self.dims.iter().position(|dim| dim.name == name).map(DimId::of)
    }
}
