//! Products of many tokens in AMX tile registers.
//!
//! A block of packed weights is a tile register's layout as it stands: eight rows of 64 bytes, each
//! `[row][4 k]`. One instruction multiplies it with 16 tokens of a block of activations, which
//! gives the block's 16 × 16 exact integers `I`; they go through memory into vectors, where the
//! canonical order goes on as in [`super::block`]. What bounds the kernel is no longer the
//! multiplication, but the three to seven vector instructions for each 16 integers, and the way
//! through memory.
//!
//! A tile of weights is taken in pieces of some blocks, whose integers and scales are unpacked
//! once for [`GROUP_TOKENS`] tokens. Zero points are taken off there: integers are signed from then
//! on. Tokens beyond a multiple of 16 are left to [`super::streams`].
//!
//! Fewer than 16 tokens are left to vectors as well: with eight, half of a register, unpacking into
//! memory costs more than multiplying in tiles gains.
//!
//! **Registers.** The compiler knows nothing of tile registers: this crate enables no feature that
//! would let it use them, so what one `asm` statement leaves there the next one finds. They are
//! configured when a call begins and released when it ends; every call in between is to this
//! file, or to vector code. Threads have their own, which the kernel saves.

use core::arch::x86_64::*;
use core::ops::Range;

use crate::isa::AmxToken;
use crate::limits::{BLOCK_COLS, BLOCK_GROUPS, SUPER_BLOCKS, TILE_ROWS};
use crate::matmul::Epilogue;
use crate::matmul::kinds::{Kind, for_kind};
use crate::packed::{PackedTiles, ScaleScheme};
use crate::quantise::ActBlock;

use super::block::{Scales, prefetch, unpack};
use super::{Call, SIDE_TILES, streams, token_chunk};

/// Tokens of a tile register.
const TOKENS: usize = 16;

/// Tokens for which a piece is unpacked once.
const GROUP_TOKENS: usize = 128;

/// How many blocks ahead the activations are asked for; see [`super::PREFETCH_BLOCKS`].
const PREFETCH_BLOCKS: usize = 4;

/// Blocks of a piece: with its integers, scales and products it stays in the first-level cache.
const PIECE_BLOCKS: usize = 16;

const _: () = assert!(PIECE_BLOCKS.is_multiple_of(SUPER_BLOCKS));
const _: () = assert!(GROUP_TOKENS.is_multiple_of(TOKENS));

/// See [`crate::matmul::matmul`], which has checked the arguments.
pub(in crate::matmul) fn matmul(
    proof: AmxToken,
    weights: PackedTiles<'_>,
    activations: &[ActBlock],
    tokens: usize,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    if tokens < TOKENS {
        return super::matmul(proof.avx512(), weights, activations, tokens, epilogue, y);
    }
    let call =
        Call { weights, activations: activations.as_ptr(), tokens, epilogue, y: y.as_mut_ptr() };
    // SAFETY: the token proves the features and the permission; the caller has checked the lengths
    // of the slices behind the pointers, and `y` is borrowed exclusively for the whole call.
    unsafe {
        configure();
        for_kind!(weights.kind(), run(&call));
        release();
    }
}

/// What `ldtilecfg` reads: palette 1, and bytes of a row and rows of each register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Configuration>() == 64);

