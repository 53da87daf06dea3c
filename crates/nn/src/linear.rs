//! A linear layer.

use candle_core::Tensor;
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::tensor::TensorLike;

/// `y = x weight^T + bias`.
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    /// Declares `weight` `(out_channels, in_channels)` and, if requested, `bias` `(out_channels)`.
    pub fn new(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize, bias: bool) -> Self {
        Self {
            weight: p.param("weight", &[out_channels, in_channels], Packing::Linear),
            bias: bias.then(|| p.param("bias", &[out_channels], Packing::AsStored)),
        }
    }

    /// `x` `(.., in_channels)` to `(.., out_channels)`.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.forward_add(x, None)
    }

    /// As [`Linear::forward`], with `residual` `(.., out_channels)` added to the output.
    pub fn forward_add<T: TensorLike>(&self, x: &T, residual: Option<&T>) -> Result<T> {
        let bias = match (x.optional_param(self.bias.as_ref())?, self.added_bias()) {
            (None, Some(added)) => Some(x.new_constant(&added)?),
            (bias, _) => bias,
        };
        x.linear(&x.weight(&self.weight)?, bias.as_ref(), residual)
    }

    /// The bias that a LoRA adds to a layer without one.
    pub(crate) fn added_bias(&self) -> Option<Tensor> {
        self.weight.added_bias().filter(|_| self.bias.is_none())
    }
}
