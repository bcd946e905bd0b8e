//! What this processor could do: loops that do nothing but read, multiply integers or multiply
//! floats, for the limits that measured speeds are compared with.
//!
//! Each loop keeps as many independent results in registers as it takes to hide the latency of an
//! instruction. Believes its arguments. Must not know clocks or threads: the caller times them, on
//! one thread or on all.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

use std::hint::black_box;

use crate::isa::Isa;
use crate::simd::{Kernel, RegisterFile, Simd, Tile, dispatch, tiles};

/// How many streams read side by side. One stream waits for memory more often than it reads it;
/// how many are best depends on the machine, so a measurement tries all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// 4.
    Four,
    /// 8.
    Eight,
    /// 16.
    Sixteen,
}

impl Streams {
    /// All of them.
    pub const ALL: [Streams; 3] = [Streams::Four, Streams::Eight, Streams::Sixteen];
}

/// Reads all floats once, and adds them up so that no read can be left out. Whole tiles of 16.
///
/// Panics unless the length is a multiple of 16.
pub fn read(isa: Isa, streams: Streams, floats: &[f32]) -> f32 {
    let tiles = tiles(floats);
    match streams {
        Streams::Four => dispatch(isa, Read::<4> { tiles }),
        Streams::Eight => dispatch(isa, Read::<8> { tiles }),
        Streams::Sixteen => dispatch(isa, Read::<16> { tiles }),
    }
}

/// Reads all bytes once, and folds them so that no read can be left out.
pub fn read_bytes(streams: Streams, bytes: &[u8]) -> u64 {
    match streams {
        Streams::Four => fold::<4>(bytes),
        Streams::Eight => fold::<8>(bytes),
        Streams::Sixteen => fold::<16>(bytes),
    }
}

fn fold<const STREAMS: usize>(bytes: &[u8]) -> u64 {
    let (lines, _) = bytes.as_chunks::<64>();
    let part = lines.len() / STREAMS;
    let (whole, rest) = lines.split_at(part * STREAMS);
    let mut sums = [[0u64; 8]; STREAMS];
    let mut take = |stream: usize, line: &[u8; 64]| {
        let (words, _) = line.as_chunks::<8>();
        for (sum, word) in sums[stream].iter_mut().zip(words) {
            *sum ^= u64::from_le_bytes(*word);
        }
    };
    for index in 0..part {
        for stream in 0..STREAMS {
            take(stream, &whole[stream * part + index]);
        }
    }
    rest.iter().for_each(|line| take(0, line));
    sums.iter().flatten().fold(0, |all, sum| all ^ sum)
}

struct Read<'a, const STREAMS: usize> {
    tiles: &'a [Tile],
}

impl<const STREAMS: usize> Kernel for Read<'_, STREAMS> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let part = self.tiles.len() / STREAMS;
        let (whole, rest) = self.tiles.split_at(part * STREAMS);
        let mut streams = [&whole[..0]; STREAMS];
        for (index, stream) in streams.iter_mut().enumerate() {
            *stream = &whole[index * part..(index + 1) * part];
        }
        let mut sums = [s.splat(0.0); STREAMS];
        for index in 0..part {
            for (sum, stream) in sums.iter_mut().zip(&streams) {
                *sum = s.add(*sum, s.load(&stream[index]));
            }
        }
        for tile in rest {
            sums[0] = s.add(sums[0], s.load(tile));
        }
        sums.iter().fold(0.0, |total, sum| total + s.reduce_add(*sum))
    }
}

/// Runs fused multiply-adds of f32 in registers; gives the operations done, a multiplication and
/// an addition being two.
pub fn float_operations(isa: Isa, rounds: usize) -> u64 {
    dispatch(isa, Floats { rounds })
}

struct Floats {
    rounds: usize,
}

impl Kernel for Floats {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        match S::REGISTERS {
            RegisterFile::None | RegisterFile::Eight => floats::<S, 6>(s, self.rounds),
            RegisterFile::ThirtyTwo => floats::<S, 12>(s, self.rounds),
        }
    }
}

#[inline(always)]
fn floats<S: Simd, const SUMS: usize>(s: S, rounds: usize) -> u64 {
    let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(0.25)));
    let mut sums = [s.splat(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = s.fma(*sum, a, b);
        }
    }
    black_box(sums.iter().fold(0.0, |total, sum| total + s.reduce_add(*sum)));
    (rounds * SUMS * 16 * 2) as u64
}

/// Runs the integer products that matmul is made of in registers; gives the operations done, a
/// multiplication and an addition being two.
pub fn integer_operations(isa: Isa, rounds: usize) -> u64 {
    match isa {
        Isa::Scalar => scalar::integers(rounds),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::integers_avx2(token, rounds),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::integers_avx512(token, rounds),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx(token) => crate::matmul::tile_operations(token, rounds),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) | Isa::Avx512(_) | Isa::Amx(_) => {
            unreachable!("no such token on this architecture")
        }
    }
}

