//! Statistics of tokens, by which networks choose what they compute.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{AttentionReceivedOp, ChangeSumsOp, Operand, ReduceOp, Reduction, Result};

use super::elementwise::reduce;
use super::{GROUP, TOTAL};
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;
use crate::view::Rows;

/// Threads of a workgroup of which each has a query or a key.
const TOKENS: usize = 64;

pub(super) fn change_sums(gpu: &Gpu, op: &ChangeSumsOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let [now, before] = [&op.now.contiguous()?, &op.before.contiguous()?];
    let images = now.dims().first().copied().unwrap_or(0).max(1);
    let count = y.elements() / 2;
    let kernel = Kernel::new("change_sums", include_str!("../kernels/change_sums.wgsl")).of("S", now.dtype());
    let kernel = kernel.after(TOTAL).with("THREADS", GROUP).with("SHARE", GROUP);
    let sizes = [now.elements() / images, count / images, kiln_ops::CHANGE_PART, count];
    let numbers = Numbers::default().all(sizes).all([now.offset(), before.offset(), y.offset()]);
    let buffers = vec![gpu.buffer(now)?, gpu.buffer(before)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(count, 1))
}

/// Scores are computed twice, for queries and for keys, and never stored: this attention is that of few tokens.
pub(super) fn attention_received(
    gpu: &Gpu,
    op: &AttentionReceivedOp<'_, PortableTensor>,
    y: &PortableTensor,
) -> Result<()> {
    let heads = op.config.num_heads.max(1);
    let (&[b, s, c], &[_, t, _]) = (op.q.dims(), op.k.dims()) else {
        let (expected, found) = ("(b, s, c)".into(), op.q.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "attention_received", operand: "q", expected, found });
    };
    let [q, k] = [Rows::of(op.q)?, Rows::of(op.k)?];
    let head_dim = c / heads;
    let numbers = |count: usize| {
        let numbers = Numbers::default().all([s, t, heads, q.tensor.offset(), q.row, q.image]);
        numbers.all([k.tensor.offset(), k.row, k.image, count]).f32(1.0 / (head_dim as f64).sqrt())
    };
    let kernel = |name, source| {
        let kernel = Kernel::new(name, source).after(include_str!("../kernels/received_scores.wgsl"));
        kernel.of("S", op.q.dtype()).with("HEAD", head_dim)
    };
    let [of_q, of_k] = [gpu.buffer(&q.tensor)?, gpu.buffer(&k.tensor)?];
    let rows = PortableTensor::uninit(y.backend(), &[b, heads, s, 2], DType::F32)?;
    let of_rows = gpu.buffer(&rows)?;
    let rows_kernel = kernel("received_rows", include_str!("../kernels/received_rows.wgsl"));
    let call = Dispatch::new(gpu, rows_kernel, vec![of_q, of_k, of_rows], numbers(b * heads * s))?;
    gpu.add(call.over(b * heads * s, TOKENS))?;
    let by_head = PortableTensor::uninit(y.backend(), &[b, heads, t], DType::F32)?;
    let keys_kernel = kernel("received_keys", include_str!("../kernels/received_keys.wgsl"));
    let buffers = vec![of_q, of_k, of_rows, gpu.buffer(&by_head)?];
    let call = Dispatch::new(gpu, keys_kernel, buffers, numbers(b * heads * t))?;
    gpu.add(call.over(b * heads * t, TOKENS))?;
    reduce(gpu, &ReduceOp { x: &by_head, dim: 1, how: Reduction::Mean }, y)
}
