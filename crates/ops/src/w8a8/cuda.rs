//! Products of bytes on GPUs: one or two kernels that round the activation, and one that multiplies.
#![allow(unsafe_code)]

use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use super::fused::Call;
use super::rounding::aligned;
use super::source::Source;
use super::{ALIGNMENT, ByteNumber, tile};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Addresses, ImageOperands, ImageProduct, Module, hopper};
use crate::error::Result;
use crate::packing::Weight;

pub(super) static KERNELS: Module = cuda::kernels!("w8a8");

/// The operands of a product of bytes: the activation, the weight, and the addends (bias, image bias, residual).
pub(crate) struct Product<'a> {
    /// The operator.
    pub(crate) op: &'static str,
    /// The activation, of the shape `(b, h, w, c)`; a linear layer's is `(1, 1, rows, k)`.
    pub(crate) source: Source<'a>,
    pub(crate) shape: [usize; 4],
    pub(crate) weight: &'a Weight,
    pub(crate) bias: Option<&'a Tensor>,
    /// `(b, n)` or `(1, n)`.
    pub(crate) image_bias: Option<&'a Tensor>,
    pub(crate) residual: Option<&'a Tensor>,
    /// Rows of zeros above and columns of zeros on the left.
    pub(crate) pad: [usize; 2],
}

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { op, source, input, weight, addends: [bias, image_bias, residual], config, .. } = *self;
        let pad = [config.pad_before; 2];
        let product = Product { op, source, shape: input, weight, bias, image_bias, residual, pad };
        let mut result = source.input().dims().to_vec();
        if let Some(channels) = result.last_mut() {
            *channels = weight.shape()[0];
        }
        product.launch(device, &result, out)
    }
}

impl Product<'_> {
    /// Launches the product into `out` or a new tensor of the shape `result`. `None` if there is no kernel.
    pub(crate) fn launch(&self, device: &CudaDevice, result: &[usize], out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { op, source, shape: [b, h, w, c], weight, .. } = *self;
        let (dtype, [n, kh, kw, _]) = (source.input().dtype(), weight.shape());
        let Some(w8) = weight.as_w8().filter(|_| dtype != DType::F32) else { return Ok(None) };
        if !cuda::has_byte_products(device, w8.number)? || b * h * w == 0 {
            return Ok(None);
        }
        let is_hopper = w8.number == ByteNumber::E4m3 && cuda::has_hopper_code(device)?;
        let operand = |tensor: &Tensor| aligned(&cuda::operand(tensor, dtype)?);
        let added = [self.bias, self.image_bias, self.residual];
        let [bias, image_bias, residual] = added.map(|tensor| tensor.map(operand).transpose());
        let (bias, image_bias, residual) = (bias?, image_bias?, residual?);
        let mut operands = vec![source.input(), weight.tensor()];
        operands.extend([&bias, &image_bias, &residual].into_iter().flatten());
        let y = cuda::output(op, out, result, dtype, &operands, device)?;
        if !cuda::address(&y)?.is_multiple_of(ALIGNMENT as u64) {
            let y = self.launch(device, result, None)?;
            return y.map(|y| crate::output::store(op, y, out)).transpose();
        }
        let is_by_pixel = kh * kw == 1;
        let Some(rounded) = source.round(op, w8.number, self.shape, is_by_pixel, device)? else { return Ok(None) };
        if is_hopper && is_by_pixel && image_bias.is_none() {
            let addresses = Addresses {
                x: cuda::address(&rounded.bytes)?,
                weight: cuda::start(weight.tensor())?,
                bias: bias.as_ref().map(cuda::address).transpose()?,
                residual: residual.as_ref().map(cuda::address).transpose()?,
                y: cuda::address(&y)?,
            };
            let scales = [cuda::address(&rounded.scales)?, cuda::start(&w8.scales)?];
            let product = cuda::Product::new([b * h * w, n, c], dtype);
            // SAFETY: the operands have been checked to have these shapes, are contiguous and of these types, and outlive the
            // launch; they are freed in the order of the device's stream.
            if unsafe { cuda::product_e4m3(device, product, addresses, scales)? } {
                return Ok(Some(y));
            }
        }
        let address = |tensor: &Option<Tensor>| tensor.as_ref().map_or(Ok(0), cuda::address);
        let count = |value: usize| cuda::count(op, value);
        let stride = image_bias.as_ref().map_or(0, |tensor| if tensor.elem_count() == n { 0 } else { n });
        count(b * h * w)?;
        let arguments = ImageProduct {
            x_scales: cuda::address(&rounded.scales)?,
            weight_scales: cuda::start(&w8.scales)?,
            bias: address(&bias)?,
            image_bias: address(&image_bias)?,
            sizes: [count(b)?, count(h)?, count(w)?, count(c)?, count(n)?],
            window: [count(kh * kw)?, count(kw)?, count(self.pad[0])?, count(self.pad[1])?],
            bits: [0; 2],
            tiles: [0; 4],
            image_bias_stride: count(stride)?,
            scales_by_pixel: is_by_pixel.into(),
            has_residual: residual.is_some().into(),
        };
        let operands = ImageOperands {
            x: cuda::address(&rounded.bytes)?,
            weight: cuda::start(weight.tensor())?,
            residual: address(&residual)?,
            y: cuda::address(&y)?,
            dtype,
        };
        match is_hopper {
            true => {
                let kernels = hopper::Kernels { module: &KERNELS, name: "w8a8_product", input: hopper::Input::Bytes };
                hopper::launch(op, kernels, operands, arguments, device)?;
            }
            false => tile::launch(op, w8.number, operands, arguments, device)?,
        }
        Ok(Some(y))
    }
}
