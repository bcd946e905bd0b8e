//! A small seeded generator: the same numbers on every machine. Search decisions and tests use
//! it; nothing here is for secrets.

/// SplitMix64 (Steele, Lea, Flood 2014): a counter passed through a mixing function.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
impl SplitMix64 {
    /// Random lifetimes of a partial order: `lower ≤ upper`, not equal.
    pub fn clocks(&mut self, count: usize, lanes: usize, span: u64) -> crate::Clocks {
        let mut clocks = crate::Clocks::new(lanes);
        for _ in 0..count {
            let lower: Vec<u32> = (0..lanes).map(|_| self.below(span) as u32).collect();
            let mut upper: Vec<u32> = lower.iter().map(|l| l + self.below(4) as u32).collect();
            upper[0] += 1;
            clocks.push(&lower, &upper);
        }
        clocks
    }
}
