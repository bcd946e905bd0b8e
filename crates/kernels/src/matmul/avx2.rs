//! The AVX2 shells: plain, and with AVX-VNNI.
//!
//! Two 32-byte halves of a vector hold 8 rows each. A block is unpacked once into a small array
//! on the stack and used for up to eight tokens. What differs between the shells is how integer
//! products are summed ([`block::Multiply`]); everything else is written once, as
//! `inline(always)` functions that land in the shell which enables the features.
//!
//! Pointers stay inside the slices whose lengths [`crate::matmul::matmul`] checked, by the same
//! offsets as in the AVX-512 shell.

mod block;

use core::arch::x86_64::*;

use crate::isa::{Avx2Token, AvxVnniToken};
use crate::limits::{BLOCK_COLS, SUPER_BLOCKS, TILE_ROWS};
use crate::matmul::Epilogue;
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::PackedTiles;
use crate::quantise::ActBlock;

use block::{Halves, Multiply, Pairs, Scales, Vnni};

/// Bytes of activations that a pass over the weights should leave in the second-level cache.
const TOKEN_CHUNK_BYTES: usize = 512 * 1024;

/// Most tokens that a pass over a tile's blocks serves.
const TOKEN_GROUP: usize = 8;

/// Rows of half a tile: lanes of a 256-bit vector.
const HALF_ROWS: usize = TILE_ROWS / 2;

/// See [`crate::matmul::matmul`], which has checked the arguments.
pub(super) fn matmul(
    _proof: Avx2Token,
    weights: PackedTiles<'_>,
    activations: &[ActBlock],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    let call =
        Call { weights, activations: activations.as_ptr(), tokens, epilogue, y: y.as_mut_ptr() };
    // SAFETY: the tokens prove the features; the caller has checked the lengths of the slices
    // behind the pointers, and `y` is borrowed exclusively for the whole call.
    unsafe {
        match AvxVnniToken::detect() {
            Some(_) => for_kind!(weights.kind(), vnni_shell(&call)),
            None => for_kind!(weights.kind(), plain_shell(&call)),
        }
    }
}

/// # Safety
/// As [`run`]'s.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn plain_shell<K: Kind>(call: &Call<'_>) {
    // SAFETY: the features are enabled here; the rest is this function's contract.
    unsafe { run::<K, Pairs>(call) }
}

/// # Safety
/// As [`run`]'s.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn vnni_shell<K: Kind>(call: &Call<'_>) {
    // SAFETY: the features are enabled here; the rest is this function's contract.
    unsafe { run::<K, Vnni>(call) }
}

/// The arguments of a call.
struct Call<'a> {
    weights: PackedTiles<'a>,
    activations: *const ActBlock,
    tokens: usize,
    epilogue: Epilogue,
    y: *mut f32,
}

/// All tiles and tokens.
///
/// # Safety
/// AVX2, FMA, F16C and the features of `M` are there; `call`'s pointers are valid for the lengths
/// that its sizes imply.
#[inline(always)]
unsafe fn run<K: Kind, M: Multiply>(call: &Call<'_>) {
    let column_bytes = call.weights.cols() / BLOCK_COLS * size_of::<ActBlock>();
    let chunk = (TOKEN_CHUNK_BYTES / column_bytes).next_multiple_of(TOKEN_GROUP).max(TOKEN_GROUP);
    let mut first = 0;
    while first < call.tokens {
        let end = call.tokens.min(first + chunk);
        for tile in 0..call.weights.tile_count() {
            let mut token = first;
            // SAFETY: as this function's; the tile and the tokens exist.
            unsafe {
                while end - token >= TOKEN_GROUP {
                    group::<K, M, TOKEN_GROUP>(call, tile, token);
                    token += TOKEN_GROUP;
                }
                if end - token >= 4 {
                    group::<K, M, 4>(call, tile, token);
                    token += 4;
                }
                // What is left shares one pass over the weights.
                match end - token {
                    0 => {}
                    1 => group::<K, M, 1>(call, tile, token),
                    2 => group::<K, M, 2>(call, tile, token),
                    _ => group::<K, M, 3>(call, tile, token),
                }
            }
        }
        first = end;
    }
}

