//! Gated residual connections on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, ImageVectors, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("gated_residual");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gate, y } = *self;
        let (dtype, c) = (x.dtype(), x.dims().last().copied().unwrap_or(1));
        let (input, branch) = (cuda::operand(x, dtype)?, cuda::operand(y, dtype)?);
        let gate = ImageVectors::new(Some(gate), dtype)?;
        let inputs: Vec<&Tensor> = [Some(x), Some(y), gate.tensor()].into_iter().flatten().collect();
        let result = cuda::output(OP, out, x.dims(), dtype, &inputs, device)?;
        let addresses = [cuda::address(&input)?, gate.address, cuda::address(&branch)?, cuda::address(&result)?];
        let [from, by, add, to] = addresses;
        let size = dtype.size_in_bytes();
        let is_vectored = cuda::is_vectored(&addresses, c, size) && cuda::is_vectored(&[], gate.stride, size);
        let (name, lanes) = if is_vectored { ("gated_residual_vectors", 16 / size) } else { ("gated_residual", 1) };
        let kernel = KERNELS.typed(device, name, dtype)?;
        let total = x.elem_count();
        let (count, columns) = (total as i64, cuda::count(OP, c)?);
        let (image, stride) = (self.image().max(1) as i64, gate.stride as i64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&by).arg(&add).arg(&to).arg(&count).arg(&columns).arg(&image).arg(&stride);
        // SAFETY: the arguments match the kernel's parameters. It accesses `total` elements of `x`, `y` and the result, and
        // `c` elements of `gate` for each image of `image` elements, at its stride; all outlive the launch. Vectors are used
        // only if rows and addresses are multiples of them.
        unsafe { launch.launch(cuda::grid(total.div_ceil(THREADS as usize * lanes), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(result))
    }
}
