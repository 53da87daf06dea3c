//! Linear layers with an activation on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::concat::cuda as concat;
use crate::cuda::{self, Addresses, Product};
use crate::error::Result;
use crate::matrix::cuda::numbers;
use crate::operation::{rows_and_channels, with_channels};
use crate::packing::WeightLayout;
use crate::workspace::Target;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, _: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, weight, bias, function, before } = *self;
        let dtype = x.dtype();
        let is_plain = weight.layout() != Some(WeightLayout::Panels) && weight.as_w8().is_none();
        if !is_plain || !Target::Gpu.fuses_activation(dtype, function) {
            return Ok(None);
        }
        let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
        let (input, matrix) = (operand(x)?, numbers(device, weight, dtype)?);
        let (bias, before) = (bias.map(operand).transpose()?, before.map(operand).transpose()?);
        let ([n, _, _, k], (m, _)) = (weight.shape(), rows_and_channels(x.dims()));
        let first = before.as_ref().map_or(0, |before| rows_and_channels(before.dims()).1);
        let row = first + n;
        let y = cuda::output(OP, None, &with_channels(x.dims(), row), dtype, &[&input, &matrix], device)?;
        let to = cuda::address(&y)?;
        let addresses = Addresses {
            x: cuda::address(&input)?,
            weight: cuda::address(&matrix)?,
            bias: bias.as_ref().map(cuda::address).transpose()?,
            residual: None,
            y: to + (first * dtype.size_in_bytes()) as u64,
        };
        let product = Product { y_row: row, gelu: true, ..Product::new([m, n, k], dtype) };
        // SAFETY: the operands have been checked to have these shapes, are contiguous and of this type, and outlive the
        // launch; they are freed in the order of the device's stream. The result's rows are `row` elements apart, of which the
        // product writes the last `n`.
        if !unsafe { cuda::product(OP, device, product, addresses)? } {
            return Ok(None);
        }
        if let Some(before) = before {
            concat::copy_left(OP, device, &before, &y)?;
        }
        Ok(Some(y))
    }
}
