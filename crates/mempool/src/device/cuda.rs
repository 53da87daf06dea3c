//! A private stream-ordered memory pool of CUDA.
//!
//! Tensors are allocated from it with `cuMemAllocFromPoolAsync`, and so are the blocks of recorded steps
//! ([`super::scratch`]). The driver splits and joins its blocks. Internal memory of libraries (cuBLAS, cuDNN) and
//! machine code are not in it. The current pool of the device, which other libraries use, is never changed.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::result::{device, mem_get_info, mem_pool};
use cudarc::driver::sys::{self, CUgraphMem_attribute as GraphAttribute, CUmemPool_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use parking_lot::Mutex;

use super::allocator::{self, OwnPool};
use super::{DeviceCalls, DeviceMemory, DevicePoolConfig, interpose};
use crate::error::{Error, Result};

/// The unit in which the driver takes memory from a GPU, in bytes.
const GRANULE: usize = 2 << 20;
/// By GPU: the values for which the driver's default pool keeps unused memory, and its release threshold without them.
static KEPT: Mutex<BTreeMap<sys::CUdevice, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// The memory pool of a GPU. It keeps freed memory for the next allocation, so that after the first step the driver is
/// not called for new memory; [`DevicePool::trim`] releases the unused part.
///
/// With the feature `interpose` it is a pool of its own, and serves the streams that it is given ([`DevicePool::serve`]) until it is
/// dropped, so that engines of one process do not share memory or ceilings. Without the feature candle's allocations come from the
/// driver's default pool, which the whole process shares. Then this value only sets that pool to keep its memory, reads
/// its statistics and trims it; a ceiling is not enforced.
#[derive(Debug)]
pub struct DevicePool {
    pool: sys::CUmemoryPool,
    /// The owner of `pool`, unless that is the driver's default one.
    own: Option<Arc<OwnPool>>,
    /// Whether it keeps the unused memory of the driver's default pool.
    keeps_default: bool,
    /// The streams that it serves.
    streams: Mutex<Vec<Arc<CudaStream>>>,
    context: Arc<CudaContext>,
    ordinal: usize,
    /// Free memory of the GPU before the pool was made.
    free: usize,
}

// SAFETY: the handle of a pool belongs to no thread; the driver allows calls with it from all threads.
unsafe impl Send for DevicePool {}
// SAFETY: as above: every method is a call of the driver, which synchronizes them.
unsafe impl Sync for DevicePool {}

impl DevicePool {
    /// Makes the pool of the GPU of this number.
    ///
    /// # Errors
    /// [`Error::Driver`] where the GPU has no stream-ordered pools.
    pub fn install(ordinal: usize, config: DevicePoolConfig) -> Result<Self> {
        let failed = |call| move |error| Error::driver(ordinal, call, error);
        kiln_cuda_loader::load().map_err(|error| Error::Driver {
            ordinal,
            call: "loading CUDA's libraries",
            problem: error.to_string(),
        })?;
        let context = CudaContext::new(ordinal).map_err(failed("opening the GPU"))?;
        let (free, _) = mem_get_info().map_err(failed("reading free memory"))?;
        if !interpose::ENABLED {
            // SAFETY: the device is valid.
            let pool = unsafe { device::get_default_mem_pool(context.cu_device()) };
            let pool = pool.map_err(failed("opening the default pool"))?;
            let (keeps_default, streams) = (false, Mutex::default());
            let mut this = Self { pool, own: None, keeps_default, streams, context, ordinal, free };
            if config.keep {
                this.keep_default()?;
            }
            return Ok(this);
        }
        let pool = create(&context, config.ceiling).map_err(failed("creating it"))?;
        let own = Some(Arc::new(OwnPool::new(pool, config.ceiling)));
        let this = Self { pool, own, keeps_default: false, streams: Mutex::default(), context, ordinal, free };
        this.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, if config.keep { u64::MAX } else { 0 })?;
        // Which memory is reused must not depend on the progress of the GPU.
        this.set(Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0)?;
        this.set(Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)?;
        Ok(this)
    }

    /// Has the tensors of a stream of its GPU come from this pool from now on. [`manage_stream`](crate::manage_stream) declares the
    /// stream. Without the feature `interpose` they come from the driver's pool.
    pub fn serve(&self, stream: &Arc<CudaStream>) {
        if let Some(own) = &self.own {
            allocator::set_pool(stream.cu_stream(), own.clone());
        }
        self.streams.lock().push(stream.clone());
    }

    /// Whether this build handles the allocations of managed streams (the feature `interpose`): whether they are
    /// counted, bounded, recorded, and planned for recorded steps.
    pub fn intercepts() -> bool {
        interpose::ENABLED
    }

    /// Allocations on managed streams of the whole process. Without the feature `interpose` none is counted.
    pub fn calls() -> DeviceCalls {
        DeviceCalls { requests: interpose::requests(), driver: allocator::driver_calls() }
    }

    /// The memory of the pool, and that of CUDA graphs.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<DeviceMemory> {
        let refused = |error| Error::driver(self.ordinal, "reading free memory", error);
        self.context.bind_to_thread().map_err(refused)?;
        let (free, _) = mem_get_info().map_err(refused)?;
        Ok(DeviceMemory {
            driver: self.free.saturating_sub(free) as u64,
            used: self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            peak_used: self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved: self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            peak_reserved: self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            graphs: self.get_graph(GraphAttribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
            peak_graphs: self.get_graph(GraphAttribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)?,
        })
    }

    /// Bytes that tensors have in use. Unlike [`DevicePool::memory`] it does not read the free memory of the GPU, which
    /// is slow.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn used(&self) -> Result<u64> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes that the pool has of the GPU, in use or not.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn reserved(&self) -> Result<u64> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Resets the peaks to the current values.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn reset_peaks(&self) -> Result<()> {
        // The driver accepts no other value than zero.
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
        self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        let mut zero = 0u64;
        let attribute = GraphAttribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
        // SAFETY: the attribute is a number of 64 bits, which lives through the call.
        unsafe { sys::cuDeviceSetGraphMemAttribute(self.context.cu_device(), attribute, value(&mut zero)) }
            .result()
            .map_err(|error| Error::driver(self.ordinal, "resetting the peak of CUDA graphs", error))
    }

    /// Releases the unused memory to the GPU, once the work of its streams has ended, if it is more than `threshold`, from 0 to 1,
    /// of the reserved memory. Returns the released bytes.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn trim(&self, threshold: f64) -> Result<u64> {
        let reserved = || self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        let (before, used) = (reserved()?, self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?);
        if before.saturating_sub(used) as f64 <= threshold * before as f64 {
            return Ok(0);
        }
        let refused = |error| Error::driver(self.ordinal, "trimming it", error);
        self.synchronize().map_err(refused)?; // memory that pending work uses is not free before
        // SAFETY: the pool is valid.
        unsafe { mem_pool::trim_to(self.pool, 0) }.map_err(refused)?;
        Ok(before.saturating_sub(reserved()?))
    }

    /// Lets the GPU of number `ordinal` read and write this pool's memory over the link between the two, so that copies need
    /// no buffer in host memory. False where the two have no such link: copies between them are slower then.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn share_with(&self, ordinal: usize) -> Result<bool> {
        let refused = |error| Error::driver(self.ordinal, "sharing it with another GPU", error);
        let other = CudaContext::new(ordinal).map_err(refused)?.cu_device();
        let mut linked = 0;
        // SAFETY: both devices are valid, and the answer is written to a live variable.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut linked, other, self.context.cu_device()) }
            .result()
            .map_err(refused)?;
        if linked == 0 || ordinal == self.ordinal {
            return Ok(ordinal == self.ordinal);
        }
        // SAFETY: a location and flags, which are integers; zero is valid for all of them.
        let mut access: sys::CUmemAccessDesc = unsafe { MaybeUninit::zeroed().assume_init() };
        place_on(&mut access.location, other);
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the pool is valid, and the one description lives through the call.
        unsafe { sys::cuMemPoolSetAccess(self.pool, &raw const access, 1) }.result().map_err(refused)?;
        Ok(true)
    }

    /// Has the driver's default pool keep unused memory until the last value that asked for it is dropped.
    fn keep_default(&mut self) -> Result<()> {
        let mut kept = KEPT.lock();
        let (users, _) = match kept.entry(self.context.cu_device()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert((0, self.get(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?)),
        };
        self.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        *users += 1;
        self.keeps_default = true;
        Ok(())
    }

    /// Undoes [`Self::keep_default`].
    fn release_default(&self) {
        let mut kept = KEPT.lock();
        let Entry::Occupied(mut known) = kept.entry(self.context.cu_device()) else { return };
        known.get_mut().0 -= 1;
        if let (0, threshold) = *known.get() {
            let _ = self.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold);
            known.remove();
        }
    }

    /// Waits for the work of its streams. The context has streams of other engines, too, which may be recording.
    fn synchronize(&self) -> std::result::Result<(), DriverError> {
        self.streams.lock().iter().try_for_each(|stream| stream.synchronize())
    }

    fn get(&self, attribute: Attribute) -> Result<u64> {
        let mut number = 0u64;
        // SAFETY: the pool is valid, the attribute a number of 64 bits, and `number` lives through the call.
        unsafe { mem_pool::get_attribute(self.pool, attribute, value(&mut number)) }
            .map_err(|error| Error::driver(self.ordinal, "reading its statistics", error))?;
        Ok(number)
    }

    fn get_graph(&self, attribute: GraphAttribute) -> Result<u64> {
        let mut number = 0u64;
        // SAFETY: the attribute is a number of 64 bits, and `number` lives through the call.
        unsafe { sys::cuDeviceGetGraphMemAttribute(self.context.cu_device(), attribute, value(&mut number)) }
            .result()
            .map_err(|error| Error::driver(self.ordinal, "reading the statistics of CUDA graphs", error))?;
        Ok(number)
    }

    fn set(&self, attribute: Attribute, to: u64) -> Result<()> {
        let mut number = to; // the driver reads the first 32 bits of a flag
        // SAFETY: the pool is valid, the attribute a number of 64 bits or less, and `number` lives through the call.
        unsafe { mem_pool::set_attribute(self.pool, attribute, value(&mut number)) }
            .map_err(|error| Error::driver(self.ordinal, "setting an attribute", error))
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        if self.keeps_default {
            self.release_default();
        }
        if let Some(own) = &self.own {
            allocator::remove_pool(own);
        }
        // Memory that is still in use keeps the pool, and it would keep its unused memory with it. All that is not in use is free before
        // the pool is destroyed.
        let _ = self.synchronize();
        let _ = self.trim(0.0);
    }
}

