//! Several programs as one: models that are resident together, each with its own phases.
//!
//! The tensors of all programs stand side by side under names of their own (`a:`, `b:`, … by the
//! program's place), and so do dims, states and phases. The flow becomes one:
//!
//! ```text
//! a:load ──▶ b:load ──▶ any step of a or b, each followed by its own successors in its program
//!                       or by a step of the other
//! ```
//!
//! The program that needs the largest scratch to load comes last: everything else is then live
//! beside it, so the witness of what is needed at once leaves nothing out.
//!
//! A joined flow remembers only the last phase, not the last one of each program. So a step may
//! follow one of another program only if it needs nothing that a step of its own must have carried
//! to it: whatever the flow allows then has a meaning. Steps exclude each other, and transients of
//! all of them may share bytes; or the steps of different programs are declared to overlap, and
//! may not.
//!
//! Pure: it believes that its programs are right, and does not know how plans are made.

use std::collections::BTreeSet;
use std::fmt;

use crate::contract::{self, Malformed};
use crate::ids::{DimId, PhaseId, TensorId};
use crate::limits::PHASES_MAX;
use crate::op::Op;
use crate::program::{Dim, Phase, Program};
use crate::size::Size;
use crate::tensor::{Residence, Tensor};

/// Whether steps of different programs may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// One step at a time.
    Exclusive,
    /// A step of one program beside a step of each other one. Loading stays exclusive.
    Overlapping,
}

/// Why programs cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// Together they have more phases than a program may have.
    Phases {
        /// How many.
        count: usize,
    },
    /// An operation breaks its contract.
    Malformed(Malformed),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Phases { count } => {
                write!(f, "together the models have {count} phases, at most {PHASES_MAX}")
            }
            JoinError::Malformed(malformed) => malformed.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<Malformed> for JoinError {
    fn from(malformed: Malformed) -> Self {
        JoinError::Malformed(malformed)
    }
}

/// What stands before the names of a program's things: `a`, `b`, … `z`, `aa`, `bb`, ….
#[must_use]
pub fn label(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    letter.to_string().repeat(index / 26 + 1)
}

/// The name that a thing has in its own program, without its program's label.
#[must_use]
pub fn own_name(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// One program that holds all of these; a single one stays as it is.
///
/// # Errors
/// Too many phases, or an operation that breaks its contract.
pub fn join(programs: &[Program], steps: Steps) -> Result<Program, JoinError> {
    if let [program] = programs {
        return Ok(program.clone());
    }
    let count = programs.iter().map(|program| program.phases.len()).sum();
    if count > PHASES_MAX {
        return Err(JoinError::Phases { count });
    }
    let mut joined = Program::default();
    let mut members = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let enterable = enterable(program)?;
        let member = Member { label: label(index), base: Bases::of(&joined), enterable, program };
        member.add_to(&mut joined);
        members.push(member);
    }
    flow(&mut joined, &members);
    if steps == Steps::Overlapping {
        overlap(&mut joined, &members);
    }
    Ok(joined)
}

/// How far the ids of a program are moved.
struct Bases {
    models: usize,
    dims: usize,
    tensors: usize,
    phases: usize,
}

impl Bases {
    fn of(joined: &Program) -> Bases {
        Bases {
            models: joined.models.len(),
            dims: joined.dims.len(),
            tensors: joined.tensors.len(),
            phases: joined.phases.len(),
        }
    }
}

/// A program on its way into the joined one.
struct Member<'p> {
    label: String,
    base: Bases,
    program: &'p Program,
    /// Its phases that may follow one of another program.
    enterable: Vec<PhaseId>,
}

