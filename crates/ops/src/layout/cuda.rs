//! Changes of layout on cards. candle's own would copy strides to the card at every call.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::OP;
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("layout");
const THREADS: u32 = 256;

/// `x` of `(b, rows, columns)` elements, in whatever shape, as `(b, columns, rows)` in the shape `shape`.
pub(super) fn transpose(x: &Tensor, (rows, columns): (usize, usize), shape: &[usize]) -> Result<Option<Tensor>> {
    let Some(device) = cuda::card(x)? else { return Ok(None) };
    let input = cuda::operand(x, x.dtype())?;
    let y = cuda::output(OP, None, shape, x.dtype(), &[x], &device)?;
    let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
    let total = cuda::count(OP, x.elem_count())?;
    let (row_count, column_count) = (rows as u32, columns as u32); // factors of the count
    let kernel = KERNELS.typed(&device, "transpose", x.dtype())?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&to).arg(&total).arg(&row_count).arg(&column_count);
    // SAFETY: the arguments are those of the kernel, which reads and writes `total` elements; both tensors live on.
    unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
        .map_err(cuda::driver)?;
    Ok(Some(y))
}
