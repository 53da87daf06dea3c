//! Linear layers on the CPU: 1x1 convolutions over one row of pixels.

use candle_core::Tensor;

use super::Call;
use crate::backend::{Cpu, Kernel};
use crate::conv2d::{Conv2d, Conv2dInputs, conv2d};
use crate::error::Result;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, weight, bias, residual, rows, shape } = self;
        if weight.as_w8().is_some() {
            return Ok(None); // a format for GPUs
        }
        let [n, _, _, k] = weight.shape();
        let pixels = |t: &Tensor, channels| t.reshape((1, 1, *rows, channels));
        let out = out.map(|out| pixels(out, n)).transpose()?;
        let residual = residual.map(|residual| pixels(residual, n)).transpose()?;
        let x = &pixels(x, k)?;
        let inputs = Conv2dInputs { x, weight: *weight, bias: *bias, image_bias: None, residual: residual.as_ref() };
        Ok(Some(conv2d(inputs, Conv2d::same(1), out.as_ref())?.reshape(shape.as_slice())?))
    }
}
