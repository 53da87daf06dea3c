//! Upsampling on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP, scale};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("upsample_nearest");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, size: (h_out, w_out) } = *self;
        let (b, h, w, c) = x.dims4()?;
        let dtype = x.dtype();
        let input = cuda::operand(x, dtype)?;
        let y = cuda::output(OP, out, &[b, h_out, w_out, c], dtype, &[x], device)?;
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let pixel = c * dtype.size_in_bytes();
        let unit = cuda::unit(&[from, to], &[pixel]);
        let kernel = KERNELS.function(device, &format!("upsample_nearest_{unit}"))?;
        let total = cuda::count(OP, b * h_out * w_out * pixel / unit)?;
        let sizes = [h, w, h_out, w_out, pixel / unit].map(|size| size as u32); // none is larger than `total`
        let (row_scale, column_scale) = (scale(h, h_out), scale(w, w_out));
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&total);
        sizes.iter().for_each(|size| {
            launch.arg(size);
        });
        launch.arg(&row_scale).arg(&column_scale);
        // SAFETY: the arguments match the kernel's parameters. It writes `total` units of `y` and reads pixels of `x`,
        // whose position it clamps to `h` and `w`; both tensors outlive the launch, and `unit` divides their addresses
        // and pixels.
        unsafe { launch.launch(cuda::grid((total as usize).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
