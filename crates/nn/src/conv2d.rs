//! A convolution.

use std::ops::Range;

use kiln_ops::{Conv2dEpilogue, FusedConv2d, Strip};
use kiln_weights::{ByteNumber, EightBits, Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::norm::MapNorm;
use crate::tensor::TensorLike;

/// A two-dimensional convolution. Its kernel is square, but for [`Conv2d::with_kernel`].
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    /// `(out_channels, kh, kw, in_channels)`.
    shape: [usize; 4],
    config: kiln_ops::Conv2d,
}

impl Conv2d {
    /// A convolution of stride 1 with the padding that keeps the size: `weight` `(out_channels, in_channels,
    /// kernel_size, kernel_size)`, `bias` `(out_channels)`.
    pub fn new(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize, kernel_size: usize) -> Self {
        Self::with_geometry(p, in_channels, out_channels, kernel_size, kiln_ops::Conv2d::same(kernel_size))
    }

    /// Like [`Conv2d::new`], with another stride or padding.
    pub fn with_geometry(
        p: &ParamBuilder<'_>,
        in_channels: usize,
        out_channels: usize,
        kernel_size: usize,
        config: kiln_ops::Conv2d,
    ) -> Self {
        Self::with_kernel(p, in_channels, out_channels, [kernel_size; 2], config)
    }

    /// Like [`Conv2d::with_geometry`], with a kernel of `kh` rows and `kw` columns: `weight` `(out_channels, in_channels, kh, kw)`. Stride and
    /// padding are those of rows and of columns nevertheless.
    pub fn with_kernel(
        p: &ParamBuilder<'_>,
        in_channels: usize,
        out_channels: usize,
        [kh, kw]: [usize; 2],
        config: kiln_ops::Conv2d,
    ) -> Self {
        Self {
            weight: p.param("weight", &[out_channels, in_channels, kh, kw], Packing::Conv2d),
            bias: Some(p.param("bias", &[out_channels], Packing::AsStored)),
            shape: [out_channels, kh, kw, in_channels],
            config,
        }
    }

    /// Like [`Conv2d::new`], without a bias.
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

    /// A causal convolution in time too, for a single frame: that reads only the last frame of the kernel. `weight`
    /// `(out_channels, in_channels, kernel_size, kernel_size, kernel_size)`, else as [`Conv2d::new`].
    pub fn of_frames(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize, kernel_size: usize) -> Self {
        let stored = [out_channels, in_channels, kernel_size, kernel_size, kernel_size];
        Self {
            weight: p.param("weight", &stored, Packing::LastFrame),
            bias: Some(p.param("bias", &[out_channels], Packing::AsStored)),
            shape: [out_channels, kernel_size, kernel_size, in_channels],
            config: kiln_ops::Conv2d::same(kernel_size),
        }
    }

    /// `x` `(b, h, w, in_channels)` to `(b, h_out, w_out, out_channels)`.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.forward_add(x, None, None)
    }

    /// Like [`Conv2d::forward`], with `image_bias` `(b or 1, out_channels)` and `residual`, of the output's shape, added.
    pub fn forward_add<T: TensorLike>(&self, x: &T, image_bias: Option<&T>, residual: Option<&T>) -> Result<T> {
        let weight = x.weight(&self.weight)?;
        let bias = x.optional_param(self.bias.as_ref())?;
        x.conv2d(&weight, bias.as_ref(), image_bias, residual, self.config)
    }

    /// Whether [`Conv2d::forward_normed`] is one operator.
    pub(crate) fn is_fused(&self) -> bool {
        self.weight.eight_bits() == Some(EightBits::W8A8(ByteNumber::E4m3))
    }

    /// Like [`Conv2d::forward_add`] for `norm` of `x`.
    pub fn forward_normed<T: TensorLike>(
        &self,
        x: &T,
        norm: &MapNorm,
        image_bias: Option<&T>,
        residual: Option<&T>,
    ) -> Result<T> {
        let MapNorm::Group(norm) = norm else { return self.forward_add(&norm.forward(x)?, image_bias, residual) };
        if !self.is_fused() {
            return self.forward_add(&norm.forward(x)?, image_bias, residual);
        }
        let (gamma, beta, config) = norm.params(x)?;
        let (weight, bias) = (x.weight(&self.weight)?, x.optional_param(self.bias.as_ref())?);
        x.normed_conv2d((&gamma, &beta, config), &weight, bias.as_ref(), image_bias, residual, self.config)
    }

    /// Rows `strip.rows` of the output of [`Conv2d::forward_add`] for a whole map, from the rows of the map that they
    /// read ([`Conv2d::input_rows`]), `x` `(1, n, w, in_channels)`. They are written to `out` if it is given.
    pub fn forward_strip<T: TensorLike>(
        &self,
        x: &T,
        strip: &Strip,
        residual: Option<&T>,
        out: Option<&T>,
    ) -> Result<T> {
        let weight = x.weight(&self.weight)?;
        let bias = x.optional_param(self.bias.as_ref())?;
        x.conv2d_strip(&weight, bias.as_ref(), residual, (self.config, strip), out)
    }

    /// The convolution of `parts`, `(b, h, w, c_i)` with `in_channels` together, and what follows it
    /// ([`kiln_ops::fused_conv2d`]); with a strip as [`Conv2d::forward_strip`].
    ///
    /// # Errors
    /// [`kiln_ops::Error::Shape`] if there are no parts, and errors of the operator.
    pub fn forward_fused<T: TensorLike>(
        &self,
        parts: &[&T],
        epilogue: Conv2dEpilogue<'_, T>,
        strip: Option<&Strip>,
        out: Option<&T>,
    ) -> Result<T> {
        let Some(first) = parts.first() else {
            let expected = "at least one feature map".to_string();
            return Err(kiln_ops::Error::Shape { op: "conv2d", operand: "x", expected, found: Vec::new() }.into());
        };
        let weight = first.weight(&self.weight)?;
        let bias = first.optional_param(self.bias.as_ref())?;
        T::fused_conv2d(FusedConv2d { parts, weight: &weight, bias: bias.as_ref(), epilogue }, self.config, strip, out)
    }

    /// The input rows that a strip of the output reads.
    pub fn input_rows(&self, strip: &Strip) -> Range<usize> {
        strip.input_rows(self.config, self.shape[1])
    }

    /// The output's shape `(h, w, c)` for an input of `h` rows and `w` columns.
    pub fn output_shape(&self, [h, w]: [usize; 2]) -> [usize; 3] {
        let [out_channels, kh, kw, _] = self.shape;
        let size = |size, kernel_size| self.config.output_size(size, kernel_size).unwrap_or(0);
        [size(h, kh), size(w, kw), out_channels]
    }

    /// The number of output rows that can be computed from the first `seen` of the input's `height` rows.
    pub fn rows_ready(&self, seen: usize, height: usize) -> usize {
        if seen == height {
            return self.output_shape([height, self.shape[1]])[0];
        }
        (seen + self.config.pad_before).checked_sub(self.shape[1]).map_or(0, |room| room / self.config.stride + 1)
    }
}
