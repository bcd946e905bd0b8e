//! Every operation on every instruction set against the portable statement, bit for bit.

use super::*;
use crate::testing::{Random, assert_same_bits, canonical_bits};

/// All operations once; integers are stored as bits of f32.
struct Everything<'a> {
    a: &'a [f32; 16],
    b: &'a [f32; 16],
    c: &'a [f32; 16],
    mask: u16,
    out: &'a mut Vec<f32>,
}

impl Everything<'_> {
    fn push(&mut self, values: &[f32]) {
        self.out.extend_from_slice(values);
    }
}

impl Kernel for Everything<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (a, b, c) = (s.load(self.a), s.load(self.b), s.load(self.c));
        let mask = s.mask_from_bits(self.mask);
        let (low, high) = s.duplicate(a);
        let results = [
            s.splat(self.a[3]),
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.fma(a, b, c),
            s.sqrt(a),
            s.max(a, b),
            s.min(a, b),
            s.abs(a),
            s.copy_sign(a, b),
            s.round(a),
            s.select(s.less(a, b), a, c),
            s.select(mask, a, b),
            s.swap_adjacent(a),
            low,
            high,
        ];
        let mut stored = [0.0; 16];
        for result in results {
            s.store(result, &mut stored);
            self.push(&stored);
        }
        let bytes: [u8; 64] = core::array::from_fn(|i| self.b[i / 4].to_le_bytes()[i % 4]);
        let loaded = [
            s.load_f32_bytes(&bytes),
            s.load_f16_bytes(bytes.first_chunk().unwrap()),
            s.load_i8_bytes(bytes.first_chunk().unwrap()),
            s.splat_f16(self.mask),
        ];
        for result in loaded {
            s.store(result, &mut stored);
            self.push(&stored);
        }
        let mut narrow = [0; 32];
        s.store_f16_bytes(a, &mut narrow);
        self.push(&narrow.map(f32::from));
        let near = s.select(s.less(s.abs(a), s.splat(3.0)), a, s.splat(-3.2));
        let mut small = [0i8; 16];
        let sum = s.store_i8(s.to_int(s.mul(near, s.splat(40.0))), &mut small);
        self.push(&small.map(f32::from));
        self.push(&[sum as f32, f32::from(s.mask_bits(s.less(a, b)))]);
        self.push(&[s.reduce_add(a), s.reduce_max(a)]);
        let unit = core::array::from_fn(|i| 0.5 + (self.a[i].to_bits() as f32) * 2e-10);
        let power = core::array::from_fn(|i| (self.b[i].to_bits() % 401) as f32 - 200.0);
        s.store(s.scale_by_power_of_two(s.load(&unit), s.load(&power)), &mut stored);
        self.push(&stored);
    }
}

#[test]
fn every_instruction_set_equals_the_portable_statement() {
    let mut random = Random(7);
    for _ in 0..4000 {
        let [a, b, c] = [(); 3].map(|()| core::array::from_fn(|_| random.any_f32()));
        let mask = random.next() as u16;
        let [mut want, mut got] = [Vec::new(), Vec::new()];
        for isa in Isa::available() {
            got.clear();
            dispatch(isa, Everything { a: &a, b: &b, c: &c, mask, out: &mut got });
            if isa == Isa::Scalar {
                want.clone_from(&got);
            }
            assert_same_bits(&got, &want, isa.name());
        }
    }
}

#[test]
fn the_reduction_tree_is_the_documented_one() {
    let mut random = Random(11);
    struct Sum<'a>(&'a [f32; 16]);
    impl Kernel for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            s.reduce_add(s.load(self.0))
        }
    }
    for _ in 0..100 {
        let a: [f32; 16] = core::array::from_fn(|_| random.normal());
        let pair = |i: usize| a[i] + a[i + 8];
        let quad = |i: usize| pair(i) + pair(i + 4);
        let want = (quad(0) + quad(2)) + (quad(1) + quad(3));
        for isa in Isa::available() {
            assert_eq!(canonical_bits(dispatch(isa, Sum(&a))), canonical_bits(want));
        }
    }
}
