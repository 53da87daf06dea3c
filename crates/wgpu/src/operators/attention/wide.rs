//! Attention of wide heads, as autoencoders have one: two products, with a softmax of their scores between them. Kernels that keep the
//! scores of a workgroup to themselves have no registers for such heads.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{Operand, Result};

use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::operators::{GROUP, TOTAL, copy, product};
use crate::pipelines::Kernel;

/// Bytes of scores at a time.
const SCORES: usize = 32 << 20;
/// Queries at a time are a multiple of this number, so that products have whole tiles.
const QUERIES: usize = 128;

/// `softmax(scale q k^T) v` of every head, for `q` `(b, s, heads * wide)`, `k` and `v` `(b, t, heads * wide)`.
pub(super) fn attention(
    gpu: &Gpu,
    [q, k, v]: [&PortableTensor; 3],
    [b, s, t]: [usize; 3],
    ([heads, wide], scale): ([usize; 2], f64),
    y: &PortableTensor,
) -> Result<()> {
    let step = (SCORES / (t * size_of::<f32>()).max(1) / QUERIES * QUERIES).max(QUERIES);
    for (image, head) in (0..b).flat_map(|image| (0..heads).map(move |head| (image, head))) {
        let of_head = |x: &PortableTensor| x.narrow(0, image, 1)?.narrow(2, head * wide, wide);
        let keys = of_head(k)?.contiguous()?.reshape(&[t, 1, 1, wide])?;
        let values = of_head(v)?.permuted(&[0, 2, 1]).contiguous()?.reshape(&[wide, 1, 1, t])?;
        for first in (0..s).step_by(step) {
            let rows = step.min(s - first);
            let queries = of_head(q)?.narrow(1, first, rows)?.contiguous()?;
            let scores = PortableTensor::uninit(q.backend(), &[1, rows, t], DType::F32)?;
            product::plain(gpu, &queries, &keys, &scores)?;
            let weights = PortableTensor::uninit(q.backend(), &[1, rows, t], q.dtype())?;
            softmax(gpu, &scores, scale, &weights)?;
            let result = PortableTensor::uninit(q.backend(), &[1, rows, wide], q.dtype())?;
            product::plain(gpu, &weights, &values, &result)?;
            copy(gpu, &result, &of_head(y)?.narrow(1, first, rows)?)?;
        }
    }
    Ok(())
}

/// `y = softmax(scale x)` of the rows of `x` `(1, rows, columns)`, which is f32.
fn softmax(gpu: &Gpu, x: &PortableTensor, scale: f64, y: &PortableTensor) -> Result<()> {
    let columns = x.dims().last().copied().unwrap_or(1).max(1);
    let rows = x.elements() / columns;
    let kernel = Kernel::new("softmax", include_str!("../../kernels/softmax.wgsl")).of("Y", y.dtype());
    let kernel = kernel.after(TOTAL).with("THREADS", GROUP).with("SHARE", GROUP);
    let numbers = Numbers::default().all([rows, columns, x.offset(), y.offset()]).f32(scale);
    gpu.add(Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, gpu.buffer(y)?], numbers)?.over(rows, 1))
}
