//! Allocations from a GPU's pool, with a ceiling and statistics.
//!
//! The driver's functions are looked up (`cuGetProcAddress_v2`) rather than called by name, since the feature
//! `interpose` defines functions of these names.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use cudarc::driver::CudaStream;
use cudarc::driver::result::{device, mem_pool};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::trace::{self, Pool};

type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize, CUstream) -> CUresult;
type Free = unsafe extern "C" fn(CUdeviceptr, CUstream) -> CUresult;

/// The driver's own functions.
#[derive(Clone, Copy)]
pub(super) struct Driver {
    pub(super) allocate: Allocate,
    pub(super) free: Free,
}

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

/// A pool that Kiln has created, and the memory in use by its tensors. The driver destroys it with its last allocation, which keeps
/// it here: a pool that is destroyed earlier makes the driver crash at a later call for a stream on which its memory is freed.
#[derive(Debug)]
pub(super) struct OwnPool {
    pub(super) handle: sys::CUmemoryPool,
    used: AtomicU64,
    /// The most bytes in use.
    ceiling: Option<u64>,
}

// SAFETY: the handle of a pool belongs to no thread; the driver allows calls with it from all threads.
unsafe impl Send for OwnPool {}
// SAFETY: as above: every use is a call of the driver, which synchronizes them.
unsafe impl Sync for OwnPool {}

impl OwnPool {
    /// Owns a pool of the driver.
    pub(super) fn new(handle: sys::CUmemoryPool, ceiling: Option<u64>) -> Self {
        Self { handle, used: AtomicU64::new(0), ceiling }
    }

    /// Counts bytes before they are allocated, so that two threads do not exceed the ceiling together. False if the ceiling forbids them.
    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| Some(used + bytes).filter(|sum| self.ceiling.is_none_or(|ceiling| *sum <= ceiling));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        // SAFETY: the pool is valid, and this was the last use of its handle.
        let _ = unsafe { mem_pool::destroy(self.handle) };
    }
}

/// Memory in use.
struct Allocation {
    bytes: u64,
    /// `None` if the driver's default pool served.
    pool: Option<Arc<OwnPool>>,
}

#[derive(Default)]
struct Table {
    /// The pools of streams, by the streams' addresses. The driver's default pool serves the other streams.
    pools: HashMap<usize, Arc<OwnPool>>,
    /// Allocations by address (all GPUs share one address space).
    live: HashMap<CUdeviceptr, Allocation>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);
/// The streams of Kiln's devices. They are kept, so that no other stream gets one of their handles.
static STREAMS: RwLock<Vec<Arc<CudaStream>>> = RwLock::new(Vec::new());

/// Declares a stream as Kiln's own. With the feature `interpose`, allocations on it come from the [`DevicePool`] that serves
/// it, and are counted, bounded, recorded, and served from a [`Scratch`] if one is active. Allocations on all other
/// streams of the process are left to the driver. Without the feature this changes nothing.
///
/// The stream lives as long as the process from then on.
///
/// [`DevicePool`]: super::DevicePool
/// [`Scratch`]: super::Scratch
pub fn manage_stream(stream: &Arc<CudaStream>) {
    let mut streams = STREAMS.write();
    if !streams.iter().any(|managed| managed.cu_stream() == stream.cu_stream()) {
        streams.push(stream.clone());
    }
}

/// Whether a stream was given to [`manage_stream`].
#[cfg_attr(not(feature = "interpose"), expect(dead_code, reason = "only the replaced functions ask"))]
pub(super) fn is_managed(stream: CUstream) -> bool {
    STREAMS.read().iter().any(|managed| managed.cu_stream() == stream)
}

/// Allocates from the stream's pool, under its ceiling. Without memory the pool is trimmed, and the driver is called once more.
///
/// # Safety
/// `stream` is a valid stream of the current context.
pub(super) unsafe fn allocate(bytes: usize, stream: CUstream) -> Result<CUdeviceptr, CUresult> {
    let driver = driver()?;
    let pool = pool_of(stream);
    if pool.as_ref().is_some_and(|pool| !pool.take(bytes as u64)) {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let mut address = 0;
    let mut call = || {
        DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
        match &pool {
            // SAFETY: the pool is kept alive by this reference, the stream is the caller's, and the address is
            // written through a pointer to a live variable.
            Some(pool) => unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool.handle, stream) },
            // SAFETY: as above, without a pool.
            None => unsafe { (driver.allocate)(&raw mut address, bytes, stream) },
        }
    };
    let mut status = call();
    if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY && trim(stream) {
        status = call();
    }
    match check(status) {
        Ok(()) => {
            table().live.insert(address, Allocation { bytes: bytes as u64, pool });
            trace::allocated(Pool::Device, address, bytes);
            Ok(address)
        }
        Err(error) => {
            pool.iter().for_each(|pool| pool.give_back(bytes as u64));
            Err(error)
        }
    }
}

