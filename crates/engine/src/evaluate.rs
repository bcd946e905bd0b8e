//! Perplexity, by llama-perplexity's definition.
//!
//! The text's tokens (with BOS in front if the model asks for it) are cut into whole chunks of
//! `ctx_size`; what is left over is not used. BOS then replaces the first token of every chunk, if
//! the model asks for it. Each chunk is evaluated on its own, from position 0, and the predictions
//! of its second half count: the logits at `ctx_size/2 .. ctx_size − 1` each predict the token
//! after them.
//!
//! ```text
//! chunk       BOS t1 t2 … | t(n/2)   …   t(n−2)   t(n−1)
//! predicts                |  t(n/2+1) …   t(n−1)     –        n − n/2 − 1 of them
//! ```
//!
//! Believes a runner whose plan holds `ctx_size − 1` positions and a row of logits for every token
//! of a prefill step.

use crate::error::{Class, EngineError};
use crate::generation::Control;
use crate::runner::{Prefilled, Runner};

/// Which tokens are evaluated, and how they are cut.
#[derive(Clone, Copy, Debug)]
pub struct PerplexityInput<'a> {
    /// Tokens of the text.
    pub tokens: &'a [u32],
    /// Tokens of a chunk.
    pub ctx_size: usize,
    /// Beginning-of-sequence token, if the model asks for it.
    pub bos: Option<u32>,
}

/// A perplexity and what it was measured on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// e to the mean of −ln p.
    pub perplexity: f64,
    /// Standard deviation of the perplexity, from that of the mean.
    pub deviation: f64,
    /// Chunks evaluated.
    pub chunks: usize,
    /// Predictions that count.
    pub predictions: u64,
}

/// Sums of −ln p and of its square.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, loss: f64) {
        self.count += 1;
        self.sum += loss;
        self.squares += loss * loss;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2⁵³")]
    fn perplexity(&self, chunks: usize) -> Perplexity {
        let count = self.count as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        let perplexity = mean.exp();
        let deviation = match self.count {
            0 | 1 => 0.0,
            _ => (variance / (count - 1.0)).sqrt() * perplexity,
        };
        Perplexity { perplexity, deviation, chunks, predictions: self.count }
    }
}

/// Measures the perplexity. `after_chunk` hears the figures so far, and may stop: then they are
/// the result, as they are after an interrupt of the runner. Fewer chunks than the text has are
/// how a caller knows.
///
/// # Errors
/// Class `Usage` for a text of less than a chunk, or a chunk of less than three tokens; class
/// `OverBound` when the plan does not hold a chunk.
pub fn perplexity(
    runner: &mut Runner,
    input: PerplexityInput<'_>,
    after_chunk: &mut dyn FnMut(&Perplexity) -> Control,
) -> Result<Perplexity, EngineError> {
    let PerplexityInput { tokens, ctx_size, bos } = input;
    check(tokens.len(), ctx_size)?;
    let mut sums = Sums::default();
    let mut result = sums.perplexity(0);
    for (index, chunk) in tokens.chunks_exact(ctx_size).enumerate() {
        let mut with_chunk = sums;
        if evaluate_chunk(runner, chunk, bos, &mut with_chunk)? != Prefilled::Whole {
            break;
        }
        sums = with_chunk;
        result = sums.perplexity(index + 1);
        if after_chunk(&result) == Control::Stop {
            break;
        }
    }
    Ok(result)
}

/// Whether there is anything to measure.
///
/// # Errors
/// As [`perplexity`]; for asking before a model is loaded.
pub fn check(tokens: usize, ctx_size: usize) -> Result<(), EngineError> {
    let usage = |message: String| Err(EngineError::new(Class::Usage, message));
    if ctx_size < 3 {
        return usage(format!("a chunk of {ctx_size} tokens predicts nothing, at least 3"));
    }
    if tokens < ctx_size {
        return usage(format!("the text has {tokens} tokens, less than a chunk of {ctx_size}"));
    }
    Ok(())
}

fn evaluate_chunk(
    runner: &mut Runner,
    chunk: &[u32],
    bos: Option<u32>,
    sums: &mut Sums,
) -> Result<Prefilled, EngineError> {
    let bounds = runner.bounds();
    let step = bounds.prefill_chunk.min(bounds.logit_rows) as usize;
    let scored = chunk.len() / 2;
    // The last token's logits predict nothing that is known.
    for start in (0..chunk.len() - 1).step_by(step) {
        let end = (start + step).min(chunk.len() - 1);
        let mut given = [0u32; STEP_TOKENS_MAX];
        let given = given.get_mut(..end - start).ok_or_else(|| {
            let message = format!("a step of {step} tokens, at most {STEP_TOKENS_MAX}");
            EngineError::new(Class::Usage, message)
        })?;
        given.copy_from_slice(&chunk[start..end]);
        if let (0, Some(bos)) = (start, bos) {
            given[0] = bos;
        }
        let first = scored.clamp(start, end - 1);
        let rows = first - start..end - start;
        let prefilled = runner.prefill_with_rows(0, given, start as u32, rows)?;
        if prefilled != Prefilled::Whole {
            return Ok(prefilled);
        }
        for position in scored.max(start)..end {
            let next = chunk[position + 1] as usize;
            sums.add(-runner.log_probability(position - first, next));
        }
    }
    Ok(Prefilled::Whole)
}

/// Most tokens of a prefill step.
pub const STEP_TOKENS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_give_mean_and_deviation() {
        let mut sums = Sums::default();
        for loss in [1.0, 2.0, 3.0] {
            sums.add(loss);
        }
        let result = sums.perplexity(1);
        assert!((result.perplexity - 2f64.exp()).abs() < 1e-12);
        // Variance 2/3 over 3 losses, so 1/3 of the mean.
        assert!((result.deviation - (1f64 / 3.0).sqrt() * 2f64.exp()).abs() < 1e-12);
        assert_eq!((result.chunks, result.predictions), (1, 3));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(check(512, 512).is_ok());
        assert!(check(511, 512).is_err());
        assert!(check(511, 2).is_err());
    }
}
