//! Adds tensors and operations to a program under short names.
//!
//! Every activation is tile-major `[features/16, tokens, 16]`; the builder keeps that in one
//! place. It must not know any model family.

use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::TILE;
use dctms_ir::op::{Op, OpKind, Source};
use dctms_ir::tensor::{Term, activation_bytes};
use dctms_ir::{Dtype, Program, Residence, Size, Tensor};

/// Builds one program.
pub struct Builder {
    /// The program so far.
    pub program: Program,
    /// The model that tensors belong to from now on.
    pub model: u32,
    /// Loads what stays.
    load: PhaseId,
    /// Loads weights from now on, and how long those live.
    weights: (PhaseId, Residence),
}

impl Builder {
    /// An empty program with its `load` phase.
    #[must_use]
    pub fn new() -> Self {
        let mut program = Program::default();
        let load = program.add_phase("load");
        program.flow.entry.push(load);
        Self { program, model: 0, load, weights: (load, Residence::Constant) }
    }

    /// From now on weights are loaded by a phase of their own, which may run again: they stay only
    /// as long as a later phase needs them.
    pub fn load_weights_in(&mut self, name: &str) -> PhaseId {
        let phase = self.program.add_phase(name);
        self.weights = (phase, Residence::Carried);
        phase
    }

    /// Logits are a buffer that the host may look at any time; where weights come and go, only
    /// until the next weights are loaded.
    #[must_use]
    pub fn residence_of_logits(&self) -> Residence {
        match self.weights.1 {
            Residence::Carried => Residence::Carried,
            Residence::Constant | Residence::External | Residence::State | Residence::Transient => {
                Residence::External
            }
        }
    }

    /// Adds an operation of one output to a phase.
    pub fn op(
        &mut self,
        phase: PhaseId,
        name: &str,
        kind: OpKind,
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) {
        self.program.phases[phase.index()].ops.push(Op {
            name: name.to_string(),
            kind,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            workspace: Vec::new(),
            grain: TILE,
            in_place: Vec::new(),
        });
    }

    /// A transient activation of a phase.
    pub fn activation(
        &mut self,
        phase: PhaseId,
        name: &str,
        features: u64,
        tokens: &Size,
    ) -> TensorId {
        let prefix = self.program.phases[phase.index()].name.clone();
        self.program.add_tensor(Tensor {
            name: format!("{prefix}.{name}"),
            model: self.model,
            dtype: Dtype::F32,
            shape: vec![Size::Const(features.div_ceil(TILE)), tokens.clone(), Size::Const(TILE)],
            size: activation_bytes(features, tokens),
            residence: Residence::Transient,
            term: Term::Intermediate,
            phase: Some(phase),
            state: None,
        })
    }

    /// A tensor that lives across phases.
    pub fn lasting(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: Vec<Size>,
        size: Size,
        (residence, term): (Residence, Term),
    ) -> TensorId {
        let state = match residence {
            Residence::State => Some(name.to_string()),
            Residence::Constant
            | Residence::External
            | Residence::Carried
            | Residence::Transient => None,
        };
        self.program.add_tensor(Tensor {
            name: name.to_string(),
            model: self.model,
            dtype,
            shape,
            size,
            residence,
            term,
            phase: None,
            state,
        })
    }

    /// A packed weight matrix and the operation that loads it.
    pub fn matrix(&mut self, source: Source) -> TensorId {
        let name = source.tensor.clone();
        let (phase, residence) = self.weights;
        let bytes = source.dtype.packed_bytes(source.rows, source.cols).unwrap_or(u64::MAX);
        let rows = source.rows.next_multiple_of(TILE);
        let id = self.lasting(
            &name,
            source.dtype,
            vec![Size::Const(rows), Size::Const(source.cols)],
            Size::Const(bytes),
            (residence, Term::Weights),
        );
        self.op(phase, &format!("load.{name}"), OpKind::LoadMatrix(source), &[], &[id]);
        id
    }

    /// An f32 weight vector, padded to whole tiles, and the operation that loads it.
    pub fn vector(&mut self, source: Source) -> TensorId {
        let name = source.tensor.clone();
        let (phase, residence) = self.weights;
        let len = source.cols.next_multiple_of(TILE);
        let id = self.lasting(
            &name,
            Dtype::F32,
            vec![Size::Const(len)],
            Size::Const(len * 4),
            (residence, Term::Weights),
        );
        self.op(phase, &format!("load.{name}"), OpKind::LoadVector(source), &[], &[id]);
        id
    }

    /// A table that loading computes.
    pub fn table(
        &mut self,
        name: &str,
        (dtype, len): (Dtype, u64),
        bytes: u64,
        kind: OpKind,
    ) -> TensorId {
        let id = self.lasting(
            name,
            dtype,
            vec![Size::Const(len)],
            Size::Const(bytes),
            (Residence::Constant, Term::Persistent),
        );
        self.op(self.load, &format!("load.{name}"), kind, &[], &[id]);
        id
    }

    /// A buffer of 32-bit integers that the host writes or reads.
    pub fn external_integers(&mut self, name: &str, len: u64) -> TensorId {
        self.lasting(
            name,
            Dtype::I32,
            vec![Size::Const(len)],
            Size::Const(len * 4),
            (Residence::External, Term::Persistent),
        )
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}
