//! The operators of a dry run: each holds its result, and for a moment what it takes besides.

use candle_core::DType;
use kiln_ops::{
    Attention, Conv2d, GroupNorm, TimestepEmbedding, attention_workspace, conv2d_workspace, group_norm_workspace,
    linear_workspace,
};

use super::Shadow;

/// [`kiln_ops::conv2d`] with a weight `(c_out, kh, kw, c_in)`; `image_bias` says whether there is one.
pub fn conv2d(x: &Shadow, weight: [usize; 4], config: Conv2d, image_bias: bool) -> Shadow {
    let [b, h, w, c] = [x.dim(0), x.dim(1), x.dim(2), x.dim(3)];
    let [c_out, kh, kw, _] = weight;
    let size = |size, kernel| config.output_size(size, kernel).unwrap_or(0);
    let y = x.another(&[b, size(h, kh), size(w, kw), c_out]);
    x.run().takes(conv2d_workspace(x.run().target(), x.dtype(), [b, h, w, c], weight, config, None, image_bias));
    y
}

/// [`kiln_ops::linear`] to `n` channels.
pub fn linear(x: &Shadow, n: usize) -> Shadow {
    let y = x.with_channels(n);
    let run = x.run();
    run.takes(linear_workspace(run.target(), x.dtype(), run.matrices(), [n, x.channels()]));
    y
}

/// [`kiln_ops::attention`].
pub fn attention(q: &Shadow, k: &Shadow, config: Attention) -> Shadow {
    let [b, s, c] = [q.dim(0), q.dim(1), q.dim(2)];
    let y = q.another(&[b, s, c]);
    q.run().takes(attention_workspace(q.run().target(), q.dtype(), [b, s, c], k.dim(1), config));
    y
}

/// [`kiln_ops::group_norm`].
pub fn group_norm(x: &Shadow, config: GroupNorm) -> Shadow {
    let (b, c) = (x.dim(0), x.channels());
    let y = x.copy();
    let pixels = x.elem_count() / (b * c).max(1);
    x.run().takes(group_norm_workspace(x.run().target(), b, pixels, c, config.num_groups));
    y
}

/// [`kiln_ops::layer_norm`].
pub fn layer_norm(x: &Shadow) -> Shadow {
    x.copy()
}

/// [`kiln_ops::activation`].
pub fn activation(x: &Shadow) -> Shadow {
    x.copy()
}

/// [`kiln_ops::geglu`].
pub fn geglu(x: &Shadow) -> Shadow {
    x.with_channels(x.channels() / 2)
}

/// [`kiln_ops::concat_channels`].
pub fn concat_channels(a: &Shadow, b: &Shadow) -> Shadow {
    a.with_channels(a.channels() + b.channels())
}

/// [`kiln_ops::upsample_nearest`].
pub fn upsample_nearest(x: &Shadow, (h, w): (usize, usize)) -> Shadow {
    x.another(&[x.dim(0), h, w, x.channels()])
}

/// [`kiln_ops::timestep_embedding`] of as many values as `values` has.
pub fn timestep_embedding(values: &Shadow, config: TimestepEmbedding, dtype: DType) -> Shadow {
    values.run().tensor(&[values.elem_count(), config.dim], dtype)
}

/// [`kiln_ops::guidance`].
pub fn guidance(both: &Shadow) -> Shadow {
    let halves = both.to_dtype(DType::F32);
    let mut shape = both.dims().to_vec();
    shape.iter_mut().take(1).for_each(|batch| *batch /= 2);
    if both.run().target().is_card() {
        return both.run().tensor(&shape, DType::F32); // one kernel
    }
    let _difference = halves.another(&shape);
    let _scaled = halves.another(&shape);
    halves.another(&shape)
}

/// [`kiln_ops::layout::to_channels_last`].
pub fn to_channels_last(x: &Shadow) -> Shadow {
    x.another(&[x.dim(0), x.dim(2), x.dim(3), x.dim(1)])
}

/// [`kiln_ops::layout::to_channels_first`].
pub fn to_channels_first(x: &Shadow) -> Shadow {
    x.another(&[x.dim(0), x.dim(3), x.dim(1), x.dim(2)])
}

/// The result of candle's own operators that give a tensor of the operand's shape.
pub fn elementwise(x: &Shadow) -> Shadow {
    x.copy()
}

/// Tensors one after another along the first dimension.
pub fn cat<const N: usize>(parts: &[&Shadow; N]) -> Shadow {
    const { assert!(N > 0) };
    let mut shape = parts[0].dims().to_vec();
    shape.iter_mut().take(1).for_each(|batch| *batch = parts.iter().map(|part| part.dim(0)).sum());
    parts[0].another(&shape)
}

/// Equal parts along dimension `dim`: the same memory.
pub fn chunk(x: &Shadow, chunks: usize, dim: usize) -> Shadow {
    let mut shape = x.dims().to_vec();
    shape.iter_mut().skip(dim).take(1).for_each(|size| *size /= chunks.max(1));
    x.view(&shape)
}