/// Registers 0 and 1 hold 16 tokens and a block of weights, 2 and 3 half a block of both; the rest
/// hold products.
static CONFIGURATION: Configuration = {
    let mut row_bytes = [64; 16];
    let mut rows = [16; 16];
    (row_bytes[0], rows[1]) = (32, 8);
    (row_bytes[2], rows[3]) = (16, 4);
    (row_bytes[6], rows[7]) = (16, 4);
    let mut register = 8;
    while register < 16 {
        (row_bytes[register], rows[register]) = (0, 0);
        register += 1;
    }
    Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// # Safety
/// Tiles may be used.
unsafe fn configure() {
    // SAFETY: the instruction reads the 64 bytes and configures the tile registers, which nothing
    // else uses.
    unsafe {
        core::arch::asm!(
            "ldtilecfg [{configuration}]",
            configuration = in(reg) &raw const CONFIGURATION,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// # Safety
/// Tiles may be used.
unsafe fn release() {
    // SAFETY: the instruction gives up the tile registers.
    unsafe { core::arch::asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
}

/// Products of blocks that stay in tile registers, as matmul takes them; gives the operations done,
/// a multiplication and an addition being two.
pub(crate) fn operations(_proof: AmxToken, rounds: usize) -> u64 {
    // SAFETY: the token proves the permission. The statement overwrites tile registers only.
    unsafe {
        configure();
        core::arch::asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm4",
            "tilezero tmm5",
            "test {rounds}, {rounds}",
            "jz 3f",
            "2:",
            "tdpbssd tmm4, tmm0, tmm1",
            "tdpbssd tmm5, tmm0, tmm1",
            "tdpbssd tmm4, tmm0, tmm1",
            "tdpbssd tmm5, tmm0, tmm1",
            "dec {rounds}",
            "jnz 2b",
            "3:",
            rounds = inlateout(reg) rounds => _,
            options(nostack, nomem),
        );
        release();
    }
    (rounds * 4 * TOKENS * TILE_ROWS * BLOCK_COLS * 2) as u64
}

/// Some blocks of one tile of weights, unpacked.
struct Piece {
    /// `[block][k-group]`, signed.
    integers: [[__m512i; BLOCK_GROUPS]; PIECE_BLOCKS],
    scales: [Scales; PIECE_BLOCKS],
}

/// The products of a block, `[half][token]` of 16 rows; one half where a scale covers 32 columns.
type Products = [[__m512i; TOKENS]; 2];

/// All tiles and tokens.
///
/// # Safety
/// The features are there, tiles are configured; `call`'s pointers are valid for the lengths that
/// its sizes imply.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn run<K: Kind>(call: &Call<'_>) {
    let chunk = token_chunk(call, GROUP_TOKENS);
    for first in (0..call.tokens).step_by(chunk) {
        let end = call.tokens.min(first + chunk);
        let whole = first + (end - first) / TOKENS * TOKENS;
        let count = call.weights.tile_count();
        for tile in (0..count).step_by(SIDE_TILES) {
            let tiles = tile..count.min(tile + SIDE_TILES);
            // SAFETY: as this function's; the tiles and the tokens exist.
            unsafe {
                for tile in tiles.clone() {
                    for group in (first..whole).step_by(GROUP_TOKENS) {
                        tile_group::<K>(call, tile, group..whole.min(group + GROUP_TOKENS));
                    }
                }
                streams::<K>(call, tiles, whole..end);
            }
        }
    }
}

/// One tile and at most [`GROUP_TOKENS`] tokens, a multiple of 16, over all k.
///
/// # Safety
/// As [`run`]'s; the tile and the tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile_group<K: Kind>(call: &Call<'_>, tile: usize, tokens: Range<usize>) {
    let mut acc = [[_mm512_setzero_ps(); TOKENS]; GROUP_TOKENS / TOKENS];
    let mut piece = Piece {
        integers: [[_mm512_setzero_si512(); BLOCK_GROUPS]; PIECE_BLOCKS],
        scales: [const { Scales::NONE }; PIECE_BLOCKS],
    };
    for first in (0..call.blocks()).step_by(PIECE_BLOCKS) {
        let count = PIECE_BLOCKS.min(call.blocks() - first);
        // SAFETY: the tile, the blocks and the tokens exist.
        unsafe {
            unpack_piece::<K>(call, tile, first, count, &mut piece);
            for (token, acc) in tokens.clone().step_by(TOKENS).zip(&mut acc) {
                let x = call.activations.add(first * call.tokens + token);
                blocks::<K>(&piece, count, x, call.tokens, acc);
            }
        }
    }
    for (token, acc) in tokens.step_by(TOKENS).zip(&acc) {
        // SAFETY: the tile and the tokens exist.
        unsafe { super::finish(call, tile, token, acc) };
    }
}

/// Unpacks `count` blocks from `first` on, which is a multiple of [`SUPER_BLOCKS`].
///
/// # Safety
/// As [`run`]'s; the tile and the blocks exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack_piece<K: Kind>(
    call: &Call<'_>,
    tile: usize,
    first: usize,
    count: usize,
    piece: &mut Piece,
) {
    let layout = K::LAYOUT;
    let zero = _mm512_set1_epi8(layout.zero as i8);
    let weights = call.weights.tile(tile).as_ptr();
    for block in 0..count {
        // SAFETY: the offsets are those of the block and its header.
        unsafe {
            let header = weights.add(layout.header_offset_bytes(first + block));
            let at = weights.add(layout.block_offset_bytes(first + block));
            let integers = unpack::<K, TOKENS>(at);
            piece.integers[block] = integers.map(|unsigned| _mm512_sub_epi8(unsigned, zero));
            piece.scales[block] = Scales::load::<K, TOKENS>(header, at);
        }
    }
}

/// Takes the accumulators of 16 tokens over `count` blocks of a piece. Four blocks are on their way
/// at once, each a stage further: loaded, multiplied, stored, turned into floats. None of them
/// waits for another, so the processor's window, which is shorter than one block's way through all
/// of them, is always full of work.
///
/// # Safety
/// As [`run`]'s; `x` is the first block of the first token, the blocks of a token are `stride`
/// apart, and `count` of them and 16 tokens exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn blocks<K: Kind>(
    piece: &Piece,
    count: usize,
    x: *const ActBlock,
    stride: usize,
    acc: &mut [__m512; TOKENS],
) {
    let mut products: [Products; 2] = [[[_mm512_setzero_si512(); TOKENS]; 2]; 2];
    let mut sum = *acc;
    // SAFETY: the blocks and tokens exist; a prefetch may name any address.
    unsafe {
        load::<K>(x, &piece.integers[0]);
        for step in 0..count + 2 {
            let x = x.wrapping_add(step * stride);
            if (1..=count).contains(&step) {
                store::<K>(&mut products[step % 2]);
            }
            if step < count {
                multiply::<K>();
            }
            if step + 1 < count {
                load::<K>(x.add(stride), &piece.integers[step + 1]);
                let ahead = x.wrapping_add(PREFETCH_BLOCKS * stride);
                prefetch(ahead.cast(), TOKENS * size_of::<ActBlock>() + 63);
            }
            if let Some(block) = step.checked_sub(2) {
                let x = x.wrapping_sub(2 * stride);
                advance::<K>(&products[(block + 1) % 2], &piece.scales[block], x, &mut sum);
            }
        }
    }
    *acc = sum;
}

