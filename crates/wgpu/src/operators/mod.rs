//! The kernel of each operator, and its numbers.

mod attention;
mod elementwise;
mod norm;
mod product;
mod rearrange;
mod register_tiles;
mod rope;
mod statistics;
mod stored;
mod tiles;
mod timestep;
mod workgroup_tiles;

use kiln_ops::portable::{Call, PortableTensor};
use kiln_ops::{Activation, Error, Map, Result};

#[cfg(test)]
use crate::adapter::Matrices;
use crate::gpu::Gpu;
#[cfg(test)]
use crate::pipelines::Kernel;
pub(crate) use norm::moments;
pub(crate) use rearrange::copy;

/// Runs an operator.
///
/// # Errors
/// [`Error::Backend`] for an operator without a kernel.
pub(crate) fn run(gpu: &Gpu, call: &Call<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    match call {
        Call::ActivatedLinear(op) => product::activated_linear(gpu, op, y),
        Call::Activation(op) => elementwise::unary(gpu, op.x, activation(op.function), [0.0; 2], y),
        Call::Attention(op) => attention::plain(gpu, op, y),
        Call::AttentionReceived(op) => statistics::attention_received(gpu, op, y),
        Call::Binary(op) => elementwise::binary(gpu, op, y),
        Call::ChangeSums(op) => statistics::change_sums(gpu, op, y),
        Call::Concat(op) => rearrange::concat(gpu, op, y),
        Call::Conv2d(op) => product::conv2d(gpu, op, y),
        Call::GatedActivation(op) => elementwise::gated_activation(gpu, op, y),
        Call::GatedResidual(op) => elementwise::gated_residual(gpu, op, y),
        Call::Geglu(op) => elementwise::geglu(gpu, op, y),
        Call::GroupNorm(op) => norm::group_norm(gpu, op, y),
        Call::GroupNormApply(op) => norm::group_norm_apply(gpu, op, y),
        Call::GroupedAttention(op) => attention::grouped(gpu, op, y),
        Call::IndexSelect(op) => rearrange::index_select(gpu, op, y),
        Call::LayerNorm(op) => norm::layer_norm(gpu, op, y),
        Call::Layout(op) => rearrange::layout(gpu, op, y),
        Call::Linear(op) => product::linear(gpu, op, y),
        Call::Map(op) => match op.map {
            Map::Affine { mul, add } => elementwise::unary(gpu, op.x, AFFINE, [mul, add], y),
            Map::Tanh => elementwise::unary(gpu, op.x, TANH, [0.0; 2], y),
            Map::Sqrt => elementwise::unary(gpu, op.x, SQRT, [0.0; 2], y),
            Map::Log => elementwise::unary(gpu, op.x, LOG, [0.0; 2], y),
            Map::Clamp { min, max } => elementwise::unary(gpu, op.x, CLAMP, [min, max], y),
        },
        Call::MaskedAttention(op) => attention::masked(gpu, op, y),
        Call::ModulatedNorm(op) => norm::modulated_norm(gpu, op, y),
        Call::PixelShuffle(op) => rearrange::pixel_shuffle(gpu, op, y),
        Call::Premultiply(op) => product::premultiply(gpu, op, y),
        Call::Reduce(op) => elementwise::reduce(gpu, op, y),
        Call::Rope(op) => rope::rope(gpu, op, y),
        Call::TimestepEmbedding(op) => timestep::embedding(gpu, op, y),
        Call::Upsample(op) => rearrange::upsample(gpu, op, y),
        other => Err(Error::Backend(format!(
            "the operator {} does not run on this kind of GPU yet; `device` cpu runs it",
            other.name()
        ))),
    }
}

/// Threads of a workgroup that has an element for each.
const GROUP: usize = 256;
/// The largest vectors, of 1, 2 or 4 elements, whose size divides all `sizes`.
fn width<const N: usize>(sizes: [usize; N]) -> usize {
    [4, 2].into_iter().find(|width| sizes.iter().all(|size| size % width == 0)).unwrap_or(1)
}

/// Sums over threads of a workgroup.
const TOTAL: &str = include_str!("../kernels/total.wgsl");
/// The places of elements in five dimensions.
const COORDINATES: &str = include_str!("../kernels/coordinates.wgsl");

/// Functions of one element for kernels that call `function(x, a, b)`.
const IDENTITY: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return x; }\n";
const AFFINE: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return a * x + b; }\n";
const TANH: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return bounded_tanh(x); }\n";
const SQRT: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return sqrt(x); }\n";
const LOG: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return log(x); }\n";
const CLAMP: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return clamp(x, a, b); }\n";
const SILU: &str = "fn function(x: f32, a: f32, b: f32) -> f32 { return silu(x); }\n";

fn activation(function: Activation) -> &'static str {
    match function {
        Activation::Silu => SILU,
        Activation::QuickGelu => "fn function(x: f32, a: f32, b: f32) -> f32 { return quick_gelu(x); }\n",
        Activation::GeluErf => "fn function(x: f32, a: f32, b: f32) -> f32 { return gelu_erf(x); }\n",
        Activation::GeluTanh => "fn function(x: f32, a: f32, b: f32) -> f32 { return gelu_tanh(x); }\n",
        Activation::Relu => "fn function(x: f32, a: f32, b: f32) -> f32 { return relu(x); }\n",
    }
}

/// The kernels with tiles, with the constants that do not follow from operands' presence or types: for all kinds of matrices, tiles and
/// common heads.
#[cfg(test)]
pub(crate) fn tiled_kernels() -> Vec<Kernel> {
    let kinds = [(16, 32), (16, 64), (8, 8)].map(|(side, lanes)| Matrices { side, lanes });
    let of_matrices = kinds
        .into_iter()
        .flat_map(|kind| product::matrix_kernels(kind).into_iter().chain(attention::matrix_kernels(kind)));
    of_matrices.chain(register_tiles::kernels()).collect()
}

/// The kernels with cooperative matrices of a whole workgroup, with all of their constants.
#[cfg(test)]
pub(crate) fn workgroup_kernels() -> Vec<Kernel> {
    vec![workgroup_tiles::kernel()]
}
