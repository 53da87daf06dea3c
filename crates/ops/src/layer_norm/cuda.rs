//! Layer normalization on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("layer_norm");
/// Four warps, so four rows: enough to hide the latency of a row, few enough that small inputs use the whole GPU.
const THREADS: u32 = 128;
/// The kernels that keep a row in registers, by the vectors of 16 bytes of each lane.
const KEPT: [(usize, &str); 4] = [(2, "layer_norm_2"), (3, "layer_norm_3"), (5, "layer_norm_5"), (10, "layer_norm_10")];

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gamma, beta, eps } = *self;
        let dtype = x.dtype();
        let (input, gamma, beta) =
            (cuda::operand(x, dtype)?, cuda::operand(gamma, dtype)?, cuda::operand(beta, dtype)?);
        let y = cuda::output(OP, out, x.dims(), dtype, &[x, &gamma, &beta], device)?;
        let addresses = [cuda::address(&input)?, cuda::address(&gamma)?, cuda::address(&beta)?, cuda::address(&y)?];
        let [from, scale, shift, to] = addresses;
        let c = gamma.elem_count();
        let rows = x.elem_count() / c.max(1);
        let size = dtype.size_in_bytes();
        let vectors = c * size / 16;
        let kept = KEPT.iter().find(|(max, _)| vectors <= 32 * max).filter(|_| cuda::is_vectored(&addresses, c, size));
        let kernel = KERNELS.typed(device, kept.map_or("layer_norm_any", |(_, name)| name), dtype)?;
        let (row_count, columns, eps) = (cuda::count(OP, rows)?, cuda::count(OP, c)?, eps as f32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&scale).arg(&shift).arg(&to).arg(&row_count).arg(&columns).arg(&eps);
        // SAFETY: the arguments match the kernel's parameters. It accesses `rows` rows of `c` elements of `x` and `y`
        // and one row of `gamma` and `beta`; all outlive the launch. Rows are loaded as vectors only where they consist
        // of whole aligned ones.
        unsafe { launch.launch(cuda::grid(rows.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