impl Member<'_> {
    fn add_to(&self, joined: &mut Program) {
        joined.models.extend(self.program.models.iter().cloned());
        let dims = self.program.dims.iter();
        joined.dims.extend(dims.map(|dim| Dim { name: self.name(&dim.name), ..dim.clone() }));
        joined.tensors.extend(self.program.tensors.iter().map(|tensor| self.tensor(tensor)));
        for phase in &self.program.phases {
            let ops = phase.ops.iter().map(|op| self.op(op)).collect();
            joined.phases.push(Phase { name: self.name(&phase.name), ops });
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}:{name}", self.label)
    }

    fn phase(&self, id: PhaseId) -> PhaseId {
        PhaseId::of(self.base.phases + id.index())
    }

    fn phases(&self, ids: &[PhaseId]) -> Vec<PhaseId> {
        ids.iter().map(|id| self.phase(*id)).collect()
    }

    fn tensor(&self, tensor: &Tensor) -> Tensor {
        Tensor {
            name: self.name(&tensor.name),
            model: (self.base.models + tensor.model as usize) as u32,
            dtype: tensor.dtype,
            shape: tensor.shape.iter().map(|size| self.size(size)).collect(),
            size: self.size(&tensor.size),
            residence: tensor.residence,
            term: tensor.term,
            phase: tensor.phase.map(|phase| self.phase(phase)),
            state: tensor.state.as_deref().map(|state| self.name(state)),
        }
    }

    fn size(&self, size: &Size) -> Size {
        size.over(&|dim| DimId::of(self.base.dims + dim.index()))
    }

    fn op(&self, op: &Op) -> Op {
        let moved = |ids: &[TensorId]| {
            ids.iter().map(|id| TensorId::of(self.base.tensors + id.index())).collect()
        };
        Op {
            inputs: moved(&op.inputs),
            outputs: moved(&op.outputs),
            workspace: moved(&op.workspace),
            ..op.clone()
        }
    }

    /// The largest transient of its entries, at the dims' maxima.
    fn loading_scratch_bytes(&self) -> u64 {
        let dims = self.program.dims_max();
        let entry = &self.program.flow.entry;
        let own = self
            .program
            .tensors
            .iter()
            .filter(|tensor| tensor.phase.is_some_and(|phase| entry.contains(&phase)));
        own.filter_map(|tensor| tensor.size.value(&dims)).max().unwrap_or(0)
    }

    /// Phases that are no entry: the steps.
    fn steps(&self) -> Vec<PhaseId> {
        let all = (0..self.program.phases.len()).map(PhaseId::of);
        let steps = all.filter(|phase| !self.program.flow.entry.contains(phase));
        steps.map(|phase| self.phase(phase)).collect()
    }
}

/// The entries of all programs one after the other; then any step, each followed as in its own
/// program, or by an enterable step of another.
fn flow(joined: &mut Program, members: &[Member<'_>]) {
    let entries = |member: &Member<'_>| member.phases(&member.program.flow.entry);
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|index| members[*index].loading_scratch_bytes());
    joined.flow.entry = order.first().map_or_else(Vec::new, |first| entries(&members[*first]));
    let begun: Vec<PhaseId> = members
        .iter()
        .flat_map(|member| {
            let flow = &member.program.flow;
            flow.entry.iter().flat_map(|entry| member.phases(&flow.next[entry.index()]))
        })
        .collect();
    for (index, member) in members.iter().enumerate() {
        let place = order.iter().position(|other| *other == index);
        let after = place.and_then(|place| order.get(place + 1));
        let others = members.iter().enumerate().filter(|(other, _)| *other != index);
        let entered: Vec<PhaseId> =
            others.flat_map(|(_, other)| other.phases(&other.enterable)).collect();
        for (phase, own) in member.program.flow.next.iter().enumerate() {
            let next = match member.program.flow.entry.contains(&PhaseId::of(phase)) {
                true => after.map_or_else(|| begun.clone(), |after| entries(&members[*after])),
                false => [member.phases(own), entered.clone()].concat(),
            };
            joined.flow.next.push(next);
        }
        let pairs = member.program.flow.overlap.iter();
        joined.flow.overlap.extend(pairs.map(|(a, b)| (member.phase(*a), member.phase(*b))));
    }
}

fn overlap(joined: &mut Program, members: &[Member<'_>]) {
    for (index, member) in members.iter().enumerate() {
        for other in &members[index + 1..] {
            for step in member.steps() {
                let pairs = other.steps().into_iter().map(|other| (step, other));
                joined.flow.overlap.extend(pairs);
            }
        }
    }
}

/// Steps that read no carried tensor before a write, on any way on from there, but for those that
/// every entry writes.
fn enterable(program: &Program) -> Result<Vec<PhaseId>, Malformed> {
    let count = program.phases.len();
    let mut exposed = vec![BTreeSet::new(); count];
    let mut written = vec![BTreeSet::new(); count];
    for (index, phase) in program.phases.iter().enumerate() {
        for op in &phase.ops {
            for access in contract::accesses(op)? {
                let id = access.tensor;
                if program.tensor(id).residence != Residence::Carried {
                    continue;
                }
                if access.mode.reads() && !written[index].contains(&id) {
                    exposed[index].insert(id);
                }
                if access.mode.writes() {
                    written[index].insert(id);
                }
            }
        }
    }
    // What is needed at a phase's start: the least fixpoint.
    let mut needed: Vec<BTreeSet<TensorId>> = exposed;
    loop {
        let mut grown = false;
        for phase in 0..count {
            for next in &program.flow.next[phase] {
                let more: Vec<TensorId> =
                    needed[next.index()].difference(&written[phase]).copied().collect();
                for id in more {
                    grown |= needed[phase].insert(id);
                }
            }
        }
        if !grown {
            break;
        }
    }
    let entry = &program.flow.entry;
    let from_entry = |id: &TensorId| entry.iter().all(|entry| written[entry.index()].contains(id));
    let steps = (0..count).map(PhaseId::of).filter(|phase| !entry.contains(phase));
    Ok(steps.filter(|phase| needed[phase.index()].iter().all(from_entry)).collect())
}
