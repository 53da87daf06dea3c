//! Concatenation on cards.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::OP;
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("concat");
const THREADS: u32 = 256;

pub(super) fn concat_channels(
    a: &Tensor,
    b: &Tensor,
    (m, n): (usize, usize),
    shape: &[usize],
    out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let Some(device) = cuda::card(a)? else { return Ok(None) };
    if m * n == 0 {
        return Ok(None); // nothing to put side by side
    }
    let dtype = a.dtype();
    let (left, right) = (cuda::operand(a, dtype)?, cuda::operand(b, dtype)?);
    let y = cuda::output(OP, out, shape, dtype, &[a, b], &device)?;
    let addresses = [cuda::address(&left)?, cuda::address(&right)?, cuda::address(&y)?];
    let size = dtype.size_in_bytes();
    let unit = cuda::unit(&addresses, &[m * size, n * size]);
    let kernel = KERNELS.function(&device, &format!("concat_channels_{unit}"))?;
    let total = cuda::count(OP, y.elem_count() * size / unit)?;
    let (m_units, n_units) = (cuda::count(OP, m * size / unit)?, cuda::count(OP, n * size / unit)?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&addresses[0]).arg(&addresses[1]).arg(&addresses[2]).arg(&total).arg(&m_units).arg(&n_units);
    // SAFETY: the arguments are those of the kernel, which writes `total` units, rows of `m + n`, and reads rows of `m`
    // and of `n`; all three tensors live on, and `unit` divides their addresses and rows.
    unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
        .map_err(cuda::driver)?;
    Ok(Some(y))
}
