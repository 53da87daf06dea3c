//! Embeddings of timesteps.

use kiln_ops::portable::PortableTensor;
use kiln_ops::{Operand, Result, TimestepEmbeddingOp};

use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

pub(super) fn embedding(gpu: &Gpu, op: &TimestepEmbeddingOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let (values, config) = (&op.values.contiguous()?, op.config);
    let memory = gpu.frequencies(config)?;
    let frequencies = PortableTensor::new(y.backend(), memory, &[config.dim / 2], 0, values.dtype());
    let kernel = Kernel::new("timestep_embedding", include_str!("../kernels/timestep.wgsl")).of("S", y.dtype());
    let kernel = kernel.when("COSINES_FIRST", config.flip_sin_to_cos);
    let numbers = Numbers::default().all([y.elements(), config.dim, values.offset(), y.offset(), 0]);
    let buffers = vec![gpu.buffer(values)?, gpu.buffer(&frequencies)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements(), 256))
}
