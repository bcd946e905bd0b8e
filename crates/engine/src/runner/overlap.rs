//! A tile beside something else: a chunk of a prompt, in one run of the region of both; or steps of
//! sequences that go on, each a run of its own.
//!
//! Believes that the chunk needs no picture that is not encoded: what it would read then is of
//! whatever picture stood there before.

use dctms_exec::{Beside, LongRun};

use super::{Runner, Step, Stepper, TilePlan, whole};
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

/// A tile, before its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Bytes of its pixels.
    pub pixel_bytes: usize,
    /// Rows and columns of patches.
    pub grid: [u32; 2],
    /// Tokens that it becomes.
    pub tokens: u32,
    /// Where its embeddings begin.
    pub first_row: u32,
}

impl Runner {
    /// Whether a tile can be encoded beside decode steps.
    #[must_use]
    pub fn encodes_beside(&self) -> bool {
        self.phases.beside.is_some() && self.eyes.is_some()
    }

    /// Encodes a tile while `host` takes steps. Its pixels are written by `write`, on a lane of
    /// the encoder's, beside the steps too. Ends when the tile is encoded and `host` is done.
    ///
    /// # Errors
    /// As [`Runner::encode_tile`]; class `Usage` where the plan has no such phases.
    pub fn encode_beside<T>(
        &mut self,
        tile: &Tile,
        write: impl FnOnce(&mut [u8]) -> Result<(), EngineError> + Send,
        host: impl FnOnce(&mut Stepper<'_, Beside<'_>>) -> T,
    ) -> Result<(LongRun<EngineError>, T), EngineError> {
        let Some((long, decode)) = self.phases.beside else {
            return Err(EngineError::new(Class::Usage, "this plan has no tile beside a step"));
        };
        let Tile { pixel_bytes, grid, tokens, first_row } = *tile;
        let eyes = self.size_tile((pixel_bytes, grid, tokens), first_row)?;
        let (pixels, grids, rows) = (eyes.pixels, eyes.grid, eyes.first_row);
        let Runner { session, core, interrupt, .. } = self;
        let ran = session.run_beside(
            (long, &*interrupt),
            |preparing| {
                preparing.integers_mut(grids).copy_from_slice(&grid);
                preparing.integers_mut(rows)[0] = first_row;
                write(&mut preparing.bytes_mut(pixels)[..pixel_bytes])
            },
            |beside| host(&mut Stepper { runs: beside, core, decode }),
        );
        Ok(ran?)
    }

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
    ) -> Result<TilePlan, EngineError> {
        let Chunk { slot, tokens, position } = chunk;
        self.core.check_context(position as usize + tokens.len())?;
        self.core.check_slot(slot)?;
        self.core.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let region = self.stage_tile(tile, first_row, write)?.region;
        let region = region.ok_or_else(|| {
            EngineError::new(Class::Usage, "this plan has no tile beside a chunk")
        })?;
        self.stage_chunk(chunk)?;
        let ran = self.session.run_unless(region, &self.interrupt)?;
        self.core.rows = 1;
        whole(ran)?;
        Ok(TilePlan::Chunk)
    }

    /// Writes the tokens of a chunk; logits are wanted for its last one.
    pub(super) fn stage_chunk(&mut self, chunk: Chunk<'_>) -> Result<(), EngineError> {
        let Chunk { slot, tokens, position } = chunk;
        self.core.place(&mut self.session, tokens.len(), |index| Step {
            slot,
            token: tokens[index],
            position: position + index as u32,
        });
        self.session.integers_mut(self.core.host.rows)[0] = tokens.len() as u32 - 1;
        self.session.set_dim(self.core.dims.tokens, tokens.len() as u64)?;
        Ok(self.session.set_dim(self.core.dims.rows, 1)?)
    }
}
