//! What the last step said: rows of logits, read where they stand.

use sha2::Sha256;

use super::Runner;

impl Runner {
    /// The logit of a token in a row of the last step.
    #[must_use]
    pub fn logit(&self, row: usize, token: usize) -> f32 {
        self.session.floats(self.core.host.logits)[self.core.logit_index(row, token)]
    }

    /// Natural logarithm of the probability of a token in a row of the last step.
    #[must_use]
    pub fn log_probability(&self, row: usize, token: usize) -> f64 {
        let logits = self.session.floats(self.core.host.logits);
        let value = |id: usize| f64::from(logits[self.core.logit_index(row, id)]);
        let vocabulary = self.core.vocabulary;
        let greatest = (0..vocabulary).map(value).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..vocabulary).map(|id| (value(id) - greatest).exp()).sum();
        value(token) - greatest - sum.ln()
    }

    /// Hashes a row of the last step's logits, f32 little-endian in token order.
    pub fn hash_logits(&self, row: usize, hash: &mut Sha256) {
        self.core.hash_logits(&self.session, row, hash);
    }

    /// Rows of the last step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.core.rows
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.core.vocabulary
    }
}
