//! A private stream-ordered pool of CUDA's.
//!
//! Tensors take their memory from the device's current pool (`cuMemAllocAsync`), so a pool that is made current catches
//! all of them, and those of recorded steps ([`super::scratch`]); the driver splits and joins blocks. Not in it is what
//! libraries (cuBLAS, cuDNN) keep for themselves, and code.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::result::{device, mem_get_info, mem_pool};
use cudarc::driver::sys::{self, CUgraphMem_attribute as GraphAttribute, CUmemPool_attribute as Attribute};
use cudarc::driver::{CudaContext, DriverError};

use super::{DeviceCalls, DeviceMemory, DevicePoolConfig, hook};
use crate::error::{Error, Result};

/// What the driver takes from a card at a time.
const GRANULE: usize = 2 << 20;

/// The pool of a card's memory. What it once got it keeps for the next allocation, so that after the first step the
/// driver is not asked for memory again; [`DevicePool::trim`] gives back what is not in use.
///
/// It is the pool of the whole process for this card until it is dropped; then the driver's default one is again.
#[derive(Debug)]
pub struct DevicePool {
    pool: sys::CUmemoryPool,
    context: Arc<CudaContext>,
    ordinal: usize,
    /// Free memory before the pool was made.
    free: usize,
}

// SAFETY: a pool's handle is no memory of a thread; the driver allows calls with it from all threads.
unsafe impl Send for DevicePool {}
// SAFETY: as above: every method is calls of the driver, which orders them.
unsafe impl Sync for DevicePool {}

impl DevicePool {
    /// Makes a pool for the card of this number, and makes it the current one.
    ///
    /// # Errors
    /// [`Error::Driver`] where the card has no such pools.
    pub fn install(ordinal: usize, config: DevicePoolConfig) -> Result<Self> {
        let refused = |call| move |error| Error::driver(ordinal, call, error);
        let context = CudaContext::new(ordinal).map_err(refused("opening the card"))?;
        let (free, _) = mem_get_info().map_err(refused("asking for free memory"))?;
        // SAFETY: the properties are plain numbers and a pointer that may be null; zero is valid for all of them.
        let mut properties: sys::CUmemPoolProps = unsafe { MaybeUninit::zeroed().assume_init() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: a location is two integers in all versions of CUDA, the type and the device's number; only the name
        // of the second differs.
        unsafe { (&raw mut properties.location).cast::<i32>().add(1).write(context.cu_device()) };
        // Whole granules of the driver's, so that it rounds up to no more than was allowed.
        properties.maxSize = config.ceiling.map_or(0, |ceiling| (ceiling as usize / GRANULE).max(1) * GRANULE);
        // SAFETY: the properties live through the call.
        let pool = unsafe { mem_pool::create(&raw const properties) }.map_err(refused("making it"))?;
        let this = Self { pool, context, ordinal, free };
        this.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, if config.keep { u64::MAX } else { 0 })?;
        // Which memory is reused must not depend on how far the card has come.
        this.set(Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0)?;
        this.set(Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)?;
        hook::set_ceiling(this.context.cu_device(), config.ceiling);
        // SAFETY: device and pool are valid; the pool is taken back before it is destroyed.
        unsafe { device::set_mem_pool(this.context.cu_device(), pool) }.map_err(refused("making it current"))?;
        Ok(this)
    }

    /// Requests of the whole process.
    pub fn calls() -> DeviceCalls {
        hook::calls()
    }

    /// What the pool holds, and recorded graphs beside it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<DeviceMemory> {
        let refused = |error| Error::driver(self.ordinal, "asking for free memory", error);
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

    /// Bytes that tensors have in use. Unlike [`DevicePool::memory`] it does not ask the card what is free, which takes
    /// time.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn used(&self) -> Result<u64> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Starts the peaks anew, from what there is now.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn reset_peaks(&self) -> Result<()> {
        // Zero is the one value that the driver takes.
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
        self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        let mut zero = 0u64;
        let attribute = GraphAttribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
        // SAFETY: the attribute is a number of 64 bits, which lives through the call.
        unsafe { sys::cuDeviceSetGraphMemAttribute(self.context.cu_device(), attribute, value(&mut zero)) }
            .result()
            .map_err(|error| Error::driver(self.ordinal, "resetting the graphs' peak", error))
    }

    /// Gives the memory that is not in use back to the card, once the work that uses it has ended, where it is more than
    /// `threshold`, from 0 to 1, of what the pool keeps. Says how many bytes that was.
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
        self.context.synchronize().map_err(refused)?; // memory that was freed behind running work is in use until then
        // SAFETY: the pool is valid.
        unsafe { mem_pool::trim_to(self.pool, 0) }.map_err(refused)?;
        Ok(before.saturating_sub(reserved()?))
    }

    fn get(&self, attribute: Attribute) -> Result<u64> {
        let mut number = 0u64;
        // SAFETY: the pool is valid, the attribute a number of 64 bits, and `number` lives through the call.
        unsafe { mem_pool::get_attribute(self.pool, attribute, value(&mut number)) }
            .map_err(|error| Error::driver(self.ordinal, "reading its counters", error))?;
        Ok(number)
    }

    fn get_graph(&self, attribute: GraphAttribute) -> Result<u64> {
        let mut number = 0u64;
        // SAFETY: the attribute is a number of 64 bits, and `number` lives through the call.
        unsafe { sys::cuDeviceGetGraphMemAttribute(self.context.cu_device(), attribute, value(&mut number)) }
            .result()
            .map_err(|error| Error::driver(self.ordinal, "reading the graphs' counters", error))?;
        Ok(number)
    }

    fn set(&self, attribute: Attribute, to: u64) -> Result<()> {
        let mut number = to; // of switches the driver reads the first 32 bits
        // SAFETY: the pool is valid, the attribute a number of 64 bits or less, and `number` lives through the call.
        unsafe { mem_pool::set_attribute(self.pool, attribute, value(&mut number)) }
            .map_err(|error| Error::driver(self.ordinal, "setting it up", error))
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        let card = self.context.cu_device();
        hook::set_ceiling(card, None);
        let _ = self.trim(0.0); // what somebody still has keeps the pool alive, and would keep what waits too
        // SAFETY: device and pools are valid. Another pool may have been made current since; that one stays. Destroying
        // takes effect once the last allocation is freed.
        unsafe {
            if device::get_mem_pool(card).is_ok_and(|current| current == self.pool)
                && let Ok(default) = device::get_default_mem_pool(card)
            {
                let _ = device::set_mem_pool(card, default);
            }
            let _ = mem_pool::destroy(self.pool);
        }
    }
}

impl Error {
    /// What the driver said to a call for the card of this number.
    pub(crate) fn driver(ordinal: usize, call: &'static str, error: DriverError) -> Self {
        Self::Driver { ordinal, call, problem: error.to_string() }
    }
}

fn value(number: &mut u64) -> *mut c_void {
    (&raw mut *number).cast()
}
