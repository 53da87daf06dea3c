//! Halving and doubling the size of feature maps.

use kiln_weights::ParamBuilder;

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::strips::{Convolved, Prepare, Stored, rows_of_strip, size};
use crate::tensor::TensorLike;

/// A 3x3 convolution with stride 2.
pub struct Downsample {
    conv: Conv2d,
}

impl Downsample {
    /// Declares `conv`. The U-Net pads all four sides by `padding`. With 0, one row at the bottom and one column on the
    /// right are padded, as in the autoencoder.
    pub fn new(p: &ParamBuilder<'_>, channels: usize, padding: usize) -> Self {
        Self::of(&p.pp("conv"), channels, padding)
    }

    /// Like [`Downsample::new`], with the convolution's own name.
    pub fn of(p: &ParamBuilder<'_>, channels: usize, padding: usize) -> Self {
        let geometry = kiln_ops::Conv2d { stride: 2, pad_before: padding, pad_after: padding.max(1) };
        Self { conv: Conv2d::with_geometry(p, channels, channels, 3, geometry) }
    }

    /// `x` `(b, h, w, c)` to `(b, ceil(h / 2), ceil(w / 2), c)` (the autoencoder rounds down).
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.conv.forward(x)
    }
}

/// Nearest-neighbor upsampling and a 3x3 convolution.
///
/// `forward` consumes its input, so that its memory is free when the convolution allocates. In a decoder's last stages
/// this is the peak of a run, and a small map between large ones would fragment the memory.
pub struct Upsample {
    conv: Conv2d,
}

impl Upsample {
    /// Declares `conv`.
    pub fn new(p: &ParamBuilder<'_>, channels: usize) -> Self {
        Self::of(&p.pp("conv"), channels, channels)
    }

    /// Like [`Upsample::new`], with the convolution's own name, and other channels of its output.
    pub fn of(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize) -> Self {
        Self { conv: Conv2d::new(p, in_channels, out_channels, 3) }
    }

    /// `x` `(b, h, w, c)` to `(b, 2 h, 2 w, c)`.
    pub fn forward<T: TensorLike>(&self, x: T) -> Result<T> {
        let [_, h, w, _] = x.size4()?;
        self.forward_to(x, (2 * h, 2 * w))
    }

    /// `x` `(b, h, w, c)` to `(b, size.0, size.1, c)`: the size of a skip connection, for odd sizes.
    pub fn forward_to<T: TensorLike>(&self, x: T, size: (usize, usize)) -> Result<T> {
        let wide = x.upsample_nearest(size, None)?;
        drop(x);
        self.conv.forward(&wide)
    }

    /// The strips of [`Upsample::forward`] of `x` `(1, h, w, c)`, of about `pixels` pixels each.
    pub fn strips<'a, T: TensorLike>(&'a self, x: &'a T, pixels: usize) -> Convolved<'a, Stored<'a, T>, T> {
        let rows = rows_of_strip(pixels, 2 * size(x)[1]) / 2;
        Convolved::new(Stored::new(x, rows), Prepare::Upsample, &self.conv)
    }
}
