//! Address space from the kernel, on Unix. `libc` has all these calls on every Unix and is under `memmap2` and the
//! standard library anyway; `rustix` has no `pthread_atfork`.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

/// The unit of the pool's sizes and the largest alignment that it serves. A kernel whose pages are larger gets back
/// less than it could in a trim, and nothing else.
pub(super) const PAGE: usize = 4096;
/// Calls of the kernel in [`map`].
pub(super) const CALLS_TO_MAP: u64 = if cfg!(target_os = "linux") { 2 } else { 1 };

/// New memory of `size` bytes, a multiple of a huge page: zeros that cost nothing before they are touched. `below` is
/// an address below which it should lie, so that free blocks grow together.
pub(super) fn map(size: usize, below: Option<usize>) -> Option<Range<usize>> {
    let hint = below.and_then(|below| below.checked_sub(size)).unwrap_or(0);
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED the kernel takes the hint only where nothing is mapped: this touches no memory that
    // somebody has.
    let start = unsafe { libc::mmap(ptr::without_provenance_mut(hint), size, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // Huge pages: one fault instead of 512, and fewer misses in the translation buffer. A kernel without them says so,
    // and nothing is lost.
    // SAFETY: the range is the mapping that was just made.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(start, size, libc::MADV_HUGEPAGE);
    }
    let start = start.expose_provenance();
    Some(start..start + size)
}

/// Gives address space back that [`map`] gave and that nobody has used.
pub(super) fn unmap(addresses: Range<usize>) {
    // SAFETY: the caller has the range from `map`, and handed out nothing of it.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(addresses.start), addresses.len()) };
}

/// Gives the memory behind `addresses` back and keeps the addresses: they read as zeros from then on. False where the
/// kernel does not want it (locked pages), or where its advice does not promise zeros.
pub(super) fn forget(addresses: Range<usize>) -> bool {
    // SAFETY: the range is mapped, private and anonymous, and the caller took it out of the arena: nobody has a block
    // in it, so nobody sees its bytes change.
    let advised = unsafe {
        libc::madvise(ptr::with_exposed_provenance_mut(addresses.start), addresses.len(), libc::MADV_DONTNEED)
    };
    cfg!(target_os = "linux") && advised == 0
}

/// Has glibc keep the memory of small blocks, too: by default it returns what is free at the top of a thread's heap
/// from 128 KiB on, and faults it in again for the next operator. Other C libraries keep theirs.
pub(super) fn keep_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const KEPT: libc::c_int = 64 << 20;
        // SAFETY: the call sets a number. Where glibc refuses, memory is as it was.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT) };
    }
}

/// Has the C library call `before` before every fork and `after` after it, in the parent and in the child.
pub(super) fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: the functions live as long as the program, and may be called at any time.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}
