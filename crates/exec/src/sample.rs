//! Sampling: one call of the kernel for each row of logits.
//!
//! A row's parameters are a record of [`SamplerRecord::BYTES`] bytes that the host writes.

use dctms_kernels::isa::Isa;
use dctms_kernels::sample::{Candidate, LogitsRow, RandomState, SampleParameters, sample};

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerRecord {
    /// Divisor of logits; 0 picks the greatest.
    pub temperature: f32,
    /// Candidates kept; 0 for all.
    pub top_k: u32,
    /// Probability mass kept; 1 for all.
    pub top_p: f32,
    /// Least probability kept, as a part of the greatest; 0 for all.
    pub min_p: f32,
    /// Divisor of the logits of recent tokens; 1 for none.
    pub repeat_penalty: f32,
}

impl SamplerRecord {
    /// Bytes of a record.
    pub const BYTES: usize = 64;

    /// The greatest logit.
    pub const GREEDY: SamplerRecord =
        SamplerRecord { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0 };

    /// The record as bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.temperature.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.top_k.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.top_p.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.min_p.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.repeat_penalty.to_le_bytes());
        bytes
    }

    fn parameters(self) -> SampleParameters {
        SampleParameters {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            ..SampleParameters::GREEDY
        }
    }

    /// The record of its bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> SamplerRecord {
        let word = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("four bytes") };
        SamplerRecord {
            temperature: f32::from_le_bytes(word(0)),
            top_k: u32::from_le_bytes(word(4)),
            top_p: f32::from_le_bytes(word(8)),
            min_p: f32::from_le_bytes(word(12)),
            repeat_penalty: f32::from_le_bytes(word(16)),
        }
    }
}

/// The random state of a seed, 32 bytes.
#[must_use]
pub fn random_state(seed: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (word, target) in RandomState::new(seed).0.iter().zip(bytes.chunks_exact_mut(8)) {
        target.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// What fills a history that is shorter than the window.
pub const NO_TOKEN: u32 = u32::MAX;

/// Operands of a sampling task.
pub(crate) struct SampleRows<'a> {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Rows of logits.
    pub rows: usize,
    /// Tile-major `[V/16][rows][16]`.
    pub logits: &'a [f32],
    /// One record a row.
    pub parameters: &'a [u8],
    /// Recent tokens, an equal window a row, [`NO_TOKEN`] from where there are no more.
    pub history: &'a [u32],
    /// Picked tokens.
    pub sampled: &'a mut [u32],
    /// Random states, four words a row.
    pub random: &'a mut [u64],
    /// Scratch.
    pub workspace: &'a mut [Candidate],
}

/// Picks a token for each row.
pub(crate) fn sample_rows(isa: Isa, operands: SampleRows<'_>) {
    let SampleRows { vocabulary, rows, logits, parameters, history, sampled, random, workspace } =
        operands;
    let window = history.len() / sampled.len();
    for row in 0..rows {
        let record = &parameters[row * SamplerRecord::BYTES..(row + 1) * SamplerRecord::BYTES];
        let record = SamplerRecord::from_bytes(record);
        let recent = &history[row * window..(row + 1) * window];
        let count = recent.iter().position(|id| *id == NO_TOKEN).unwrap_or(window);
        let words: [u64; 4] = random[row * 4..row * 4 + 4].try_into().expect("four words");
        let mut state = RandomState(words);
        sampled[row] = sample(
            isa,
            LogitsRow::new(logits, rows, row, vocabulary),
            &record.parameters(),
            &recent[..count],
            &mut state,
            workspace,
        );
        random[row * 4..row * 4 + 4].copy_from_slice(&state.0);
    }
}
