//! Rotary position embeddings.

use kiln_ops::portable::PortableTensor;
use kiln_ops::{Operand, Result, RopeOp, RopePairs};

use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

pub(super) fn rope(gpu: &Gpu, op: &RopeOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let [x, cos, sin] = [&op.x.contiguous()?, &op.cos.contiguous()?, &op.sin.contiguous()?];
    let s = x.dims().get(1).copied().unwrap_or(1);
    let head_dim = x.dims().last().map_or(0, |c| c / op.num_heads.max(1));
    let table_image = if cos.dims().len() == 3 { s * head_dim / 2 } else { 0 };
    let (gamma, eps) = op.norm.map_or((None, 0.0), |(gamma, eps)| (Some(gamma), eps));
    let gamma = gamma.map(PortableTensor::contiguous).transpose()?;
    let (of_gamma, gamma_offset) = gpu.optional(gamma.as_ref())?;
    let count = y.elements() / head_dim.max(1);
    let kernel = Kernel::new("rope", include_str!("../kernels/rope.wgsl")).of("S", x.dtype());
    let kernel = kernel.when("HAS_NORM", gamma.is_some()).when("INTERLEAVED", op.pairs == RopePairs::Interleaved);
    let numbers = Numbers::default().all([count, s, op.num_heads, head_dim, x.offset(), cos.offset(), sin.offset()]);
    let numbers = numbers.all([table_image, gamma_offset, y.offset()]).f32(eps);
    let buffers = vec![gpu.buffer(x)?, gpu.buffer(cos)?, gpu.buffer(sin)?, of_gamma, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(count, 64))
}
