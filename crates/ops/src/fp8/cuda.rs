//! Products in e4m3 on GPUs: one or two kernels that round the activation, and one that multiplies.
#![allow(unsafe_code)]

use std::ffi::c_void;

use candle_core::cuda::cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute, CUtensorMap};
use candle_core::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use super::fused::Call;
use super::source::Source;
use super::tiling::{CLUSTER, Tiling};
use super::{ALIGNMENT, PARTS};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Addresses, Module};
use crate::error::Result;
use crate::group_norm::cuda as group_norm;
use crate::packing::Weight;

static KERNELS: Module = cuda::kernels!("fp8");
/// Threads of the rounding kernels.
const THREADS: u32 = 128;
/// Threads of a product: a group that loads, and two that multiply (`product.cuh`).
const PRODUCT_THREADS: u32 = 384;
/// Input channels of a copied part (`CHANNELS` in `product.cuh`).
const CHANNELS: u32 = 128;
/// Output channels of a copied part of the result (`PART` in `product.cuh`).
const RESULTS: u32 = 32;

/// The operands of a product in e4m3: the activation, the weight, and the addends (bias, image bias, residual).
pub(crate) struct Product<'a> {
    /// The operator.
    pub(crate) op: &'static str,
    /// The activation, of the shape `(b, h, w, c)`; a linear layer's is `(1, 1, rows, k)`.
    pub(crate) source: Source<'a>,
    pub(crate) shape: [usize; 4],
    pub(crate) weight: &'a Weight,
    pub(crate) bias: Option<&'a Tensor>,
    /// `(b, n)` or `(1, n)`.
    pub(crate) image_bias: Option<&'a Tensor>,
    pub(crate) residual: Option<&'a Tensor>,
    /// Rows of zeros above and columns of zeros on the left.
    pub(crate) pad: [usize; 2],
}

/// `Arguments` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x_scales: u64,
    weight_scales: u64,
    bias: u64,
    image_bias: u64,
    /// b, h, w, c, n.
    sizes: [i32; 5],
    /// taps, taps in a row, rows of padding above, columns on the left.
    window: [i32; 4],
    /// Width and height of a tile as powers of two.
    bits: [i32; 2],
    /// Tiles in x, in y, over images, over output channels.
    tiles: [i32; 4],
    image_bias_stride: i32,
    scales_by_pixel: i32,
    has_residual: i32,
}

// `product.cuh` asserts the same size.
const _: () = assert!(size_of::<Arguments>() == 104);

// SAFETY: the struct has the layout of the kernels' struct: four addresses and 18 integers.
unsafe impl DeviceRepr for Arguments {}

#[repr(transparent)]
struct TensorMap(CUtensorMap);

// SAFETY: the kernels take a tensor map by value, which this is.
unsafe impl DeviceRepr for TensorMap {}

/// A rounded activation: its bytes, and one scale in f32 for each pixel or each image.
pub(crate) struct Rounded {
    pub(crate) bytes: Tensor,
    pub(crate) scales: Tensor,
}

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { op, source, input, weight, addends: [bias, image_bias, residual], config, .. } = *self;
        let pad = [config.pad_before; 2];
        let product = Product { op, source, shape: input, weight, bias, image_bias, residual, pad };
        let mut result = source.input().dims().to_vec();
        if let Some(channels) = result.last_mut() {
            *channels = weight.shape()[0];
        }
        product.launch(device, &result, out)
    }
}

impl Rounded {
    /// Uninitialized memory for `bytes` elements and `scales` scales.
    pub(crate) fn new(op: &'static str, bytes: usize, scales: usize, device: &CudaDevice) -> Result<Self> {
        let bytes = cuda::output(op, None, &[bytes], DType::U8, &[], device)?;
        Ok(Self { bytes, scales: cuda::output(op, None, &[scales], DType::F32, &[], device)? })
    }
}