/// 16 tokens and a block of weights into tile registers.
///
/// # Safety
/// Tiles are configured; `x` points to 16 blocks of activations.
#[inline]
unsafe fn load<K: Kind>(x: *const ActBlock, integers: &[__m512i; BLOCK_GROUPS]) {
    // SAFETY: the instructions read 16 rows of 32 (16 and 16) bytes, `size_of::<ActBlock>()` apart,
    // from the integers of the first block on, and 8 (4 and 4) rows of 64 bytes of weights.
    unsafe {
        let q = (&raw const (*x).q).cast::<u8>();
        if halves::<K>() {
            core::arch::asm!(
                "tileloadd tmm2, [{q} + {stride}]",
                "tileloadd tmm3, [{weights} + {row}]",
                "tileloadd tmm6, [{q} + {stride} + 16]",
                "tileloadd tmm7, [{weights} + {row} + 256]",
                q = in(reg) q,
                stride = in(reg) size_of::<ActBlock>(),
                weights = in(reg) integers.as_ptr(),
                row = in(reg) 64_usize,
                options(nostack, preserves_flags, readonly),
            );
        } else {
            core::arch::asm!(
                "tileloadd tmm0, [{q} + {stride}]",
                "tileloadd tmm1, [{weights} + {row}]",
                q = in(reg) q,
                stride = in(reg) size_of::<ActBlock>(),
                weights = in(reg) integers.as_ptr(),
                row = in(reg) 64_usize,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

/// Integer products of what [`load`] loaded last.
///
/// # Safety
/// Tiles are configured.
#[inline]
unsafe fn multiply<K: Kind>() {
    // SAFETY: the instructions change tile registers only.
    unsafe {
        if halves::<K>() {
            core::arch::asm!(
                "tilezero tmm4",
                "tilezero tmm5",
                "tdpbssd tmm4, tmm2, tmm3",
                "tdpbssd tmm5, tmm6, tmm7",
                options(nostack, preserves_flags, nomem),
            );
        } else {
            core::arch::asm!(
                "tilezero tmm4",
                "tdpbssd tmm4, tmm0, tmm1",
                options(nostack, preserves_flags, nomem),
            );
        }
    }
}

/// What [`multiply`] gave last, to memory.
///
/// # Safety
/// Tiles are configured.
#[inline]
unsafe fn store<K: Kind>(products: &mut Products) {
    // SAFETY: the instructions write 16 rows of 64 bytes into `products` (each half of it).
    unsafe {
        core::arch::asm!(
            "tilestored [{products} + {row}], tmm4",
            products = in(reg) products.as_mut_ptr(),
            row = in(reg) 64_usize,
            options(nostack, preserves_flags),
        );
        if halves::<K>() {
            core::arch::asm!(
                "tilestored [{products} + {row}], tmm5",
                products = in(reg) products[1].as_mut_ptr(),
                row = in(reg) 64_usize,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Whether the two halves of a block have scales of their own.
const fn halves<K: Kind>() -> bool {
    match K::LAYOUT.scales {
        ScaleScheme::Block | ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => false,
        ScaleScheme::Super16 | ScaleScheme::Super16Minimum => true,
    }
}

/// Takes the accumulators of 16 tokens over one block, in the canonical order.
///
/// # Safety
/// The features are there; `x` points to 16 blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn advance<K: Kind>(
    products: &Products,
    scales: &Scales,
    x: *const ActBlock,
    acc: &mut [__m512; TOKENS],
) {
    // SAFETY: 16 blocks can be read.
    let given = unsafe { given::<K>(x) };
    let Scales { scales, minima } = scales;
    for (token, acc) in acc.iter_mut().enumerate() {
        let dot = |half: usize| _mm512_cvtepi32_ps(products[half][token]);
        let given = |half: usize| _mm512_set1_ps(given[half][token]);
        let whole = || _mm512_mul_ps(scales[0], dot(0));
        let in_halves = || _mm512_fmadd_ps(scales[1], dot(1), _mm512_mul_ps(scales[0], dot(0)));
        let sum = match K::LAYOUT.scales {
            ScaleScheme::Block => whole(),
            ScaleScheme::BlockMinimum | ScaleScheme::Super32Minimum => {
                _mm512_fmadd_ps(minima[0], given(0), whole())
            }
            ScaleScheme::Super16 => in_halves(),
            ScaleScheme::Super16Minimum => {
                let sum = _mm512_fmadd_ps(minima[0], given(0), in_halves());
                _mm512_fmadd_ps(minima[1], given(1), sum)
            }
        };
        // SAFETY: 16 blocks can be read.
        let dx = unsafe { _mm512_set1_ps((*x.add(token)).d) };
        *acc = _mm512_fmadd_ps(sum, dx, *acc);
    }
}

/// What a minimum meets: f32(S) of each token, of the block or of its halves.
///
/// # Safety
/// The features are there; `x` points to 16 blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn given<K: Kind>(x: *const ActBlock) -> [[f32; TILE_ROWS]; 2] {
    let mut given = [[0.0; TILE_ROWS]; 2];
    if !K::LAYOUT.scales.has_minimum() {
        return given;
    }
    const WORDS: i32 = (size_of::<ActBlock>() / 4) as i32;
    let index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let index = _mm512_mullo_epi32(index, _mm512_set1_epi32(WORDS));
    // SAFETY: each word is the two sums of one of the 16 blocks.
    let words = unsafe { _mm512_i32gather_epi32::<4>(index, (&raw const (*x).s).cast()) };
    let low = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(words));
    let high = _mm512_srai_epi32::<16>(words);
    let mut put = |half: usize, sum: __m512i| {
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(given[half].as_mut_ptr(), _mm512_cvtepi32_ps(sum)) };
    };
    match halves::<K>() {
        false => put(0, _mm512_add_epi32(low, high)),
        true => {
            put(0, low);
            put(1, high);
        }
    }
    given
}