mod scalar {
    use std::hint::black_box;

    /// Products of single integers, as the portable matmul takes them.
    pub(super) fn integers(rounds: usize) -> u64 {
        const SUMS: usize = 64;
        let (a, b) = (black_box([3_i8; SUMS]), black_box([5_i8; SUMS]));
        let mut sums = [0_i32; SUMS];
        for _ in 0..rounds {
            let b = black_box(&b);
            for ((sum, a), b) in sums.iter_mut().zip(&a).zip(b) {
                *sum = sum.wrapping_add(i32::from(*a) * i32::from(*b));
            }
        }
        black_box(sums);
        (rounds * SUMS * 2) as u64
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;
    use std::hint::black_box;

    use crate::isa::{Avx2Token, Avx512Token, AvxVnniToken};

    const SUMS: usize = 12;

    /// Four products and three additions in each of 16 lanes, and one more addition: `vpdpbusd`.
    pub(super) fn integers_avx512(_proof: Avx512Token, rounds: usize) -> u64 {
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn shell(rounds: usize) -> u64 {
            let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
            let mut sums = [_mm512_setzero_si512(); SUMS];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, a, b);
                }
            }
            black_box(sums);
            (rounds * SUMS * 64 * 2) as u64
        }
        // SAFETY: the token proves the features.
        unsafe { shell(rounds) }
    }

    /// What matmul takes on 256 bits: dot products of four where the processor has them.
    pub(super) fn integers_avx2(proof: Avx2Token, rounds: usize) -> u64 {
        match AvxVnniToken::detect() {
            Some(vnni) => dot_products(vnni, rounds),
            None => pairs(proof, rounds),
        }
    }

    /// Without dot products of four: `vpmaddubsw`, `vpmaddwd`, `vpaddd`.
    fn pairs(_proof: Avx2Token, rounds: usize) -> u64 {
        #[target_feature(enable = "avx2")]
        fn shell(rounds: usize) -> u64 {
            let b = _mm256_set1_epi8(black_box(5));
            let ones = _mm256_set1_epi16(black_box(1));
            let mut sums = [_mm256_setzero_si256(); SUMS];
            for _ in 0..rounds {
                for sum in &mut sums {
                    // The product depends on the sum, or it would be taken out of the loop.
                    let pairs = _mm256_maddubs_epi16(*sum, b);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
            black_box(sums);
            (rounds * SUMS * 32 * 2) as u64
        }
        // SAFETY: the token proves the features.
        unsafe { shell(rounds) }
    }

    /// With them: `vpdpbusd` in AVX-VNNI's own encoding.
    fn dot_products(_proof: AvxVnniToken, rounds: usize) -> u64 {
        #[target_feature(enable = "avx2,avxvnni")]
        fn shell(rounds: usize) -> u64 {
            let (a, b) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi8(black_box(5)));
            let mut sums = [_mm256_setzero_si256(); SUMS];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
                }
            }
            black_box(sums);
            (rounds * SUMS * 32 * 2) as u64
        }
        // SAFETY: the token proves the features.
        unsafe { shell(rounds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_is_read_once() {
        for count in [0, 1, 7, 8, 9, 31, 64, 100] {
            let floats: Vec<f32> = (0..16 * count).map(|i| (i % 257) as f32).collect();
            let expected: f32 = floats.iter().sum();
            for (isa, streams) in Isa::available().flat_map(|i| Streams::ALL.map(|s| (i, s))) {
                let sum = read(isa, streams, &floats);
                assert_eq!(sum, expected, "{count} tiles on {}, {streams:?}", isa.name());
            }
        }
    }

    #[test]
    fn every_word_is_read_once() {
        for count in [0, 1, 3, 4, 5, 8, 16, 31, 100] {
            let bytes: Vec<u8> = (0..64 * count).map(|i| (i * 37 % 251) as u8).collect();
            let words = bytes.as_chunks::<8>().0.iter();
            let expected = words.fold(0, |all, word| all ^ u64::from_le_bytes(*word));
            for streams in Streams::ALL {
                assert_eq!(read_bytes(streams, &bytes), expected, "{count} lines, {streams:?}");
            }
        }
    }

    #[test]
    fn operations_grow_with_the_rounds() {
        for isa in Isa::available() {
            let (few, many) = (integer_operations(isa, 3), integer_operations(isa, 30));
            assert!(few > 0 && many == 10 * few, "{}", isa.name());
            assert_eq!(float_operations(isa, 20), 2 * float_operations(isa, 10));
        }
    }
}
