//! Guidance on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("guidance");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { both, scale, shape } = self;
        let (input, factor) = (cuda::operand(both, both.dtype())?, cuda::operand(scale, DType::F32)?);
        let y = cuda::output(OP, out, shape, DType::F32, &[both, scale], device)?;
        let (from, factor, to) = (cuda::address(&input)?, cuda::address(&factor)?, cuda::address(&y)?);
        let n = y.elem_count();
        let kernel = KERNELS.typed(device, "guidance", both.dtype())?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        let n_argument = n as i64;
        launch.arg(&from).arg(&factor).arg(&to).arg(&n_argument);
        // SAFETY: the arguments match the kernel's parameters. It reads two halves of `n` elements and one factor and
        // writes `n` elements; all three tensors outlive the launch.
        unsafe { launch.launch(cuda::grid(n.div_ceil(THREADS as usize), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
