//! A block of the encoder: self-attention with relative positions, then a gated feed-forward layer.
//!
//! The residual is in f32. It grows over the blocks of a trained encoder beyond the largest number of f16, as does the result of
//! the last linear layer of the feed-forward part.

use candle_core::DType;
use kiln_nn::ops::{Activation, GroupedAttention};
use kiln_nn::{At, Linear, Result, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::config::T5Config;
use crate::position::Buckets;

/// The factor by which the input of the last linear layer is smaller in f16, so that its result stays below 65504.
const F16_SCALE: f64 = 64.0;

/// Normalization to a mean square of 1 of a residual in f32.
pub(crate) struct Norm {
    weight: Param,
    eps: f64,
}

impl Norm {
    /// Declares `weight` `(d_model)`.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &T5Config) -> Self {
        Self { weight: p.param("weight", &[config.d_model], Packing::AsStored), eps: config.layer_norm_epsilon }
    }

    /// `x` `(1, s, d_model)` in f32, normalized and rounded once to `dtype`.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, dtype: DType) -> Result<T> {
        let weight = x.param(&self.weight)?.to_dtype(DType::F32)?;
        x.rms_norm(Some(&weight), self.eps)?.to_dtype(dtype)
    }
}

/// The bias of relative positions, which all blocks add. The first one has the table.
pub(crate) struct RelativeBias {
    /// `(buckets, heads)`.
    table: Param,
    buckets: Buckets,
}

impl RelativeBias {
    fn new(p: &ParamBuilder<'_>, config: &T5Config) -> Self {
        let (count, max_distance) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
        Self {
            table: p.param("weight", &[count, config.num_heads], Packing::AsStored),
            buckets: Buckets { count, max_distance },
        }
    }

    /// The bias `(1, heads, s, s)` in `dtype`, on the device of `x`.
    fn forward<T: TensorLike>(&self, x: &T, s: usize, dtype: DType) -> Result<T> {
        let table = x.param(&self.table)?.to_dtype(dtype)?;
        let [_, heads] = table.size2()?;
        let pairs = table.index_select(&self.buckets.of_pairs(s))?; // (s * s, heads)
        pairs.reshape(&[1, s, s, heads])?.to_channels_first()
    }
}

/// Self-attention and a feed-forward layer, each after a normalization and with a residual connection.
pub(crate) struct Block {
    attention_norm: Norm,
    /// Queries, keys and values.
    projections: [Linear; 3],
    o: Linear,
    relative_bias: Option<RelativeBias>,
    feed_forward_norm: Norm,
    wi_0: Linear,
    wi_1: Linear,
    wo: Linear,
    attention: GroupedAttention,
}

impl Block {
    /// Declares `layer.0` and `layer.1`, with the table of relative positions if the block `is_first`.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &T5Config, is_first: bool) -> Self {
        let (c, inner) = (config.d_model, config.inner());
        let (layer, feed_forward) = (p.pp("layer.0"), p.pp("layer.1"));
        let (own, dense) = (layer.pp("SelfAttention"), feed_forward.pp("DenseReluDense"));
        // Some channels of the tokens are a hundred times the others.
        let linear =
            |p: &ParamBuilder<'_>, name: &str, from, to| Linear::new(&p.pp(name).allows_fp8(), from, to, false);
        let projections = ["q", "k", "v"].map(|name| linear(&own, name, c, inner));
        Self {
            projections,
            o: linear(&own, "o", inner, c),
            relative_bias: is_first.then(|| RelativeBias::new(&own.pp("relative_attention_bias"), config)),
            attention_norm: Norm::new(&layer.pp("layer_norm"), config),
            wi_0: linear(&dense, "wi_0", c, config.d_ff),
            wi_1: linear(&dense, "wi_1", c, config.d_ff),
            wo: Linear::new(&dense.pp("wo"), config.d_ff, c, false),
            feed_forward_norm: Norm::new(&feed_forward.pp("layer_norm"), config),
            attention: GroupedAttention {
                num_heads: config.num_heads,
                num_kv_heads: config.num_heads,
                causal: false,
                scale: Some(1.0),
            },
        }
    }

    /// The bias `(1, heads, s, s)` of `s` tokens in `dtype`; `None` in all blocks but the first. `x` is on the device.
    pub(crate) fn bias<T: TensorLike>(&self, x: &T, s: usize, dtype: DType) -> Result<Option<T>> {
        let of = |bias: &RelativeBias| bias.forward(x, s, dtype).at("relative_attention_bias");
        self.relative_bias.as_ref().map(of).transpose()
    }

    /// `x` `(1, s, d_model)` in f32 to the same; `bias` `(1, heads, s, s)` has the type of the computation. `length` `(1)`
    /// is the number of tokens that are attended, if it is not all of them.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, bias: &T, length: Option<&T>) -> Result<T> {
        let x = self.attend(x, bias, length).at("layer.0")?;
        self.feed_forward(&x, bias.dtype()).at("layer.1")
    }

    fn attend<T: TensorLike>(&self, x: &T, bias: &T, length: Option<&T>) -> Result<T> {
        let normed = self.attention_norm.forward(x, bias.dtype())?;
        let [q, k, v] = &self.projections;
        let (q, k, v) = (q.forward(&normed)?, k.forward(&normed)?, v.forward(&normed)?);
        drop(normed);
        let y = q.grouped_attention([&k, &v], Some(bias), length, self.attention)?;
        drop((q, k, v));
        x.add(&self.o.forward(&y)?.to_dtype(DType::F32)?)
    }

    fn feed_forward<T: TensorLike>(&self, x: &T, dtype: DType) -> Result<T> {
        let normed = self.feed_forward_norm.forward(x, dtype)?;
        let (gates, values) = (self.wi_0.forward(&normed)?, self.wi_1.forward(&normed)?);
        drop(normed);
        if dtype != DType::F16 {
            let hidden = gates.gated_activation(Activation::GeluTanh, Some(&values))?;
            drop((gates, values));
            return x.add(&self.wo.forward(&hidden)?.to_dtype(DType::F32)?);
        }
        let (gates, values) = (gates.to_dtype(DType::F32)?, values.to_dtype(DType::F32)?);
        let hidden = gates.gated_activation(Activation::GeluTanh, Some(&values))?;
        drop((gates, values));
        let hidden = hidden.affine(1.0 / F16_SCALE, 0.0)?.to_dtype(dtype)?;
        x.add(&self.wo.forward(&hidden)?.to_dtype(DType::F32)?.affine(F16_SCALE, 0.0)?)
    }
}
