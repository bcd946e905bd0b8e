//! Concurrent regions: two phases as one, so that their operations may run beside each other.
//!
//! A region is a phase of its own that holds the operations of two others, its *streams*. Its
//! meaning is theirs one after the other: first the stream `behind`, then the one `ahead`.
//!
//! ```text
//! behind   prefill of tile t      takes what is there already
//! ahead    vision of tile t + 1   makes what a later run of `behind` will take
//! ```
//!
//! What the two do not share (transients) is there twice, under names of the region's own, so a
//! region depends on nothing that its streams leave when they run alone. What they do share
//! (weights, caches, embeddings) is the same tensor, and where one of them writes it, order between
//! the streams is part of the meaning: a verifier finds it like any other dependency. A region is a
//! phase like any other for everything but the schedule, which wants to know the streams; names
//! tell: the phase is called `ahead+behind`, and an operation by its stream, a dot, and its name.
//!
//! Pure. It believes that the phases are right and must not know models or plans.

use crate::ids::PhaseId;
use crate::join::own_name;
use crate::op::Op;
use crate::program::{Phase, Program};
use crate::twin::copy_ops;

/// Between the names of a region's streams.
const AND: char = '+';

/// The streams of a region, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams<'a> {
    /// Makes what later runs take; comes second in program order.
    pub ahead: &'a str,
    /// Takes what is there; comes first in program order.
    pub behind: &'a str,
}

impl<'a> Streams<'a> {
    /// Those of a phase, if it is a region.
    #[must_use]
    pub fn of(phase: &'a Phase) -> Option<Streams<'a>> {
        // Of several models each phase has its model's label before its own name.
        own_name(&phase.name).split_once(AND).map(|(ahead, behind)| Streams { ahead, behind })
    }

    /// Indices of the operations of `behind` and of `ahead`, each in program order.
    #[must_use]
    pub fn split(&self, phase: &Phase) -> [Vec<usize>; 2] {
        let of = |stream: &str| {
            let ops = phase.ops.iter().enumerate();
            ops.filter(|(_, op)| stream_of(op) == stream).map(|(index, _)| index).collect()
        };
        [of(self.behind), of(self.ahead)]
    }
}

/// The name of the stream that an operation of a region belongs to.
#[must_use]
pub fn stream_of(op: &Op) -> &str {
    op.name.split('.').next().unwrap_or("")
}

/// Adds the region of two phases. It may follow what `behind` may follow, and what may follow
/// `ahead` may follow it: it stands for the one after the other.
///
/// # Panics
/// If a phase's name has a dot or a plus in it, which would make its operations another stream's.
pub fn add_region(program: &mut Program, ahead: PhaseId, behind: PhaseId) -> PhaseId {
    let named = |phase: PhaseId| program.phases[phase.index()].name.clone();
    let names = [named(ahead), named(behind)];
    let plain = |name: &String| !name.contains(['.', AND, ':']);
    assert!(names.iter().all(plain), "streams are named by one word");
    let region = program.add_phase(&format!("{}{AND}{}", names[0], names[1]));
    for phase in [behind, ahead] {
        let stream = program.phases[phase.index()].name.clone();
        let prefix = program.phases[region.index()].name.clone();
        let mut ops = copy_ops(program, phase, region, |name| format!("{prefix}.{name}"));
        ops.iter_mut().for_each(|op| op.name = format!("{stream}.{}", op.name));
        program.phases[region.index()].ops.extend(ops);
    }
    let flow = &mut program.flow;
    flow.next[region.index()] = flow.next[ahead.index()].clone();
    for next in &mut flow.next {
        if next.contains(&behind) {
            next.push(region);
        }
    }
    if flow.entry.contains(&behind) {
        flow.entry.push(region);
    }
    region
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpKind;
    use crate::size::Size;
    use crate::tensor::{Dtype, Residence, Tensor, Term};

    fn tensor(name: &str, residence: Residence, phase: Option<PhaseId>) -> Tensor {
        Tensor {
            name: name.to_string(),
            model: 0,
            dtype: Dtype::F32,
            shape: [1, 1, 16].map(Size::Const).to_vec(),
            size: Size::Const(64),
            residence,
            term: Term::Intermediate,
            phase,
            state: None,
        }
    }

    #[test]
    fn a_region_holds_both_lists_on_tensors_of_its_own() {
        let mut program = Program::default();
        let shared = program.add_tensor(tensor("images", Residence::State, None));
        let phases = ["prefill", "vision"].map(|name| program.add_phase(name));
        for phase in phases {
            let name = program.phases[phase.index()].name.clone();
            let own =
                program.add_tensor(tensor(&format!("{name}.x"), Residence::Transient, Some(phase)));
            program.phases[phase.index()].ops.push(Op {
                name: "add".to_string(),
                kind: OpKind::Add,
                inputs: vec![shared, shared],
                outputs: vec![own],
                workspace: vec![],
                grain: 16,
                in_place: vec![],
            });
        }
        program.flow.entry = vec![phases[1]];
        program.flow.next = vec![vec![phases[1]], vec![phases[0]]];
        let [behind, ahead] = phases;
        let region = add_region(&mut program, ahead, behind);
        let phase = &program.phases[region.index()];
        assert_eq!(phase.name, "vision+prefill");
        let streams = Streams::of(phase).expect("a region");
        assert_eq!((streams.ahead, streams.behind), ("vision", "prefill"));
        assert_eq!(streams.split(phase), [vec![0], vec![1]]);
        assert_eq!(phase.ops[0].name, "prefill.add");
        for op in &phase.ops {
            assert_eq!(op.inputs[0], shared);
            let own = program.tensor(op.outputs[0]);
            assert_eq!(own.phase, Some(region));
            assert!(own.name.starts_with("vision+prefill."), "{}", own.name);
        }
        // Entered after vision like prefill; left for prefill, as vision is; never first.
        let expected = vec![vec![ahead], vec![behind, region], vec![behind, region]];
        assert_eq!(program.flow.next, expected);
        assert_eq!(program.flow.entry, vec![ahead]);
        assert_eq!(Streams::of(&program.phases[0]), None);
    }
}
