//! Replaces `map.rs` on systems without `mmap`, where the system's allocator serves all requests.

use std::fs::File;
use std::ops::Range;

pub(super) const PAGE: usize = 4096;
pub(super) const CALLS_TO_MAP: u64 = 0;

pub(super) fn map(_size: usize, _below: Option<usize>) -> Option<Range<usize>> {
    None
}

pub(super) fn unmap(_addresses: Range<usize>) {}

pub(super) fn forget(_addresses: Range<usize>) -> bool {
    false
}

pub(super) fn map_file(_addresses: Range<usize>, _file: &File, _offset: u64) -> bool {
    false
}

pub(super) fn map_anew(_addresses: Range<usize>) -> bool {
    false
}

pub(super) fn keep_small_blocks() {}

pub(super) fn at_fork(_before: extern "C" fn(), _after: extern "C" fn()) {}
