//! Shared parts of the CUDA kernels: machine code, operands, and results.
//!
//! An operator's `cuda.rs` looks a kernel up ([`Module::function`]), takes the addresses of its operands ([`address`])
//! and of the result ([`output`]), and launches on the device's one stream. Nothing here waits for the GPU or copies to
//! it, so a launch can be captured into a CUDA graph.
//!
//! `ops::device` opens a GPU with one stream and without candle's event tracking: all compute runs on that stream in
//! order. Work in parallel with it has a second device handle with its own stream (`device::open_second_stream`).
//!
//! An operator's `kernel.cu` is compiled by `ops/build.rs` into a fat binary that is embedded: for one GPU
//! (`CUDA_COMPUTE_CAP`), or for a list with PTX of the newest (`KILN_CUDA_ARCHS=75,80,86,89,90`). `cuda.rs` is its
//! launch, `ops/src/cuda` what launches share. A launch does not wait and copies nothing from the host. Kernels follow
//! the CPU's rules: f32 sums, an order that depends only on the shape of one image, no atomics.
//!
//! Linear layers and 1x1 convolutions run in cuBLASLt, other convolutions as cuDNN graphs, with bias and residual added
//! before the result is rounded. The algorithm is a function of shape, type, GPU and library version: the library's
//! heuristics are asked once for each shape, nothing is timed, and engines that compile at run time or sum in no fixed
//! order are excluded. cuDNN is loaded on first use. Without it, Hopper runs convolutions of stride 1 in a kernel of its
//! own. On other GPUs, in f32, and for small feature maps windows are gathered for a product instead. Products of up to 4
//! rows and convolutions to up to 8 channels have their own kernels.
//!
//! On Hopper a linear layer with GEGLU is one kernel if it has enough rows (`ops/src/linear_geglu`).
//!
//! Hopper's kernel of convolutions (`hopper`) is one source for f16, bf16 and e4m3: a cluster of two blocks copies boxes of
//! the image, shifted by each tap, and shares the rows of a weight (TMA), and warp groups multiply them.
//!
//! Products of bytes (`--compute fp8` and `int8`, `ops/src/w8a8`) run in a kernel for warps' tensor cores. On Hopper e4m3
//! has others: linear layers run in cuBLASLt, convolutions in Hopper's kernel. Kernels of the operators before them round
//! activations. A weight's bytes lie in the slab where the weight would, and the scales of all weights behind them
//! (`weights/src/slab_layout.rs`), so that stacked projections are one product here too.
//!
//! A denoising step is recorded as a CUDA graph and replayed (`ops::graph`, `engine/pipeline/step.rs`). Its inputs
//! (latents, timestep, conditions, guidance scale) are in tensors that are written before each replay. The first step
//! of a size runs kernel by kernel, so that libraries initialize; the second is recorded. If recording fails, a message
//! is logged and steps are launched kernel by kernel.
//!
//! Launches return at once, so the host waits after each step for the end of the previous one (`ops::marker`,
//! `engine/pipeline/throttle.rs`). The GPU always has a step to do, the progress bar shows the GPU's progress, and
//! Ctrl-C ends a run after two steps at most.
//!
//! A trace of a step (`--trace`; `ops::trace`, `engine/pipeline/trace.rs`) is made in the public functions of the
//! operators: with the clock on the CPU, with events on a GPU. A replayed graph calls no operator, so a traced step is
//! launched kernel by kernel after some replays.
#![allow(unsafe_code)]

mod cublaslt;
mod cudnn;
pub(crate) mod hopper;
mod image_product;
pub(crate) mod libraries;
mod module;
mod product;
#[cfg(test)]
mod times;

use candle_core::backend::BackendDevice;
use candle_core::cuda::cudarc::driver::sys::{CUdevice_attribute, CUresult};
use candle_core::cuda::cudarc::driver::{CudaSlice, DevicePtr, DriverError, LaunchConfig};
use candle_core::cuda_backend::{CudaDevice, CudaStorageSlice};
use candle_core::op::BackpropOp;
use candle_core::{DType, Storage, Tensor};

use crate::error::{Error, Result};
use crate::output::check_out;
pub(crate) use cublaslt::{Addresses, Product};
pub(crate) use cudnn::{ALIGNMENT as CUDNN_ALIGNMENT, Convolution};
pub(crate) use image_product::{ImageOperands, ImageProduct};
pub(crate) use module::{Module, has_byte_products, has_hopper_code, kernels, runs_on};
pub(crate) use product::{launch as product, launch_e4m3 as product_e4m3};

/// An operand in the kernels' format: contiguous, and of the type `dtype`. Parameters and activations nearly always
/// are.
pub(crate) fn operand(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    crate::contiguous(&crate::cast(tensor, dtype)?)
}

/// The distance of a tensor's rows in elements, if all rows of contiguous elements are at one distance.
pub(crate) fn row_distance(x: &Tensor) -> Option<usize> {
    let (dims, strides) = (x.dims(), x.stride());
    let (&1, [outer @ .., row]) = strides.split_last()? else { return None };
    let even = (0..outer.len()).all(|i| dims[i] == 1 || outer[i] == strides[i + 1] * dims[i + 1]);
    even.then_some(*row)
}

/// Vectors `(b, c)` of images, or `(1, c)` for all of them: an optional operand of a kernel. The rows may be slices of wider
/// ones.
pub(crate) struct ImageVectors {
    /// 0 if there are no vectors.
    pub(crate) address: u64,
    /// Elements from an image's vector to the next one's; 0 if all images have the same.
    pub(crate) stride: usize,
    /// Keeps the memory alive.
    tensor: Option<Tensor>,
}

impl ImageVectors {
    pub(crate) fn new(vectors: Option<&Tensor>, dtype: DType) -> Result<Self> {
        let Some(vectors) = vectors else { return Ok(Self { address: 0, stride: 0, tensor: None }) };
        let mut vectors = crate::cast(vectors, dtype)?;
        if vectors.stride().last() != Some(&1) {
            vectors = crate::copy(&vectors)?;
        }
        let is_one = vectors.dims().first() == Some(&1);
        let stride = if is_one { 0 } else { vectors.stride().first().copied().unwrap_or(0) };
        Ok(Self { address: start(&vectors)?, stride, tensor: Some(vectors) })
    }

    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        self.tensor.as_ref()
    }
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

/// Makes the device's context that of the calling thread. Launches and allocations do so themselves. Attributes of kernels,
/// tensor maps and libraries need it before, on a thread that has used no GPU yet.
pub(crate) fn bind(device: &CudaDevice) -> Result<()> {
    device.cuda_stream().context().bind_to_thread().map_err(driver)
}

/// The multiprocessors of a GPU.
pub(crate) fn multiprocessors(device: &CudaDevice) -> Result<usize> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    Ok(device.cuda_stream().context().attribute(attribute).map_err(driver)? as usize)
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
