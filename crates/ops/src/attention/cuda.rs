//! Attention on GPUs: the launch of the chosen kernel.
#![allow(unsafe_code)]

mod choice;
mod grouped;

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Once;

use candle_core::cuda::cudarc::driver::sys::{self, CUfunction_attribute, CUtensorMap};
use candle_core::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::{DType, Tensor};

use self::choice::Gpu;
use super::{Call, Mask, OP, Shapes};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;
use crate::output::store;

static KERNELS: Module = cuda::kernels!("attention");
/// The maximum of heads and of images of a launch: the second and the third dimension of the grid.
const GRID: usize = 65_535;

/// Has the memory layout of `Arguments` in `operands.cuh`, which documents the members.
#[repr(C)]
struct Arguments {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    q_row: i64,
    q_batch: i64,
    k_row: i64,
    k_batch: i64,
    v_row: i64,
    v_batch: i64,
    s: i32,
    t: i32,
    head_dim: i32,
    causal: i32,
    scale: f32,
    lengths: u64,
}

// `operands.cuh` asserts the same size and offsets.
const _: () = assert!(size_of::<Arguments>() == 112 && align_of::<Arguments>() == 8);
const _: () = assert!(offset_of!(Arguments, q_row) == 32 && offset_of!(Arguments, s) == 80);
const _: () = assert!(offset_of!(Arguments, scale) == 96 && offset_of!(Arguments, lengths) == 104);

// SAFETY: numbers, laid out as in C.
unsafe impl DeviceRepr for Arguments {}

/// A tensor map: the description of an operand for the GPU's tensor memory accelerator.
#[repr(C)]
struct TensorMap(CUtensorMap);

// SAFETY: the driver's own opaque structure, which its documentation says to pass by value.
unsafe impl DeviceRepr for TensorMap {}

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { q, k, v, mask: Mask { lengths, .. }, shapes, .. } = *self;
        let config = self.form.heads();
        let (dtype, Shapes { b, s, t, c, head_dim }) = (q.dtype(), shapes);
        if b * s * t * c == 0 || b.max(config.num_heads) > GRID {
            return Ok(None);
        }
        let gpu = Gpu::of(device)?;
        let chosen = if dtype == DType::F32 { None } else { choice::kernel(gpu, shapes, config) };
        let Some(kernel) = chosen else {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::info!(
                    "attention: no kernel for {dtype:?} and {head_dim} channels a head: falling back to candle's operators"
                );
            });
            return Ok(None);
        };
        let y = cuda::output(OP, out, &[b, s, c], dtype, &[q, k, v], device)?;
        let to = cuda::address(&y)?;
        if !to.is_multiple_of(16) {
            let y = self.launch(&Cuda { device: device.clone() }, None)?;
            return y.map(|y| store(OP, y, out)).transpose();
        }
        let lengths = lengths.map(|lengths| cuda::operand(lengths, DType::F32)).transpose()?;
        let operands = [Rows::new(q, dtype)?, Rows::new(k, dtype)?, Rows::new(v, dtype)?];
        let [q, k, v] = &operands;
        let arguments = Arguments {
            q: q.address,
            k: k.address,
            v: v.address,
            out: to,
            q_row: q.row as i64,
            q_batch: q.batch as i64,
            k_row: k.row as i64,
            k_batch: k.batch as i64,
            v_row: v.row as i64,
            v_batch: v.batch as i64,
            s: cuda::count(OP, s)?,
            t: cuda::count(OP, t)?,
            head_dim: cuda::count(OP, head_dim)?,
            causal: config.causal.into(),
            scale: (std::f64::consts::LOG2_E / (head_dim as f64).sqrt()) as f32,
            lengths: lengths.as_ref().map_or(Ok(0), cuda::address)?,
        };
        let heads = [head_dim as u64, config.num_heads as u64];
        cuda::bind(device)?; // for tensor maps
        let maps = match kernel.fetched_keys() {
            Some(keys) => {
                Some([q.map(heads, s, b, 64)?, k.map(heads, t, b, keys as u32)?, v.map(heads, t, b, keys as u32)?])
            }
            None => None,
        };
        let function = KERNELS.typed(device, &kernel.name(), dtype)?;
        let shared = kernel.shared();
        function
            .set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32)
            .map_err(cuda::driver)?;
        let grid = LaunchConfig {
            grid_dim: (s.div_ceil(kernel.rows()) as u32, config.num_heads as u32, b as u32),
            block_dim: (kernel.threads(), 1, 1),
            shared_mem_bytes: shared as u32,
        };
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        maps.iter().flatten().for_each(|map| {
            launch.arg(map);
        });
        launch.arg(&arguments);
        // SAFETY: the arguments match the kernel's parameters. It reads `b` images of `s` and `t` rows of `c` elements
        // at the operands' strides, and `b` lengths unless their address is null, and writes the rows of the result; all outlive
        // the launch. Rows and addresses are multiples of 16 bytes.
        unsafe { launch.launch(grid) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

/// An operand in the kernels' format: images of rows of contiguous channels, with strides in elements. Slices of a
/// packed projection are read in place.
struct Rows {
    address: u64,
    row: usize,
    batch: usize,
    /// Keeps the memory alive.
    tensor: Tensor,
}

impl Rows {
    /// Whether kernels can read the tensor in place: whole rows, all aligned to 16 bytes, and no broadcast dimension.
    fn fit(tensor: &Tensor) -> bool {
        let [batch, row, channel] = tensor.stride() else { return false };
        let apart =
            |size: usize, stride: usize, least: usize| stride.is_multiple_of(8) && (size == 1 || stride >= least);
        let &[b, n, c] = tensor.dims() else { return false };
        *channel == 1 && apart(n, *row, c) && apart(b, *batch, *row)
    }

    fn new(tensor: &Tensor, dtype: DType) -> Result<Self> {
        let mut tensor = crate::cast(tensor, dtype)?;
        if !Self::fit(&tensor) || !cuda::start(&tensor)?.is_multiple_of(16) {
            tensor = crate::copy(&tensor)?;
        }
        let stride = tensor.stride();
        Ok(Self { address: cuda::start(&tensor)?, row: stride[1], batch: stride[0], tensor })
    }

    /// For tiles of `rows` tokens of 64 channels of a head, in rows of 128 bytes with their 16-byte chunks swizzled.
    /// `heads` is `[head_dim, num_heads]`. Elements out of bounds are read as zeros.
    fn map(&self, heads: [u64; 2], tokens: usize, b: usize, rows: u32) -> Result<TensorMap> {
        use sys::{
            CUtensorMapDataType as Type, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
            CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
        };
        let element = match self.tensor.dtype() {
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            _ => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        };
        let sizes = [heads[0], heads[1], tokens as u64, b as u64];
        let bytes = [heads[0] * 2, self.row as u64 * 2, self.batch as u64 * 2];
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: `map` and the arrays, which have the lengths for four dimensions, live through the call. The call
        // only encodes the address.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                4,
                self.address as *mut c_void,
                sizes.as_ptr(),
                bytes.as_ptr(),
                [64, 1, rows, 1].as_ptr(),
                [1, 1, 1, 1].as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        status.result().map_err(cuda::driver)?;
        Ok(TensorMap(map))
    }
}
