//! What the unit tests share: a seeded generator, values with edges, and comparison of bits.

use crate::random::SplitMix64;

/// Values with edges, from the crate's generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = SplitMix64::new(self.0).bits();
        self.0
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Roughly normal, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..6).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum();
        (sum - 3.0) * std::f32::consts::SQRT_2
    }

    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }

    /// Any bit pattern, with zeros, infinities, denormals and NaNs made common.
    pub fn any_f32(&mut self) -> f32 {
        const EDGES: [f32; 12] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            2.5,
        ];
        match self.below(4) {
            0 => EDGES[self.below(EDGES.len())],
            1 => f32::from_bits(self.next() as u32),
            _ => self.normal() * 10.0,
        }
    }
}

/// The bits, with every NaN made one: a NaN's payload is not part of any answer.
pub fn canonical_bits(value: f32) -> u32 {
    if value.is_nan() { 0x7FC0_0000 } else { value.to_bits() }
}

/// Panics at the first element whose bits differ.
#[track_caller]
pub fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!(canonical_bits(g) == canonical_bits(w), "{what}: element {i}: {g:e} is not {w:e}");
    }
}

/// Panics at the first element further from `want` than `relative · |want| + absolute`.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], relative: f64, absolute: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let bound = relative * w.abs() + absolute;
        assert!((f64::from(g) - w).abs() <= bound, "{what}: element {i}: {g:e} is not {w:e}");
    }
}
