//! A convolution.

use std::ops::Range;

use candle_core::Tensor;
use kiln_ops::{Conv2dInputs, Strip, conv2d_workspace};
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

    /// Rows `strip.rows` of what [`Conv2d::forward_add`] gives for a whole map, from the rows of it that they read
    /// ([`Conv2d::input_rows`]), `x` `(1, n, w, in_channels)`; written to `out` where it is given.
    pub fn forward_strip(
        &self,
        x: &Tensor,
        strip: &Strip,
        residual: Option<&Tensor>,
        out: Option<&Tensor>,
    ) -> Result<Tensor> {
        let weight = self.weight.weight()?;
        let bias = self.bias.as_ref().map(Param::tensor).transpose()?;
        let inputs = Conv2dInputs { x, weight: &weight, bias: bias.as_ref(), image_bias: None, residual };
        Ok(kiln_ops::conv2d_strip(inputs, self.config, strip, out)?)
    }

    /// The rows of the input that a strip of the result reads.
    pub fn input_rows(&self, strip: &Strip) -> Range<usize> {
        strip.input_rows(self.config, self.shape[1])
    }

    /// The result's shape `(h, w, c)` for an input of `h` rows and `w` columns.
    pub fn output_shape(&self, [h, w]: [usize; 2]) -> [usize; 3] {
        let [out_channels, kernel_size, ..] = self.shape;
        let size = |size| self.config.output_size(size, kernel_size).unwrap_or(0);
        [size(h), size(w), out_channels]
    }

    /// How many rows of the result can be computed once the first `seen` of the input's `height` rows are there.
    pub fn rows_ready(&self, seen: usize, height: usize) -> usize {
        if seen == height {
            return self.output_shape([height, self.shape[1]])[0];
        }
        (seen + self.config.pad_before).checked_sub(self.shape[1]).map_or(0, |room| room / self.config.stride + 1)
    }

    /// [`Conv2d::forward_strip`] for shapes: what it takes besides operands and result.
    pub fn shadow_strip(&self, x: &Shadow, strip: &Strip) {
        let dims = [x.dim(0), x.dim(1), x.dim(2), x.dim(3)];
        let target = x.run().target();
        x.run().takes(conv2d_workspace(target, x.dtype(), dims, self.shape, self.config, Some(strip), false));
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
