//! A linear layer.

use candle_core::Tensor;
use kiln_ops::{Activated, Activation, Hidden};
use kiln_weights::{EightBits, Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::norm::LayerNorm;
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

    /// A layer of these parameters.
    pub(crate) fn of(weight: Param, bias: Option<Param>) -> Self {
        Self { weight, bias }
    }

    /// `x` `(.., in_channels)` to `(.., out_channels)`.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.forward_add(x, None)
    }

    /// Like [`Linear::forward`], with `residual` `(.., out_channels)` added to the output.
    pub fn forward_add<T: TensorLike>(&self, x: &T, residual: Option<&T>) -> Result<T> {
        x.linear(&x.weight(&self.weight)?, self.bias(x)?.as_ref(), residual)
    }

    /// Like [`Linear::forward`], without the bias.
    pub fn forward_without_bias<T: TensorLike>(&self, x: &T) -> Result<T> {
        x.linear(&x.weight(&self.weight)?, None, None)
    }

    /// The bias `(out_channels)`, if there is one, for use with `x`.
    pub fn bias_of<T: TensorLike>(&self, x: &T) -> Result<Option<T>> {
        self.bias(x)
    }

    /// The activation of [`Linear::forward`], `(.., out_channels)`. With `before` `(.., m)` the result is `(.., m + out_channels)`: its first
    /// `m` channels are those of `before`. Both operands are dropped as early as possible, which lowers the peak of memory.
    pub fn forward_activated<T: TensorLike>(&self, x: T, function: Activation, before: Option<T>) -> Result<T> {
        if self.weight.eight_bits().is_none() && x.target().fuses_activation(x.dtype(), function) {
            let (weight, bias) = (x.weight(&self.weight)?, self.bias(&x)?);
            return x.activated_linear(&weight, bias.as_ref(), function, before.as_ref());
        }
        let hidden = self.forward(&x)?;
        drop(x);
        let activated = hidden.activation(function)?;
        drop(hidden);
        match before {
            Some(before) => before.concat_channels(&activated),
            None => Ok(activated),
        }
    }

    /// GEGLU of [`Linear::forward_normed`], if the device has one kernel for the product and GEGLU.
    pub(crate) fn forward_normed_geglu<T: TensorLike>(&self, x: &T, norm: &LayerNorm) -> Result<Option<T>> {
        let weight = x.weight(&self.weight)?;
        if !x.has_linear_geglu(&weight)? {
            return Ok(None);
        }
        norm.forward(x)?.linear_geglu(&weight, self.bias(x)?.as_ref()).map(Some)
    }

    /// Like [`Linear::forward`] for `norm` of `x`.
    pub fn forward_normed<T: TensorLike>(&self, x: &T, norm: &LayerNorm) -> Result<T> {
        if !self.is_fused() {
            return self.forward(&norm.forward(x)?);
        }
        let (gamma, beta, eps) = norm.params(x)?;
        x.normed_linear((&gamma, &beta, eps), &x.weight(&self.weight)?, self.bias(x)?.as_ref())
    }

    /// Like [`Linear::forward_add`] for GEGLU of `x` `(.., 2 in_channels)`, which is dropped as early as possible.
    pub fn forward_geglu<T: TensorLike>(&self, x: T, residual: Option<&T>) -> Result<T> {
        if !self.is_fused() {
            let hidden = x.geglu()?;
            drop(x);
            return self.forward_add(&hidden, residual);
        }
        x.geglu_linear(&x.weight(&self.weight)?, self.bias(&x)?.as_ref(), residual)
    }

    /// Like [`Linear::forward_add`] for an activation, which may follow other channels. The operands are dropped as early as
    /// possible.
    pub fn forward_activation<T: TensorLike>(&self, input: Activated<T>, residual: Option<&T>) -> Result<T> {
        if self.is_fused() {
            let first = input.hidden.as_ref().first();
            let (weight, bias) = (first.weight(&self.weight)?, self.bias(first)?);
            return T::activation_linear(input.as_ref(), &weight, bias.as_ref(), residual);
        }
        let Activated { before, hidden, function } = input;
        let activated = match hidden {
            Hidden::Plain(x) => x.activation(function)?,
            Hidden::Joint(x) => x.gated_activation(function, None)?,
            Hidden::Separate { gates, values } => gates.gated_activation(function, Some(&values))?,
        };
        let joined = match before {
            Some(before) => before.concat_channels(&activated)?,
            None => return self.forward_add(&activated, residual),
        };
        drop(activated);
        self.forward_add(&joined, residual)
    }

    /// Whether the operator before the product is part of it.
    pub(crate) fn is_fused(&self) -> bool {
        matches!(self.weight.eight_bits(), Some(EightBits::W8A8(_)))
    }

    fn bias<T: TensorLike>(&self, x: &T) -> Result<Option<T>> {
        Ok(match (x.optional_param(self.bias.as_ref())?, self.added_bias()) {
            (None, Some(added)) => Some(x.new_constant(&added)?),
            (bias, _) => bias,
        })
    }

    /// The bias that a LoRA adds to a layer without one.
    pub(crate) fn added_bias(&self) -> Option<Tensor> {
        self.weight.added_bias().filter(|_| self.bias.is_none())
    }
}
