//! A convolution.

use candle_core::Tensor;
use kiln_ops::Conv2dInputs;
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::shadow::{self, Shadow};

/// A two-dimensional convolution with a square kernel.
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    /// `(out_channels, kernel_size, kernel_size, in_channels)`.
    shape: [usize; 4],
    config: kiln_ops::Conv2d,
}

impl Conv2d {
    /// Stride 1 and the padding that keeps the size: `weight` `(out_channels, in_channels, kernel_size, kernel_size)`,
    /// `bias` `(out_channels)`.
    pub fn new(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize, kernel_size: usize) -> Self {
        Self::with_geometry(p, in_channels, out_channels, kernel_size, kiln_ops::Conv2d::same(kernel_size))
    }

    /// The same with another stride or padding.
    pub fn with_geometry(
        p: &ParamBuilder<'_>,
        in_channels: usize,
        out_channels: usize,
        kernel_size: usize,
        config: kiln_ops::Conv2d,
    ) -> Self {
        let conv = Self::without_bias(p, in_channels, out_channels, kernel_size, config);
        Self { bias: Some(p.param("bias", &[out_channels], Packing::AsStored)), ..conv }
    }

    /// The same with `weight` alone.
    pub fn without_bias(
        p: &ParamBuilder<'_>,
        in_channels: usize,
        out_channels: usize,
        kernel_size: usize,
        config: kiln_ops::Conv2d,
    ) -> Self {
        let stored = [out_channels, in_channels, kernel_size, kernel_size];
        let shape = [out_channels, kernel_size, kernel_size, in_channels];
        Self { weight: p.param("weight", &stored, Packing::Conv2d), bias: None, shape, config }
    }

    /// `x` `(b, h, w, in_channels)` to `(b, h_out, w_out, out_channels)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_add(x, None, None)
    }

    /// The same, with `image_bias` `(b or 1, out_channels)` and `residual`, of the result's shape, added.
    pub fn forward_add(&self, x: &Tensor, image_bias: Option<&Tensor>, residual: Option<&Tensor>) -> Result<Tensor> {
        let weight = self.weight.weight()?;
        let bias = self.bias.as_ref().map(Param::tensor).transpose()?;
        let inputs = Conv2dInputs { x, weight: &weight, bias: bias.as_ref(), image_bias, residual };
        Ok(kiln_ops::conv2d(inputs, self.config, None)?)
    }

    /// [`Conv2d::forward`] for shapes.
    pub fn shadow(&self, x: &Shadow) -> Shadow {
        self.shadow_add(x, false)
    }

    /// [`Conv2d::forward_add`] for shapes: whether there is an `image_bias` matters, a residual costs nothing.
    pub fn shadow_add(&self, x: &Shadow, image_bias: bool) -> Shadow {
        shadow::conv2d(x, self.shape, self.config, image_bias)
    }
}
