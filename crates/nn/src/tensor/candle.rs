//! Tensors that compute.

use candle_core::{D, DType, Device, Tensor};
use kiln_ops::{
    Activation, Arithmetic, Attention, Conv2d, Conv2dInputs, FusedConv2d, GroupNorm, GroupNormMoments,
    GroupNormStatistics, Strip, TimestepEmbedding, Weight, layout,
};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::{Reduction, TensorLike};
use crate::error::{At, Error, Result};

impl TensorLike for Tensor {
    type Device = Device;
    type Weight = Weight;
    type Moments = GroupNormMoments;
    type Statistics = GroupNormStatistics;

    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        module.enter().map_err(Error::from).and_then(|module| f(&module)).at(module.segment().name())
    }

    fn param(&self, param: &Param) -> Result<Self> {
        Ok(param.tensor()?)
    }

    fn weight(&self, param: &Param) -> Result<Weight> {
        Ok(param.weight()?)
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<Weight> {
        Ok(param.weight()?)
    }

    fn table(param: &Param, _device: &Device) -> Result<Self> {
        Ok(param.tensor()?)
    }

    fn dims(&self) -> &[usize] {
        Tensor::dims(self)
    }

    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }

    fn new_empty(&self, dims: &[usize]) -> Result<Self> {
        Ok(kiln_ops::uninit(dims, self.dtype(), self.device())?)
    }

    fn new_constant(&self, constant: &Tensor) -> Result<Self> {
        Ok(constant.to_dtype(self.dtype())?.to_device(self.device())?)
    }

    fn reshape(&self, dims: &[usize]) -> Result<Self> {
        Ok(Tensor::reshape(self, dims)?)
    }

    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(Tensor::narrow(self, dim, start, len)?)
    }

    fn contiguous(&self) -> Result<Self> {
        Ok(kiln_ops::contiguous(self)?)
    }

    fn copy(&self) -> Result<Self> {
        Ok(kiln_ops::copy(self)?)
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(kiln_ops::cast(self, dtype)?)
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(Tensor::to_device(self, device)?)
    }

    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()> {
        Ok(Tensor::slice_set(self, source, dim, offset)?)
    }

    fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        Ok(Tensor::cat(parts, dim)?)
    }

    fn index_select(&self, rows: &[u32]) -> Result<Self> {
        let rows = Tensor::new(rows, &Device::Cpu)?.to_device(self.device())?;
        Ok(kiln_ops::index_select(self, &rows)?)
    }

    fn affine(&self, mul: f64, add: f64) -> Result<Self> {
        Ok(kiln_ops::affine(self, mul, add)?)
    }

    fn tanh(&self) -> Result<Self> {
        Ok(Tensor::tanh(self)?)
    }

    fn clamp(&self, min: f64, max: f64) -> Result<Self> {
        Ok(Tensor::clamp(self, min, max)?)
    }

    fn add(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::arithmetic(Arithmetic::Add, self, other)?)
    }

    fn sub(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::arithmetic(Arithmetic::Sub, self, other)?)
    }

    fn mul(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::arithmetic(Arithmetic::Mul, self, other)?)
    }

    fn broadcast_add(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::arithmetic(Arithmetic::Add, self, other)?)
    }

    fn broadcast_mul(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::arithmetic(Arithmetic::Mul, self, other)?)
    }

    fn broadcast_div(&self, other: &Self) -> Result<Self> {
        Ok(Tensor::broadcast_div(self, other)?)
    }

    fn reduce(&self, how: Reduction, dim: usize) -> Result<Self> {
        Ok(match how {
            Reduction::Mean => self.mean_keepdim(dim)?,
            Reduction::Min => self.min_keepdim(dim)?,
            Reduction::Max => self.max_keepdim(dim)?,
        })
    }

    fn premultiplied(&self, matrix: &Self) -> Result<Self> {
        let ((b, ..), (m, k)) = (self.dims3()?, matrix.dims2()?);
        Ok(matrix.broadcast_as((b, m, k))?.matmul(self)?)
    }

    fn activation(&self, function: Activation) -> Result<Self> {
        Ok(kiln_ops::activation(self, function, None)?)
    }

    fn attention(&self, k: &Self, v: &Self, config: Attention) -> Result<Self> {
        Ok(kiln_ops::attention(self, k, v, config, None)?)
    }

    fn attention_masked(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self> {
        Ok(kiln_ops::attention_masked(self, k, v, seen, config)?)
    }

    fn attention_received(&self, k: &Self, config: Attention) -> Result<Self> {
        let heads = config.num_heads.max(1);
        let split = |x: &Self| -> Result<Self> {
            let (b, n, c) = x.dims3()?;
            let x = Tensor::to_dtype(x, DType::F32)?.contiguous()?.reshape((b, n, heads, c / heads))?;
            Ok(x.transpose(1, 2)?.contiguous()?) // (b, heads, n, c / heads)
        };
        let (q, k) = (split(self)?, split(k)?);
        let scale = (q.dim(D::Minus1)? as f64).powf(-0.5);
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * scale)?; // (b, heads, s, t)
        let powers = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let attention = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        Ok(attention.sum(2)?.mean(1)?)
    }

    fn supports_strided_qkv(&self) -> bool {
        kiln_ops::supports_strided_qkv(self)
    }

    fn concat_channels(&self, other: &Self) -> Result<Self> {
        Ok(kiln_ops::concat_channels(self, other, None)?)
    }

    fn conv2d(
        &self,
        weight: &Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        Ok(kiln_ops::conv2d(Conv2dInputs { x: self, weight, bias, image_bias, residual }, config, None)?)
    }

    fn conv2d_strip(
        &self,
        weight: &Weight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        (config, strip): (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self> {
        let inputs = Conv2dInputs { x: self, weight, bias, image_bias: None, residual };
        Ok(kiln_ops::conv2d_strip(inputs, config, strip, out)?)
    }

    fn fused_conv2d(
        inputs: FusedConv2d<'_>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self> {
        Ok(kiln_ops::fused_conv2d(inputs, config, strip, out)?)
    }

    fn geglu(&self) -> Result<Self> {
        Ok(kiln_ops::geglu(self, None)?)
    }

    fn geglu_linear(&self, weight: &Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::geglu_linear(self, weight, bias, residual)?)
    }

    fn group_norm(&self, gamma: &Self, beta: &Self, config: GroupNorm) -> Result<Self> {
        Ok(kiln_ops::group_norm(self, gamma, beta, config, None)?)
    }

    fn moments(config: GroupNorm) -> GroupNormMoments {
        GroupNormMoments::new(config)
    }

    fn add_to_moments(&self, moments: &mut GroupNormMoments) -> Result<()> {
        Ok(moments.add(self)?)
    }

    fn statistics(moments: GroupNormMoments, gamma: &Param, beta: &Param) -> Result<GroupNormStatistics> {
        Ok(moments.finish(&gamma.tensor()?, &beta.tensor()?)?)
    }

    fn group_norm_apply(&self, statistics: &GroupNormStatistics, out: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::group_norm_apply(self, statistics, out)?)
    }

    fn guidance(&self, scale: &Self, out: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::guidance(self, scale, out)?)
    }

    fn layer_norm(&self, gamma: &Self, beta: &Self, eps: f64) -> Result<Self> {
        Ok(kiln_ops::layer_norm(self, gamma, beta, eps, None)?)
    }

    fn linear(&self, weight: &Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::linear(self, weight, bias, residual, None)?)
    }

    fn normed_conv2d(
        &self,
        norm: (&Self, &Self, GroupNorm),
        weight: &Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        Ok(kiln_ops::normed_conv2d(Conv2dInputs { x: self, weight, bias, image_bias, residual }, norm, config)?)
    }

    fn normed_linear(&self, norm: (&Self, &Self, f64), weight: &Weight, bias: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::normed_linear(self, norm, weight, bias, None)?)
    }

    fn pixel_shuffle(&self, factor: usize) -> Result<Self> {
        Ok(kiln_ops::pixel_shuffle(self, factor, None)?)
    }

    fn pixel_unshuffle(&self, factor: usize) -> Result<Self> {
        Ok(kiln_ops::pixel_unshuffle(self, factor, None)?)
    }

    fn timestep_embedding(&self, config: TimestepEmbedding, dtype: DType) -> Result<Self> {
        Ok(kiln_ops::timestep_embedding(self, config, dtype, None)?)
    }

    fn to_channels_first(&self) -> Result<Self> {
        Ok(layout::to_channels_first(self)?)
    }

    fn to_channels_last(&self) -> Result<Self> {
        Ok(layout::to_channels_last(self)?)
    }

    fn upsample_nearest(&self, size: (usize, usize), out: Option<&Self>) -> Result<Self> {
        Ok(kiln_ops::upsample_nearest(self, size, out)?)
    }
}
