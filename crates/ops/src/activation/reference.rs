//! Activations in candle's primitives.

use candle_core::Tensor;

use super::Activation;
use crate::error::Result;

pub(crate) fn forward(x: &Tensor, function: Activation) -> Result<Tensor> {
    Ok(match function {
        Activation::Silu => x.silu()?,
        Activation::QuickGelu => (x * candle_nn::ops::sigmoid(&(x * 1.702)?)?)?,
        Activation::GeluErf => x.gelu_erf()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::Relu => x.relu()?,
    })
}
