//! A phase again, under another name: the same operations on the same lasting tensors, with
//! transients of its own.
//!
//! Phases that may run at the same time share no byte that one of them writes, so what one does
//! beside another it cannot do in the transients that it has when it runs alone. A twin is that
//! phase for the other occasion: it computes the same, is planned on its own, and is entered in
//! the flow by whoever asked for it.
//!
//! A *member* of a family is a twin with bounds of its own: the same computation planned for smaller
//! runs. As transients of all phases share one region, a family takes no more of it than its
//! largest member.
//!
//! Pure: it does not know why somebody wants a phase twice.

use std::collections::BTreeMap;

use crate::ids::{DimId, PhaseId, TensorId};
use crate::op::Op;
use crate::program::Program;
use crate::tensor::Tensor;

/// Between the name of a family and the bound of a member.
const AT: char = '@';

/// The name of the family that a phase is a member of, or its own.
#[must_use]
pub fn family(name: &str) -> &str {
    name.split(AT).next().unwrap_or(name)
}

/// The bound of a member, by its name; none of what has no family.
#[must_use]
pub fn bound(name: &str) -> Option<u64> {
    name.split_once(AT)?.1.parse().ok()
}

/// The name of the member of a family for runs up to a bound; of its dims likewise.
#[must_use]
pub fn member(family: &str, bound: u64) -> String {
    format!("{family}{AT}{bound}")
}

/// Adds a member to a phase's family, for runs in which each of these dims is no larger than given.
/// The first bound names it. It may follow, and be followed by, what the phase may.
///
/// # Panics
/// Without a bound.
pub fn add_member(program: &mut Program, phase: PhaseId, bounds: &[(DimId, u64)]) -> PhaseId {
    let (_, named) = bounds.first().expect("a member has a bound");
    let name = member(&program.phases[phase.index()].name, *named);
    let twin = add_twin(program, phase, &name);
    let own: BTreeMap<DimId, DimId> = bounds
        .iter()
        .map(|(dim, max)| {
            let known = program.dims[dim.index()].clone();
            (*dim, program.add_dim(&member(&known.name, *named), known.min.min(*max), *max))
        })
        .collect();
    let dims = |dim: DimId| own.get(&dim).copied().unwrap_or(dim);
    for tensor in program.tensors.iter_mut().filter(|tensor| tensor.phase == Some(twin)) {
        tensor.size = tensor.size.over(&dims);
        tensor.shape = tensor.shape.iter().map(|size| size.over(&dims)).collect();
    }
    program.flow.add_like(phase, twin);
    twin
}

/// Adds a twin of a phase, with no place in the flow yet. Its transients are named after it.
pub fn add_twin(program: &mut Program, phase: PhaseId, name: &str) -> PhaseId {
    let prefix = format!("{}.", program.phases[phase.index()].name);
    let twin = program.add_phase(name);
    let ops = copy_ops(program, phase, twin, |own| {
        format!("{name}.{}", own.strip_prefix(&prefix).unwrap_or(own))
    });
    program.phases[twin.index()].ops = ops;
    twin
}

/// A phase's operations for another phase, which gets transients of its own for them; `named` says
/// how each is called, from its name in the first.
pub fn copy_ops(
    program: &mut Program,
    phase: PhaseId,
    other: PhaseId,
    named: impl Fn(&str) -> String,
) -> Vec<Op> {
    let mut own: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for index in 0..program.tensors.len() {
        if program.tensors[index].phase != Some(phase) {
            continue;
        }
        let tensor = program.tensors[index].clone();
        let name = named(&tensor.name);
        let copy = program.add_tensor(Tensor { name, phase: Some(other), ..tensor });
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
    program.phases[phase.index()].ops.iter().map(again).collect()
}