impl Product<'_> {
    /// Launches the product into `out` or a new tensor of the shape `result`. `None` if there is no kernel.
    pub(crate) fn launch(&self, device: &CudaDevice, result: &[usize], out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { op, source, shape: [b, h, w, c], weight, .. } = *self;
        let (dtype, [n, kh, kw, _]) = (source.input().dtype(), weight.shape());
        let Some(fp8) = weight.as_fp8().filter(|_| dtype != DType::F32) else { return Ok(None) };
        if !cuda::has_hopper_code(device)? || b * h * w == 0 {
            return Ok(None);
        }
        let operand = |tensor: &Tensor| aligned(&cuda::operand(tensor, dtype)?);
        let added = [self.bias, self.image_bias, self.residual];
        let [bias, image_bias, residual] = added.map(|tensor| tensor.map(operand).transpose());
        let (bias, image_bias, residual) = (bias?, image_bias?, residual?);
        let mut operands = vec![source.input(), weight.tensor()];
        operands.extend([&bias, &image_bias, &residual].into_iter().flatten());
        let y = cuda::output(op, out, result, dtype, &operands, device)?;
        if !cuda::address(&y)?.is_multiple_of(ALIGNMENT as u64) {
            let y = self.launch(device, result, None)?;
            return y.map(|y| crate::output::store(op, y, out)).transpose();
        }
        let is_by_pixel = kh * kw == 1;
        let rounded = match source {
            Source::Plain(x) if is_by_pixel => round_rows(op, &operand(x)?, [b * h * w, c], device)?,
            Source::Plain(x) => round_images(op, &operand(x)?, [b, h * w * c], device)?,
            Source::LayerNorm { x, gamma, beta, eps } => {
                let operands = [operand(x)?, operand(gamma)?, operand(beta)?];
                let Some(rounded) = layer_norm_rows(op, operands, eps, [b * h * w, c], device)? else {
                    return Ok(None);
                };
                rounded
            }
            Source::Geglu(x) => geglu_rows(op, &operand(x)?, [b * h * w, c], device)?,
            Source::GroupNorm { x, gamma, beta, config } => {
                let operands = [operand(x)?, operand(gamma)?, operand(beta)?];
                let Some(rounded) = group_norm::rounded(operands, config, [b, c], device)? else { return Ok(None) };
                rounded
            }
        };
        if is_by_pixel && image_bias.is_none() {
            let addresses = Addresses {
                x: cuda::address(&rounded.bytes)?,
                weight: cuda::start(weight.tensor())?,
                bias: bias.as_ref().map(cuda::address).transpose()?,
                residual: residual.as_ref().map(cuda::address).transpose()?,
                y: cuda::address(&y)?,
            };
            let scales = [cuda::address(&rounded.scales)?, cuda::start(&fp8.scales)?];
            let product = cuda::Product { m: b * h * w, n, k: c, dtype };
            // SAFETY: the operands have been checked to have these shapes, are contiguous and of these types, and outlive the
            // launch; they are freed in the order of the device's stream.
            if unsafe { cuda::product_e4m3(device, product, addresses, scales)? } {
                return Ok(Some(y));
            }
        }
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = device.cuda_stream().context().attribute(attribute).map_err(cuda::driver)? as usize;
        let tiling = Tiling::of([w, h, b], n, multiprocessors);
        let [tile_w, tile_h, tile_b] = tiling.bits.map(|bits| 1 << bits);
        let x_map =
            map(Boxes::Bytes, cuda::address(&rounded.bytes)?, [c, w, h, b], [CHANNELS, tile_w, tile_h, tile_b])?;
        let columns = tiling.columns as u32;
        let of_block = columns / CLUSTER as u32;
        let weight_map =
            map(Boxes::Bytes, cuda::start(weight.tensor())?, [c, kh * kw, n, 1], [CHANNELS, 1, of_block, 1])?;
        let [half_w, half_h, half_b] = tiling.box_of_group();
        let of_result = |tensor: &Tensor| {
            map(Boxes::Results(dtype), cuda::address(tensor)?, [n, w, h, b], [RESULTS, half_w, half_h, half_b])
        };
        let (y_map, residual_map) = (of_result(&y)?, of_result(residual.as_ref().unwrap_or(&y))?);
        let address = |tensor: &Option<Tensor>| tensor.as_ref().map_or(Ok(0), cuda::address);
        let count = |value: usize| cuda::count(op, value);
        let stride = image_bias.as_ref().map_or(0, |tensor| if tensor.elem_count() == n { 0 } else { n });
        let [tiles_x, tiles_y, tiles_b] = tiling.pixels;
        count(b * h * w)?;
        let arguments = Arguments {
            x_scales: cuda::address(&rounded.scales)?,
            weight_scales: cuda::start(&fp8.scales)?,
            bias: address(&bias)?,
            image_bias: address(&image_bias)?,
            sizes: [count(b)?, count(h)?, count(w)?, count(c)?, count(n)?],
            window: [count(kh * kw)?, count(kw)?, count(self.pad[0])?, count(self.pad[1])?],
            bits: [tiling.bits[0] as i32, tiling.bits[1] as i32],
            tiles: [count(tiles_x)?, count(tiles_y)?, count(tiles_b)?, count(tiling.over_columns)?],
            image_bias_stride: count(stride)?,
            scales_by_pixel: is_by_pixel.into(),
            has_residual: residual.is_some().into(),
        };
        count(tiling.count())?;
        let kernel = KERNELS.typed(device, &format!("fp8_product_{columns}"), dtype)?;
        let shared = tiling.shared();
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
        Ok(Some(y))
    }
}

