//! A decode step and what is picked after it, wherever it runs: in a session of its own, or beside
//! a tile that is being encoded.
//!
//! Believes that the program has the names of `dctms_models::names`. Nothing allocates.

use dctms_exec::sample::SamplerRecord;
use dctms_exec::{Beside, ExecError, HostTensor, Session};
use dctms_ir::ids::{DimId, PhaseId};
use dctms_ir::limits::SEGMENT;
use dctms_ir::plan::Bounds;
use sha2::{Digest, Sha256};

use super::{IMAGE_ROW, Step};
use crate::error::{Class, EngineError};
use crate::planning::PENALTY_WINDOW;
use crate::rotary::RotaryPositions;

/// Where phases run, and whose host tensors may be looked at meanwhile.
pub trait Runs {
    /// Sets a dim for the runs that follow.
    ///
    /// # Errors
    /// A value outside the plan's bounds.
    fn set_dim(&mut self, dim: DimId, value: u64) -> Result<(), ExecError>;
    /// Runs a phase.
    ///
    /// # Errors
    /// One that may not run now, or a lane that panicked.
    fn run(&mut self, phase: PhaseId) -> Result<(), ExecError>;
    /// Bytes of a host tensor.
    fn bytes(&self, tensor: HostTensor) -> &[u8];
    /// Floats of a host tensor.
    fn floats(&self, tensor: HostTensor) -> &[f32];
    /// Integers of a host tensor.
    fn integers(&self, tensor: HostTensor) -> &[u32];
    /// Bytes of a host tensor, to write.
    fn bytes_mut(&mut self, tensor: HostTensor) -> &mut [u8];
    /// Integers of a host tensor, to write.
    fn integers_mut(&mut self, tensor: HostTensor) -> &mut [u32];
}

/// Both have these under the same names.
macro_rules! runs {
    ($place:ty) => {
        impl Runs for $place {
            fn set_dim(&mut self, dim: DimId, value: u64) -> Result<(), ExecError> {
                <$place>::set_dim(self, dim, value)
            }
            fn run(&mut self, phase: PhaseId) -> Result<(), ExecError> {
                <$place>::run(self, phase)
            }
            fn bytes(&self, tensor: HostTensor) -> &[u8] {
                <$place>::bytes(self, tensor)
            }
            fn floats(&self, tensor: HostTensor) -> &[f32] {
                <$place>::floats(self, tensor)
            }
            fn integers(&self, tensor: HostTensor) -> &[u32] {
                <$place>::integers(self, tensor)
            }
            fn bytes_mut(&mut self, tensor: HostTensor) -> &mut [u8] {
                <$place>::bytes_mut(self, tensor)
            }
            fn integers_mut(&mut self, tensor: HostTensor) -> &mut [u32] {
                <$place>::integers_mut(self, tensor)
            }
        }
    };
}

runs!(Session);
runs!(Beside<'_>);

/// What a step needs to know of the plan.
pub(super) struct Core {
    pub sample: PhaseId,
    pub dims: Dims,
    pub host: HostTensors,
    /// For each token of a step, of a model with eyes: 0, or 1 + the row that it is.
    pub image_rows: Option<HostTensor>,
    /// Where tokens in pictures have three positions.
    pub rotary: Option<(HostTensor, RotaryPositions)>,
    pub bounds: Bounds,
    pub vocabulary: usize,
    pub window: u32,
    /// Rows of the logits of the last step.
    pub rows: usize,
}

pub(super) struct Dims {
    pub tokens: DimId,
    pub sequences: DimId,
    pub rows: DimId,
    pub segments: DimId,
    pub window_segments: DimId,
}

pub(super) struct HostTensors {
    pub tokens: HostTensor,
    pub positions: HostTensor,
    pub slots: HostTensor,
    pub rows: HostTensor,
    pub logits: HostTensor,
    pub parameters: HostTensor,
    pub history: HostTensor,
    pub sampled: HostTensor,
    pub random: HostTensor,
}

/// Takes steps, and picks what comes after them.
pub struct Stepper<'s, R> {
    pub(super) runs: &'s mut R,
    pub(super) core: &'s mut Core,
    pub(super) decode: PhaseId,
}

impl Stepper<'_, Beside<'_>> {
    /// Whether the tile is encoded: from here on steps are better taken on all lanes.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.runs.is_over()
    }
}

