//! A linear layer through candle's matrix product.

use candle_core::Tensor;

use crate::error::Result;
use crate::matrix;
use crate::packing::Weight;
use crate::w8a8::{reference, source::Source};

pub(crate) fn forward(x: &Tensor, weight: &Weight, bias: Option<&Tensor>, residual: Option<&Tensor>) -> Result<Tensor> {
    let [n, _, _, k] = weight.shape();
    let rows = x.elem_count() / k.max(1);
    if weight.as_w8().is_some() {
        return reference::linear_layer(Source::Plain(x), weight, bias, residual);
    }
    let mut shape = x.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let mut y = x.reshape((rows, k))?.matmul(&matrix::dense(weight)?.t()?)?.reshape(shape)?;
    if let Some(bias) = bias {
        y = y.broadcast_add(bias)?;
    }
    if let Some(residual) = residual {
        y = (y + residual)?;
    }
    Ok(y)
}
