//! What the last step said: rows of logits, read where they stand.

use sha2::{Digest, Sha256};

use super::Runner;

impl Runner {
    /// The logit of a token in a row of the last step.
    #[must_use]
    pub fn logit(&self, row: usize, token: usize) -> f32 {
        self.session.floats(self.host.logits)[self.logit_index(row, token)]
    }

    /// Natural logarithm of the probability of a token in a row of the last step.
    #[must_use]
    pub fn log_probability(&self, row: usize, token: usize) -> f64 {
        let logits = self.session.floats(self.host.logits);
        let value = |id: usize| f64::from(logits[self.logit_index(row, id)]);
        let greatest = (0..self.vocabulary).map(value).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..self.vocabulary).map(|id| (value(id) - greatest).exp()).sum();
        value(token) - greatest - sum.ln()
    }

    /// Hashes a row of the last step's logits, f32 little-endian in token order.
    pub fn hash_logits(&self, row: usize, hash: &mut Sha256) {
        let logits = self.session.floats(self.host.logits);
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

    /// Rows of the last step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn logit_index(&self, row: usize, token: usize) -> usize {
        (token / 16 * self.rows + row) * 16 + token % 16
    }
}
