//! Normalisation layers.

use candle_core::Tensor;
use kiln_ops::{GroupNormMoments, GroupNormStatistics, group_norm_workspace};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::shadow::{self, Shadow};

/// Group normalisation, with or without SiLU.
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
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kiln_ops::group_norm(x, &self.weight.tensor()?, &self.bias.tensor()?, self.config, None)?)
    }

    /// Moments of an image of which no pixel was seen yet.
    pub fn moments(&self) -> GroupNormMoments {
        GroupNormMoments::new(self.config)
    }

    /// The normalisation by all pixels that `moments` has seen: [`kiln_ops::group_norm_apply`] makes it.
    pub fn statistics(&self, moments: GroupNormMoments) -> Result<GroupNormStatistics> {
        Ok(moments.finish(&self.weight.tensor()?, &self.bias.tensor()?)?)
    }

    /// Adding `x` `(1, .., num_channels)` to moments, for shapes: what it takes besides operands.
    pub fn shadow_moments(&self, x: &Shadow) {
        let (pixels, c) = (x.elem_count() / x.channels().max(1), x.channels());
        x.run().takes(group_norm_workspace(x.run().target(), 1, pixels, c, self.config.num_groups));
    }

    /// [`GroupNorm::forward`] for shapes.
    pub fn shadow(&self, x: &Shadow) -> Shadow {
        shadow::group_norm(x, self.config)
    }
}

/// Layer normalisation.
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
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kiln_ops::layer_norm(x, &self.weight.tensor()?, &self.bias.tensor()?, self.eps, None)?)
    }

    /// [`LayerNorm::forward`] for shapes.
    pub fn shadow(&self, x: &Shadow) -> Shadow {
        shadow::layer_norm(x)
    }
}
