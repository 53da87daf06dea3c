//! Images as bytes on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{ByteRounding, Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("image_bytes");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { images, sizes: [n, c, h, w], rounding } = *self;
        let x = cuda::operand(images, DType::F32)?;
        let y = cuda::output(OP, None, &[n, h, w, c], DType::U8, &[images], device)?;
        let (from, to) = (cuda::address(&x)?, cuda::address(&y)?);
        let (pixels, plane) = (cuda::count(OP, n * h * w)?, cuda::count(OP, h * w)?);
        let (channels, down) = (cuda::count(OP, c)?, i32::from(rounding == ByteRounding::Down));
        let kernel = KERNELS.function(device, "image_bytes")?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&pixels).arg(&plane).arg(&channels).arg(&down);
        // SAFETY: the arguments match the kernel's parameters. A thread reads and writes the channels of one of `pixels` pixels of
        // images of `plane` pixels; both tensors have them all and outlive the launch.
        unsafe { launch.launch(cuda::grid((n * h * w).div_ceil(THREADS as usize), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