impl<R: Runs> Stepper<'_, R> {
    /// One token of each sequence; the logits' rows are in the order of `steps`.
    ///
    /// # Errors
    /// Class `OverBound` when there are more sequences than planned, or positions pass N + M.
    pub fn decode(&mut self, steps: &[Step]) -> Result<(), EngineError> {
        let (core, runs) = (&mut *self.core, &mut *self.runs);
        for step in steps {
            core.check_context(step.position as usize + 1)?;
            core.check_slot(step.slot)?;
        }
        core.check_tokens(steps.iter().map(|step| step.token))?;
        let segments = |window: u32| -> u64 {
            steps.iter().map(|step| segments_of(step.position, window)).sum()
        };
        for (dim, value) in [
            (core.dims.sequences, steps.len() as u64),
            (core.dims.rows, steps.len() as u64),
            (core.dims.segments, segments(0)),
            (core.dims.window_segments, segments(core.window)),
        ] {
            runs.set_dim(dim, value)?;
        }
        core.place(runs, steps.len(), |index| steps[index]);
        runs.run(self.decode)?;
        core.rows = steps.len();
        Ok(())
    }

    /// Picks the next token of each row of the last step.
    ///
    /// # Errors
    /// Only if a lane panicked.
    pub fn sample(&mut self) -> Result<(), EngineError> {
        self.runs.set_dim(self.core.dims.rows, self.core.rows as u64)?;
        Ok(self.runs.run(self.core.sample)?)
    }

    /// Sets the sampling of a row.
    pub fn set_sampler(&mut self, row: usize, record: SamplerRecord) {
        let size = SamplerRecord::BYTES;
        let bytes = self.runs.bytes_mut(self.core.host.parameters);
        bytes[row * size..(row + 1) * size].copy_from_slice(&record.to_bytes());
    }

    /// Sets the random state of a row.
    pub fn set_random(&mut self, row: usize, state: &[u8; 32]) {
        let bytes = self.runs.bytes_mut(self.core.host.random);
        bytes[row * 32..(row + 1) * 32].copy_from_slice(state);
    }

    /// The random state of a row.
    #[must_use]
    pub fn random(&self, row: usize) -> [u8; 32] {
        let bytes = self.runs.bytes(self.core.host.random);
        bytes[row * 32..(row + 1) * 32].try_into().expect("32 bytes")
    }

    /// The token that was picked for a row.
    #[must_use]
    pub fn sampled(&self, row: usize) -> u32 {
        self.runs.integers(self.core.host.sampled)[row]
    }

    /// Sets the recent tokens of a row, the last ones of `tokens`.
    pub fn set_history(&mut self, row: usize, tokens: &[u32]) {
        let window = PENALTY_WINDOW as usize;
        let history = self.runs.integers_mut(self.core.host.history);
        let history = &mut history[row * window..(row + 1) * window];
        history.fill(dctms_exec::sample::NO_TOKEN);
        let recent = &tokens[tokens.len().saturating_sub(window)..];
        // A picture is no token that could be said again.
        let said = recent.iter().filter(|token| **token & IMAGE_ROW == 0);
        history.iter_mut().zip(said).for_each(|(place, token)| *place = *token);
    }

    /// Hashes a row of the last step's logits, f32 little-endian in token order.
    pub fn hash_logits(&self, row: usize, hash: &mut Sha256) {
        self.core.hash_logits(self.runs, row, hash);
    }
}

impl Core {
    pub fn hash_logits(&self, runs: &impl Runs, row: usize, hash: &mut Sha256) {
        let logits = runs.floats(self.host.logits);
        let mut bytes = [0u8; 64];
        for tile in 0..self.vocabulary.div_ceil(16) {
            let count = (self.vocabulary - tile * 16).min(16);
            let start = self.logit_index(row, tile * 16);
            for (index, value) in logits[start..start + count].iter().enumerate() {
                bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
            }
            hash.update(&bytes[..count * 4]);
        }
    }

    pub fn logit_index(&self, row: usize, token: usize) -> usize {
        (token / 16 * self.rows + row) * 16 + token % 16
    }

    pub fn place(&self, runs: &mut impl Runs, count: usize, step: impl Fn(usize) -> Step) {
        for index in 0..count {
            let step = step(index);
            let image = step.token & IMAGE_ROW != 0;
            if let Some(rows) = self.image_rows {
                let row = if image { (step.token ^ IMAGE_ROW) + 1 } else { 0 };
                runs.integers_mut(rows)[index] = row;
            }
            let token = if image { 0 } else { step.token };
            runs.integers_mut(self.host.tokens)[index] = token;
            runs.integers_mut(self.host.positions)[index] = step.position;
            runs.integers_mut(self.host.slots)[index] = step.slot;
            if let Some((place, rotary)) = &self.rotary {
                let three = rotary.at(step.slot, step.position);
                runs.integers_mut(*place)[3 * index..][..3].copy_from_slice(&three);
            }
        }
    }

    pub fn check_slot(&self, slot: u32) -> Result<(), EngineError> {
        if u64::from(slot) >= self.bounds.sequences {
            return Err(EngineError::new(
                Class::OverBound,
                format!("slot {slot}, the plan holds {} sequences", self.bounds.sequences),
            ));
        }
        Ok(())
    }

    pub fn check_tokens(&self, tokens: impl Iterator<Item = u32>) -> Result<(), EngineError> {
        for token in tokens {
            if token & IMAGE_ROW != 0 {
                let (row, rows) = (token ^ IMAGE_ROW, self.bounds.max_image_tokens);
                if u64::from(row) >= rows {
                    let message = format!("row {row} of {rows} image tokens");
                    return Err(EngineError::new(Class::OverBound, message));
                }
                continue;
            }
            if token as usize >= self.vocabulary {
                let count = self.vocabulary;
                let message = format!("token {token} of a vocabulary of {count}");
                return Err(EngineError::new(Class::Usage, message));
            }
        }
        Ok(())
    }

    pub fn check_context(&self, end: usize) -> Result<(), EngineError> {
        let bound = self.bounds.max_input_tokens + self.bounds.max_output_tokens;
        if end as u64 > bound {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "{end} positions pass the plan's bound of {bound} (input {} + output {})",
                    self.bounds.max_input_tokens, self.bounds.max_output_tokens
                ),
            ));
        }
        Ok(())
    }
}

/// Segments of 256 absolute positions that a token at `position` sees (`window` 0: all).
fn segments_of(position: u32, window: u32) -> u64 {
    let end = u64::from(position) + 1;
    let start = match window {
        0 => 0,
        window => end.saturating_sub(u64::from(window)),
    };
    (end - 1) / SEGMENT - start / SEGMENT + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_at_absolute_boundaries() {
        assert_eq!(segments_of(0, 0), 1);
        assert_eq!(segments_of(255, 0), 1);
        assert_eq!(segments_of(256, 0), 2);
        assert_eq!(segments_of(600, 512), 3);
        assert_eq!(segments_of(767, 512), 2);
        assert_eq!(segments_of(3, 512), 1);
    }
}
