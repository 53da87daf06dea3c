//! Normalizations.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{GroupNorm, GroupNormApplyOp, GroupNormOp, LayerNormOp, ModulatedNormOp, Operand, Result, RowNorm};

use super::{IDENTITY, SILU, TOTAL, width};
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Elements of a group that a workgroup takes: maps with more are divided into blocks.
const BLOCK: usize = 16384;
/// Threads of a workgroup that normalizes rows, and those of a row.
const ROW_THREADS: [usize; 2] = [256, 32];

/// The mean of each group of `x` `(b, .., c)`, and the reciprocal of its standard deviation with `eps`, or the sum of squared
/// differences, to `y` `(b, num_groups, 2)` in f32.
pub(crate) fn moments(gpu: &Gpu, x: &PortableTensor, y: &PortableTensor, eps: Option<f64>) -> Result<()> {
    let x = &x.contiguous()?;
    let (images, c) = (x.dims().first().copied().unwrap_or(1), x.dims().last().copied().unwrap_or(1));
    let groups = y.dims().get(1).copied().unwrap_or(1).max(1);
    let pixels = x.elements() / (images * c).max(1);
    let width = width([c, c / groups, x.offset()]);
    let kernel = Kernel::new("group_norm_moments", include_str!("../kernels/moments.wgsl")).of("S", x.dtype());
    let kernel = kernel.vectors(width).after(TOTAL).with("THREADS", 256).with("SHARE", 256);
    let block = BLOCK.div_ceil(c / groups).min(pixels);
    let blocks = pixels.div_ceil(block.max(1));
    let numbers = |y: usize| {
        Numbers::default().all([x.offset() / width, y, pixels, c / width, c / groups / width, groups, block])
    };
    let workgroups = [images * groups, blocks, 1];
    if blocks <= 1 {
        let numbers = numbers(y.offset()).f32(eps.unwrap_or_default());
        let kernel = kernel.when("RECIPROCAL", eps.is_some());
        let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, gpu.buffer(y)?], numbers)?;
        return gpu.add(dispatch.groups(workgroups));
    }
    let parts = PortableTensor::uninit(x.backend(), &[images, groups, blocks, 2], DType::F32)?;
    let of_parts = gpu.buffer(&parts)?;
    let kernel = kernel.when("RECIPROCAL", false);
    let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, of_parts], numbers(0).f32(0.0))?;
    gpu.add(dispatch.groups(workgroups))?;
    let kernel = Kernel::new("group_norm_merge", include_str!("../kernels/moments_merge.wgsl"));
    let kernel = kernel.when("RECIPROCAL", eps.is_some());
    let (whole, last) = (block * (c / groups), (pixels - (blocks - 1) * block) * (c / groups));
    let numbers = Numbers::default().all([images * groups, blocks, whole, last, y.offset()]);
    let numbers = numbers.f32(eps.unwrap_or_default());
    gpu.add(Dispatch::new(gpu, kernel, vec![of_parts, gpu.buffer(y)?], numbers)?.over(images * groups, 64))
}

pub(super) fn group_norm(gpu: &Gpu, op: &GroupNormOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let (x, config) = (&op.x.contiguous()?, op.config);
    let images = x.dims().first().copied().unwrap_or(1);
    let known = PortableTensor::uninit(x.backend(), &[images, config.num_groups, 2], DType::F32)?;
    moments(gpu, x, &known, Some(config.eps))?;
    apply(gpu, (x, &known), [op.gamma, op.beta], config, y)
}

pub(super) fn group_norm_apply(gpu: &Gpu, op: &GroupNormApplyOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let known = op.statistics;
    apply(gpu, (&op.x.contiguous()?, &known.moments), [&known.gamma, &known.beta], known.config, y)
}

