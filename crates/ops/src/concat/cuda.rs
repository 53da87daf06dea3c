//! Concatenation on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::cuda_backend::CudaDevice;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;
use crate::operation::rows_and_channels;

static KERNELS: Module = cuda::kernels!("concat");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { a, b, channels: (m, n), shape } = self;
        let (m, n) = (*m, *n);
        if m * n == 0 {
            return Ok(None); // one of the inputs is empty
        }
        let dtype = a.dtype();
        let (left, right) = (cuda::operand(a, dtype)?, cuda::operand(b, dtype)?);
        let y = cuda::output(OP, out, shape, dtype, &[a, b], device)?;
        let addresses = [cuda::address(&left)?, cuda::address(&right)?, cuda::address(&y)?];
        let size = dtype.size_in_bytes();
        let unit = cuda::unit(&addresses, &[m * size, n * size]);
        let kernel = KERNELS.function(device, &format!("concat_channels_{unit}"))?;
        let total = cuda::count(OP, y.elem_count() * size / unit)?;
        let (m_units, n_units) = (cuda::count(OP, m * size / unit)?, cuda::count(OP, n * size / unit)?);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&addresses[0]).arg(&addresses[1]).arg(&addresses[2]).arg(&total).arg(&m_units).arg(&n_units);
        // SAFETY: the arguments match the kernel's parameters. It writes `total` units, rows of `m + n`, and reads rows
        // of `m` and of `n`; all three tensors outlive the launch, and `unit` divides their addresses and rows.
        unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

/// Writes `a` `(.., m)` to the first channels of `y` `(.., m + n)`. Both are contiguous and of one type.
pub(crate) fn copy_left(op: &'static str, device: &CudaDevice, a: &Tensor, y: &Tensor) -> Result<()> {
    let ((_, m), (_, row)) = (rows_and_channels(a.dims()), rows_and_channels(y.dims()));
    if a.elem_count() == 0 {
        return Ok(());
    }
    let (from, to, size) = (cuda::address(a)?, cuda::address(y)?, a.dtype().size_in_bytes());
    let unit = cuda::unit(&[from, to], &[m * size, row * size]);
    let kernel = KERNELS.function(device, &format!("copy_left_{unit}"))?;
    let count = |elements: usize| cuda::count(op, elements * size / unit);
    let (total, m_units, row_units) = (count(a.elem_count())?, count(m)?, count(row)?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&to).arg(&total).arg(&m_units).arg(&row_units);
    // SAFETY: the arguments match the kernel's parameters. It reads `total` units of `a` and writes as many of `y`, of which each row
    // has at least as many; both outlive the launch, and `unit` divides their addresses and rows.
    unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
        .map_err(cuda::driver)?;
    Ok(())
}
