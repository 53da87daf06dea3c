//! Products with the values that kernels in e4m3 multiply, in f32.

use candle_core::{DType, Device, Tensor};

use super::source::Source;
use crate::conv2d::{Conv2d, Conv2dInputs, conv2d};
use crate::cpu::Bytes;
use crate::error::Result;
use crate::linear::linear;
use crate::matrix::f8_e4m3;
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
    let y = linear(&source.values(rows)?, &dense(weight)?, bias.as_ref(), residual.as_ref(), None)?;
    Ok(y.to_dtype(source.input().dtype())?.to_device(source.input().device())?)
}

/// A convolution, as [`linear_layer`]. `x` of the inputs is not read.
pub(crate) fn convolution(source: Source<'_>, inputs: Conv2dInputs<'_>, config: Conv2d) -> Result<Tensor> {
    let x = source.input();
    let pixels = x.elem_count() / inputs.weight.shape()[3].max(1);
    let scales = if inputs.weight.shape()[1..3] == [1, 1] { pixels } else { x.dim(0)? };
    let (bias, image_bias, residual) = (exact(inputs.bias)?, exact(inputs.image_bias)?, exact(inputs.residual)?);
    let (bias, image_bias, residual) = (bias.as_ref(), image_bias.as_ref(), residual.as_ref());
    let (values, weight) = (source.values(scales)?, dense(inputs.weight)?);
    let y = conv2d(Conv2dInputs { x: &values, weight: &weight, bias, image_bias, residual }, config, None)?;
    Ok(y.to_dtype(x.dtype())?.to_device(x.device())?)
}

fn exact(tensor: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(tensor.map(|tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)).transpose()?)
}

/// The numbers of a weight in e4m3, in f32 on the CPU.
fn dense(weight: &Weight) -> Result<Weight> {
    let shape @ [n, ..] = weight.shape();
    let here = weight.on(&Device::Cpu)?;
    let mut numbers = Vec::new();
    if let Some(fp8) = here.as_fp8() {
        let (bytes, scales) = (Bytes::new(here.tensor())?, Bytes::new(&fp8.scales)?);
        let scales = scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let row = shape.iter().product::<usize>() / n.max(1);
        for (row, scale) in bytes.chunks_exact(row.max(1)).zip(scales).take(n) {
            numbers.extend(row.iter().map(|&bits| f8_e4m3(bits) * scale));
        }
    }
    let dense = Tensor::from_vec(numbers, &shape, &Device::Cpu)?;
    Weight::plain(&if shape[1] * shape[2] == 1 { dense.reshape((n, shape[3]))? } else { dense })
}
