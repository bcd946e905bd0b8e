//! Carried values: weights that come and go, and what is kept from one step to another. A phase
//! writes them, some phases need them, and they are written again when their turn comes once more.
//!
//! Those with the same phases of need are one set. Two sets may stand on the same bytes if no
//! phase needs both: what is needed is what a later phase reads before it is written anew. Each set
//! is one block; blocks that may not share stand one above the other.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::contract::accesses;
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::ALIGNMENT_BYTES;
use dctms_ir::plan::Placement;
use dctms_ir::tensor::Term;
use dctms_ir::{Program, Residence, Tensor};

use crate::error::PlanError;
use crate::place::block_starts;
use crate::witness::needed_later;

/// Where such values stand, from the start of their region.
#[derive(Default)]
pub struct Passing {
    /// Offset of each.
    pub offsets: BTreeMap<TensorId, u64>,
    /// For each phase, the end of the last one that it needs.
    pub ends: Vec<u64>,
    /// End of the last one.
    pub bytes: u64,
    /// Bytes that one of them stands on: all but the gaps of alignment.
    pub covered_bytes: u64,
    /// Bytes of those that a weight stands on.
    pub weight_bytes: u64,
}

/// Whether a tensor lives across phases and yet does not stay.
#[must_use]
pub fn comes_and_goes(tensor: &Tensor) -> bool {
    tensor.residence == Residence::Carried
}

/// Lays them out.
///
/// # Errors
/// An operation that breaks its contract, or sizes past what a packer takes.
pub fn lay_out(program: &Program, placements: &[Placement]) -> Result<Passing, PlanError> {
    let count = program.phases.len();
    let mut passing = Passing { ends: vec![0; count], ..Passing::default() };
    if !program.tensors.iter().any(comes_and_goes) {
        return Ok(passing);
    }
    let sets: Vec<(BTreeSet<PhaseId>, Vec<TensorId>)> = sets(program)?.into_iter().collect();
    let aligned = |id: &TensorId| placements[id.index()].bytes.next_multiple_of(ALIGNMENT_BYTES);
    let blocks: Vec<u64> = sets.iter().map(|(_, ids)| ids.iter().map(aligned).sum()).collect();
    if blocks.iter().sum::<u64>() > dctms_pack::limits::ARENA_BYTES_MAX {
        return Err(PlanError::Overflow { tensor: "carried values".to_string() });
    }
    let mut apart = Vec::new();
    for (index, (phases, _)) in sets.iter().enumerate() {
        let clash = |other: &usize| !sets[*other].0.is_disjoint(phases);
        apart.extend((0..index).filter(clash).map(|other| (other, index)));
    }
    for ((phases, ids), start) in sets.iter().zip(block_starts(&blocks, &apart)) {
        let mut end = start;
        for id in ids {
            passing.offsets.insert(*id, end);
            end += aligned(id);
        }
        for phase in phases {
            let last = &mut passing.ends[phase.index()];
            *last = end.max(*last);
        }
        passing.bytes = passing.bytes.max(end);
    }
    passing.covered_bytes = covered(passing.offsets.iter(), placements);
    let is_weight = |id: &TensorId| program.tensor(*id).term == Term::Weights;
    let weights = passing.offsets.iter().filter(|(id, _)| is_weight(id));
    passing.weight_bytes = covered(weights, placements);
    Ok(passing)
}

/// Such values by the phases that need them.
fn sets(program: &Program) -> Result<BTreeMap<BTreeSet<PhaseId>, Vec<TensorId>>, PlanError> {
    let mut needs: BTreeMap<TensorId, BTreeSet<PhaseId>> = BTreeMap::new();
    let mut read: BTreeSet<TensorId> = BTreeSet::new();
    for op in program.phases.iter().flat_map(|phase| &phase.ops) {
        let reads = accesses(op)?.into_iter().filter(|access| access.mode.reads());
        read.extend(reads.map(|access| access.tensor));
    }
    for phase in (0..program.phases.len()).map(PhaseId::of) {
        let mut needed = needed_later(program, phase);
        for op in &program.phases[phase.index()].ops {
            needed.extend(accesses(op)?.iter().map(|access| access.tensor));
        }
        // What no phase reads is for the host, at any time.
        let all = (0..program.tensors.len()).map(TensorId::of);
        needed.extend(all.filter(|id| !read.contains(id)));
        for id in needed.into_iter().filter(|id| comes_and_goes(program.tensor(*id))) {
            needs.entry(id).or_default().insert(phase);
        }
    }
    let mut sets: BTreeMap<BTreeSet<PhaseId>, Vec<TensorId>> = BTreeMap::new();
    for (id, mut phases) in needs {
        // A phase that runs beside one that needs it must leave it alone as well.
        let pairs = program.flow.overlap.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        let beside: Vec<PhaseId> =
            pairs.filter(|(needs, _)| phases.contains(needs)).map(|(_, other)| other).collect();
        phases.extend(beside);
        sets.entry(phases).or_default().push(id);
    }
    Ok(sets)
}

/// Bytes under at least one of these.
fn covered<'a>(
    offsets: impl Iterator<Item = (&'a TensorId, &'a u64)>,
    placements: &[Placement],
) -> u64 {
    let span = |(id, start): (&TensorId, &u64)| (*start, start + placements[id.index()].bytes);
    let mut spans: Vec<(u64, u64)> = offsets.map(span).collect();
    spans.sort_unstable();
    let (mut bytes, mut until) = (0, 0);
    for (start, end) in spans {
        bytes += end.max(until) - start.max(until);
        until = end.max(until);
    }
    bytes
}
