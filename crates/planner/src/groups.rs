//! Which lanes a phase runs on.
//!
//! Phases exclude each other, and each takes all lanes. Where a model declares that two of its
//! phases may run at the same time, they take lanes of their own: the second of the pair, which
//! the host runs again and again while the first goes on, the control lane (on which the host is);
//! the first, all others.
//!
//! ```text
//! lane 0    host · decode.beside · sample · decode.beside · sample · …
//! lane 1…   vision.beside ────────────────────────────────────────────
//! ```
//!
//! Steps of *different* models that may overlap are each planned for all lanes: those are for the
//! processes of somebody who schedules them, this is for one program that runs two phases itself.

use std::ops::Range;

use dctms_ir::Program;
use dctms_ir::plan::Schedule;

/// Lanes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The first.
    pub first: u32,
    /// How many, at least one.
    pub count: u32,
    /// Lanes of the machine.
    pub of: u32,
}

impl Group {
    /// All lanes.
    #[must_use]
    pub fn all(lanes: u32) -> Group {
        Group { first: 0, count: lanes, of: lanes }
    }

    /// Their numbers.
    #[must_use]
    pub fn lanes(self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }

    /// The lanes that a schedule has tasks on, or all where it has none.
    #[must_use]
    pub fn of_schedule(schedule: &Schedule) -> Group {
        let of = schedule.lanes.len();
        let busy = |lane: &usize| !schedule.lanes[*lane].is_empty();
        let (first, last) = ((0..of).find(busy), (0..of).rev().find(busy));
        match first.zip(last) {
            Some((first, last)) => {
                Group { first: first as u32, count: (last - first) as u32 + 1, of: of as u32 }
            }
            None => Group::all(of as u32),
        }
    }
}

/// The lanes of each phase of one model's program. One lane is everybody's: then nobody can run
/// two phases at the same time.
#[must_use]
pub fn groups(program: &Program, lanes: u32) -> Vec<Group> {
    let mut groups = vec![Group::all(lanes); program.phases.len()];
    if lanes < 2 {
        return groups;
    }
    for (_, short) in &program.flow.overlap {
        groups[short.index()] = Group { first: 0, count: 1, of: lanes };
    }
    for (long, _) in &program.flow.overlap {
        groups[long.index()] = Group { first: 1, count: lanes - 1, of: lanes };
    }
    groups
}
