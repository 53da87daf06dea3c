//! Activations on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("activation");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, function } = *self;
        let input = cuda::operand(x, x.dtype())?;
        let y = cuda::output(OP, out, x.dims(), x.dtype(), &[x], device)?;
        let n = x.elem_count();
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let size = x.dtype().size_in_bytes();
        let vectored = i32::from(cuda::is_vectored(&[from, to], n, size));
        let function = function.number();
        let kernel = KERNELS.typed(device, "activation", x.dtype())?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        let n_argument = n as i64;
        launch.arg(&from).arg(&to).arg(&n_argument).arg(&function).arg(&vectored);
        let lanes = THREADS as usize * (16 / size);
        // SAFETY: the arguments match the kernel's parameters. It accesses `n` elements of the two tensors, which
        // outlive the launch, and accesses 16 bytes at a time only where `is_vectored` allows it.
        unsafe { launch.launch(cuda::grid(n.div_ceil(lanes), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
