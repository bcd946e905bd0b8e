//! The lower bound's witness, in the terms of the plan format: tensors of one phase, or live
//! through it, of which no two could ever share a byte.
//!
//! The packer's witness names *classes*: chains of tensors that replace each other in place. A
//! class stands for the one of its tensors that lives beside the others of the witness, and which
//! one that is has to be found: of two tensors in it one is always done before the other.

use std::collections::{BTreeMap, BTreeSet};

use dctms_ir::contract::accesses;
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::{Op, Program};

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

/// Tensors that live through a phase: a later phase reads what it holds before any phase on the
/// way writes it anew. (What the program writes for the host alone is left out, so the bound errs
/// low, never high.)
#[must_use]
pub fn needed_later(program: &Program, phase: PhaseId) -> BTreeSet<TensorId> {
    let touches: Vec<Touches> = program.phases.iter().map(|phase| touches(&phase.ops)).collect();
    let count = program.phases.len();
    let mut at_end: Vec<BTreeSet<TensorId>> = vec![BTreeSet::new(); count];
    let at_start = |index: usize, at_end: &[BTreeSet<TensorId>]| -> BTreeSet<TensorId> {
        let through = at_end[index].iter().filter(|id| !touches[index].written_first.contains(id));
        through.chain(&touches[index].read_first).copied().collect()
    };
    loop {
        let mut grown = false;
        for index in 0..count {
            let before = at_end[index].len();
            for follower in &program.flow.next[index] {
                let needed = at_start(follower.index(), &at_end);
                at_end[index].extend(needed);
            }
            grown |= at_end[index].len() > before;
        }
        if !grown {
            let mut needed = at_start(phase.index(), &at_end);
            needed.extend(&at_end[phase.index()]);
            return needed;
        }
    }
}

/// What a phase does first to each tensor.
struct Touches {
    read_first: BTreeSet<TensorId>,
    written_first: BTreeSet<TensorId>,
}

fn touches(ops: &[Op]) -> Touches {
    let mut touches = Touches { read_first: BTreeSet::new(), written_first: BTreeSet::new() };
    for access in ops.iter().flat_map(|op| accesses(op).unwrap_or_default()) {
        let id = access.tensor;
        if touches.read_first.contains(&id) || touches.written_first.contains(&id) {
            continue;
        }
        match access.mode.reads() {
            true => touches.read_first.insert(id),
            false => touches.written_first.insert(id),
        };
    }
    touches
}