fn apply(
    gpu: &Gpu,
    (x, moments): (&PortableTensor, &PortableTensor),
    [gamma, beta]: [&PortableTensor; 2],
    config: GroupNorm,
    y: &PortableTensor,
) -> Result<()> {
    let (images, c) = (x.dims().first().copied().unwrap_or(1), x.dims().last().copied().unwrap_or(1));
    let function = if config.silu { SILU } else { IDENTITY };
    let kernel = Kernel::new("group_norm", include_str!("../kernels/group_norm.wgsl")).of("S", x.dtype());
    let of_group = c / config.num_groups;
    let width = width([c, of_group, x.offset(), gamma.offset(), beta.offset(), y.offset()]);
    let kernel = kernel.function(function).vectors(width);
    let sizes = [y.elements(), y.elements() / images.max(1), c, of_group].map(|size| size / width);
    let offsets =
        [x.offset() / width, moments.offset(), gamma.offset() / width, beta.offset() / width, y.offset() / width];
    let buffers = [x, moments, gamma, beta, y].map(|tensor| gpu.buffer(tensor));
    let buffers = buffers.into_iter().collect::<Result<_>>()?;
    let numbers = Numbers::default().all(sizes).u32(config.num_groups).all(offsets);
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements() / width, 256))
}

pub(super) fn layer_norm(gpu: &Gpu, op: &LayerNormOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let affine = [Some(op.gamma), Some(op.beta), None, None];
    row_norm(gpu, op.x, (RowNorm::Layer, op.eps), affine, y)
}

pub(super) fn modulated_norm(gpu: &Gpu, op: &ModulatedNormOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    row_norm(gpu, op.x, (op.norm, op.eps), [op.gamma, None, op.scale, op.shift], y)
}

/// `y = (norm(x) gamma + beta) (1 + scale) + shift`, with any of the vectors.
fn row_norm(
    gpu: &Gpu,
    x: &PortableTensor,
    (norm, eps): (RowNorm, f64),
    vectors: [Option<&PortableTensor>; 4],
    y: &PortableTensor,
) -> Result<()> {
    let x = &x.contiguous()?;
    let c = x.dims().last().copied().unwrap_or(1).max(1);
    let rows = x.elements() / c;
    let images = if x.dims().len() > 1 { x.dims()[0].max(1) } else { 1 };
    let mut kept = [const { None }; 4];
    for (kept, vector) in kept.iter_mut().zip(vectors) {
        *kept = vector.map(PortableTensor::contiguous).transpose()?;
    }
    let [gamma, beta, scale, shift] = &kept;
    let by_image = |vector: &Option<PortableTensor>| match vector {
        Some(vector) if vector.dims().first() == Some(&images) && images > 1 => c,
        _ => 0,
    };
    let kernel = Kernel::new("row_norm", include_str!("../kernels/row_norm.wgsl")).of("S", x.dtype());
    let kernel = kernel.after(TOTAL).with("THREADS", ROW_THREADS[0]).with("SHARE", ROW_THREADS[1]);
    let kernel = kernel.when("RMS", norm == RowNorm::Rms).when("HAS_GAMMA", gamma.is_some());
    let kernel = kernel.when("HAS_BETA", beta.is_some());
    let kernel = kernel.when("HAS_SCALE", scale.is_some()).when("HAS_SHIFT", shift.is_some());
    let (of_gamma, at_gamma) = gpu.optional(gamma.as_ref())?;
    let (of_beta, at_beta) = gpu.optional(beta.as_ref())?;
    let (of_scale, at_scale) = gpu.optional(scale.as_ref())?;
    let (of_shift, at_shift) = gpu.optional(shift.as_ref())?;
    let vectors = [x.offset(), at_gamma, at_beta, at_scale, by_image(scale), at_shift, by_image(shift), y.offset()];
    let width = vectors.into_iter().fold(width([c]), |width, offset| width.min(self::width([offset])));
    let numbers =
        Numbers::default().all([rows, c / width, rows / images]).all(vectors.map(|offset| offset / width)).f32(eps);
    let buffers = vec![gpu.buffer(x)?, of_gamma, of_beta, of_scale, of_shift, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel.vectors(width), buffers, numbers)?.over(rows, ROW_THREADS[0] / ROW_THREADS[1]))
}
