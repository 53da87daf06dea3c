//! The twin of the operators' `cuda.rs` for builds without CUDA: the same functions, which have no kernel for anything.

use candle_core::Tensor;

use crate::activation::Activation;
use crate::error::Result;

pub(crate) fn activation(_x: &Tensor, _function: Activation, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn geglu(_x: &Tensor, _shape: &[usize], _out: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}
