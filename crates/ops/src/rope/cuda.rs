//! Rotary position embeddings on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::{DType, Tensor};

use super::{Call, OP, RopePairs, Shapes};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("rope");
const THREADS: u32 = 256;
const WARP: usize = 32;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, cos, sin, norm, num_heads, pairs } = *self;
        let Shapes { b, s, head_dim, by_image } = self.check()?;
        let dtype = x.dtype();
        // Slices of a packed projection are read in place.
        let input = if x.stride().last() == Some(&1) { x.clone() } else { crate::copy(x)? };
        let (cosines, sines) = (cuda::operand(cos, DType::F32)?, cuda::operand(sin, DType::F32)?);
        let gamma = norm.map(|(gamma, _)| cuda::operand(gamma, dtype)).transpose()?;
        let inputs: Vec<&Tensor> = [Some(x), Some(cos), Some(sin), gamma.as_ref()].into_iter().flatten().collect();
        let y = cuda::output(OP, out, x.dims(), dtype, &inputs, device)?;
        let (from, to) = (cuda::start(&input)?, cuda::address(&y)?);
        let (cos_from, sin_from) = (cuda::address(&cosines)?, cuda::address(&sines)?);
        let by = gamma.as_ref().map_or(Ok(0), cuda::address)?;
        let (size, [x_batch, x_row]) = (dtype.size_in_bytes(), [input.stride()[0], input.stride()[1]]);
        // Accesses of 16 bytes for a head, which threads of one warp share.
        let lanes = head_dim * size / 16;
        let is_vectored = cuda::is_vectored(&[from, to, by, cos_from, sin_from], head_dim, size)
            && [x_batch, x_row].iter().all(|stride| (stride * size).is_multiple_of(16))
            && lanes.is_power_of_two()
            && (2..=WARP).contains(&lanes);
        let (name, of_head) = if is_vectored { ("rope_vectored", lanes) } else { ("rope_any", WARP) };
        let (kernel, bits) = (KERNELS.typed(device, name, dtype)?, lanes.max(1).ilog2());
        let (heads, rows) = (cuda::count(OP, num_heads)?, b * s * num_heads);
        let (row_count, tokens, width) = (cuda::count(OP, rows)?, cuda::count(OP, s)?, cuda::count(OP, head_dim)?);
        let (x_batch, x_row) = (x_batch as i64, x_row as i64);
        let (by_image, interleaved) = (i32::from(by_image), i32::from(pairs == RopePairs::Interleaved));
        let eps = norm.map_or(0.0, |(_, eps)| eps as f32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&x_batch).arg(&x_row).arg(&by).arg(&cos_from).arg(&sin_from).arg(&to);
        launch.arg(&row_count).arg(&heads).arg(&tokens).arg(&width).arg(&by_image).arg(&interleaved).arg(&eps);
        launch.arg(&bits);
        // SAFETY: the arguments match the kernel's parameters. It reads `b` images of `s` rows of `num_heads * head_dim`
        // elements of `x` at its strides, `head_dim / 2` numbers of both tables for each token, and `gamma` if its address is
        // not null, 16 bytes at a time only if all of them are aligned, and writes every element of the result; all outlive
        // the launch.
        unsafe { launch.launch(cuda::grid((rows * of_head).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