/// Creates a pool that takes at most `ceiling` bytes from the GPU.
fn create(context: &CudaContext, ceiling: Option<u64>) -> std::result::Result<sys::CUmemoryPool, DriverError> {
    // SAFETY: the properties are integers and a pointer that may be null; zero is valid for all of them.
    let mut properties: sys::CUmemPoolProps = unsafe { MaybeUninit::zeroed().assume_init() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    place_on(&mut properties.location, context.cu_device());
    // Whole granules, since the driver rounds up to them.
    properties.maxSize = ceiling.map_or(0, |ceiling| (ceiling as usize / GRANULE).max(1) * GRANULE);
    // SAFETY: the properties live through the call.
    unsafe { mem_pool::create(&raw const properties) }
}

/// Makes `location` the memory of a GPU.
fn place_on(location: &mut sys::CUmemLocation, device: sys::CUdevice) {
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: a location is two integers in all versions of CUDA, the type and the number of the device; only the name
    // of the second differs.
    unsafe { (&raw mut *location).cast::<i32>().add(1).write(device) };
}

impl Error {
    /// An error of the driver in a call for the GPU of this number.
    pub(crate) fn driver(ordinal: usize, call: &'static str, error: DriverError) -> Self {
        Self::Driver { ordinal, call, problem: error.to_string() }
    }
}

fn value(number: &mut u64) -> *mut c_void {
    (&raw mut *number).cast()
}
