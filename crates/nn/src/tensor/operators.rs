//! The operators as methods of tensors.

use candle_core::DType;
use kiln_ops::{
    Activated, ActivatedLinearOp, Activation, ActivationLinearOp, Attention, AttentionOp, AttentionReceivedOp,
    ChangeSumsOp, ConcatOp, Conv2d, Conv2dInputs, Conv2dOp, FusedConv2d, FusedConv2dOp, GatedActivationOp,
    GatedResidualOp, GegluLinearOp, GegluOp, GroupNorm, GroupNormApplyOp, GroupNormOp, GroupedAttention,
    GroupedAttentionOp, GuidanceOp, LayerNormOp, LayoutOp, LinearGegluOp, LinearOp, MaskedAttentionOp, ModulatedNormOp,
    NormedConv2dOp, NormedLinearOp, PixelShuffleOp, RopeOp, RopePairs, RowNorm, Strip, TimestepEmbedding,
    TimestepEmbeddingOp, UpsampleOp,
};

use super::TensorLike;
use crate::error::Result;

/// The operators of `kiln_ops`. Every [`TensorLike`] has them: generic code
/// needs no import, code for one type of tensors imports this trait.
pub trait Operators: Sized {
    // Attention.

    /// [`kiln_ops::attention()`] of the queries `self`.
    fn attention(&self, k: &Self, v: &Self, config: Attention) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&AttentionOp { q: self, k, v, config })
    }

    /// [`kiln_ops::attention_masked`] of the queries `self`.
    fn attention_masked(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self>
    where
        Self: TensorLike,
    {
        let [q, k, v] = [self.to_dtype(DType::F32)?, k.to_dtype(DType::F32)?, v.to_dtype(DType::F32)?];
        let y = self.apply(&MaskedAttentionOp { q: &q, k: &k, v: &v, seen, config })?;
        y.to_dtype(self.dtype())
    }

    /// For each key `k` `(b, t, c)` the sum of the attention that the queries `self` `(b, s, c)` give it, as a mean over the heads:
    /// `(b, t)` in f32. Without a causal mask.
    fn attention_received(&self, k: &Self, config: Attention) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&AttentionReceivedOp { q: self, k, config })
    }

    /// [`kiln_ops::grouped_attention`] of the queries `self`, with a bias and lengths if there are any.
    fn grouped_attention(
        &self,
        [k, v]: [&Self; 2],
        bias: Option<&Self>,
        lengths: Option<&Self>,
        config: GroupedAttention,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GroupedAttentionOp { q: self, k, v, bias, lengths, config })
    }

    /// [`kiln_ops::rope`] with tables of cosines and sines, and gamma and epsilon of a normalization of each head.
    fn rope(
        &self,
        [cos, sin]: [&Self; 2],
        norm: Option<(&Self, f64)>,
        num_heads: usize,
        pairs: RopePairs,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&RopeOp { x: self, cos, sin, norm, num_heads, pairs })
    }

    /// [`kiln_ops::supports_strided_qkv`].
    fn supports_strided_qkv(&self) -> bool
    where
        Self: TensorLike,
    {
        self.target().supports_strided_qkv(self.dtype())
    }

    // Products.

    /// [`kiln_ops::conv2d`].
    fn conv2d(
        &self,
        weight: &Self::Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        let inputs = Conv2dInputs { x: self, weight, bias, image_bias, residual };
        self.apply(&Conv2dOp { inputs, config, strip: None, out: None })
    }

    /// [`kiln_ops::conv2d_strip`] without an image bias. `strip` contains the geometry and the rows.
    fn conv2d_strip(
        &self,
        weight: &Self::Weight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        (config, strip): (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        let inputs = Conv2dInputs { x: self, weight, bias, image_bias: None, residual };
        self.apply(&Conv2dOp { inputs, config, strip: Some(strip), out })
    }

    /// [`kiln_ops::fused_conv2d`].
    fn fused_conv2d(
        inputs: FusedConv2d<'_, Self, Self::Weight>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        let Some(first) = inputs.parts.first() else {
            let message = "there are no feature maps, expected at least one".into();
            return Err(kiln_ops::Error::Config { op: "conv2d", message }.into());
        };
        first.apply(&FusedConv2dOp { inputs, config, strip, out })
    }

    /// [`kiln_ops::normed_conv2d`] with gamma, beta and the configuration of the norm, for a weight in 8-bit floats.
    fn normed_conv2d(
        &self,
        norm: (&Self, &Self, GroupNorm),
        weight: &Self::Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        let inputs = Conv2dInputs { x: self, weight, bias, image_bias, residual };
        self.apply(&NormedConv2dOp { norm, inputs, config })
    }

    /// [`kiln_ops::linear`].
    fn linear(&self, weight: &Self::Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&LinearOp { x: self, weight, bias, residual })
    }

    /// [`kiln_ops::activated_linear`].
    fn activated_linear(
        &self,
        weight: &Self::Weight,
        bias: Option<&Self>,
        function: Activation,
        before: Option<&Self>,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        let linear = LinearOp { x: self, weight, bias, residual: None };
        self.apply(&ActivatedLinearOp { linear, function, before })
    }

    /// [`kiln_ops::linear_geglu`].
    fn linear_geglu(&self, weight: &Self::Weight, bias: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&LinearGegluOp { x: self, weight, bias })
    }

    /// [`kiln_ops::normed_linear`] with gamma, beta and epsilon of the norm, for a weight in 8-bit floats.
    fn normed_linear(&self, norm: (&Self, &Self, f64), weight: &Self::Weight, bias: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        let linear = LinearOp { x: self, weight, bias, residual: None };
        self.apply(&NormedLinearOp { norm, linear })
    }

    /// [`kiln_ops::geglu_linear`], for a weight in 8-bit floats.
    fn geglu_linear(&self, weight: &Self::Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GegluLinearOp(LinearOp { x: self, weight, bias, residual }))
    }

    /// [`kiln_ops::activation_linear`], for a weight in bytes.
    fn activation_linear(
        input: Activated<&Self>,
        weight: &Self::Weight,
        bias: Option<&Self>,
        residual: Option<&Self>,
    ) -> Result<Self>
    where
        Self: TensorLike,
    {
        input.hidden.first().apply(&ActivationLinearOp { input, weight, bias, residual })
    }

    // Normalizations and gates.

    /// [`kiln_ops::geglu`].
    fn geglu(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GegluOp { x: self })
    }

    /// [`kiln_ops::group_norm`].
    fn group_norm(&self, gamma: &Self, beta: &Self, config: GroupNorm) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GroupNormOp { x: self, gamma, beta, config })
    }

    /// [`kiln_ops::group_norm_apply`].
    fn group_norm_apply(&self, statistics: &Self::Statistics, out: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GroupNormApplyOp { x: self, statistics, out })
    }

    /// [`kiln_ops::layer_norm`].
    fn layer_norm(&self, gamma: &Self, beta: &Self, eps: f64) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&LayerNormOp { x: self, gamma, beta, eps })
    }

    /// [`kiln_ops::rms_norm`].
    fn rms_norm(&self, gamma: Option<&Self>, eps: f64) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.modulated_norm(RowNorm::Rms, [gamma, None, None], eps)
    }

    /// [`kiln_ops::modulated_norm`] with gamma, scale and shift.
    fn modulated_norm(&self, norm: RowNorm, [gamma, scale, shift]: [Option<&Self>; 3], eps: f64) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&ModulatedNormOp { x: self, norm, gamma, scale, shift, eps })
    }

    /// [`kiln_ops::gated_activation`] of the gates `self`.
    fn gated_activation(&self, function: Activation, values: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GatedActivationOp { function, gate: self, values })
    }

    /// [`kiln_ops::gated_residual`]: `self + gate y`.
    fn gated_residual(&self, gate: &Self, y: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GatedResidualOp { x: self, gate, y })
    }

    /// [`kiln_ops::change_sums`] since `before`.
    fn change_sums(&self, before: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&ChangeSumsOp { now: self, before })
    }

    /// [`kiln_ops::guidance`].
    fn guidance(&self, scale: &Self, out: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&GuidanceOp { both: self, scale, out })
    }

    // Layouts.

    /// [`kiln_ops::concat_channels`].
    fn concat_channels(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&ConcatOp { a: self, b: other })
    }

    /// [`kiln_ops::pixel_shuffle`].
    fn pixel_shuffle(&self, factor: usize) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&PixelShuffleOp { x: self, factor, shuffle: true })
    }

    /// [`kiln_ops::pixel_unshuffle`].
    fn pixel_unshuffle(&self, factor: usize) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&PixelShuffleOp { x: self, factor, shuffle: false })
    }

    /// [`kiln_ops::timestep_embedding`].
    fn timestep_embedding(&self, config: TimestepEmbedding, dtype: DType) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&TimestepEmbeddingOp { values: self, config, dtype })
    }

    /// [`kiln_ops::layout::to_channels_first`].
    fn to_channels_first(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&LayoutOp { x: self, channels_last: false })
    }

    /// [`kiln_ops::layout::to_channels_last`].
    fn to_channels_last(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&LayoutOp { x: self, channels_last: true })
    }

    /// [`kiln_ops::upsample_nearest`].
    fn upsample_nearest(&self, size: (usize, usize), out: Option<&Self>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&UpsampleOp { x: self, size, out })
    }
}

impl<T: TensorLike> Operators for T {}
