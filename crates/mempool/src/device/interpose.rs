//! Replacements of the driver's functions for stream-ordered allocations, for a program that turns the feature
//! `interpose` on.
//!
//! candle allocates with `cuMemAllocAsync` and frees with `cuMemFreeAsync`, which cudarc calls as functions of a linked
//! library. This module defines functions of these names, in place of those of `cuda-loader`, which jump to the
//! driver's. Libraries that look the driver up at run time (cuBLAS, cuDNN) are not affected.
//!
//! Kiln handles only allocations on streams that were given to [`manage_stream`](super::manage_stream), and their
//! frees. Every other call goes to the driver as it is, so that a library in the same process keeps its own pool,
//! statistics and addresses. A shared library that is loaded into another program should not define these symbols at
//! all, and leaves the feature off.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use super::{allocator, scratch};
use crate::faults;

/// Whether this build replaces the driver's functions.
pub(super) const ENABLED: bool = true;

static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Allocations on managed streams so far.
pub(super) fn requests() -> u64 {
    REQUESTS.load(Ordering::Relaxed)
}

/// Replaces the driver's function of this name.
///
/// # Safety
/// The driver's contract: `address` is valid for a write, and `stream` is a valid stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    if !allocator::is_managed(stream) {
        return match allocator::driver() {
            // SAFETY: the arguments are passed on as they are, and the caller keeps the contract of this function.
            Ok(driver) => unsafe { (driver.allocate)(address, bytes, stream) },
            Err(error) => error,
        };
    }
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if faults::should_fail() {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    let result = match scratch::allocate(bytes, stream) {
        Some(result) => result,
        // SAFETY: the caller's stream is valid.
        None => unsafe { allocator::allocate(bytes, stream) }.inspect(|&at| scratch::record_allocation(at, bytes)),
    };
    match result {
        Ok(allocated) => {
            // SAFETY: the caller passes a pointer that is valid for this write.
            unsafe { address.write(allocated) };
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error,
    }
}

/// Replaces the driver's function of this name. Memory that was not allocated here is freed by the driver.
///
/// # Safety
/// The driver's contract: `address` was allocated and not freed yet, and `stream` is a valid stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    if scratch::free(address) {
        return CUresult::CUDA_SUCCESS;
    }
    scratch::record_free(address);
    // SAFETY: the address is no block of a scratch, so it is from the driver, and the caller frees it once.
    unsafe { allocator::free(address, stream) }
}
