//! What a program is built for: bounds and choices that are not the model's.

use dctms_ir::Dtype;
use dctms_ir::limits::{KV_BLOCK, SEGMENT};
use dctms_ir::plan::Bounds;

use crate::error::ModelError;

/// Bounds, and the sizes of tables that the text side needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Bounds of a request.
    pub bounds: Bounds,
    /// Exact bytes of the tokeniser's tables; 0 when the program runs on token ids alone.
    pub tokenizer_bytes: u64,
    /// Where the vocabulary stands in the first file: offset and length, bytes.
    pub vocabulary: (u64, u64),
    /// Recent tokens that a repetition penalty looks at.
    pub penalty_window: u64,
    /// Phases for smaller chunks of a prompt at most, each for a quarter of the tokens of the one
    /// before.
    pub smaller_chunks: u32,
}

/// Tokens of the smallest chunk that a phase is made for.
const CHUNK_LEAST: u64 = 8;

impl BuildOptions {
    /// Tokens of the chunks that the smaller members of the family are for, the largest first.
    #[must_use]
    pub fn smaller_chunk_tokens(&self) -> Vec<u64> {
        std::iter::successors(Some(self.bounds.prefill_chunk), |tokens| Some(tokens / 4))
            .skip(1)
            .take_while(|tokens| *tokens >= CHUNK_LEAST)
            .take(self.smaller_chunks as usize)
            .collect()
    }

    /// Positions of one slot, rounded up to whole blocks.
    ///
    /// # Errors
    /// When the bounds are empty or pass what a position can count.
    pub fn capacity(&self) -> Result<u64, ModelError> {
        let bounds = &self.bounds;
        let context = bounds
            .max_input_tokens
            .checked_add(bounds.max_output_tokens)
            .filter(|context| *context > 0 && *context <= 1 << 30)
            .ok_or_else(|| ModelError::Bound {
                what: format!(
                    "max input {} plus max output {} must be 1 to {} positions",
                    bounds.max_input_tokens,
                    bounds.max_output_tokens,
                    1u64 << 30
                ),
            })?;
        Ok(context.next_multiple_of(KV_BLOCK))
    }

    /// Positions that a layer's cache holds: all, or a ring that covers its window while a chunk
    /// is appended (W + C − 1, whole blocks).
    ///
    /// # Errors
    /// As [`BuildOptions::capacity`].
    pub fn layer_capacity(&self, window: u32) -> Result<u64, ModelError> {
        let all = self.capacity()?;
        if window == 0 {
            return Ok(all);
        }
        let ring = u64::from(window) + self.bounds.prefill_chunk - 1;
        Ok(ring.next_multiple_of(KV_BLOCK).min(all))
    }

    /// Attention segments of one sequence at the bound.
    ///
    /// # Errors
    /// As [`BuildOptions::capacity`].
    pub fn segments(&self, window: u32) -> Result<u64, ModelError> {
        let all = self.capacity()?.div_ceil(SEGMENT);
        if window == 0 {
            return Ok(all);
        }
        let anywhere = (u64::from(window) + SEGMENT - 2) / SEGMENT + 1;
        Ok(anywhere.min(all))
    }

    /// Checks the bounds against each other.
    ///
    /// # Errors
    /// Names the bound and its value.
    pub fn check(&self) -> Result<(), ModelError> {
        self.capacity()?;
        let bounds = &self.bounds;
        let within = |what: &str, value: u64, max: u64| {
            if value == 0 || value > max {
                return Err(ModelError::Bound { what: format!("{what} {value}: 1 to {max}") });
            }
            Ok(())
        };
        within("sequences", bounds.sequences, 1024)?;
        within("prefill chunk", bounds.prefill_chunk, 1 << 16)?;
        within("logit rows", bounds.logit_rows, 1 << 16)?;
        match bounds.kv_type {
            Dtype::F16 | Dtype::F32 | Dtype::Q8_0 => Ok(()),
            other => Err(ModelError::Bound {
                what: format!("key/value type {}: f16, f32 or q8_0", other.name()),
            }),
        }
    }
}
