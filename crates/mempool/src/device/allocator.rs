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

/// The memory in use by tensors of one GPU.
#[derive(Debug, Default)]
struct Usage {
    used: u64,
    ceiling: Option<u64>,
    /// Kiln's own pool; `None` where the driver's default pool serves.
    pool: Option<Arc<OwnPool>>,
}

/// A pool that Kiln has created. The driver destroys it with its last allocation.
#[derive(Debug)]
pub(super) struct OwnPool(pub(super) sys::CUmemoryPool);

// SAFETY: the handle of a pool belongs to no thread; the driver allows calls with it from all threads.
unsafe impl Send for OwnPool {}
// SAFETY: as above: every use is a call of the driver, which synchronizes them.
unsafe impl Sync for OwnPool {}

impl Drop for OwnPool {
    fn drop(&mut self) {
        // SAFETY: the pool is valid, and this was the last use of its handle.
        let _ = unsafe { mem_pool::destroy(self.0) };
    }
}

#[derive(Default)]
struct Table {
    devices: HashMap<sys::CUdevice, Usage>,
    /// Live allocations by address (all GPUs share one address space): size and device.
    live: HashMap<CUdeviceptr, (usize, sys::CUdevice)>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);
/// The streams of Kiln's devices. They are kept, so that no other stream gets one of their handles.
static STREAMS: RwLock<Vec<Arc<CudaStream>>> = RwLock::new(Vec::new());

/// Declares a stream as Kiln's own. With the feature `interpose`, allocations on it come from the [`DevicePool`] of its
/// GPU, and are counted, bounded, recorded, and served from a [`Scratch`] if one is active. Allocations on all other
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

/// Allocates from the current GPU's pool, under its ceiling. Without memory the pool is trimmed, and the driver is
/// called once more.
///
/// # Safety
/// `stream` is a valid stream of the current context.
pub(super) unsafe fn allocate(bytes: usize, stream: CUstream) -> Result<CUdeviceptr, CUresult> {
    let driver = driver()?;
    let mut device = 0;
    // SAFETY: the number is written through a pointer to a live variable.
    check(unsafe { sys::cuCtxGetDevice(&raw mut device) })?;
    let pool = {
        let mut table = table();
        let usage = table.devices.entry(device).or_default();
        if usage.ceiling.is_some_and(|ceiling| usage.used + bytes as u64 > ceiling) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        usage.used += bytes as u64; // before the call, so that two threads do not exceed the ceiling together
        usage.pool.clone()
    };
    let mut address = 0;
    let mut call = || {
        DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
        match &pool {
            // SAFETY: the pool is kept alive by this reference, the stream is the caller's, and the address is
            // written through a pointer to a live variable.
            Some(pool) => unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool.0, stream) },
            // SAFETY: as above, without a pool.
            None => unsafe { (driver.allocate)(&raw mut address, bytes, stream) },
        }
    };
    let mut status = call();
    if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY && trim(device, stream) {
        status = call();
    }
    let mut table = table();
    match check(status) {
        Ok(()) => {
            table.live.insert(address, (bytes, device));
            drop(table);
            trace::allocated(Pool::Device, address, bytes);
            Ok(address)
        }
        Err(error) => {
            table.devices.entry(device).or_default().used -= bytes as u64;
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
    let mut table = table();
    let ours = table.live.remove(&address);
    if let Some((bytes, device)) = ours {
        table.devices.entry(device).or_default().used -= bytes as u64;
    }
    drop(table);
    if ours.is_some() {
        trace::freed(Pool::Device, address);
        DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller frees memory of the driver once.
    unsafe { (driver.free)(address, stream) }
}

/// Sets the pool that serves managed streams of a GPU, and the most bytes that its tensors may have in use.
pub(super) fn set_pool(device: sys::CUdevice, pool: Arc<OwnPool>, ceiling: Option<u64>) {
    let mut table = table();
    let usage = table.devices.entry(device).or_default();
    (usage.pool, usage.ceiling) = (Some(pool), ceiling);
}

/// Undoes [`set_pool`], unless another pool has been set since.
pub(super) fn remove_pool(device: sys::CUdevice, pool: &Arc<OwnPool>) {
    let mut table = table();
    let is_current = |usage: &Usage| usage.pool.as_ref().is_some_and(|current| Arc::ptr_eq(current, pool));
    if let Some(usage) = table.devices.get_mut(&device).filter(|usage| is_current(usage)) {
        (usage.pool, usage.ceiling) = (None, None);
    }
}

/// Bytes that a GPU's tensors have in use, and their ceiling.
pub(super) fn usage(device: sys::CUdevice) -> (u64, Option<u64>) {
    table().devices.get(&device).map_or((0, None), |usage| (usage.used, usage.ceiling))
}

/// Calls of the driver for memory so far.
pub(super) fn driver_calls() -> u64 {
    DRIVER_CALLS.load(Ordering::Relaxed)
}

/// Releases the unused memory of a GPU's pool, once the work of `stream` has ended. False if that is not possible:
/// while the stream is being captured.
pub(super) fn trim(device: sys::CUdevice, stream: CUstream) -> bool {
    let own = table().devices.get(&device).and_then(|usage| usage.pool.clone());
    // SAFETY: the stream is valid, its status is written to a live variable, synchronizing has no conditions, and the
    // pool is Kiln's own, which this reference keeps alive, or the GPU's current one.
    unsafe {
        let mut capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let status = sys::cuStreamIsCapturing(stream, &raw mut capturing);
        if status != CUresult::CUDA_SUCCESS || capturing != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return false;
        }
        let pool = own.as_ref().map_or_else(|| device::get_mem_pool(device), |own| Ok(own.0));
        sys::cuStreamSynchronize(stream) == CUresult::CUDA_SUCCESS
            && pool.is_ok_and(|pool| mem_pool::trim_to(pool, 0).is_ok())
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
