//! The operators on tensors without elements. Each returns a tensor of its output's shape, counts the output's memory
//! and, temporarily, its workspace, and counts its arithmetic. Shapes that the operator rejects are errors here too.
//!
//! Products with weights are in [`super::products`], attention in [`super::attention`].

use candle_core::{DType, Tensor};
use kiln_ops::{Activation, Attention, Conv2d, FusedConv2d, GroupNorm, Strip, TimestepEmbedding, linear_flop};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::checks::{expect, refused};
use super::{MetaDevice, MetaTensor, MetaWeight};
use crate::error::{At, Result};
use crate::tensor::{Reduction, TensorLike};

impl TensorLike for MetaTensor {
    type Device = MetaDevice;
    type Weight = MetaWeight;
    type Moments = GroupNorm;
    type Statistics = ();

    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        f(module.module()).at(module.segment().name())
    }

    fn param(&self, param: &Param) -> Result<Self> {
        self.device.uses(param.segment());
        Ok(self.device.uncounted(param.shape(), self.dtype))
    }

    fn weight(&self, param: &Param) -> Result<MetaWeight> {
        self.device.uses(param.segment());
        MetaWeight::of(param)
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<MetaWeight> {
        self.device.uses(param.segment());
        Ok(MetaWeight::of_stack(param))
    }

    fn table(param: &Param, device: &MetaDevice) -> Result<Self> {
        Ok(device.host().uncounted(param.shape(), device.dtype()))
    }

    fn dims(&self) -> &[usize] {
        &self.shape
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn new_empty(&self, dims: &[usize]) -> Result<Self> {
        Ok(self.another(dims))
    }

    fn new_constant(&self, constant: &Tensor) -> Result<Self> {
        Ok(self.another(constant.dims()))
    }

    fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if dims.iter().product::<usize>() != self.elem_count() {
            return Err(refused("reshape", "x", &format!("as many elements as {dims:?}"), &self.shape));
        }
        let same = if self.contiguous { self.clone() } else { self.copy()? };
        Ok(Self { shape: dims.to_vec(), ..same })
    }

    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let mut part = self.clone();
        match part.shape.get_mut(dim) {
            Some(size) if start.checked_add(len).is_some_and(|end| end <= *size) => {
                // Elements of outer dimensions are not contiguous, unless these dimensions are 1.
                part.contiguous &= *size == len || self.shape[..dim].iter().all(|&outer| outer == 1);
                *size = len;
                Ok(part)
            }
            _ => {
                let expected = format!("{len} elements from {start} on in dimension {dim}");
                Err(refused("narrow", "x", &expected, &self.shape))
            }
        }
    }

    fn contiguous(&self) -> Result<Self> {
        if self.contiguous { Ok(self.clone()) } else { self.copy() }
    }

    fn copy(&self) -> Result<Self> {
        Ok(self.another(&self.shape))
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype { Ok(self.clone()) } else { Ok(self.device.tensor(&self.shape, dtype)) }
    }

    fn to_device(&self, device: &MetaDevice) -> Result<Self> {
        if self.device.is(device) { Ok(self.clone()) } else { Ok(device.tensor(&self.shape, self.dtype)) }
    }

    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()> {
        let len = source.shape.get(dim).copied().unwrap_or(0);
        let part = self.narrow(dim, offset, len)?;
        part.same_shape("slice_set", source)
    }

    fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        let Some(first) = parts.first().filter(|first| dim < first.shape.len()) else {
            return Err(refused("cat", "parts", &format!("a dimension {dim}"), &[]));
        };
        let mut shape = first.shape.clone();
        shape[dim] = 0;
        for part in parts {
            let size = part.shape.get(dim).copied().unwrap_or(0);
            part.narrow(dim, 0, size)?;
            let mut others = part.shape.clone();
            others[dim] = shape[dim];
            if others != shape {
                return Err(refused(
                    "cat",
                    "parts",
                    &format!("{:?} but for dimension {dim}", first.shape),
                    &part.shape,
                ));
            }
            shape[dim] += size;
        }
        Ok(first.another(&shape))
    }

    fn index_select(&self, rows: &[u32]) -> Result<Self> {
        match self.shape.split_first() {
            Some((&size, inner)) if rows.iter().all(|&row| (row as usize) < size) => {
                Ok(self.another(&[&[rows.len()], inner].concat()))
            }
            _ => Err(refused("index_select", "x", "a row for every index", &self.shape)),
        }
    }

    fn affine(&self, _mul: f64, _add: f64) -> Result<Self> {
        self.copy()
    }

    fn tanh(&self) -> Result<Self> {
        self.copy()
    }

    fn clamp(&self, _min: f64, _max: f64) -> Result<Self> {
        self.copy()?.copy() // one bound after the other
    }

    fn add(&self, other: &Self) -> Result<Self> {
        self.same_shape("add", other)?;
        self.copy()
    }

    fn sub(&self, other: &Self) -> Result<Self> {
        self.same_shape("sub", other)?;
        self.copy()
    }

    fn mul(&self, other: &Self) -> Result<Self> {
        self.same_shape("mul", other)?;
        self.copy()
    }

    fn broadcast_add(&self, other: &Self) -> Result<Self> {
        self.repeats("broadcast_add", other)?;
        self.copy()
    }

    fn broadcast_mul(&self, other: &Self) -> Result<Self> {
        self.repeats("broadcast_mul", other)?;
        self.copy()
    }

    fn broadcast_div(&self, other: &Self) -> Result<Self> {
        self.repeats("broadcast_div", other)?;
        self.copy()
    }

    fn reduce(&self, how: Reduction, dim: usize) -> Result<Self> {
        let mut shape = self.shape.clone();
        match shape.get_mut(dim) {
            Some(size) => *size = 1,
            None => return Err(refused("reduce", "x", &format!("a dimension {dim}"), &self.shape)),
        }
        let y = self.another(&shape);
        // A mean is the sum, then its quotient.
        if how == Reduction::Mean { y.copy() } else { Ok(y) }
    }

    fn premultiplied(&self, matrix: &Self) -> Result<Self> {
        match (&self.shape[..], &matrix.shape[..]) {
            (&[b, k, n], &[m, same]) if k == same => {
                self.device.computes(linear_flop(b * n, [m, k]));
                Ok(self.another(&[b, m, n]))
            }
            _ => Err(refused("premultiplied", "matrix", &format!("(m, k) for {:?}", self.shape), &matrix.shape)),
        }
    }

    fn activation(&self, _function: Activation) -> Result<Self> {
        self.copy()
    }

    fn attention(&self, k: &Self, v: &Self, config: Attention) -> Result<Self> {
        self.attention_of(k, v, config)
    }

    fn attention_masked(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self> {
        self.attention_of_seen(k, v, seen, config)
    }

    fn attention_received(&self, k: &Self, config: Attention) -> Result<Self> {
        self.attention_to(k, config)
    }

    fn supports_strided_qkv(&self) -> bool {
        self.device.target().supports_strided_qkv(self.dtype)
    }

    fn concat_channels(&self, other: &Self) -> Result<Self> {
        match (self.shape.split_last(), other.shape.split_last()) {
            (Some((m, outer)), Some((n, same))) if outer == same => Ok(self.with_channels(m + n)),
            _ => {
                let expected = format!("the outer dimensions of {:?}", self.shape);
                Err(refused("concat_channels", "b", &expected, &other.shape))
            }
        }
    }

    fn conv2d(
        &self,
        weight: &MetaWeight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        self.convolution(weight, bias, image_bias, residual, config)
    }

    fn conv2d_strip(
        &self,
        weight: &MetaWeight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        (config, strip): (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self> {
        self.convolution_of_strip(weight, bias, residual, (config, strip), out)
    }

    fn fused_conv2d(
        conv: FusedConv2d<'_, Self, MetaWeight>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self> {
        Self::fused_convolution(conv, config, strip, out)
    }

    fn geglu(&self) -> Result<Self> {
        match self.channels() {
            odd if odd % 2 == 1 => Err(refused("geglu", "x", "(.., 2n)", &self.shape)),
            even => Ok(self.with_channels(even / 2)),
        }
    }

    fn geglu_linear(&self, weight: &MetaWeight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        if self.channels() % 2 == 1 {
            return Err(refused("geglu_linear", "x", "(.., 2k)", &self.shape));
        }
        let outer = self.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        let hidden = self.device.uncounted(&[outer, &[self.channels() / 2]].concat(), self.dtype);
        hidden.linear(weight, bias, residual)
    }

    fn group_norm(&self, gamma: &Self, beta: &Self, config: GroupNorm) -> Result<Self> {
        let c = self.channels();
        expect("group_norm", "gamma", Some(gamma), &[c])?;
        expect("group_norm", "beta", Some(beta), &[c])?;
        let y = self.copy()?;
        self.sum_groups(self.shape.first().copied().unwrap_or(1), config)?;
        Ok(y)
    }

    fn moments(config: GroupNorm) -> GroupNorm {
        config
    }

    fn add_to_moments(&self, moments: &mut GroupNorm) -> Result<()> {
        self.sum_groups(1, *moments)
    }

    fn statistics(_moments: GroupNorm, _gamma: &Param, _beta: &Param) -> Result<()> {
        Ok(())
    }

    fn group_norm_apply(&self, _statistics: &(), out: Option<&Self>) -> Result<Self> {
        expect("group_norm", "out", out, &self.shape)?;
        out.cloned().map_or_else(|| self.copy(), Ok)
    }

    fn guidance(&self, scale: &Self, out: Option<&Self>) -> Result<Self> {
        expect("guidance", "scale", Some(scale), &[1])?;
        let shape = match self.shape.split_first() {
            Some((&batch, inner)) if batch % 2 == 0 => [&[batch / 2], inner].concat(),
            _ => return Err(refused("guidance", "both", "(2 n, ..)", &self.shape)),
        };
        expect("guidance", "out", out, &shape)?;
        let result = |device: &MetaDevice| out.cloned().unwrap_or_else(|| device.tensor(&shape, DType::F32));
        if self.device.target().is_gpu() {
            return Ok(result(&self.device)); // one kernel
        }
        let halves = self.to_dtype(DType::F32)?;
        let _difference = halves.another(&shape);
        let _scaled = halves.another(&shape);
        Ok(result(&self.device))
    }

    fn layer_norm(&self, gamma: &Self, beta: &Self, _eps: f64) -> Result<Self> {
        expect("layer_norm", "gamma", Some(gamma), &[self.channels()])?;
        expect("layer_norm", "beta", Some(beta), &[self.channels()])?;
        self.copy()
    }

    fn linear(&self, weight: &MetaWeight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        self.linear_layer(weight, bias, residual)
    }

    fn normed_conv2d(
        &self,
        (gamma, beta, norm): (&Self, &Self, GroupNorm),
        weight: &MetaWeight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        expect("normed_conv2d", "gamma", Some(gamma), &[self.channels()])?;
        expect("normed_conv2d", "beta", Some(beta), &[self.channels()])?;
        self.sum_groups(self.shape.first().copied().unwrap_or(1), norm)?;
        self.conv2d(weight, bias, image_bias, residual, config)
    }

    fn normed_linear(
        &self,
        (gamma, beta, _eps): (&Self, &Self, f64),
        weight: &MetaWeight,
        bias: Option<&Self>,
    ) -> Result<Self> {
        expect("normed_linear", "gamma", Some(gamma), &[self.channels()])?;
        expect("normed_linear", "beta", Some(beta), &[self.channels()])?;
        self.linear(weight, bias, None)
    }

    fn pixel_shuffle(&self, factor: usize) -> Result<Self> {
        let [b, h, w, c] = self.size4()?;
        match factor * factor {
            square if square > 0 && c % square == 0 => Ok(self.another(&[b, h * factor, w * factor, c / square])),
            square => Err(refused("pixel_shuffle", "x", &format!("(b, h, w, {square} c)"), &self.shape)),
        }
    }

    fn pixel_unshuffle(&self, factor: usize) -> Result<Self> {
        let [b, h, w, c] = self.size4()?;
        if factor == 0 || h % factor != 0 || w % factor != 0 {
            return Err(refused("pixel_unshuffle", "x", &format!("(b, {factor} h, {factor} w, c)"), &self.shape));
        }
        Ok(self.another(&[b, h / factor, w / factor, c * factor * factor]))
    }

    fn timestep_embedding(&self, config: TimestepEmbedding, dtype: DType) -> Result<Self> {
        match *self.shape {
            [n] => Ok(self.device.tensor(&[n, config.dim], dtype)),
            _ => Err(refused("timestep_embedding", "values", "(n)", &self.shape)),
        }
    }

    fn to_channels_first(&self) -> Result<Self> {
        let [b, h, w, c] = self.size4()?;
        Ok(self.another(&[b, c, h, w]))
    }

    fn to_channels_last(&self) -> Result<Self> {
        let [b, c, h, w] = self.size4()?;
        Ok(self.another(&[b, h, w, c]))
    }

    fn upsample_nearest(&self, (h, w): (usize, usize), out: Option<&Self>) -> Result<Self> {
        let [b, _, _, c] = self.size4()?;
        let shape = [b, h, w, c];
        expect("upsample_nearest", "out", out, &shape)?;
        Ok(out.cloned().unwrap_or_else(|| self.another(&shape)))
    }
}
