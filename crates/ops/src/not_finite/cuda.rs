//! Counts on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("not_finite");
const THREADS: u32 = 256;
/// The most blocks. Each counts the values of its threads.
const BLOCKS: usize = 1024;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let x = cuda::operand(self.x, DType::F32)?;
        let n = x.elem_count() as i64;
        let blocks = x.elem_count().div_ceil(THREADS as usize).clamp(1, BLOCKS);
        let counts = cuda::output(OP, None, &[blocks], DType::U32, &[self.x], device)?;
        let (from, to) = (cuda::address(&x)?, cuda::address(&counts)?);
        let kernel = KERNELS.function(device, "count_not_finite")?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&n);
        // SAFETY: the arguments match the kernel's parameters. It reads `n` values and writes a count for each block; both tensors
        // outlive the launch.
        unsafe { launch.launch(cuda::grid(blocks, THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(counts))
    }
}
