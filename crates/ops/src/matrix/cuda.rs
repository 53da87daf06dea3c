//! Stored matrices on GPUs: a kernel dequantizes all rows, which a product then reads.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use crate::cuda::{self, Module};
use crate::error::Result;
use crate::packing::Weight;

const OP: &str = "linear";
const THREADS: u32 = 128;
/// Elements that a thread dequantizes.
const NUMBERS: usize = 8;

static KERNELS: Module = cuda::kernels!("matrix");

/// The matrix `(n, k)` of a weight in the type `dtype`: the weight's own if it has that type, or a new one, whose
/// memory is free once the caller's launches have read it. In a recorded step it has a planned address, as all tensors.
pub(crate) fn numbers(device: &CudaDevice, weight: &Weight, dtype: DType) -> Result<Tensor> {
    let [n, _, _, k] = weight.shape();
    let Some(rows) = weight.stored_rows() else { return cuda::operand(weight.tensor(), dtype) };
    let out = cuda::output(OP, None, &[n, k], dtype, &[], device)?;
    let (from, to) = (cuda::address(weight.tensor())?, cuda::address(&out)?);
    let row_bytes = rows.kind.row_bytes(k).unwrap_or(0); // never 0: `Weight::rows` has checked it
    let (row_bytes, k_argument) = (cuda::count(OP, row_bytes)?, cuda::count(OP, k)?);
    let kernel = KERNELS.typed(device, &format!("matrix_{}", rows.kind), dtype)?;
    let stream = device.cuda_stream();
    for part in 0..n / rows.part {
        let from = from + (part * rows.stride) as u64;
        let to = to + (part * rows.part * k * dtype.size_in_bytes()) as u64;
        let blocks = k.div_ceil(THREADS as usize * NUMBERS) as u32;
        let grid = LaunchConfig {
            grid_dim: (cuda::grid(rows.part, THREADS)?.grid_dim.0, blocks, 1),
            ..cuda::grid(1, THREADS)?
        };
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&row_bytes).arg(&k_argument);
        // SAFETY: the arguments match the kernel's parameters. A block in x is a row: it reads the bytes of that row,
        // which the weight holds, and writes its elements, for which `out` has room; blocks in y share a row.
        unsafe { launch.launch(grid) }.map_err(cuda::driver)?;
    }
    Ok(out)
}
