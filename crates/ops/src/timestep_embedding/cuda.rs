//! Timestep embeddings on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("timestep_embedding");
const THREADS: u32 = 128;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { values, config, dtype } = *self;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Ok(None);
        }
        let input = cuda::operand(values, DType::F32)?;
        let n = values.elem_count();
        let y = cuda::output(OP, out, &[n, config.dim], dtype, &[values], device)?;
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let total = cuda::count(OP, n * config.dim)?;
        let (n, dim) = (n as i32, config.dim as i32); // factors of the count
        let (spacing, cosines_first) = (config.spacing() as f32, i32::from(config.flip_sin_to_cos));
        let kernel = KERNELS.typed(device, "timestep_embedding", dtype)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&n).arg(&dim).arg(&spacing).arg(&cosines_first);
        // SAFETY: the arguments match the kernel's parameters. It reads `n` values and writes `n` rows of `dim`
        // elements; both tensors outlive the launch.
        unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
