//! Products of the values that the bytes of kernels stand for, in f32.

use candle_core::{DType, Device, Tensor};

use super::source::Source;
use super::{ByteNumber, W8Weight};
use crate::conv2d::{Conv2d, Conv2dInputs, conv2d};
use crate::cpu::Bytes;
use crate::error::{Error, Result};
use crate::linear::linear;
use crate::packing::Weight;

/// A linear layer, in the type and on the device of the source.
pub(crate) fn linear_layer(
    source: Source<'_>,
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let rows = source.input().elem_count() / source.input().dims().last().copied().unwrap_or(1).max(1);
    let (bias, residual) = (exact(bias)?, exact(residual)?);
    let (number, weight) = dense(weight)?;
    let y = linear(&source.values(number, rows)?, &weight, bias.as_ref(), residual.as_ref(), None)?;
    Ok(y.to_dtype(source.input().dtype())?.to_device(source.input().device())?)
}

/// A convolution, as [`linear_layer`]. `x` of the inputs is not read.
pub(crate) fn convolution(source: Source<'_>, inputs: Conv2dInputs<'_>, config: Conv2d) -> Result<Tensor> {
    let x = source.input();
    let pixels = x.elem_count() / inputs.weight.shape()[3].max(1);
    let scales = if inputs.weight.shape()[1..3] == [1, 1] { pixels } else { x.dim(0)? };
    let (bias, image_bias, residual) = (exact(inputs.bias)?, exact(inputs.image_bias)?, exact(inputs.residual)?);
    let (bias, image_bias, residual) = (bias.as_ref(), image_bias.as_ref(), residual.as_ref());
    let (number, weight) = dense(inputs.weight)?;
    let values = source.values(number, scales)?;
    let y = conv2d(Conv2dInputs { x: &values, weight: &weight, bias, image_bias, residual }, config, None)?;
    Ok(y.to_dtype(x.dtype())?.to_device(x.device())?)
}

fn exact(tensor: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(tensor.map(|tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)).transpose()?)
}

/// The values of a weight in bytes, in f32 on the CPU, and what its bytes are.
fn dense(weight: &Weight) -> Result<(ByteNumber, Weight)> {
    let shape @ [n, ..] = weight.shape();
    let here = weight.on(&Device::Cpu)?;
    let Some(W8Weight { number, scales }) = here.as_w8() else {
        return Err(Error::Config { op: "linear", message: "the weight is not in bytes, expected one that is".into() });
    };
    let (bytes, scales) = (Bytes::new(here.tensor())?, Bytes::new(scales)?);
    let scales = scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let row = shape.iter().product::<usize>() / n.max(1);
    let rows = bytes.chunks_exact(row.max(1)).zip(scales).take(n);
    let values: Vec<f32> =
        rows.flat_map(|(row, scale)| row.iter().map(move |&byte| number.value(byte) * scale)).collect();
    let dense = Tensor::from_vec(values, &shape, &Device::Cpu)?;
    let dense = if shape[1] * shape[2] == 1 { dense.reshape((n, shape[3]))? } else { dense };
    Ok((*number, Weight::plain(&dense)?))
}
