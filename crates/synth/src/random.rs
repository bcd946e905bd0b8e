//! SplitMix64 (Steele, Lea, Flood 2014): one multiplication chain a word, the same everywhere.

/// A stream of random words.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each name, so that no tensor depends on the order of others.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a over the name; the generator's own mixing does the rest.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    /// Sixty-four random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Uniform in `0..1`.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Near normal, mean 0 and deviation 1: twelve uniform numbers, summed (no elementary
    /// function, so no platform's rounding).
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.word().to_le_bytes()[..piece.len()]);
        }
    }
}
