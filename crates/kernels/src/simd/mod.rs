//! Sixteen lanes of f32 on every instruction set, with the same bits.
//!
//! A float kernel is written once over [`Simd`] and run through [`dispatch`]. The trait has only
//! operations whose result IEEE 754 or the text here fixes, so that a kernel's answer does not
//! depend on who runs it: no approximate reciprocal, no reassociated sum, and one tree for every
//! reduction across lanes. The payload of a NaN is the only thing left open.
//!
//! **Inlining.** Everything between [`Kernel::run`] and an intrinsic must be `inline(always)`:
//! only then does the body land in the shell that enables the target features. The two shells
//! are `avx2::run` and `avx512::run`; they are all the unsafe calls the float kernels need.
//!
//! A new instruction set is one more file like `avx2.rs` and one more arm in [`dispatch`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;
#[cfg(test)]
mod tests;

use crate::isa::Isa;

/// Lanes of a vector, and features of a tile in the tile-major layout.
pub const LANES: usize = 16;

/// Sixteen features of one token.
pub type Tile = [f32; LANES];

/// A tile-major slice as tiles. Panics unless the length is a multiple of 16.
#[inline]
pub fn tiles(x: &[f32]) -> &[Tile] {
    let (tiles, rest) = x.as_chunks();
    assert!(rest.is_empty(), "tile-major length {} is not a multiple of 16", x.len());
    tiles
}

/// [`tiles`], to write.
#[inline]
pub fn tiles_mut(x: &mut [f32]) -> &mut [Tile] {
    let len = x.len();
    let (tiles, rest) = x.as_chunks_mut();
    assert!(rest.is_empty(), "tile-major length {len} is not a multiple of 16");
    tiles
}

/// Where the first operand of an operation stands that may run in place.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// In its own slice, as long as the output.
    At(&'a [f32]),
    /// In the output's bytes, which the operation overwrites.
    InPlace,
}

impl<'a> Operand<'a> {
    /// The tiles, if they are not the output's. Panics unless there are `len` tiles.
    #[inline]
    pub(crate) fn tiles(self, len: usize) -> Option<&'a [Tile]> {
        match self {
            Self::At(x) => {
                let tiles = tiles(x);
                assert_eq!(tiles.len(), len, "tiles of the operand and of the output");
                Some(tiles)
            }
            Self::InPlace => None,
        }
    }
}

/// Tile `index` of an operand that [`Operand::tiles`] resolved.
#[inline(always)]
pub(crate) fn pick<'a>(operand: Option<&'a [Tile]>, out: &'a [Tile], index: usize) -> &'a Tile {
    match operand {
        Some(tiles) => &tiles[index],
        None => &out[index],
    }
}

/// A kernel body, generic over the instruction set: its fields are its arguments.
pub trait Kernel {
    /// What the kernel returns.
    type Output;

    /// Runs the body. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` on `isa`.
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        Isa::Scalar => kernel.run(scalar::Scalar),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => avx2::run(token, kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => avx512::run(token, kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx(token) => avx512::run(token.avx512(), kernel),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) | Isa::Avx512(_) | Isa::Amx(_) => {
            unreachable!("no such token on this architecture")
        }
    }
}

/// How many vectors fit the register file: decides tile shapes, never an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterFile {
    /// None to speak of: portable code.
    None,
    /// Eight vectors of sixteen lanes (sixteen 256-bit registers).
    Eight,
    /// Thirty-two vectors of sixteen lanes.
    ThirtyTwo,
}

/// An instruction set as sixteen lanes of f32 and i32. A value of the type proves that the
/// processor has it. Arithmetic is lane by lane, rounded to nearest even.
pub trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen booleans.
    type M: Copy;
    /// The size of the register file.
    const REGISTERS: RegisterFile;

    /// `value` in all lanes.
    fn splat(self, value: f32) -> Self::F;
    /// Lane i from element i.
    fn load(self, from: &[f32; LANES]) -> Self::F;
    /// Lane i to element i.
    fn store(self, value: Self::F, to: &mut [f32; LANES]);
    /// Lane i from the little-endian f32 at byte 4 i.
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F;
    /// Lane i from the little-endian binary16 at byte 2 i, exact.
    fn load_f16_bytes(self, from: &[u8; 2 * LANES]) -> Self::F;
    /// Lane i to the little-endian binary16 at byte 2 i, nearest even.
    fn store_f16_bytes(self, value: Self::F, to: &mut [u8; 2 * LANES]);
    /// Lane i from byte i as i8, exact.
    fn load_i8_bytes(self, from: &[u8; LANES]) -> Self::F;
    /// The binary16 of these bits in all lanes, exact.
    fn splat_f16(self, bits: u16) -> Self::F;

    /// Asks for the cache lines of `bytes` ahead of their use. Changes no answer.
    fn prefetch(self, bytes: &[u8]);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `√a`.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b`: a NaN in `a` gives `b`, one in `b` gives the NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a < b`, else `b`: a NaN in `a` gives `b`, one in `b` gives the NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `|a|`.
    fn abs(self, a: Self::F) -> Self::F;
    /// `|magnitude|` with the sign of `sign`.
    fn copy_sign(self, magnitude: Self::F, sign: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `a · 2ⁿ` for integral `n` in −200 ..= 200 and `|a|` in [2⁻⁸, 2⁸], rounded once.
    fn scale_by_power_of_two(self, a: Self::F, n: Self::F) -> Self::F;

    /// `a < b`, false for a NaN.
    fn less(self, a: Self::F, b: Self::F) -> Self::M;
    /// Lane i is bit i.
    fn mask_from_bits(self, bits: u16) -> Self::M;
    /// Bit i is lane i.
    fn mask_bits(self, mask: Self::M) -> u16;
    /// `a` where the mask is true, else `b`.
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// The nearest integer, ties to even; outside of i32 (or a NaN) it is `i32::MIN`.
    fn to_int(self, a: Self::F) -> Self::I;
    /// Lane i to element i; returns the sum. Lanes must be within i8.
    fn store_i8(self, value: Self::I, to: &mut [i8; LANES]) -> i32;

    /// Lanes 1 0 3 2 5 4 …
    fn swap_adjacent(self, a: Self::F) -> Self::F;
    /// Lanes 0 0 1 1 … 7 7, and lanes 8 8 9 9 … 15 15.
    fn duplicate(self, a: Self::F) -> (Self::F, Self::F);

    /// The sum of the lanes by the fixed tree: i and i+8, then +4, +2, +1.
    fn reduce_add(self, a: Self::F) -> f32;
    /// The maximum of the lanes by the same tree, each step as [`Simd::max`].
    fn reduce_max(self, a: Self::F) -> f32;
}
