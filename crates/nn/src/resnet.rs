//! The residual block of the U-Net and the autoencoder.

use kiln_ops::GroupNorm as GroupNormConfig;
use kiln_weights::ParamBuilder;

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::linear::Linear;
use crate::norm::{GroupNorm, MapNorm, PixelNorm};
use crate::tensor::TensorLike;

/// The configuration of [`ResnetBlock`].
#[derive(Debug, Clone, Copy)]
pub struct ResnetConfig {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Channels of the time embedding; the autoencoder has none.
    pub temb_channels: Option<usize>,
    /// Groups of the normalizations.
    pub num_groups: usize,
    /// The epsilon of the normalizations.
    pub eps: f64,
}

/// Twice: normalization, SiLU, convolution. The time embedding is added in between, and the input (after a 1x1
/// convolution if the channels change) at the end.
pub struct ResnetBlock {
    pub(crate) first: ResnetIn,
    pub(crate) second: ResnetOut,
}

/// The first half of a residual block. In a U-Net the halves are separate segments: their kernels are the largest of
/// its weights, and a streaming ring must have room for the largest segment.
pub struct ResnetIn {
    pub(crate) norm1: MapNorm,
    pub(crate) conv1: Conv2d,
    time_emb_proj: Option<Linear>,
}

/// The second half.
pub struct ResnetOut {
    pub(crate) norm2: MapNorm,
    pub(crate) conv2: Conv2d,
    pub(crate) conv_shortcut: Option<Conv2d>,
}

impl ResnetConfig {
    fn norm(&self, p: &ParamBuilder<'_>, channels: usize) -> MapNorm {
        let config = GroupNormConfig { num_groups: self.num_groups, eps: self.eps, silu: true };
        MapNorm::Group(GroupNorm::new(p, channels, config))
    }
}

impl ResnetBlock {
    /// Declares both halves.
    pub fn new(p: &ParamBuilder<'_>, config: ResnetConfig) -> Self {
        Self { first: ResnetIn::new(p, config), second: ResnetOut::new(p, config) }
    }

    /// Declares a block with normalizations of pixels and convolutions in time too, for a single frame: diffusers'
    /// `QwenImageResidualBlock`.
    pub fn of_frames(p: &ParamBuilder<'_>, in_channels: usize, out_channels: usize) -> Self {
        let norm = |name: &str, channels| MapNorm::Pixel(PixelNorm::new(&p.pp(name), channels));
        let conv = |name: &str, channels| Conv2d::of_frames(&p.pp(name), channels, out_channels, 3);
        let first =
            ResnetIn { norm1: norm("norm1", in_channels), conv1: conv("conv1", in_channels), time_emb_proj: None };
        let conv_shortcut =
            (in_channels != out_channels).then(|| Conv2d::new(&p.pp("conv_shortcut"), in_channels, out_channels, 1));
        let second =
            ResnetOut { norm2: norm("norm2", out_channels), conv2: conv("conv2", out_channels), conv_shortcut };
        Self { first, second }
    }

    /// `x` `(b, h, w, in_channels)` to `(b, h, w, out_channels)`; `temb` as in [`ResnetIn::forward`].
    pub fn forward<T: TensorLike>(&self, x: &T, temb: Option<&T>) -> Result<T> {
        self.second.forward(self.first.forward(x, temb)?, x)
    }
}

impl ResnetIn {
    /// Declares `norm1`, `conv1` and `time_emb_proj`.
    pub fn new(p: &ParamBuilder<'_>, config: ResnetConfig) -> Self {
        let ResnetConfig { in_channels, out_channels, temb_channels, .. } = config;
        Self {
            norm1: config.norm(&p.pp("norm1"), in_channels),
            conv1: Conv2d::new(&p.pp("conv1").allows_8_bits(), in_channels, out_channels, 3),
            time_emb_proj: temb_channels
                .map(|temb_channels| Linear::new(&p.pp("time_emb_proj"), temb_channels, out_channels, true)),
        }
    }

    /// `x` `(b, h, w, in_channels)` to `(b, h, w, out_channels)`. `temb` is the time embedding after its SiLU, `(b or
    /// 1, temb_channels)`. It is the same for all blocks, so the caller applies the activation once.
    pub fn forward<T: TensorLike>(&self, x: &T, temb: Option<&T>) -> Result<T> {
        let image_bias = match (&self.time_emb_proj, temb) {
            (Some(proj), Some(temb)) => Some(proj.forward(temb)?),
            _ => None,
        };
        self.conv1.forward_normed(x, &self.norm1, image_bias.as_ref(), None)
    }
}

impl ResnetOut {
    /// Declares `norm2`, `conv2` and, if the channels change, `conv_shortcut`.
    pub fn new(p: &ParamBuilder<'_>, config: ResnetConfig) -> Self {
        let ResnetConfig { in_channels, out_channels, .. } = config;
        Self {
            norm2: config.norm(&p.pp("norm2"), out_channels),
            conv2: Conv2d::new(&p.pp("conv2").allows_8_bits(), out_channels, out_channels, 3),
            conv_shortcut: (in_channels != out_channels)
                .then(|| Conv2d::new(&p.pp("conv_shortcut"), in_channels, out_channels, 1)),
        }
    }

    /// Computes the block's output from the first half's output `h` `(b, h, w, out_channels)` and the block's input
    /// `x`. `h` is consumed and dropped as early as possible, because these are the largest maps of a decoder.
    pub fn forward<T: TensorLike>(&self, mut h: T, x: &T) -> Result<T> {
        let is_fused = self.conv2.is_fused();
        if !is_fused {
            h = self.norm2.forward(&h)?;
        }
        let shortcut = self.conv_shortcut.as_ref().map(|conv| conv.forward(x)).transpose()?;
        let residual = Some(shortcut.as_ref().unwrap_or(x));
        match is_fused {
            true => self.conv2.forward_normed(&h, &self.norm2, None, residual),
            false => self.conv2.forward_add(&h, None, residual),
        }
    }
}
