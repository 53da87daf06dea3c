//! Modulated normalizations on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP, RowNorm};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, ImageVectors, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("modulated_norm");
/// Four warps, so four rows, or more if they are narrow.
const THREADS: u32 = 128;
const WARP: usize = 32;
/// The kernels that keep a row in registers, by the vectors of 16 bytes of each lane.
const KEPT: [(usize, &str); 5] = [
    (1, "modulated_norm_1"),
    (4, "modulated_norm_4"),
    (8, "modulated_norm_8"),
    (12, "modulated_norm_12"),
    (16, "modulated_norm_16"),
];

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, norm, gamma, scale, shift, eps } = *self;
        let (dtype, c) = (x.dtype(), x.dims().last().copied().unwrap_or(1));
        let input = cuda::operand(x, dtype)?;
        let gamma = gamma.map(|gamma| cuda::operand(gamma, dtype)).transpose()?;
        let [scale, shift] = [scale, shift].map(|vectors| ImageVectors::new(vectors, dtype));
        let (scale, shift) = (scale?, shift?);
        let inputs: Vec<&Tensor> =
            [Some(x), gamma.as_ref(), scale.tensor(), shift.tensor()].into_iter().flatten().collect();
        let y = cuda::output(OP, out, x.dims(), dtype, &inputs, device)?;
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let by = gamma.as_ref().map_or(Ok(0), cuda::address)?;
        let rows = x.elem_count() / c.max(1);
        let size = dtype.size_in_bytes();
        let is_vectored = cuda::is_vectored(&[from, to, by, scale.address, shift.address], c, size)
            && cuda::is_vectored(&[], scale.stride, size)
            && cuda::is_vectored(&[], shift.stride, size);
        let kept = KEPT.iter().find(|(max, _)| c * size / 16 <= 32 * max).filter(|_| is_vectored);
        // Rows of few vectors, such as those of heads, share a warp.
        let vectors = c * size / 16;
        let is_narrow = is_vectored && vectors.is_power_of_two() && vectors < WARP;
        let (name, of_row) = match kept {
            Some(_) if is_narrow => ("modulated_norm_narrow", vectors),
            kept => (kept.map_or("modulated_norm_any", |(_, name)| name), WARP),
        };
        let (kernel, bits) = (KERNELS.typed(device, name, dtype)?, vectors.max(1).ilog2() as i32);
        let (row_count, columns, tokens) =
            (cuda::count(OP, rows)?, cuda::count(OP, c)?, cuda::count(OP, self.rows().max(1))?);
        let strides = [scale.stride as i64, shift.stride as i64];
        let (eps, is_rms) = (eps as f32, i32::from(norm == RowNorm::Rms));
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&by).arg(&scale.address).arg(&shift.address).arg(&to);
        launch.arg(&row_count).arg(&columns).arg(&tokens).arg(&strides[0]).arg(&strides[1]).arg(&eps).arg(&is_rms);
        if is_narrow {
            launch.arg(&bits);
        }
        // SAFETY: the arguments match the kernel's parameters. It accesses `rows` rows of `c` elements of `x` and `y`,
        // one row of `gamma`, and of `scale` and `shift` one row for each image of `tokens` rows at their strides; a null
        // address is not read. All outlive the launch. Rows are loaded as vectors only if they consist of whole aligned
        // ones.
        unsafe { launch.launch(cuda::grid((rows * of_row).div_ceil(THREADS as usize), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
