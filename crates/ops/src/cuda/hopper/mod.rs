//! Products on Hopper by the tensor memory accelerator and warp groups.
#![allow(unsafe_code)]

mod tiling;

use std::ffi::c_void;

use candle_core::DType;
use candle_core::cuda::cudarc::driver::sys::{self, CUfunction_attribute, CUtensorMap};
use candle_core::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;

use super::{ImageOperands, ImageProduct, Module};
use crate::cuda;
use crate::error::Result;
use tiling::{CLUSTER, Tiling};

/// Threads of a product: a group that loads, and two that multiply (`hopper_product.cuh`).
const PRODUCT_THREADS: u32 = 384;
/// Bytes of input channels of a copied part (`BYTES` in `hopper_product.cuh`).
const BYTES: u32 = 128;
/// Output channels of a copied part of the result (`PART` in `hopper_product.cuh`).
const RESULTS: u32 = 32;

/// The operands of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// e4m3 numbers with scales.
    Bytes,
    /// The type of the result, f16 or bf16.
    Wide,
    /// Like `Wide`, for GEGLU: the weight has rows of values, and as many rows of gates behind them.
    Geglu,
}

/// Kernels for the tiles of [`Tiling`], whose names end with the columns of a tile and the type.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) module: &'static Module,
    pub(crate) name: &'static str,
    pub(crate) input: Input,
}

#[repr(transparent)]
struct TensorMap(CUtensorMap);

// SAFETY: the kernels take a tensor map by value, which this is.
unsafe impl DeviceRepr for TensorMap {}

/// How many tiles each multiprocessor computes for images of `[w, h, b]` pixels and `n` output channels.
pub(crate) fn tiles_each(size: [usize; 3], n: usize, input: Input, device: &CudaDevice) -> Result<f64> {
    let multiprocessors = cuda::multiprocessors(device)?;
    Ok(Tiling::of(size, n, multiprocessors, input).count() as f64 / multiprocessors as f64)
}

/// Launches the kernel of `hopper_product.cuh`. With [`Input::Geglu`] the weight has twice as many rows as the result has channels.
pub(crate) fn launch(
    op: &'static str,
    kernels: Kernels,
    operands: ImageOperands,
    arguments: ImageProduct,
    device: &CudaDevice,
) -> Result<()> {
    let ImageOperands { x, weight, residual, y, dtype } = operands;
    let [b, h, w, c, n] = arguments.sizes.map(|size| size as usize);
    let taps = arguments.window[0] as usize;
    cuda::bind(device)?; // for tensor maps
    let multiprocessors = cuda::multiprocessors(device)?;
    let tiling = Tiling::of([w, h, b], n, multiprocessors, kernels.input);
    let (boxes, channels) = match kernels.input {
        Input::Bytes => (Boxes::Bytes, BYTES),
        Input::Wide | Input::Geglu => (Boxes::Wide(dtype), BYTES / 2),
    };
    let rows = if kernels.input == Input::Geglu { 2 * n } else { n };
    let [tile_w, tile_h, tile_b] = tiling.bits.map(|bits| 1 << bits);
    let x_map = map(boxes, x, [c, w, h, b], [channels, tile_w, tile_h, tile_b])?;
    let columns = tiling.columns as u32;
    let of_block = columns / CLUSTER as u32;
    let weight_map = map(boxes, weight, [c, taps, rows, 1], [channels, 1, of_block, 1])?;
    let [half_w, half_h, half_b] = tiling.box_of_group();
    let of_result = |address| map(Boxes::Results(dtype), address, [n, w, h, b], [RESULTS, half_w, half_h, half_b]);
    let (y_map, residual_map) = (of_result(y)?, of_result(if residual == 0 { y } else { residual })?);
    let count = |value: usize| cuda::count(op, value);
    let [tiles_x, tiles_y, tiles_b] = tiling.pixels;
    let arguments = ImageProduct {
        bits: [tiling.bits[0] as i32, tiling.bits[1] as i32],
        tiles: [count(tiles_x)?, count(tiles_y)?, count(tiles_b)?, count(tiling.over_columns)?],
        ..arguments
    };
    count(tiling.count())?;
    let kernel = kernels.module.typed(device, &format!("{}_{columns}", kernels.name), dtype)?;
    let shared = tiling.shared(kernels.input);
    kernel
        .set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32)
        .map_err(cuda::driver)?;
    let blocks = cuda::grid(tiling.count().min((multiprocessors / CLUSTER).max(1) * CLUSTER), PRODUCT_THREADS)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&x_map).arg(&weight_map).arg(&y_map).arg(&residual_map).arg(&arguments);
    // SAFETY: the arguments match the kernel's parameters. It reads the operands of these shapes and writes the `n`
    // elements of every pixel through maps that do not reach beyond them; all outlive the launch and are freed in the order of
    // the device's stream. Rows and addresses are multiples of 16 bytes.
    unsafe { launch.launch(LaunchConfig { shared_mem_bytes: shared as u32, ..blocks }) }.map_err(cuda::driver)?;
    Ok(())
}

/// The operand of a tensor map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Boxes {
    /// Operands of bytes: rows of 128 bytes with their 16-byte chunks swizzled.
    Bytes,
    /// Operands of this type, in such rows.
    Wide(DType),
    /// Results and residuals of this type: rows of 64 bytes.
    Results(DType),
}

/// For boxes of a contiguous array of `sizes`, the fastest dimension first. Elements out of bounds are read as zeros, and not
/// written.
fn map(of: Boxes, address: u64, sizes: [usize; 4], of_box: [u32; 4]) -> Result<TensorMap> {
    use sys::{
        CUtensorMapDataType as Type, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
        CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
    };
    let sizes = sizes.map(|size| size as u64);
    let wide = |dtype| match dtype {
        DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let (element, swizzle) = match of {
        Boxes::Bytes => (Type::CU_TENSOR_MAP_DATA_TYPE_UINT8, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B),
        Boxes::Wide(dtype) => (wide(dtype), Swizzle::CU_TENSOR_MAP_SWIZZLE_128B),
        Boxes::Results(dtype) => (wide(dtype), Swizzle::CU_TENSOR_MAP_SWIZZLE_64B),
    };
    let row = sizes[0] * if of == Boxes::Bytes { 1 } else { size_of::<u16>() as u64 };
    let strides = [row, row * sizes[1], row * sizes[1] * sizes[2]];
    let mut map = CUtensorMap { opaque: [0; 16] };
    // SAFETY: `map` and the arrays, which have the lengths for four dimensions, live through the call. The call only encodes
    // the address.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            element,
            4,
            address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            of_box.as_ptr(),
            [1, 1, 1, 1].as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(cuda::driver)?;
    Ok(TensorMap(map))
}
