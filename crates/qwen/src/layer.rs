//! A layer: causal self-attention with rotary positions, then a gated feed-forward layer.
//!
//! The residual is in f32. Some channels of a trained model's first tokens are beyond the largest number of f16, as can be the
//! result of the last linear layer.

use candle_core::DType;
use kiln_nn::ops::{GroupedAttention, RopePairs};
use kiln_nn::{At, Linear, Result, Rope, RopeTables, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::config::QwenConfig;
use crate::feed_forward::FeedForward;

/// Normalization to a mean square of 1 of a residual in f32.
pub(crate) struct Norm {
    weight: Param,
    eps: f64,
}

impl Norm {
    /// Declares `weight` `(hidden_size)`.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &QwenConfig) -> Self {
        Self::of(p, config.hidden_size, config.rms_norm_eps)
    }

    /// Declares `weight` `(channels)`. `eps` is added to the mean square.
    pub(crate) fn of(p: &ParamBuilder<'_>, channels: usize, eps: f64) -> Self {
        Self { weight: p.param("weight", &[channels], Packing::AsStored), eps }
    }

    /// `x` `(1, s, channels)` in f32, normalized and rounded once to `dtype`.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, dtype: DType) -> Result<T> {
        let weight = x.param(&self.weight)?.to_dtype(DType::F32)?;
        x.rms_norm(Some(&weight), self.eps)?.to_dtype(dtype)
    }
}

/// The tensors that all layers of a text share.
pub(crate) struct Shared<'a, T> {
    /// The rotary positions of all tokens.
    pub(crate) tables: &'a RopeTables<T>,
    /// The number of tokens that are attended to, `(1)` in f32; `None` for all.
    pub(crate) length: Option<&'a T>,
    /// The type of the computation.
    pub(crate) dtype: DType,
}

/// Self-attention and a feed-forward layer, each after a normalization and with a residual connection.
pub(crate) struct Layer {
    attention_norm: Norm,
    /// Queries, keys and values.
    projections: [Linear; 3],
    /// Of queries and keys.
    ropes: [Rope; 2],
    o_proj: Linear,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
    attention: GroupedAttention,
}

impl Layer {
    /// Declares `self_attn`, `mlp` and the two normalizations.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &QwenConfig) -> Self {
        let QwenConfig { hidden_size: c, intermediate_size: hidden, head_dim, .. } = *config;
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let own = p.pp("self_attn");
        // Some channels of the tokens are a hundred times the others.
        let linear =
            |p: &ParamBuilder<'_>, name: &str, from, to, bias| Linear::new(&p.pp(name).allows_fp8(), from, to, bias);
        let bias = config.has_biases();
        let rope = |name: &str, heads| match bias {
            true => Rope::new(heads, RopePairs::Halves),
            false => Rope::normed(&own.pp(name), heads, head_dim, RopePairs::Halves, config.rms_norm_eps),
        };
        let projections = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)];
        Self {
            attention_norm: Norm::new(&p.pp("input_layernorm"), config),
            projections: projections.map(|(name, heads)| linear(&own, name, c, heads * head_dim, bias)),
            ropes: [rope("q_norm", heads), rope("k_norm", kv_heads)],
            o_proj: linear(&own, "o_proj", heads * head_dim, c, false),
            feed_forward_norm: Norm::new(&p.pp("post_attention_layernorm"), config),
            feed_forward: FeedForward::new(&p.pp("mlp"), [c, hidden], false),
            attention: GroupedAttention { num_heads: heads, num_kv_heads: kv_heads, causal: true, scale: None },
        }
    }

    /// `x` `(1, s, hidden_size)` in f32, same shape and type.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, shared: &Shared<'_, T>) -> Result<T> {
        let x = self.attend(x, shared).at("self_attn")?;
        self.feed_forward(&x, shared.dtype).at("mlp")
    }

    fn attend<T: TensorLike>(&self, x: &T, shared: &Shared<'_, T>) -> Result<T> {
        let normed = self.attention_norm.forward(x, shared.dtype)?;
        let ([q, k, v], [q_rope, k_rope]) = (&self.projections, &self.ropes);
        let q = q_rope.forward(&q.forward(&normed)?, Some(shared.tables))?;
        let k = k_rope.forward(&k.forward(&normed)?, Some(shared.tables))?;
        let v = v.forward(&normed)?;
        drop(normed);
        let y = q.grouped_attention([&k, &v], None, shared.length, self.attention)?;
        drop((q, k, v));
        x.add(&self.o_proj.forward(&y)?.to_dtype(DType::F32)?)
    }

    fn feed_forward<T: TensorLike>(&self, x: &T, dtype: DType) -> Result<T> {
        self.feed_forward.add(x, self.feed_forward_norm.forward(x, dtype)?, dtype)
    }
}
