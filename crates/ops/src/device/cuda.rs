//! GPUs through CUDA's driver.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::cublas;
use candle_core::cuda::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda::cudarc::driver::{CudaContext, DriverError, result};
use candle_core::{DType, Device, DeviceLocation, Tensor};
use kiln_mempool::DevicePool;
use parking_lot::Mutex;

use super::{Gpu, Gpus};
use crate::cuda::output;
use crate::error::{Error, Result};
use crate::w8a8::ByteNumber;

/// Open GPUs that have no user.
static IDLE: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// A handle of the GPU of this number: one without a user, or a new one, which takes a large part of a second.
pub(super) fn open(ordinal: usize) -> Result<Device> {
    let here = DeviceLocation::Cuda { gpu_id: ordinal };
    let mut idle = IDLE.lock();
    if let Some(place) = idle.iter().position(|device| device.location() == here) {
        return Ok(idle.swap_remove(place));
    }
    drop(idle); // several GPUs are opened at the same time
    kiln_cuda_loader::load()?;
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: without tracking, candle does not order work on several streams. All compute of a device runs on this one
    // stream in order, and memory is freed on the same stream; code that adds a stream (copies) orders it with its own
    // events, and two devices of one GPU share no tensors.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    kiln_mempool::manage_stream(&device.as_cuda_device()?.cuda_stream());
    Ok(device)
}

/// Has the tensors of a handle come from `pool`.
pub(super) fn allocate_from(device: &Device, pool: &DevicePool) {
    if let Ok(cuda) = device.as_cuda_device() {
        pool.serve(&cuda.cuda_stream());
    }
}

/// Ends the use of a handle: frees the memory that operators keep for it from their first use on, the workspace of the libraries.
pub(super) fn close(device: &Device) {
    if let Ok(cuda) = device.as_cuda_device() {
        crate::cuda::libraries::close(cuda);
        IDLE.lock().push(device.clone());
    }
}

/// An uninitialized tensor on a GPU; `None` for another device.
pub(super) fn uninit(shape: &[usize], dtype: DType, device: &Device) -> Result<Option<Tensor>> {
    match device {
        Device::Cuda(device) => output("uninit", None, shape, dtype, &[], device).map(Some),
        _ => Ok(None),
    }
}

/// Whether a device computes products of such bytes ([`crate::W8Matrix`]) for activations of `dtype`: a GPU of compute capability
/// 7.5 (integers) or 8.9 (e4m3) and later, in a build with code for it, in f16 and bf16.
pub fn supports_w8a8(device: &Device, number: ByteNumber, dtype: DType) -> bool {
    let Device::Cuda(device) = device else { return false };
    matches!(dtype, DType::F16 | DType::BF16) && crate::cuda::has_byte_products(device, number).unwrap_or(false)
}

/// The GPUs of this machine, and the versions of the driver and of cuBLAS.
///
/// # Errors
/// [`Error::Library`] if the driver, cuBLAS or cuBLASLt is missing, [`Error::Driver`] if a call of theirs fails.
pub fn gpus() -> Result<Gpus> {
    in_own_context(all_gpus)
}

/// The GPU of this number. Unlike [`gpus`] it leaves the others alone: looking at a GPU that is not open takes a large part of a
/// second.
///
/// # Errors
/// See [`gpus`].
pub fn gpu(ordinal: usize) -> Result<Gpu> {
    in_own_context(|| look_at(ordinal).map_err(driver))
}

/// Does `look`, which makes the contexts of GPUs the current one of this thread: that may belong to the engine of another GPU.
fn in_own_context<T>(look: impl FnOnce() -> Result<T>) -> Result<T> {
    kiln_cuda_loader::load()?;
    let current = result::ctx::get_current().ok().flatten();
    let found = look();
    if let Some(context) = current {
        // SAFETY: the context was current on this thread, and primary contexts live as long as the process.
        unsafe { result::ctx::set_current(context) }.map_err(driver)?;
    }
    found
}

fn all_gpus() -> Result<Gpus> {
    let count = CudaContext::device_count().map_err(driver)?;
    Ok(Gpus {
        gpus: (0..count as usize).map(look_at).collect::<Result<_, _>>().map_err(driver)?,
        driver_version: driver_version().map_err(driver)?,
        cublas_version: cublas_version()?,
        libraries: libraries(),
    })
}

fn look_at(ordinal: usize) -> Result<Gpu, DriverError> {
    let context = CudaContext::new(ordinal)?;
    let (major, minor) = context.compute_capability()?;
    let (memory_free, memory_total) = result::mem_get_info()?;
    let multiprocessors = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let clock = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0);
    let [domain, bus, device] = [
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    ]
    .map(|number| context.attribute(number).unwrap_or(0));
    Ok(Gpu {
        ordinal,
        name: context.name()?,
        compute_capability: (major, minor),
        uuid: context.uuid()?.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect(),
        pci: format!("{domain:04x}:{bus:02x}:{device:02x}"),
        driver_version: driver_version()?,
        multiprocessors: multiprocessors.try_into().unwrap_or(0),
        clock_khz: clock.try_into().unwrap_or(0),
        memory_free,
        memory_total,
    })
}

/// The libraries that are loaded, and why cuDNN is not, if it is not.
fn libraries() -> Vec<String> {
    let loaded = kiln_cuda_loader::load().into_iter().flat_map(kiln_cuda_loader::Loaded::paths);
    let mut libraries: Vec<String> = loaded.map(|path| path.display().to_string()).collect();
    libraries.push(match kiln_cuda_loader::cudnn() {
        Ok(library) => library.path().display().to_string(),
        Err(error) => format!("convolutions are slower, except on Hopper: {error}"),
    });
    libraries
}

fn driver_version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the call writes one integer through a pointer to a live variable.
    unsafe { candle_core::cuda::cudarc::driver::sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(version)
}

fn cublas_version() -> Result<i32> {
    let mut version = 0;
    let handle = cublas::result::create_handle().map_err(|error| Error::Driver(format!("cuBLAS: {error:?}")))?;
    // SAFETY: the handle was just created and is destroyed after its last use here; the version is written through a
    // pointer to a live variable.
    let status = unsafe {
        let status = cublas::sys::cublasGetVersion_v2(handle, &raw mut version);
        let _ = cublas::result::destroy_handle(handle);
        status
    };
    status.result().map_err(|error| Error::Driver(format!("cuBLAS: {error:?}")))?;
    Ok(version)
}

fn driver(error: DriverError) -> Error {
    Error::Driver(format!("CUDA's driver: {error}"))
}
