//! The operators on tensors without elements. Each returns a tensor of its output's shape, counts the output's memory
//! and, temporarily, its workspace, and counts its arithmetic. Shapes that the operator rejects are errors here too.

use candle_core::{DType, Tensor};
use kiln_ops::{
    Activation, Attention, Conv2d, EightBits, FusedConv2d, GroupNorm, Slope, Strip, Target, TimestepEmbedding,
    Workspace, attention_flop, attention_workspace, conv2d_flop, conv2d_workspace, fp8_workspace,
    fused_conv2d_workspace, int8_workspace, linear_flop, linear_workspace,
};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::checks::{does_not_fit, expect, refused};
use super::{MetaDevice, MetaTensor};
use crate::error::{At, Result};
use crate::tensor::{Reduction, TensorLike};

/// The shape of a product's parameter: `(c_out, kh, kw, c_in)`, or `(n, 1, 1, k)` for a linear layer; and its format where
/// it is in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaWeight([usize; 4], Option<EightBits>);

/// What a product in 8 bits takes for its input of `[images, pixels, channels]`.
fn workspace_of(kind: EightBits, input @ [images, pixels, channels]: [usize; 3], is_by_pixel: bool) -> Workspace {
    match kind {
        EightBits::Int8 => int8_workspace(images * pixels, channels, is_by_pixel),
        EightBits::Fp8 => fp8_workspace(input, is_by_pixel),
    }
}

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
        match *param.shape() {
            [n, k] => Ok(MetaWeight([n, 1, 1, k], param.eight_bits())),
            [c_out, c_in, kh, kw] => Ok(MetaWeight([c_out, kh, kw, c_in], param.eight_bits())),
            _ => Err(refused("weight", "param", "(n, k) or (c_out, c_in, kh, kw)", param.shape())),
        }
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<MetaWeight> {
        self.device.uses(param.segment());
        let [n, k] = param.shape();
        Ok(MetaWeight([n, 1, 1, k], param.eight_bits()))
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
        let (shape, t) = self.attention_shapes(k, v, config)?;
        let y = self.another(&shape);
        self.device.takes(attention_workspace(self.device.target(), self.dtype, shape, t, config));
        self.device.computes(attention_flop(shape, t));
        Ok(y)
    }

    fn attention_masked(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self> {
        let (shape, t) = self.attention_shapes(k, v, config)?;
        if seen.shape != [shape[0], t] {
            return Err(refused("attention", "seen", &format!("{:?}", [shape[0], t]), &seen.shape));
        }
        let [_q, _k, _v] = [self.to_dtype(DType::F32)?, k.to_dtype(DType::F32)?, v.to_dtype(DType::F32)?];
        let y = self.device.tensor(&shape, DType::F32);
        // Every device uses candle's primitives here, because the GPU has no kernel for this in f32 either.
        self.device.takes(attention_workspace(Target::Gpu, DType::F32, shape, t, config));
        self.device.computes(attention_flop(shape, t));
        y.to_dtype(self.dtype)
    }

    fn attention_received(&self, k: &Self, config: Attention) -> Result<Self> {
        let ([b, s, c], t) = self.attention_shapes(k, k, config)?;
        // Queries and keys by heads, scores, their powers and quotients.
        let _split = [[b, s, c], [b, t, c], [b, t, c]].map(|shape| self.device.tensor(&shape, DType::F32));
        let scores = || self.device.tensor(&[b, config.num_heads, s, t], DType::F32);
        let _scores = [scores(), scores(), scores()];
        self.device.computes(linear_flop(b * s, [t, c]));
        Ok(self.device.tensor(&[b, t], DType::F32))
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
        &MetaWeight(weight, in_8_bits): &MetaWeight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        let x @ [b, h, w, _] = self.convolved(weight, bias)?;
        let [c_out, kh, kw, _] = weight;
        let (Some(h_out), Some(w_out)) = (config.output_size(h, kh), config.output_size(w, kw)) else {
            return Err(does_not_fit(weight, x, config));
        };
        let shape = [b, h_out, w_out, c_out];
        if let Some(image_bias) = image_bias.filter(|bias| bias.shape != [1, c_out] && bias.shape != [b, c_out]) {
            return Err(refused("conv2d", "image_bias", &format!("{:?}", [b, c_out]), &image_bias.shape));
        }
        expect("conv2d", "residual", residual, &shape)?;
        let y = self.another(&shape);
        let (target, image_bias) = (self.device.target(), image_bias.is_some());
        self.device.takes(match in_8_bits {
            Some(kind) => workspace_of(kind, [b, h * w, x[3]], (kh, kw) == (1, 1) && config == Conv2d::same(1)),
            None => conv2d_workspace(target, self.dtype, x, weight, config, None, image_bias),
        });
        self.device.computes(conv2d_flop(x, weight, config, None));
        Ok(y)
    }

    fn conv2d_strip(
        &self,
        &MetaWeight(weight, _): &MetaWeight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        (config, strip): (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self> {
        let x @ [b, h, w, _] = self.convolved(weight, bias)?;
        let [c_out, kh, kw, _] = weight;
        let Some(w_out) = config.output_size(w, kw) else { return Err(does_not_fit(weight, x, config)) };
        let shape = [b, strip.rows.len(), w_out, c_out];
        let read = strip.input_rows(config, kh);
        if h != read.len() {
            let expected = format!("(b, {}, w, c_in): rows {read:?} of {}", read.len(), strip.height);
            return Err(refused("conv2d", "x", &expected, &self.shape));
        }
        expect("conv2d", "residual", residual, &shape)?;
        expect("conv2d", "out", out, &shape)?;
        let y = out.cloned().unwrap_or_else(|| self.another(&shape));
        self.device.takes(conv2d_workspace(self.device.target(), self.dtype, x, weight, config, Some(strip), false));
        self.device.computes(conv2d_flop(x, weight, config, Some(strip)));
        Ok(y)
    }

    fn fused_conv2d(
        FusedConv2d { parts, weight: &MetaWeight(weight, _), bias, epilogue }: FusedConv2d<'_, Self, MetaWeight>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self> {
        let Some(first) = parts.first() else { return Err(refused("conv2d", "x", "at least one feature map", &[])) };
        let [b, h, w, _] = first.size4()?;
        let mut channels = Vec::new();
        for part in parts {
            match part.size4()? {
                [b_i, h_i, w_i, c] if [b_i, h_i, w_i] == [b, h, w] => channels.push(c),
                found => return Err(refused("conv2d", "x", "the same b, h and w in all parts", &found)),
            }
        }
        let x = [b, h, w, channels.iter().sum()];
        let joined = Self { shape: x.to_vec(), ..first.device.uncounted(&x, first.dtype) };
        joined.convolved(weight, bias)?;
        let [c_out, kh, kw, _] = weight;
        let rows = match strip {
            Some(strip) if h != strip.input_rows(config, kh).len() => {
                let read = strip.input_rows(config, kh);
                let expected = format!("(b, {}, w, c_in): rows {read:?} of {}", read.len(), strip.height);
                return Err(refused("conv2d", "x", &expected, &first.shape));
            }
            Some(strip) => Some(strip.rows.len()),
            None => config.output_size(h, kh),
        };
        let (Some(h_out), Some(w_out)) = (rows, config.output_size(w, kw)) else {
            return Err(does_not_fit(weight, x, config));
        };
        let shape = [b, h_out, w_out, c_out];
        for (_, addend) in epilogue.addends.into_iter().flatten() {
            expect("conv2d", "addend", Some(addend), &shape)?;
        }
        expect("conv2d", "out", out, &shape)?;
        if let Slope::Channels(slopes) = epilogue.slope {
            expect("conv2d", "slope", Some(slopes), &[c_out])?;
        }
        let y = out.cloned().unwrap_or_else(|| first.another(&shape));
        let target = first.device.target();
        first.device.takes(fused_conv2d_workspace(target, first.dtype, [b, h, w], &channels, (weight, config, strip)));
        first.device.computes(conv2d_flop(x, weight, config, strip));
        Ok(y)
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

    fn linear(
        &self,
        &MetaWeight(weight, in_8_bits): &MetaWeight,
        bias: Option<&Self>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        let [n, _, _, k] = weight;
        if self.shape.last() != Some(&k) {
            return Err(refused("linear", "x", &format!("(.., {k})"), &self.shape));
        }
        expect("linear", "bias", bias, &[n])?;
        let y = self.with_channels(n);
        expect("linear", "residual", residual, &y.shape)?;
        let (target, matrices) = (self.device.target(), self.device.matrices());
        let rows = self.elem_count() / k.max(1);
        self.device.takes(match in_8_bits {
            Some(kind) => workspace_of(kind, [1, rows, k], true),
            None => linear_workspace(target, self.dtype, matrices, [n, k]),
        });
        self.device.computes(linear_flop(rows, [n, k]));
        Ok(y)
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
