//! The lower bound's witness, in the terms of the plan format: tensors of one phase, or live
//! through it, of which no two could ever share a byte.
//!
//! The packer's witness names *classes*: chains of tensors that replace each other in place. A
//! class stands for the one of its tensors that lives beside the others of the witness, and which
//! one that is has to be found: of two tensors in it one is always done before the other.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::Program;
use dctms_ir::contract::accesses;
use dctms_ir::ids::{PhaseId, TensorId};

use crate::clocks::precedes;
use crate::place::Life;

/// Choices tried before classes are given up.
const STEPS_MAX: usize = 1 << 16;

/// One tensor of each class so that no two are ordered. When no such choice is found, classes are
/// left out until one is: the bound then errs low, never high.
pub fn members(
    classes: &[&[TensorId]],
    lives: &BTreeMap<TensorId, Life>,
    replaced: &BTreeMap<TensorId, TensorId>,
) -> Vec<TensorId> {
    let ordered = |a: TensorId, b: TensorId| {
        precedes(&lives[&a].upper, &lives[&b].lower)
            || precedes(&lives[&b].upper, &lives[&a].lower)
            || replaced.get(&b) == Some(&a)
            || replaced.get(&a) == Some(&b)
    };
    let mut classes: Vec<&[TensorId]> = classes.to_vec();
    // Classes without a choice first: they narrow the others.
    classes.sort_by_key(|class| class.len());
    let mut chosen: Vec<TensorId> = Vec::new();
    let mut tried: Vec<usize> = vec![0];
    let mut steps = 0;
    while chosen.len() < classes.len() && steps < STEPS_MAX {
        steps += 1;
        let class = classes[chosen.len()];
        let from = *tried.last().expect("one entry more than chosen");
        let fits = |id: &TensorId| chosen.iter().all(|other| !ordered(*id, *other));
        match class[from..].iter().position(fits) {
            Some(found) => {
                *tried.last_mut().expect("as above") = from + found + 1;
                chosen.push(class[from + found]);
                tried.push(0);
            }
            None => {
                tried.pop();
                if chosen.pop().is_none() {
                    break;
                }
            }
        }
    }
    if chosen.len() == classes.len() {
        return chosen;
    }
    chosen.clear();
    for class in classes {
        let fits = |id: &&TensorId| chosen.iter().all(|other| !ordered(**id, *other));
        chosen.extend(class.iter().find(fits).copied());
    }
    chosen
}

/// Tensors that a phase, or one that may run later, reads before it writes them: only these live
/// through the phase by the rules of the plan format. What the program writes for the host alone
/// is left out, so the bound errs low, never high.
#[must_use]
pub fn needed_later(program: &Program, phase: PhaseId) -> BTreeSet<TensorId> {
    let mut reached = vec![phase];
    let mut next = 0;
    while let Some(phase) = reached.get(next).copied() {
        next += 1;
        for follower in &program.flow.next[phase.index()] {
            if !reached.contains(follower) {
                reached.push(*follower);
            }
        }
    }
    let mut needed = BTreeSet::new();
    for phase in reached {
        let mut touched = BTreeSet::new();
        for op in &program.phases[phase.index()].ops {
            for access in accesses(op).unwrap_or_default() {
                if touched.insert(access.tensor) && access.mode.reads() {
                    needed.insert(access.tensor);
                }
            }
        }
    }
    needed
}
