//! GEGLU on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("geglu");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, shape } = self;
        let input = cuda::operand(x, x.dtype())?;
        let y = cuda::output(OP, out, shape, x.dtype(), &[x], device)?;
        let n = shape.last().copied().unwrap_or(1);
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let size = x.dtype().size_in_bytes();
        let (kernel, lanes) =
            if cuda::is_vectored(&[from, to], n, size) { ("geglu_vectors", 16 / size) } else { ("geglu", 1) };
        let (total, columns) = (cuda::count(OP, 2 * y.elem_count())? / 2, cuda::count(OP, n)?);
        let kernel = KERNELS.typed(device, kernel, x.dtype())?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&total).arg(&columns);
        // SAFETY: the arguments match the kernel's parameters. It reads rows of `2 n` elements and writes rows of `n`,
        // `total` of them; both tensors outlive the launch. Vectors are used only where rows and addresses are
        // multiples of them.
        unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize * lanes), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
