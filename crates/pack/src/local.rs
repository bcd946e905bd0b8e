//! Local search over orders: place by first fit, see which buffers end above the target, move
//! these forward in the order, place again ("squeaky wheel" optimisation, Joslin and Clements
//! 1999). It works on any conflict relation and scales to large problems, where a handful of
//! buffers in the way is all that separates a good order from an optimal one.

use crate::improve::Task;
use crate::place::{Fit, Placer};
use crate::portfolio::Placed;
use crate::random::SplitMix64;

/// The search and its current order.
pub(crate) struct Local {
    order: Vec<usize>,
    best_order: Vec<usize>,
    best_arena: u64,
    fit: Fit,
    random: SplitMix64,
    offsets: Vec<u64>,
}

impl Local {
    /// Starts from the portfolio's best order.
    pub fn new(placed: &Placed) -> Self {
        Self {
            order: placed.order.clone(),
            best_order: placed.order.clone(),
            best_arena: u64::MAX,
            fit: placed.fit,
            random: SplitMix64::new(2),
            offsets: Vec::new(),
        }
    }

    /// Works for about `slice` steps, at least two passes.
    pub fn turn(&mut self, task: &Task, slice: u64, best: &mut Placed, placer: &mut Placer) {
        let end = placer.steps.saturating_add(slice).min(task.steps_max);
        let mut passes = 0;
        while best.arena > task.enough && (placer.steps < end || passes < 2) {
            if placer.steps >= task.steps_max {
                return;
            }
            passes += 1;
            task.pinned.clone_into(&mut self.offsets);
            let relation = task.relation;
            let arena = placer
                .place(relation, &self.order, self.fit, u64::MAX, &mut self.offsets)
                .expect("no ceiling");
            if arena < best.arena {
                best.arena = arena;
                best.offsets.clone_from(&self.offsets);
            }
            if arena <= self.best_arena {
                self.best_arena = arena;
                self.best_order.clone_from(&self.order);
            } else if self.random.below(RETURN_ONE_IN) == 0 {
                self.order.clone_from(&self.best_order);
                continue;
            }
            self.promote(task, relation);
        }
    }

    /// Moves the buffers that end above the target forward, each to a random place between a
    /// third and nine tenths of its own.
    fn promote(&mut self, task: &Task, relation: &crate::relation::Relation) {
        let gap = self.best_arena - task.enough.min(self.best_arena);
        let target = self.best_arena - gap / 4 - 1;
        let mut keyed: Vec<(u64, usize)> = Vec::with_capacity(self.order.len());
        for (place, &b) in self.order.iter().enumerate() {
            let place = place as u64 * 1024;
            let over = self.offsets[b] + relation.sizes[b] > target;
            let key = if over { place / 1024 * (307 + self.random.below(614)) } else { place };
            keyed.push((key, b));
        }
        keyed.sort_by_key(|&(key, _)| key);
        self.order.clear();
        self.order.extend(keyed.into_iter().map(|(_, b)| b));
    }
}

/// One pass in this many that are worse than the best goes back to the best order.
const RETURN_ONE_IN: u64 = 10;
