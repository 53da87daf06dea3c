//! Linear layers on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Addresses, Product};
use crate::error::Result;
use crate::matrix::cuda::numbers;
use crate::packing::WeightLayout;
use crate::w8a8::cuda as w8a8;
use crate::w8a8::source::Source;

/// `shape` is the result's.
impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, weight, bias, residual, shape, .. } = self;
        if weight.layout() == Some(WeightLayout::Panels) {
            return Ok(None);
        }
        if weight.as_w8().is_some() {
            let [.., k] = weight.shape();
            let shape = [1, 1, self.rows, k];
            let (bias, residual) = (*bias, *residual);
            let source = Source::Plain(x);
            let product =
                w8a8::Product { op: OP, source, shape, weight, bias, image_bias: None, residual, pad: [0, 0] };
            return product.launch(device, self.shape.as_slice(), out);
        }
        let dtype = x.dtype();
        let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
        let (input, matrix) = (operand(x)?, numbers(device, weight, dtype)?);
        let (bias, residual) = (bias.map(operand).transpose()?, residual.map(operand).transpose()?);
        let mut inputs = vec![&input, &matrix];
        inputs.extend([&bias, &residual].into_iter().flatten());
        let y = cuda::output(OP, out, shape, dtype, &inputs, device)?;
        let addresses = Addresses {
            x: cuda::address(&input)?,
            weight: cuda::address(&matrix)?,
            bias: bias.as_ref().map(cuda::address).transpose()?,
            residual: residual.as_ref().map(cuda::address).transpose()?,
            y: cuda::address(&y)?,
        };
        let [n, _, _, k] = weight.shape();
        let product = Product::new([y.elem_count() / n.max(1), n, k], dtype);
        // SAFETY: the operands have been checked to have these shapes, are contiguous and of this type, and outlive the
        // launch; they are freed in the order of the device's stream.
        Ok(unsafe { cuda::product(OP, device, product, addresses)? }.then_some(y))
    }
}
