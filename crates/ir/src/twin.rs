//! A phase again, under another name: the same operations on the same lasting tensors, with
//! transients of its own.
//!
//! Phases that may run at the same time share no byte that one of them writes, so what one does
//! beside another it cannot do in the transients that it has when it runs alone. A twin is that
//! phase for the other occasion: it computes the same, is planned on its own, and is entered in
//! the flow by whoever asked for it.
//!
//! Pure: it does not know why somebody wants a phase twice.

use std::collections::BTreeMap;

use crate::ids::{PhaseId, TensorId};
use crate::op::Op;
use crate::program::Program;
use crate::tensor::Tensor;

/// Adds a twin of a phase, with no place in the flow yet. Its transients are named after it.
pub fn add_twin(program: &mut Program, phase: PhaseId, name: &str) -> PhaseId {
    let prefix = format!("{}.", program.phases[phase.index()].name);
    let twin = program.add_phase(name);
    let mut own: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for index in 0..program.tensors.len() {
        if program.tensors[index].phase != Some(phase) {
            continue;
        }
        let tensor = program.tensors[index].clone();
        let rest = tensor.name.strip_prefix(&prefix).unwrap_or(&tensor.name);
        let name = format!("{name}.{rest}");
        let copy = program.add_tensor(Tensor { name, phase: Some(twin), ..tensor });
        own.insert(TensorId::of(index), copy);
    }
    let copied = |ids: &[TensorId]| -> Vec<TensorId> {
        ids.iter().map(|id| own.get(id).copied().unwrap_or(*id)).collect()
    };
    let again = |op: &Op| Op {
        inputs: copied(&op.inputs),
        outputs: copied(&op.outputs),
        workspace: copied(&op.workspace),
        ..op.clone()
    };
    let ops = program.phases[phase.index()].ops.iter().map(again).collect();
    program.phases[twin.index()].ops = ops;
    twin
}
