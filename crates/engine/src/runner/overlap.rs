//! A tile and a chunk in one run: the region of encoder and decoder.
//!
//! Believes that the chunk needs no picture that is not encoded: what it would read then is of
//! whatever picture stood there before.

use super::{Runner, Step, whole};
use crate::error::{Class, EngineError};

/// Tokens of a prompt that are ready to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The slot of the caches.
    pub slot: u32,
    /// The tokens: one chunk of the plan, or fewer.
    pub tokens: &'a [u32],
    /// Position of the first one.
    pub position: u32,
}

impl Runner {
    /// Whether tiles can be encoded beside chunks of a prompt.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        self.eyes.as_ref().is_some_and(|eyes| eyes.region.is_some())
    }

    /// Whether a tile of this grid is worth it: the lanes of the two are shared for the largest.
    #[must_use]
    pub fn is_worth_a_region(&self, grid: [u32; 2]) -> bool {
        let patches = u64::from(grid[0]) * u64::from(grid[1]);
        self.overlaps()
            && self.eyes.as_ref().is_some_and(|eyes| patches >= eyes.region_patches_least)
    }

    /// As [`Runner::encode_tile`], beside a chunk of a prompt whose own pictures are encoded: in
    /// one run, as if the chunk were appended first.
    ///
    /// # Errors
    /// As [`Runner::encode_tile`] and [`Runner::prefill`]; class `Usage` where the plan has no such
    /// region.
    pub fn encode_tile_beside(
        &mut self,
        tile: (usize, [u32; 2], u32),
        first_row: u32,
        write: impl FnOnce(&mut [u8]),
        chunk: Chunk<'_>,
    ) -> Result<(), EngineError> {
        let Chunk { slot, tokens, position } = chunk;
        self.check_context(position as usize + tokens.len())?;
        self.check_slot(slot)?;
        self.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let region = self.stage_tile(tile, first_row, write)?.region;
        let region = region.ok_or_else(|| {
            EngineError::new(Class::Usage, "this plan has no tile beside a chunk")
        })?;
        self.stage_chunk(chunk)?;
        let ran = self.session.run_unless(region, &self.interrupt)?;
        self.rows = 1;
        whole(ran)
    }

    /// Writes the tokens of a chunk; logits are wanted for its last one.
    pub(super) fn stage_chunk(&mut self, chunk: Chunk<'_>) -> Result<(), EngineError> {
        let Chunk { slot, tokens, position } = chunk;
        self.place(tokens.len(), |index| Step {
            slot,
            token: tokens[index],
            position: position + index as u32,
        });
        self.session.integers_mut(self.host.rows)[0] = tokens.len() as u32 - 1;
        self.session.set_dim(self.dims.tokens, tokens.len() as u64)?;
        Ok(self.session.set_dim(self.dims.rows, 1)?)
    }
}
