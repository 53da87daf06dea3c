//! Sums of changes on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{CHANGE_PART, Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("change_sums");
/// `kernel.cu` has it too.
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { now, before } = *self;
        let (dtype, shape @ [b, parts, _]) = (now.dtype(), self.shape());
        let (new, old) = (cuda::operand(now, dtype)?, cuda::operand(before, dtype)?);
        let sums = cuda::output(OP, out, &shape, DType::F32, &[now, before], device)?;
        let addresses = [cuda::address(&new)?, cuda::address(&old)?];
        let is_vectored = cuda::is_vectored(&addresses, self.image(), dtype.size_in_bytes());
        let name = if is_vectored { "change_sums_vectors" } else { "change_sums" };
        let kernel = KERNELS.typed(device, name, dtype)?;
        let ([new, old], to) = (addresses, cuda::address(&sums)?);
        let (image, parts_of, part) = (self.image() as i64, cuda::count(OP, parts)?, CHANGE_PART as i32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&new).arg(&old).arg(&to).arg(&image).arg(&parts_of).arg(&part);
        // SAFETY: the arguments match the kernel's parameters. It has a block for each of the `parts` parts of `b` images, reads
        // the elements of its part of both operands, and writes two sums; all tensors outlive the launch. Vectors are used
        // only if images and addresses are multiples of them, as a part is.
        unsafe { launch.launch(cuda::grid(b * parts, THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(sums))
    }
}
