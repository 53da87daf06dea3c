//! A linear layer.

use candle_core::Tensor;
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::shadow::{self, Shadow};

/// `y = x weight^T + bias`.
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
    out_channels: usize,
}

impl Linear {
    /// Declares `weight` `(out_channels, in_channels)` and, where asked for, `bias` `(out_channels)`.
    pub fn new(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize, bias: bool) -> Self {
        Self {
            weight: p.param("weight", &[out_channels, in_channels], Packing::Linear),
            bias: bias.then(|| p.param("bias", &[out_channels], Packing::AsStored)),
            out_channels,
        }
    }

    /// `x` `(.., in_channels)` to `(.., out_channels)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_add(x, None)
    }

    /// The same, with `residual` `(.., out_channels)` added to the result.
    pub fn forward_add(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::tensor).transpose()?.or_else(|| self.added_bias());
        Ok(kiln_ops::linear(x, &self.weight.weight()?, bias.as_ref(), residual, None)?)
    }

    /// The bias that a LoRA gives a layer without one.
    pub(crate) fn added_bias(&self) -> Option<Tensor> {
        self.weight.added_bias().filter(|_| self.bias.is_none())
    }

    /// [`Linear::forward`] for shapes; a residual costs nothing.
    pub fn shadow(&self, x: &Shadow) -> Shadow {
        shadow::linear(x, self.out_channels)
    }
}
