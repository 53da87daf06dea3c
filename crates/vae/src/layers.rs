//! The layers of both halves. The autoencoder of Qwen-Image has layers of its own, with other names.

use kiln_nn::{Conv2d, GroupNorm, MapNorm, PixelNorm, ResnetBlock, ResnetConfig};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use crate::config::{EPS, VaeConfig};

/// A residual block, without time embedding.
pub(crate) fn resnet(
    segments: &mut Segments,
    name: String,
    config: &VaeConfig,
    in_channels: usize,
    out_channels: usize,
) -> SegmentModule<ResnetBlock> {
    if config.has_frames() {
        return segments.add(&name, |p| ResnetBlock::of_frames(&p.pp(&name), in_channels, out_channels));
    }
    let config =
        ResnetConfig { in_channels, out_channels, temb_channels: None, num_groups: config.norm_num_groups, eps: EPS };
    segments.add(&name, |p| ResnetBlock::new(&p.pp(&name), config))
}

/// A convolution of 3 x 3 pixels.
pub(crate) fn convolution(p: &ParamBuilder<'_>, config: &VaeConfig, in_channels: usize, out_channels: usize) -> Conv2d {
    match config.has_frames() {
        true => Conv2d::of_frames(p, in_channels, out_channels, 3),
        false => Conv2d::new(p, in_channels, out_channels, 3),
    }
}

/// The normalization before the last convolution of the half with this prefix.
pub(crate) fn last_norm(p: &ParamBuilder<'_>, config: &VaeConfig, channels: usize) -> MapNorm {
    if config.has_frames() {
        return MapNorm::Pixel(PixelNorm::new(&p.pp("norm_out"), channels));
    }
    let norm = kiln_nn::ops::GroupNorm { num_groups: config.norm_num_groups, eps: EPS, silu: true };
    MapNorm::Group(GroupNorm::new(&p.pp("conv_norm_out"), channels, norm))
}

/// The names of the encoder's blocks. Those of Qwen-Image are numbered one after another.
pub(crate) struct DownNames {
    has_frames: bool,
    next: usize,
}

impl DownNames {
    pub(crate) fn new(config: &VaeConfig) -> Self {
        Self { has_frames: config.has_frames(), next: 0 }
    }

    /// The name of residual block `j` of level `i`, which is the next layer.
    pub(crate) fn resnet(&mut self, i: usize, j: usize) -> String {
        match self.has_frames {
            true => self.numbered(),
            false => format!("encoder.down_blocks.{i}.resnets.{j}"),
        }
    }

    /// The name of the downsampling of level `i`, which is the next layer, and that of the convolution in it.
    pub(crate) fn downsample(&mut self, i: usize) -> (String, &'static str) {
        match self.has_frames {
            true => (self.numbered(), "resample.1"),
            false => (format!("encoder.down_blocks.{i}.downsamplers.0"), "conv"),
        }
    }

    fn numbered(&mut self) -> String {
        self.next += 1;
        format!("encoder.down_blocks.{}", self.next - 1)
    }
}
