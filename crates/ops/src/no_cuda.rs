//! The twin of the operators' `cuda.rs` for builds without CUDA: the same functions, which have no kernel for anything.

use candle_core::{DType, Device, Tensor};

use crate::activation::Activation;
use crate::attention::{Attention, Shapes};
use crate::conv2d::{Conv2d, Conv2dInputs, Shapes as ConvolutionShapes};
use crate::error::Result;
use crate::group_norm::GroupNorm;
use crate::packing::Weight;
use crate::timestep_embedding::TimestepEmbedding;

pub(crate) fn unwritten(_shape: &[usize], _dtype: DType, _device: &Device) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn driver_is_out_of_memory(_error: &(dyn std::error::Error + 'static)) -> bool {
    false
}

pub(crate) fn activation(_x: &Tensor, _function: Activation, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn attention(
    _q: &Tensor,
    _k: &Tensor,
    _v: &Tensor,
    _config: Attention,
    _shapes: Shapes,
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn geglu(_x: &Tensor, _shape: &[usize], _out: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn group_norm(
    _x: &Tensor,
    _gamma: &Tensor,
    _beta: &Tensor,
    _config: GroupNorm,
    _shape: (usize, usize),
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn group_norm_moments(
    _x: &Tensor,
    _config: GroupNorm,
    _c: usize,
    _before: Option<(&Tensor, usize)>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn group_norm_apply(
    _x: &Tensor,
    _gamma: &Tensor,
    _beta: &Tensor,
    _moments: (&Tensor, usize),
    _config: GroupNorm,
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn layer_norm(
    _x: &Tensor,
    _gamma: &Tensor,
    _beta: &Tensor,
    _eps: f64,
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn concat_channels(
    _a: &Tensor,
    _b: &Tensor,
    _channels: (usize, usize),
    _shape: &[usize],
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn upsample_nearest(_x: &Tensor, _size: (usize, usize), _out: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn timestep_embedding(
    _values: &Tensor,
    _config: TimestepEmbedding,
    _dtype: DType,
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn guidance(
    _both: &Tensor,
    _scale: &Tensor,
    _shape: &[usize],
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn transpose(_x: &Tensor, _matrix: (usize, usize), _shape: &[usize]) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn conv2d(
    _inputs: Conv2dInputs<'_>,
    _config: Conv2d,
    _shapes: ConvolutionShapes,
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn linear(
    _x: &Tensor,
    _weight: &Weight,
    _bias: Option<&Tensor>,
    _residual: Option<&Tensor>,
    _shape: &[usize],
    _out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    Ok(None)
}
