//! Convolution through candle's operator, which takes `(b, c, h, w)`.

use candle_core::Tensor;

use super::{Conv2d, Conv2dInputs, FusedConv2d, Shapes, Slope, Strip, conv2d, conv2d_strip};
use crate::activation::{Activation, activation};
use crate::error::Result;
use crate::layout::{to_channels_first, to_channels_last};
use crate::w8a8::{reference, source::Source};

pub(super) fn forward(inputs: Conv2dInputs<'_>, config: Conv2d, shapes: Shapes) -> Result<Tensor> {
    if inputs.weight.as_w8().is_some() {
        return reference::convolution(Source::Plain(inputs.x), inputs, config);
    }
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

/// The fused convolution as a composition of operators: what GPUs run.
pub(super) fn fused(inputs: FusedConv2d<'_>, config: Conv2d, strip: Option<&Strip>) -> Result<Tensor> {
    let FusedConv2d { parts, weight, bias, epilogue } = inputs;
    let joined = match parts {
        [x] => (*x).clone(),
        _ => Tensor::cat(parts, 3)?,
    };
    let scale = f64::from(epilogue.scale);
    // A residual of the convolution is added to the sums as they are.
    let (residual, addends) = match epilogue.addends {
        [Some((factor, residual)), second] if factor == 1.0 && scale == 1.0 => (Some(residual), [None, second]),
        addends => (None, addends),
    };
    let inputs = Conv2dInputs { x: &joined, weight, bias, image_bias: None, residual };
    let mut y = match strip {
        Some(strip) => conv2d_strip(inputs, config, strip, None)?,
        None => conv2d(inputs, config, None)?,
    };
    drop(joined);
    if scale != 1.0 {
        y = (y * scale)?;
    }
    for (factor, addend) in addends.into_iter().flatten() {
        y = match factor {
            1.0 => (y + addend)?,
            _ => (y + (addend * f64::from(factor))?)?,
        };
    }
    let negative = |y: &Tensor| y.neg()?.relu();
    match epilogue.slope {
        Slope::Linear => Ok(y),
        Slope::Constant(0.0) => activation(&y, Activation::Relu, None),
        Slope::Constant(slope) => Ok((y.relu()? - (negative(&y)? * f64::from(slope))?)?),
        Slope::Channels(slopes) => Ok((y.relu()? - negative(&y)?.broadcast_mul(slopes)?)?),
    }
}
