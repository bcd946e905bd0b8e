//! A session that has ended and whose state lives on: for a new plan with larger bounds.
//!
//! Retiring stops the lanes, drops the commands and gives the constants' pages back, so that what
//! stays resident is little more than the state. The new session copies each cache group by
//! group: sixteen positions of one head of one slot are the same bytes in either plan, and
//! position `p` stands at `p mod capacity` in both.

use std::sync::Arc;

use dctms_ir::plan::Plan;
use dctms_ir::tensor::kv_row_bytes;
use dctms_ir::{Residence, Size};
use dctms_system::arena::Arena;

use crate::memory::{Memory, Place};

/// Positions that are side by side in a key cache.
const GROUP: usize = 16;

/// A cache of one layer, keys or values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePlace {
    name: String,
    place: Place,
    kv_heads: usize,
    slots: usize,
    capacity: usize,
    group_bytes: usize,
}

/// What is left of a session.
pub struct RetiredSession {
    pub(crate) arena: Arc<Arena>,
    pub(crate) states: Vec<StatePlace>,
}

/// The caches of a plan.
#[must_use]
pub fn states(plan: &Plan) -> Vec<StatePlace> {
    let mut states = Vec::new();
    for (tensor, placement) in plan.program.tensors.iter().zip(&plan.placements) {
        let (Residence::State, Some(offset)) = (tensor.residence, placement.offset) else {
            continue;
        };
        let [kv_heads, slots, capacity, head_dim] = &tensor.shape[..] else { continue };
        let constant = |size: &Size| match size {
            Size::Const(value) => Some(*value as usize),
            _ => None,
        };
        let (Some(kv_heads), Some(slots), Some(capacity), Some(head_dim)) =
            (constant(kv_heads), constant(slots), constant(capacity), constant(head_dim))
        else {
            continue;
        };
        let Some(row) = kv_row_bytes(tensor.dtype, head_dim as u64) else { continue };
        states.push(StatePlace {
            name: tensor.name.clone(),
            place: Place { offset: offset as usize, len: placement.bytes as usize },
            kv_heads,
            slots,
            capacity,
            group_bytes: row as usize * GROUP,
        });
    }
    states
}

impl StatePlace {
    /// The group that holds `position` of a head and a slot.
    fn group(&self, head: usize, slot: usize, position: usize) -> Place {
        let groups = self.capacity / GROUP;
        let index = (head * self.slots + slot) * groups + position % self.capacity / GROUP;
        self.place.part(index * self.group_bytes, self.group_bytes)
    }

    fn alike(&self, other: &StatePlace) -> bool {
        self.name == other.name
            && (self.kv_heads, self.slots, self.group_bytes)
                == (other.kv_heads, other.slots, other.group_bytes)
    }
}

/// Copies the first `positions` of every slot. Gives back whether every cache of the new plan
/// found its like.
///
/// # Safety
/// No run of either session is under way, and `new_memory` is the memory of `new`'s plan.
pub(crate) unsafe fn copy_states(
    old: &RetiredSession,
    new: &[StatePlace],
    new_memory: Memory,
    positions: usize,
) -> bool {
    // SAFETY: the mapping lives as long as `old.arena`.
    let old_memory = unsafe { Memory::new(old.arena.base(), old.arena.len_bytes()) };
    for target in new {
        let Some(source) = old.states.iter().find(|source| source.alike(target)) else {
            return false;
        };
        // Of a ring only the last positions are there; earlier groups would be overwritten.
        let kept = source.capacity.min(target.capacity);
        let first = positions.saturating_sub(kept) / GROUP * GROUP;
        for head in 0..target.kv_heads {
            for slot in 0..target.slots {
                for position in (first..positions).step_by(GROUP) {
                    // SAFETY: both places are inside their caches; nobody else is running.
                    unsafe {
                        let from = old_memory.bytes(source.group(head, slot, position));
                        let to = new_memory.bytes_mut(target.group(head, slot, position));
                        to.copy_from_slice(from);
                    }
                }
            }
        }
    }
    true
}
