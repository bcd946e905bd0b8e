//! What the planner may choose: a preference of the user's, and choices that can be switched off
//! so that the report can say what each of them saved.

use dctms_ir::plan::Preference;

use crate::legalise::Activations;

/// A choice of the planner's that saves memory or synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Gate and up products in one operation.
    GateFusion,
    /// Those products by blocks of rows.
    RowBlocks,
    /// Outputs in the bytes of an input.
    InPlace,
    /// Shards of neighbours cut alike.
    Alignment,
    /// Few quantised features made by each lane for itself.
    OwnCopies,
}

impl Choice {
    /// Every choice.
    pub const ALL: [Choice; 5] = [
        Choice::GateFusion,
        Choice::RowBlocks,
        Choice::InPlace,
        Choice::Alignment,
        Choice::OwnCopies,
    ];

    /// What it is, for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Choice::GateFusion => "gate·up fused",
            Choice::RowBlocks => "row blocks",
            Choice::InPlace => "in place",
            Choice::Alignment => "slices aligned",
            Choice::OwnCopies => "own copies",
        }
    }
}

/// The choices of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Choices {
    /// What the user prefers.
    pub preference: Preference,
    /// What is switched off; nothing in a plan that is run.
    pub without: Vec<Choice>,
}

impl Choices {
    /// Whether a choice is made.
    #[must_use]
    pub fn has(&self, choice: Choice) -> bool {
        !self.without.contains(&choice)
    }
}

/// Everything that decides what the legalised program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Lanes.
    pub lanes: u32,
    /// Path of the products.
    pub activations: Activations,
    /// Choices.
    pub choices: Choices,
}
