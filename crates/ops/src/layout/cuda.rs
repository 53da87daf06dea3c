//! Changes of layout on GPUs. candle's own operators would copy strides to the GPU at every call.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{OP, Transpose};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("layout");
const THREADS: u32 = 256;

/// Transposes `x` `(b, rows, columns)`, in whatever shape, to `(b, columns, rows)` in the shape `shape`.
impl Kernel<Cuda> for Transpose<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, matrix: (rows, columns), shape, .. } = *self;
        let input = cuda::operand(x, x.dtype())?;
        let y = cuda::output(OP, out, &shape, x.dtype(), &[x], device)?;
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let total = cuda::count(OP, x.elem_count())?;
        let (row_count, column_count) = (rows as u32, columns as u32); // factors of the count
        let kernel = KERNELS.typed(device, "transpose", x.dtype())?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&total).arg(&row_count).arg(&column_count);
        // SAFETY: the arguments match the kernel's parameters. It reads and writes `total` elements; both tensors
        // outlive the launch.
        unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
