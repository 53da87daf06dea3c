//! Every request for a card's memory, on its way to the driver.
//!
//! candle allocates with `cuMemAllocAsync` and frees with `cuMemFreeAsync`, which cudarc calls as functions of a linked
//! library. This module defines functions of these names. A linker takes the first definition that it meets, and Kiln's
//! own code comes before libraries: so the calls arrive here, are counted, may be refused, and go on to the driver,
//! whose own functions it tells us (`cuGetProcAddress_v2`). Libraries that find the driver at run time (cuBLAS, cuDNN)
//! are not affected.
//!
//! What is on the way may be served here instead: see [`super::scratch`].
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::result::{device, mem_pool};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

use super::{DeviceCalls, scratch};
use crate::faults;
use crate::trace::{self, Pool};

type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize, CUstream) -> CUresult;
type Free = unsafe extern "C" fn(CUdeviceptr, CUstream) -> CUresult;

unsafe extern "C" {
    /// Since CUDA 12.0. cudarc declares it for some versions of CUDA only.
    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_int,
    ) -> CUresult;
}

/// What one card's tensors have.
#[derive(Debug, Default)]
struct Card {
    used: u64,
    ceiling: Option<u64>,
}

#[derive(Default)]
struct Table {
    cards: HashMap<sys::CUdevice, Card>,
    /// What lives, by address (one address space for all cards): size and card.
    live: HashMap<CUdeviceptr, (usize, sys::CUdevice)>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);

/// Takes the place of the driver's function of this name.
///
/// # Safety
/// That function's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if faults::strike() {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    let served = match scratch::serve(bytes, stream) {
        Some(served) => served,
        // SAFETY: the caller's.
        None => unsafe { allocate(bytes, stream) }.inspect(|&at| scratch::allocated(at, bytes)),
    };
    match served {
        Ok(at) => {
            // SAFETY: the caller gives a place for an address.
            unsafe { address.write(at) };
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error,
    }
}

/// Takes the place of the driver's function of this name.
///
/// # Safety
/// That function's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    if scratch::take_back(address) {
        return CUresult::CUDA_SUCCESS;
    }
    scratch::freed(address);
    // SAFETY: the caller's.
    unsafe { free(address, stream) }
}

/// Allocates from the current card's pool, under its ceiling. Where there is no memory, the pool is trimmed, and the
/// driver asked once more.
///
/// # Safety
/// Those of `cuMemAllocAsync`.
pub(super) unsafe fn allocate(bytes: usize, stream: CUstream) -> Result<CUdeviceptr, CUresult> {
    let (allocate, _) = driver()?;
    let mut card = 0;
    // SAFETY: the number is written through a pointer to one that lives.
    result(unsafe { sys::cuCtxGetDevice(&raw mut card) })?;
    {
        let mut table = table();
        let card = table.cards.entry(card).or_default();
        if card.ceiling.is_some_and(|ceiling| card.used + bytes as u64 > ceiling) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        card.used += bytes as u64; // before the call, so that two threads do not pass the ceiling together
    }
    let mut address = 0;
    let mut call = || {
        DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the stream is the caller's, and the address is written through a pointer to one that lives.
        unsafe { allocate(&raw mut address, bytes, stream) }
    };
    let mut said = call();
    if said == CUresult::CUDA_ERROR_OUT_OF_MEMORY && trim_current(card, stream) {
        said = call();
    }
    let mut table = table();
    match result(said) {
        Ok(()) => {
            table.live.insert(address, (bytes, card));
            drop(table);
            trace::allocated(Pool::Device, address, bytes);
            Ok(address)
        }
        Err(error) => {
            table.cards.entry(card).or_default().used -= bytes as u64;
            Err(error)
        }
    }
}

/// Frees what [`allocate`] gave.
///
/// # Safety
/// Those of `cuMemFreeAsync`.
pub(super) unsafe fn free(address: CUdeviceptr, stream: CUstream) -> CUresult {
    let (_, free) = match driver() {
        Ok(functions) => functions,
        Err(error) => return error,
    };
    // Before the call: after it another thread may have the same address.
    {
        let mut table = table();
        if let Some((bytes, card)) = table.live.remove(&address) {
            table.cards.entry(card).or_default().used -= bytes as u64;
            drop(table);
            trace::freed(Pool::Device, address);
        }
    }
    DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's.
    unsafe { free(address, stream) }
}

/// Bounds what a card's tensors have in use.
pub(super) fn set_ceiling(card: sys::CUdevice, ceiling: Option<u64>) {
    table().cards.entry(card).or_default().ceiling = ceiling;
}

/// What a card's tensors have in use, and their bound.
pub(super) fn usage(card: sys::CUdevice) -> (u64, Option<u64>) {
    table().cards.get(&card).map_or((0, None), |card| (card.used, card.ceiling))
}

pub(super) fn calls() -> DeviceCalls {
    DeviceCalls { requests: REQUESTS.load(Ordering::Relaxed), driver: DRIVER_CALLS.load(Ordering::Relaxed) }
}

/// Gives back what waits in the card's current pool, once the work before has ended. False where nothing can be done:
/// while a stream records.
pub(super) fn trim_current(card: sys::CUdevice, stream: CUstream) -> bool {
    // SAFETY: the stream is valid, its state is written to a place that lives; synchronising has no conditions, and the
    // pool is the card's current one.
    unsafe {
        let mut capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let asked = sys::cuStreamIsCapturing(stream, &raw mut capturing);
        if asked != CUresult::CUDA_SUCCESS || capturing != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return false;
        }
        sys::cuStreamSynchronize(stream) == CUresult::CUDA_SUCCESS
            && device::get_mem_pool(card).is_ok_and(|pool| mem_pool::trim_to(pool, 0).is_ok())
    }
}

/// The driver's own functions.
fn driver() -> Result<(Allocate, Free), CUresult> {
    static FOUND: OnceLock<Result<(Allocate, Free), CUresult>> = OnceLock::new();
    fn find(name: &CStr) -> Result<*mut c_void, CUresult> {
        const SINCE: c_int = 11_020;
        let (mut function, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: the name ends with a zero, and both results are written to places that live.
        let said = unsafe { cuGetProcAddress_v2(name.as_ptr(), &raw mut function, SINCE, 0, &raw mut status) };
        result(said)?;
        if function.is_null() { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(function) }
    }
    *FOUND.get_or_init(|| {
        let (allocate, free) = (find(c"cuMemAllocAsync")?, find(c"cuMemFreeAsync")?);
        // SAFETY: the driver gave these as its functions of these names, whose signatures these are (`cuda.h`).
        Ok(unsafe {
            (std::mem::transmute::<*mut c_void, Allocate>(allocate), std::mem::transmute::<*mut c_void, Free>(free))
        })
    })
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn result(said: CUresult) -> Result<(), CUresult> {
    if said == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(said) }
}