/// One tile, `TOKENS` tokens from `token` on, over all k.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens exist.
#[inline(always)]
unsafe fn group<K: Kind, M: Multiply, const TOKENS: usize>(
    call: &Call<'_>,
    tile: usize,
    token: usize,
) {
    let layout = K::LAYOUT;
    // SAFETY: the offsets are those of the AVX-512 shell's header, for a tile, blocks and tokens
    // that exist.
    unsafe {
        let mut acc: [Halves<__m256>; TOKENS] = [[_mm256_setzero_ps(); 2]; TOKENS];
        let mut weights = call.weights.bytes().as_ptr().add(tile * call.weights.tile_bytes());
        let mut x = call.activations.add(token);
        let mut header = weights;
        for index in 0..call.weights.cols() / BLOCK_COLS {
            if layout.header_bytes() > 0 && index % SUPER_BLOCKS == 0 {
                header = weights;
                weights = weights.add(layout.header_bytes());
            }
            let integers = block::unpack::<K, M>(weights);
            let scales =
                [Scales::load::<K>(header, weights, 0), Scales::load::<K>(header, weights, 1)];
            for (token, acc) in acc.iter_mut().enumerate() {
                *acc = block::advance::<K, M>(&integers, &scales, x.add(token), *acc);
            }
            weights = weights.add(layout.block_bytes());
            x = x.wrapping_add(call.tokens);
        }
        for (index, acc) in acc.iter().enumerate() {
            let y = call.y.add((tile * call.tokens + token + index) * TILE_ROWS);
            finish(call.epilogue, acc[0], y);
            finish(call.epilogue, acc[1], y.add(HALF_ROWS));
        }
    }
}

/// Applies the epilogue to 8 outputs.
///
/// # Safety
/// AVX2 is there; `y` is valid for 8 floats.
#[inline(always)]
unsafe fn finish(epilogue: Epilogue, acc: __m256, y: *mut f32) {
    // SAFETY: as this function's.
    unsafe {
        match epilogue {
            Epilogue::Store => _mm256_storeu_ps(y, acc),
            Epilogue::AddTo => _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), acc)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::block::EvexVnni;
    use super::*;
    use crate::isa::{Avx512Token, Isa};
    use crate::packed::{PackedKind, QuantLayout};
    use crate::random::SplitMix64;

    /// # Safety
    /// As [`run`]'s.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    unsafe fn evex_shell<K: Kind>(call: &Call<'_>) {
        // SAFETY: the features are enabled here; the rest is this function's contract.
        unsafe { run::<K, EvexVnni>(call) }
    }

    /// # Safety
    /// As [`run`]'s.
    unsafe fn all_shells<K: Kind>(call: &Call<'_>, run_shell: Shell) {
        // SAFETY: the caller has detected the features of the shell it asks for.
        unsafe {
            match run_shell {
                Shell::Plain => plain_shell::<K>(call),
                Shell::Vnni => vnni_shell::<K>(call),
                Shell::Evex => evex_shell::<K>(call),
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Shell {
        Plain,
        Vnni,
        Evex,
    }

    /// Random bytes of weights whose f16 scales are finite.
    fn weights(random: &mut SplitMix64, layout: &QuantLayout, bytes: usize) -> Vec<u8> {
        let mut weights: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
        let run = match layout.header_bytes() {
            0 => layout.block_bytes(),
            header => header + SUPER_BLOCKS * layout.block_bytes(),
        };
        let scales = match layout.header_bytes() {
            0 => layout.block_bytes() - layout.scale_bytes()..layout.block_bytes(),
            header => 0..header,
        };
        for run in weights.chunks_exact_mut(run) {
            // Clears the top exponent bit of each f16.
            run[scales.clone()].iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xBF);
        }
        weights
    }

    #[test]
    fn every_shell_has_the_scalar_bits() {
        let evex = Avx512Token::detect().map(|_| Shell::Evex);
        let vnni = AvxVnniToken::detect().map(|_| Shell::Vnni);
        let plain = Avx2Token::detect().map(|_| Shell::Plain);
        let mut random = SplitMix64::new(12);
        for kind in PackedKind::ALL {
            let Some(layout) = kind.quant_layout() else { continue };
            let (cols, rows) = (2 * kind.cols_multiple(), 32);
            let bytes = crate::packed::bytes(kind, rows, cols).unwrap() as usize;
            let bytes = weights(&mut random, &layout, bytes);
            let tiles = PackedTiles::new(kind, cols, &bytes);
            for tokens in [1, 4, 8, 13] {
                let x: Vec<f32> = (0..cols * tokens).map(|_| random.symmetric()).collect();
                let mut blocks = vec![ActBlock::ZERO; cols / BLOCK_COLS * tokens];
                crate::quantise::quantise(Isa::Scalar, &x, tokens, &mut blocks);
                let mut want = vec![0.0f32; rows * tokens];
                let store = Epilogue::Store;
                crate::matmul::matmul(Isa::Scalar, tiles, &blocks, tokens, store, &mut want);
                for shell in [plain, vnni, evex].into_iter().flatten() {
                    let mut y = vec![0.0f32; rows * tokens];
                    let call = Call {
                        weights: tiles,
                        activations: blocks.as_ptr(),
                        tokens,
                        epilogue: store,
                        y: y.as_mut_ptr(),
                    };
                    // SAFETY: the shell's features were detected; the slices have the lengths
                    // that the sizes imply.
                    unsafe { for_kind!(kind, all_shells(&call, shell)) };
                    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&y), bits(&want), "{kind:?} {shell:?} {tokens}");
                }
            }
        }
    }
}
