//! Shared parts of the CUDA kernels: machine code, operands, and results.
//!
//! An operator's `cuda.rs` looks a kernel up ([`Module::function`]), takes the addresses of its operands ([`address`])
//! and of the result ([`output`]), and launches on the device's one stream. Nothing here waits for the GPU or copies to
//! it, so a launch can be captured into a CUDA graph.
#![allow(unsafe_code)]

mod cublaslt;
mod cudnn;
pub(crate) mod libraries;
mod module;
mod product;
#[cfg(test)]
mod times;

use candle_core::backend::BackendDevice;
use candle_core::cuda::cudarc::driver::sys::CUresult;
use candle_core::cuda::cudarc::driver::{CudaSlice, DevicePtr, DriverError, LaunchConfig};
use candle_core::cuda_backend::{CudaDevice, CudaStorageSlice};
use candle_core::op::BackpropOp;
use candle_core::{DType, Storage, Tensor};

use crate::error::{Error, Result};
use crate::output::check_out;
pub(crate) use cublaslt::{Addresses, Product};
pub(crate) use cudnn::{ALIGNMENT as CUDNN_ALIGNMENT, Convolution};
pub(crate) use module::{Module, has_hopper_code, kernels, runs_on};
pub(crate) use product::{launch as product, launch_e4m3 as product_e4m3};

/// An operand in the kernels' format: contiguous, and of the type `dtype`. Parameters and activations nearly always
/// are.
pub(crate) fn operand(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    crate::contiguous(&crate::cast(tensor, dtype)?)
}

/// The device address of a contiguous tensor's first element.
///
/// It is valid for launches on the device's stream while the tensor lives: memory is freed in the order of that stream.
pub(crate) fn address(tensor: &Tensor) -> Result<u64> {
    if !tensor.is_contiguous() {
        return Err(Error::Driver("an operand of a kernel is not contiguous GPU memory".into()));
    }
    start(tensor)
}

/// The device address of a tensor's first element, whatever its strides. It is valid as long as [`address`]'s.
pub(crate) fn start(tensor: &Tensor) -> Result<u64> {
    fn first<T>(slice: &CudaSlice<T>, device: &CudaDevice) -> u64 {
        slice.device_ptr(&device.cuda_stream()).0
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err(Error::Driver("an operand of a kernel is not GPU memory".into()));
    };
    let device = &storage.device;
    let base = match &storage.slice {
        CudaStorageSlice::F32(slice) => first(slice, device),
        CudaStorageSlice::F16(slice) => first(slice, device),
        CudaStorageSlice::BF16(slice) => first(slice, device),
        CudaStorageSlice::U8(slice) => first(slice, device),
        CudaStorageSlice::U32(slice) => first(slice, device),
        _ => return Err(Error::Driver(format!("no kernel reads {:?}", tensor.dtype()))),
    };
    Ok(base + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}

/// The tensor that a kernel writes: `out`, or a new uninitialized one. The kernel writes every element.
///
/// `inputs` are the operands that the kernel reads: `out` must not share memory with any of them.
pub(crate) fn output(
    op: &'static str,
    out: Option<&Tensor>,
    shape: &[usize],
    dtype: DType,
    inputs: &[&Tensor],
    device: &CudaDevice,
) -> Result<Tensor> {
    if let Some(out) = out {
        check_out(op, out, shape, dtype, inputs)?;
        return Ok(out.clone());
    }
    // SAFETY: the kernel that this memory is for writes it before anything reads it, on the same stream.
    let storage = unsafe { device.alloc_uninit(&shape.into(), dtype)? };
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

/// Whether addresses and a number of elements of `size` bytes allow accesses of 16 bytes.
pub(crate) fn is_vectored(addresses: &[u64], elements: usize, size: usize) -> bool {
    addresses.iter().all(|address| address % 16 == 0) && (elements * size).is_multiple_of(16)
}

/// The size in bytes of the largest unit of copying, a power of two up to 16, that divides all addresses and sizes.
pub(crate) fn unit(addresses: &[u64], bytes: &[usize]) -> usize {
    let all = addresses.iter().fold(16, |all, address| all | address);
    let all = bytes.iter().fold(all, |all, &bytes| all | bytes as u64);
    1 << all.trailing_zeros()
}

/// A launch of `blocks` blocks of `threads` threads.
pub(crate) fn grid(blocks: usize, threads: u32) -> Result<LaunchConfig> {
    let blocks = u32::try_from(blocks)
        .ok()
        .filter(|&blocks| blocks <= i32::MAX as u32)
        .ok_or_else(|| Error::Driver(format!("{blocks} blocks are more than a GPU can launch")))?;
    Ok(LaunchConfig { grid_dim: (blocks.max(1), 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 })
}

/// A count as a kernel argument.
pub(crate) fn count(op: &'static str, value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::Config {
        op,
        message: format!("{value} elements are more than a kernel can address ({})", i32::MAX),
    })
}

/// Converts an error of the driver.
pub(crate) fn driver(error: DriverError) -> Error {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::LibraryMemory("CUDA's driver"),
        _ => Error::Driver(format!("CUDA's driver: {error}")),
    }
}
