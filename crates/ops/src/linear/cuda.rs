//! Linear layers on cards.
#![allow(unsafe_code)]

use candle_core::Tensor;

use super::OP;
use crate::cuda::{self, Addresses, Product};
use crate::error::Result;
use crate::matrix::cuda::numbers;
use crate::packing::{Weight, WeightLayout};

/// `shape` is the result's.
pub(super) fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    shape: &[usize],
    out: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let Some(device) = cuda::card(x)? else { return Ok(None) };
    if weight.layout() == Some(WeightLayout::Panels) {
        return Ok(None);
    }
    let dtype = x.dtype();
    let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
    let (input, matrix) = (operand(x)?, numbers(&device, weight, dtype)?);
    let (bias, residual) = (bias.map(operand).transpose()?, residual.map(operand).transpose()?);
    let mut inputs = vec![&input, &matrix];
    inputs.extend([&bias, &residual].into_iter().flatten());
    let y = cuda::output(OP, out, shape, dtype, &inputs, &device)?;
    let addresses = Addresses {
        x: cuda::address(&input)?,
        weight: cuda::address(&matrix)?,
        bias: bias.as_ref().map(cuda::address).transpose()?,
        residual: residual.as_ref().map(cuda::address).transpose()?,
        y: cuda::address(&y)?,
    };
    let [n, _, _, k] = weight.shape();
    let product = Product { m: y.elem_count() / n.max(1), n, k, dtype };
    // SAFETY: the operands were checked to have these shapes, are contiguous and of this type, and live until after the
    // launch; the device's stream frees them later than it runs it.
    Ok(unsafe { cuda::product(OP, &device, product, addresses)? }.then_some(y))
}