/// The tensor, or a copy where its address does not allow accesses of 16 bytes.
fn aligned(tensor: &Tensor) -> Result<Tensor> {
    match cuda::address(tensor)?.is_multiple_of(ALIGNMENT as u64) {
        true => Ok(tensor.clone()),
        false => crate::copy(tensor),
    }
}

/// `x` `(rows, c)`, each row by its own scale.
fn round_rows(op: &'static str, x: &Tensor, [rows, c]: [usize; 2], device: &CudaDevice) -> Result<Rounded> {
    let Rounded { bytes, scales } = Rounded::new(op, rows * c, rows, device)?;
    let kernel = KERNELS.typed(device, "fp8_round_rows", x.dtype())?;
    let (from, to, scales_at) = (cuda::address(x)?, cuda::address(&bytes)?, cuda::address(&scales)?);
    let (row_count, columns) = (cuda::count(op, rows)?, cuda::count(op, c)?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&to).arg(&scales_at).arg(&row_count).arg(&columns);
    // SAFETY: the arguments match the kernel's parameters. Each warp reads a row of `c` elements, 8 of them at a time, which
    // are aligned since `c` and the address are multiples of 16 bytes, and writes its bytes and its scale.
    unsafe { launch.launch(cuda::grid(rows.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(cuda::driver)?;
    Ok(Rounded { bytes, scales })
}

/// The normalized rows of `x` `(rows, c)`, each by its own scale. `None` for rows that do not fit the registers of a warp.
fn layer_norm_rows(
    op: &'static str,
    [x, gamma, beta]: [Tensor; 3],
    eps: f64,
    [rows, c]: [usize; 2],
    device: &CudaDevice,
) -> Result<Option<Rounded>> {
    // By the vectors of 8 elements of each lane.
    let kernels = [(3, "fp8_layer_norm_rows_3"), (5, "fp8_layer_norm_rows_5"), (10, "fp8_layer_norm_rows_10")];
    let Some((_, name)) = kernels.into_iter().find(|(vectors, _)| c <= vectors * 256) else { return Ok(None) };
    let rounded = Rounded::new(op, rows * c, rows, device)?;
    let kernel = KERNELS.typed(device, name, x.dtype())?;
    let [from, scale, shift] = [cuda::address(&x)?, cuda::address(&gamma)?, cuda::address(&beta)?];
    let (to, scales_at) = (cuda::address(&rounded.bytes)?, cuda::address(&rounded.scales)?);
    let (row_count, columns, eps) = (cuda::count(op, rows)?, cuda::count(op, c)?, eps as f32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&scale).arg(&shift).arg(&to).arg(&scales_at).arg(&row_count).arg(&columns).arg(&eps);
    // SAFETY: as for `round_rows`; gamma and beta have `c` elements at aligned addresses.
    unsafe { launch.launch(cuda::grid(rows.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(cuda::driver)?;
    Ok(Some(rounded))
}

/// The results of GEGLU for `x` `(rows, 2 n)`, each row by its own scale.
fn geglu_rows(op: &'static str, x: &Tensor, [rows, n]: [usize; 2], device: &CudaDevice) -> Result<Rounded> {
    let rounded = Rounded::new(op, rows * n, rows, device)?;
    let kernel = KERNELS.typed(device, "fp8_geglu_rows", x.dtype())?;
    let (from, to) = (cuda::address(x)?, cuda::address(&rounded.bytes)?);
    let (scales_at, columns) = (cuda::address(&rounded.scales)?, cuda::count(op, n)?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&to).arg(&scales_at).arg(&columns);
    // SAFETY: the arguments match the kernel's parameters. Each block reads a row of `2 n` elements, 8 of them at a time, which
    // are aligned since `n` and the address are multiples of 16 bytes, and writes `n` bytes and a scale.
    unsafe { launch.launch(cuda::grid(rows, 2 * THREADS)?) }.map_err(cuda::driver)?;
    Ok(rounded)
}

/// `x`, `images` of `size` elements, each image by its own scale.
fn round_images(op: &'static str, x: &Tensor, [images, size]: [usize; 2], device: &CudaDevice) -> Result<Rounded> {
    let Rounded { bytes, scales } = Rounded::new(op, images * size, images, device)?;
    let most = cuda::output(op, None, &[images, PARTS], DType::F32, &[], device)?;
    let (from, to, scales_at) = (cuda::address(x)?, cuda::address(&bytes)?, cuda::address(&scales)?);
    let (most_at, elements, parts) = (cuda::address(&most)?, cuda::count(op, size)?, PARTS as i32);
    let stream = device.cuda_stream();
    let grid = |blocks: usize| -> Result<LaunchConfig> {
        let grid_dim = (cuda::count(op, blocks)? as u32, cuda::count(op, images)? as u32, 1);
        Ok(LaunchConfig { grid_dim, ..cuda::grid(1, 2 * THREADS)? })
    };
    let kernel = KERNELS.typed(device, "fp8_most", x.dtype())?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&most_at).arg(&elements);
    // SAFETY: the arguments match the kernel's parameters. The blocks in x are the parts of an image, the blocks in y images:
    // each reads elements of its image, 8 at a time, which are aligned since channels are multiples of 16, and writes a number.
    unsafe { launch.launch(grid(PARTS)?) }.map_err(cuda::driver)?;
    let kernel = KERNELS.typed(device, "fp8_round_images", x.dtype())?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&most_at).arg(&parts).arg(&to).arg(&scales_at).arg(&elements);
    let blocks = (size / 8).div_ceil(2 * THREADS as usize * 4).min(512);
    // SAFETY: as above; all blocks of an image read its parts, and together they write its bytes, the first one its scale.
    unsafe { launch.launch(grid(blocks)?) }.map_err(cuda::driver)?;
    Ok(Rounded { bytes, scales })
}

/// The operand of a tensor map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Boxes {
    /// Operands: rows of 128 bytes with their 16-byte chunks swizzled.
    Bytes,
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
    let (element, swizzle) = match of {
        Boxes::Bytes => (Type::CU_TENSOR_MAP_DATA_TYPE_UINT8, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B),
        Boxes::Results(DType::BF16) => (Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, Swizzle::CU_TENSOR_MAP_SWIZZLE_64B),
        Boxes::Results(_) => (Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16, Swizzle::CU_TENSOR_MAP_SWIZZLE_64B),
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