/// Frees memory of the driver, from [`allocate`] or from elsewhere.
///
/// # Safety
/// `address` was allocated by the driver and not freed yet, and `stream` is a valid stream.
pub(super) unsafe fn free(address: CUdeviceptr, stream: CUstream) -> CUresult {
    let driver = match driver() {
        Ok(driver) => driver,
        Err(error) => return error,
    };
    // Before the call: after it another thread may be given the same address.
    let ours = table().live.remove(&address);
    if let Some(Allocation { bytes, pool }) = &ours {
        pool.iter().for_each(|pool| pool.give_back(*bytes));
        trace::freed(Pool::Device, address);
        DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller frees memory of the driver once.
    let status = unsafe { (driver.free)(address, stream) };
    if let Some(last) = ours.and_then(|ours| Arc::into_inner(ours.pool?)) {
        synchronize(stream); // the last memory of a pool is free before the pool is destroyed
        drop(last);
    }
    status
}

/// Has a pool serve the allocations of a stream from now on.
pub(super) fn set_pool(stream: CUstream, pool: Arc<OwnPool>) {
    table().pools.insert(stream as usize, pool);
}

/// Undoes [`set_pool`] for all streams that this pool serves.
pub(super) fn remove_pool(pool: &Arc<OwnPool>) {
    table().pools.retain(|_, other| !Arc::ptr_eq(other, pool));
}

/// The pool of a stream; `None` if the driver's default pool serves it.
fn pool_of(stream: CUstream) -> Option<Arc<OwnPool>> {
    table().pools.get(&(stream as usize)).cloned()
}

/// Bytes that tensors have in use in the pool of a stream, and their ceiling.
pub(super) fn usage(stream: CUstream) -> (u64, Option<u64>) {
    pool_of(stream).map_or((0, None), |pool| (pool.used.load(Ordering::Relaxed), pool.ceiling))
}

/// Calls of the driver for memory so far.
pub(super) fn driver_calls() -> u64 {
    DRIVER_CALLS.load(Ordering::Relaxed)
}

/// Releases the unused memory of a stream's pool, once the work of the stream has ended. False if that is not possible:
/// while the stream is being captured.
pub(super) fn trim(stream: CUstream) -> bool {
    let own = pool_of(stream);
    let current = || {
        let mut device = 0;
        // SAFETY: the number is written through a pointer to a live variable. The device is that of the current context.
        unsafe { check(sys::cuCtxGetDevice(&raw mut device)).ok().and_then(|()| device::get_mem_pool(device).ok()) }
    };
    let pool = own.as_ref().map_or_else(current, |own| Some(own.handle));
    // SAFETY: the pool is Kiln's own, which this reference keeps alive, or the GPU's current one.
    synchronize(stream) && pool.is_some_and(|pool| unsafe { mem_pool::trim_to(pool, 0) }.is_ok())
}

/// Waits for the work of a stream. False if that is not possible: while the stream is being captured.
fn synchronize(stream: CUstream) -> bool {
    let mut capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is a caller's of this module and valid, its status is written to a live variable, and synchronizing it has no
    // conditions.
    unsafe {
        sys::cuStreamIsCapturing(stream, &raw mut capturing) == CUresult::CUDA_SUCCESS
            && capturing == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
            && sys::cuStreamSynchronize(stream) == CUresult::CUDA_SUCCESS
    }
}

/// The driver's own functions.
pub(super) fn driver() -> Result<Driver, CUresult> {
    static FOUND: OnceLock<Result<Driver, CUresult>> = OnceLock::new();
    fn find(name: &CStr) -> Result<*mut c_void, CUresult> {
        const SINCE: c_int = 11_020;
        let (mut function, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: the name ends with a zero, and both results are written to live variables.
        check(unsafe { cuGetProcAddress_v2(name.as_ptr(), &raw mut function, SINCE, 0, &raw mut status) })?;
        if function.is_null() { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(function) }
    }
    *FOUND.get_or_init(|| {
        let (allocate, free) = (find(c"cuMemAllocAsync")?, find(c"cuMemFreeAsync")?);
        // SAFETY: the driver returned its functions of these names, which have these signatures (`cuda.h`).
        Ok(unsafe {
            Driver {
                allocate: std::mem::transmute::<*mut c_void, Allocate>(allocate),
                free: std::mem::transmute::<*mut c_void, Free>(free),
            }
        })
    })
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock()
}

fn check(status: CUresult) -> Result<(), CUresult> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(status) }
}
