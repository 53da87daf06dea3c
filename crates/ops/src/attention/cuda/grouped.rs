//! Attention with groups and a bias on GPUs.
#![allow(unsafe_code)]

use std::mem::offset_of;

use candle_core::cuda::cudarc::driver::sys::CUfunction_attribute;
use candle_core::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::{DType, Tensor};

use super::{Arguments, GRID, KERNELS, OP, Rows};
use crate::attention::grouped::GroupedCall;
use crate::attention::workspace::has_grouped_kernel;
use crate::attention::{Call, Mask, Shapes};
use crate::backend::{Cuda, Kernel};
use crate::cuda;
use crate::error::Result;
use crate::output::store;

/// Queries of a block, and keys of a tile.
const ROWS: usize = 64;

/// Has the memory layout of `Grouping` in `operands.cuh`, which documents the members.
#[repr(C)]
struct Grouping {
    bias: u64,
    bias_batch: i64,
    bias_row: i32,
    bias_factor: f32,
    group: i32,
}

// `operands.cuh` asserts the same size and offset.
const _: () = assert!(size_of::<Grouping>() == 32 && offset_of!(Grouping, bias_factor) == 20);

// SAFETY: numbers, laid out as in C.
unsafe impl DeviceRepr for Grouping {}

impl Kernel<Cuda> for GroupedCall<'_> {
    fn launch(&self, backend: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Cuda { device } = backend;
        let Call { q, k, v, mask: Mask { bias, lengths }, form, shapes } = self.call;
        let (dtype, Shapes { b, s, t, c, head_dim }) = (q.dtype(), shapes);
        if b * s * t * c == 0 || b.max(form.num_heads) > GRID || !has_grouped_kernel(dtype, head_dim) {
            return Ok(None);
        }
        // Without groups, a bias and another factor the faster kernels compute it.
        if self.config.plain().is_some() && bias.is_none() {
            return self.call.launch(backend, out);
        }
        let bias = bias.map(|bias| cuda::operand(bias, dtype)).transpose()?;
        let lengths = lengths.map(|lengths| cuda::operand(lengths, DType::F32)).transpose()?;
        let inputs: Vec<&Tensor> = [Some(q), Some(k), Some(v), bias.as_ref()].into_iter().flatten().collect();
        let y = cuda::output(OP, out, &[b, s, c], dtype, &inputs, device)?;
        let to = cuda::address(&y)?;
        if !to.is_multiple_of(16) {
            let y = self.launch(backend, None)?;
            return y.map(|y| store(OP, y, out)).transpose();
        }
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
            causal: form.causal.into(),
            scale: form.scale,
            lengths: lengths.as_ref().map_or(Ok(0), cuda::address)?,
        };
        let is_shared = bias.as_ref().is_none_or(|bias| bias.dims().first() == Some(&1));
        let grouping = Grouping {
            bias: bias.as_ref().map_or(Ok(0), cuda::address)?,
            bias_batch: if is_shared { 0 } else { (form.num_heads * s * t) as i64 },
            bias_row: cuda::count(OP, t)?,
            bias_factor: form.bias_factor,
            group: cuda::count(OP, form.group)?,
        };
        let width = [32, 64, 128].into_iter().find(|width| head_dim <= *width).unwrap_or(128);
        let function = KERNELS.typed(device, &format!("attention_grouped_{width}"), dtype)?;
        // Queries, a tile of keys, a tile of values, in rows that are 16 bytes longer.
        let shared = 3 * ROWS * (width + 8) * 2;
        function
            .set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32)
            .map_err(cuda::driver)?;
        let grid = LaunchConfig {
            grid_dim: (s.div_ceil(ROWS) as u32, form.num_heads as u32, b as u32),
            block_dim: (128, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&arguments).arg(&grouping);
        // SAFETY: the arguments match the kernel's parameters. It reads `b` images of `s` rows of queries and `t` rows of keys
        // and values at the operands' strides, a bias of `num_heads` matrices `(s, t)` and `b` lengths unless their addresses
        // are null, and writes the rows of the result; all outlive the launch. Rows and addresses are multiples of 16 bytes.
        unsafe { launch.launch(grid) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
