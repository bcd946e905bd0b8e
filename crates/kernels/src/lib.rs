//! Numbers in, numbers out: one canonical order of arithmetic on every instruction set.
//!
//! A kernel takes slices and sizes and fills a slice. It believes what its arguments say and
//! asserts their lengths at entry; it knows no graph, no plan and no thread, it never allocates,
//! and it keeps nothing between two calls. Whatever scratch it needs beyond a few kilobytes of
//! stack is an argument.
//!
//! **One answer.** Every kernel defines one order of rounded operations per output element, and
//! every instruction set, every split of the rows and every number of tokens follows it: integer
//! block products, f32 accumulators that advance in k by fused multiply-add, no approximate
//! reciprocal, no flush to zero (one function, the weight of a softmax, is defined to be 0 where it
//! would be denormal). The orders are stated where the kernels are; the plainest
//! statement of each is in [`naive`], which is what the tests compare with, bit for bit.
//!
//! **Layouts.** Activations are tile-major `[features/16][tokens][16]`; weights are packed as
//! [`packed`] draws them. Features are always the sharded axis, so that each shard writes one
//! contiguous slice.
//!
//! **Unsafe.** The crate denies `unsafe`; the files that may use it are the shells that talk to
//! the instruction set, each one listed here with its `allow`:
//! `matmul/avx2.rs`, `matmul/avx2/block.rs`, `matmul/avx512.rs`, `matmul/avx512/block.rs`,
//! `matmul/avx512/tiles.rs`, `matmul/float_avx2.rs`, `matmul/float_avx512.rs`,
//! `simd/avx2.rs`, `simd/avx512.rs`, `peak.rs`, `permission.rs`, `prefetch.rs`.

#![deny(unsafe_code)]

pub mod attention;
pub mod elementwise;
pub mod exp;
pub mod gather;
pub mod half;
pub mod isa;
pub mod kv;
pub mod limits;
pub mod matmul;
pub mod naive;
pub mod norm;
pub mod pack;
pub mod packed;
pub mod peak;
mod permission;
pub mod prefetch;
pub mod quantise;
pub mod random;
pub mod raw;
pub mod rope;
pub mod sample;
pub mod simd;
#[cfg(test)]
mod testing;
mod unpack;
pub mod vision;
