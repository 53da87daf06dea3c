//! Address space from the kernel, on Unix. `libc` has all these calls on every Unix, and `memmap2` and the standard
//! library depend on it anyway; `rustix` has no `pthread_atfork`.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

/// The unit of the pool's sizes and the largest alignment that it serves. With larger pages of the kernel a trim
/// releases less.
pub(super) const PAGE: usize = 4096;
/// System calls in [`map`].
pub(super) const CALLS_TO_MAP: u64 = if cfg!(target_os = "linux") { 2 } else { 1 };

/// New memory of `size` bytes, a multiple of a huge page. It is zeroed, and takes no physical memory before it is
/// touched. It should lie directly below the address `below`, so that free blocks can be joined.
pub(super) fn map(size: usize, below: Option<usize>) -> Option<Range<usize>> {
    let hint = below.and_then(|below| below.checked_sub(size)).unwrap_or(0);
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED the kernel uses the hint only if nothing is mapped there, so no memory in use changes.
    let start = unsafe { libc::mmap(ptr::without_provenance_mut(hint), size, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.expose_provenance();
    prefer_huge_pages(start..start + size);
    Some(start..start + size)
}

/// Huge pages cause one fault instead of 512, and fewer TLB misses. A kernel without them returns an error, which is ignored.
fn prefer_huge_pages(addresses: Range<usize>) {
    // SAFETY: the range is a mapping of this pool; the advice changes no byte of it.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(ptr::with_exposed_provenance_mut(addresses.start), addresses.len(), libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = addresses;
}

/// Replaces the memory at `addresses` by the bytes of `file` from `offset` on. Writes to them change this process's memory only.
/// False where the system refuses: then the memory may be gone, and [`map_anew`] is to be called.
pub(super) fn map_file(addresses: Range<usize>, file: &File, offset: u64) -> bool {
    let Ok(offset) = libc::off_t::try_from(offset) else { return false };
    let start = ptr::with_exposed_provenance_mut(addresses.start);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the addresses are a block of the pool that the caller has just allocated, without a reference to it, in whole pages.
    let found = unsafe {
        libc::mmap(start, addresses.len(), access, libc::MAP_PRIVATE | libc::MAP_FIXED, file.as_raw_fd(), offset)
    };
    if found == libc::MAP_FAILED {
        return false;
    }
    // All pages are entered at once rather than by a fault for each 16. An older kernel returns an error, which is ignored.
    // SAFETY: the range is the mapping that was just made; reading its pages changes no byte.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(start, addresses.len(), libc::MADV_POPULATE_READ);
    }
    true
}

/// Replaces the memory at `addresses`, which is mapped to a file, by fresh memory of zeros. False where the system refuses.
pub(super) fn map_anew(addresses: Range<usize>) -> bool {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    let start = ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: the addresses are a block of the pool that is being freed, in whole pages: no reference to them is left.
    if unsafe { libc::mmap(start, addresses.len(), access, kind, -1, 0) } == libc::MAP_FAILED {
        return false;
    }
    prefer_huge_pages(addresses);
    true
}

/// Unmaps unused address space from [`map`].
pub(super) fn unmap(addresses: Range<usize>) {
    // SAFETY: the range is from `map`, and no part of it was handed out.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(addresses.start), addresses.len()) };
}

/// Releases the memory of `addresses` and keeps them mapped: they read as zeros afterwards. False where the kernel
/// refuses (locked pages), or does not guarantee zeros.
pub(super) fn forget(addresses: Range<usize>) -> bool {
    // SAFETY: the range is mapped, private and anonymous, and the caller has taken it out of the arena: no block is in
    // it, so nothing observes that its bytes change.
    let advised = unsafe {
        libc::madvise(ptr::with_exposed_provenance_mut(addresses.start), addresses.len(), libc::MADV_DONTNEED)
    };
    cfg!(target_os = "linux") && advised == 0
}

/// Lets glibc keep the memory of small blocks. By default it returns free memory at the top of a thread's heap from 128
/// KiB on, and the next operator faults it in again. Other C libraries keep it.
pub(super) fn keep_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const KEPT: libc::c_int = 64 << 20;
        // SAFETY: the call sets a number. Where glibc refuses, nothing changes.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT) };
    }
}

/// Lets the C library call `before` before every fork, and `after` after it, in the parent and in the child.
pub(super) fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: the functions live as long as the program, and may be called at any time.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}
