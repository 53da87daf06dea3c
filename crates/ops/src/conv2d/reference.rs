//! Convolution through candle's operator, which takes `(b, c, h, w)`.

use candle_core::Tensor;

use super::{Conv2d, Conv2dInputs, Shapes};
use crate::error::Result;
use crate::layout::{to_channels_first, to_channels_last};

pub(super) fn forward(inputs: Conv2dInputs<'_>, config: Conv2d, shapes: Shapes) -> Result<Tensor> {
    let Conv2d { stride, pad_before, pad_after } = config;
    let mut x = to_channels_first(inputs.x)?;
    let Shapes { pad_top, pad_bottom, .. } = shapes;
    let padding = if [pad_before, pad_after, pad_bottom] == [pad_top; 3] {
        pad_before
    } else {
        x = x.pad_with_zeros(2, pad_top, pad_bottom)?.pad_with_zeros(3, pad_before, pad_after)?;
        0
    };
    let weight = inputs.weight.tensor().permute((0, 3, 1, 2))?.contiguous()?; // (c_out, c_in, kh, kw)
    let mut y = to_channels_last(&x.conv2d(&weight, padding, stride, 1, 1)?)?;
    if let Some(bias) = inputs.bias {
        y = y.broadcast_add(bias)?;
    }
    if let Some(image_bias) = inputs.image_bias {
        y = y.broadcast_add(&image_bias.unsqueeze(1)?.unsqueeze(1)?)?; // (b, 1, 1, c_out)
    }
    if let Some(residual) = inputs.residual {
        y = (y + residual)?;
    }
    Ok(y)
}
