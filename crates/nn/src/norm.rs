//! Normalization layers.

use kiln_ops::{Activation, RowNorm};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::tensor::{Moments, TensorLike};

/// Group normalization, with or without SiLU.
pub struct GroupNorm {
    weight: Param,
    bias: Param,
    config: kiln_ops::GroupNorm,
}

impl GroupNorm {
    /// Declares `weight` and `bias` `(num_channels)`.
    pub fn new(p: &ParamBuilder<'_>, num_channels: usize, config: kiln_ops::GroupNorm) -> Self {
        Self {
            weight: p.param("weight", &[num_channels], Packing::AsStored),
            bias: p.param("bias", &[num_channels], Packing::AsStored),
            config,
        }
    }

    /// `x` `(b, .., num_channels)`, same shape.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        x.group_norm(&x.param(&self.weight)?, &x.param(&self.bias)?, self.config)
    }

    /// Gamma, beta, and the configuration, for an operator that normalizes `x` itself.
    pub(crate) fn params<T: TensorLike>(&self, x: &T) -> Result<(T, T, kiln_ops::GroupNorm)> {
        Ok((x.param(&self.weight)?, x.param(&self.bias)?, self.config))
    }

    /// The moments of an image before the first pixel.
    pub fn moments<T: TensorLike>(&self) -> T::Moments {
        T::Moments::new(self.config)
    }

    /// The statistics of all pixels that were added to `moments`, for [`crate::Operators::group_norm_apply`].
    pub fn statistics<T: TensorLike>(&self, moments: T::Moments) -> Result<T::Statistics> {
        moments.finish(&self.weight, &self.bias)
    }
}

/// Normalization of the channels of each pixel to a mean square of 1, and SiLU: the autoencoder of Wan and Qwen-Image.
pub struct PixelNorm(RmsNorm);

/// Keeps pixels of zeros at zero. It is too small to change others.
const PIXEL_EPS: f64 = 1e-24;

impl PixelNorm {
    /// Declares `gamma` `(num_channels)`.
    pub fn new(p: &ParamBuilder<'_>, num_channels: usize) -> Self {
        Self(RmsNorm::named(p, "gamma", num_channels, PIXEL_EPS))
    }

    /// `x` `(.., num_channels)`, same shape.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.without_activation(x)?.activation(Activation::Silu)
    }

    /// [`PixelNorm::forward`] without SiLU.
    pub fn without_activation<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.0.forward(x)
    }
}

/// The normalization of a feature map, and its activation.
pub enum MapNorm {
    /// Over groups of channels and all pixels.
    Group(GroupNorm),
    /// Over the channels of each pixel.
    Pixel(PixelNorm),
}

impl MapNorm {
    /// `x` `(b, h, w, num_channels)`, same shape.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        match self {
            Self::Group(norm) => norm.forward(x),
            Self::Pixel(norm) => norm.forward(x),
        }
    }
}

/// Normalization to a mean square of 1.
pub struct RmsNorm {
    weight: Option<Param>,
    eps: f64,
}

impl RmsNorm {
    /// Declares `weight` `(num_channels)`; `eps` is added to the mean square.
    pub fn new(p: &ParamBuilder<'_>, num_channels: usize, eps: f64) -> Self {
        Self::named(p, "weight", num_channels, eps)
    }

    /// [`RmsNorm::new`] with another name of the weight.
    fn named(p: &ParamBuilder<'_>, name: &str, num_channels: usize, eps: f64) -> Self {
        Self { weight: Some(p.param(name, &[num_channels], Packing::AsStored)), eps }
    }

    /// Without a weight.
    pub fn without_weight(eps: f64) -> Self {
        Self { weight: None, eps }
    }

    /// `x` `(.., num_channels)`, same shape.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        x.rms_norm(x.optional_param(self.weight.as_ref())?.as_ref(), self.eps)
    }

    /// [`RmsNorm::forward`] of `x` `(b, .., num_channels)`, with each image multiplied by `1 + scale`, `(b, num_channels)` or
    /// `(1, num_channels)`.
    pub fn forward_scaled<T: TensorLike>(&self, x: &T, scale: &T) -> Result<T> {
        let weight = x.optional_param(self.weight.as_ref())?;
        x.modulated_norm(RowNorm::Rms, [weight.as_ref(), Some(scale), None], self.eps)
    }
}

/// Layer normalization.
pub struct LayerNorm {
    weight: Param,
    bias: Param,
    eps: f64,
}

impl LayerNorm {
    /// Declares `weight` and `bias` `(num_channels)`; `eps` is added to the variance.
    pub fn new(p: &ParamBuilder<'_>, num_channels: usize, eps: f64) -> Self {
        Self {
            weight: p.param("weight", &[num_channels], Packing::AsStored),
            bias: p.param("bias", &[num_channels], Packing::AsStored),
            eps,
        }
    }

    /// `x` `(.., num_channels)`, same shape.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        x.layer_norm(&x.param(&self.weight)?, &x.param(&self.bias)?, self.eps)
    }

    /// Gamma, beta, and epsilon, for an operator that normalizes `x` itself.
    pub(crate) fn params<T: TensorLike>(&self, x: &T) -> Result<(T, T, f64)> {
        Ok((x.param(&self.weight)?, x.param(&self.bias)?, self.eps))
    }
}
