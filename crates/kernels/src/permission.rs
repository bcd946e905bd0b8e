//! Whether this process may use AMX tiles: what the processor and its kernel say, asked once.
//!
//! Linux saves the 8 KiB of tile registers only for threads of a process that has asked for it;
//! an instruction on tiles in any other process ends it. The answer holds for every thread, also
//! those that were started before. Must not know what tiles are used for.
//!
//! Source: Intel Software Developer's Manual, volume 1, 13 and 18.3; Linux,
//! `Documentation/arch/x86/xstate.rst`.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

use std::sync::OnceLock;

/// Whether tiles of 8-bit integers may be used from now on.
pub(crate) fn tiles() -> bool {
    static GIVEN: OnceLock<bool> = OnceLock::new();
    *GIVEN.get_or_init(|| has_tiles() && request_tile_data())
}

/// The processor has tiles of the size that is used here, and integer products of them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_tiles() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};

    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    const PALETTE_LEAF: u32 = 0x1D;
    if __cpuid(0).eax < PALETTE_LEAF
        || __cpuid(1).ecx & OSXSAVE == 0
        || __cpuid_count(7, 0).edx & (TILE | INT8) != TILE | INT8
        || !saved_by_the_system()
    {
        return false;
    }
    // Palette 1: bytes of a row and number of registers, then rows.
    let palette = __cpuid_count(PALETTE_LEAF, 1);
    let (row_bytes, registers) = (palette.ebx & 0xFFFF, palette.ebx >> 16);
    row_bytes >= 64 && registers >= 8 && palette.ecx & 0xFFFF >= 16
}

/// The operating system saves tile configuration and data (XCR0, bits 17 and 18).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn saved_by_the_system() -> bool {
    const TILES: u32 = 0b11 << 17;
    let low: u32;
    // SAFETY: OSXSAVE was seen, so the instruction exists; it only reads a control register.
    unsafe {
        core::arch::asm!(
            "xgetbv",
            in("ecx") 0,
            lateout("eax") low,
            lateout("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    low & TILES == TILES
}

/// Asks the kernel for the right to use tile data, which it gives to a whole process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tile_data() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: this call takes two numbers, touches no memory of ours, and changes nothing but the
    // permission; the kernel keeps all registers but the three named.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn has_tiles() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn request_tile_data() -> bool {
    false
}
