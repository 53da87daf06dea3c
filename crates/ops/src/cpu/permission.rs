//! Whether this process may use AMX, the tiles of Intel CPUs.
//!
//! Tiles are 8 KiB of registers a thread. So Linux saves them only for processes that asked (`arch_prctl`,
//! `Documentation/arch/x86/xstate.rst`). Without that, the first tile instruction ends the process.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// CPUID, leaf 7, EDX: products of bf16 tiles, tiles, products of int8 tiles.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;
/// CPUID, leaf 1, ECX: the operating system has enabled XSAVE, so that XGETBV is there.
const OSXSAVE: u32 = 1 << 27;
/// XCR0: the operating system saves the configuration of tiles, and their data.
const SAVED_TILES: u64 = 1 << 17 | 1 << 18;

/// Whether the CPU multiplies tiles of bf16 and of int8, whatever the operating system allows.
pub(crate) fn tile_products() -> (bool, bool) {
    if __cpuid(0).eax < 7 {
        return (false, false);
    }
    let features = __cpuid_count(7, 0).edx;
    let has = |feature| features & AMX_TILE != 0 && features & feature != 0;
    (has(AMX_BF16), has(AMX_INT8))
}

/// Whether this process may multiply tiles of bf16. The first call asks the operating system for its permission,
/// which holds for all threads.
pub(crate) fn may_use_tiles() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| tile_products().0 && has_large_tiles() && are_saved() && request())
}

/// Whether palette 1 has the tiles that kernels use: eight of 16 rows of 64 bytes (leaf 0x1D).
fn has_large_tiles() -> bool {
    if __cpuid(0).eax < 0x1d || __cpuid_count(0x1d, 0).eax < 1 {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    let (bytes_per_row, tiles, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    bytes_per_row >= 64 && tiles >= 8 && rows >= 16
}

/// Whether the operating system saves tiles where threads change.
fn are_saved() -> bool {
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: XCR0 is register 0 of every CPU with XSAVE.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: with OSXSAVE the CPU has XSAVE and XGETBV.
    unsafe { enabled() & SAVED_TILES == SAVED_TILES }
}

#[cfg(target_os = "linux")]
fn request() -> bool {
    const ARCH_GET_XCOMP_PERM: libc::c_long = 0x1022;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// The number of the tiles' data among the parts of XSAVE's area.
    const TILE_DATA: libc::c_ulong = 18;
    let mut granted = 0u64;
    // SAFETY: the first call passes a number. The second writes one word to the address of `granted`, which lives until
    // it returns. A kernel without these codes returns an error.
    let answers = unsafe {
        [
            libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA),
            libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut granted),
        ]
    };
    let has_permission = answers == [0, 0] && granted & 1 << TILE_DATA != 0;
    if !has_permission {
        tracing::warn!("the CPU has AMX, but the operating system does not allow its use: the kernels use AVX-512");
    }
    has_permission
}

/// Other operating systems have their own ways, which are not tried.
#[cfg(not(target_os = "linux"))]
fn request() -> bool {
    false
}
