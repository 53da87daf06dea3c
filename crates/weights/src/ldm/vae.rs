//! The autoencoder of CompVis' code: its names, and its dimensions derived from the names and shapes of its tensors.
//!
//! Its decoder numbers the levels from the largest maps, diffusers' decoder from the smallest.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

const RESNET: &[Part] = &[
    ("norm1", "norm1", Piece::Whole),
    ("conv1", "conv1", Piece::Whole),
    ("norm2", "norm2", Piece::Whole),
    ("conv2", "conv2", Piece::Whole),
    ("conv_shortcut", "nin_shortcut", Piece::Whole),
];

const ATTENTION: &[Part] = &[
    ("group_norm", "norm", Piece::Whole),
    ("to_q", "q", Piece::Pointwise),
    ("to_k", "k", Piece::Pointwise),
    ("to_v", "v", Piece::Pointwise),
    ("to_out.0", "proj_out", Piece::Pointwise),
];

/// The maximum number of levels or layers.
pub(super) const MAX_COUNT: usize = 16;

/// The naming scheme of an autoencoder's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VaeDialect {
    /// CompVis'.
    Ldm,
    /// diffusers'.
    Diffusers,
    /// diffusers' of the autoencoder of Qwen-Image, which is one of videos.
    Frames,
    /// The names of Wan's authors of the same autoencoder.
    Wan,
}

/// The dimensions of an autoencoder, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaeShape {
    /// The naming scheme.
    pub dialect: VaeDialect,
    /// Channels of every level, the largest maps first.
    pub channels: Vec<usize>,
    /// Residual blocks of a level of the encoder. The decoder has one more.
    pub layers: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Channels of images.
    pub image_channels: usize,
    /// Whether a 1x1 convolution follows the encoder.
    pub quant_conv: bool,
    /// Whether a 1x1 convolution precedes the decoder.
    pub post_quant_conv: bool,
    /// Whether the middle block has attention.
    pub attention: bool,
    /// Whether there are statistics of the latents' patches, as FLUX.2 has them.
    pub patches: bool,
}

impl VaeShape {
    /// Reads the dimensions of the decoder, or of the encoder of an autoencoder of videos, from a source without a prefix. `None` if
    /// there is none.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let dim = |name: &str, axis: usize| source.info(name).and_then(|info| info.shape.get(axis).copied());
        let has = |name: &str| source.info(name).is_some();
        let dialect = if has("decoder.norm_out.weight") {
            VaeDialect::Ldm
        } else if has("decoder.conv_norm_out.weight") {
            VaeDialect::Diffusers
        } else {
            return Self::read_frames(source);
        };
        let resnet = |level: usize, layer: usize| match dialect {
            VaeDialect::Ldm => format!("decoder.up.{level}.block.{layer}.conv2.weight"),
            _ => format!("decoder.up_blocks.{level}.resnets.{layer}.conv2.weight"),
        };
        let mut channels: Vec<usize> = (0..MAX_COUNT).map_while(|level| dim(&resnet(level, 0), 0)).collect();
        if dialect == VaeDialect::Diffusers {
            channels.reverse();
        }
        let layers = (0..MAX_COUNT).take_while(|&layer| has(&resnet(0, layer))).count();
        let attention = match dialect {
            VaeDialect::Ldm => "decoder.mid.attn_1.norm.weight",
            _ => "decoder.mid_block.attentions.0.group_norm.weight",
        };
        Some(Self {
            dialect,
            channels: (!channels.is_empty()).then_some(channels)?,
            layers: layers.checked_sub(1).filter(|&layers| layers > 0)?,
            latent_channels: dim("decoder.conv_in.weight", 1)?,
            image_channels: dim("decoder.conv_out.weight", 0)?,
            quant_conv: has("quant_conv.weight"),
            post_quant_conv: has("post_quant_conv.weight"),
            attention: has(attention),
            patches: has("bn.running_mean") && has("bn.running_var"),
        })
    }

    /// The names of such an autoencoder.
    pub fn names(&self) -> Names {
        match self.dialect {
            VaeDialect::Ldm => Self::ldm_names(self.channels.len()),
            VaeDialect::Diffusers | VaeDialect::Frames => same_names(),
            VaeDialect::Wan => Self::wan_names(self.channels.len(), self.layers),
        }
    }

    /// CompVis' names of an autoencoder of `levels` levels.
    pub fn ldm_names(levels: usize) -> Names {
        let mut names = Names::default();
        names.add("quant_conv", "quant_conv", &[]);
        names.add("post_quant_conv", "post_quant_conv", &[]);
        names.add("bn", "bn", &[]);
        for half in ["encoder", "decoder"] {
            for (declared, stored) in [("conv_in", "conv_in"), ("conv_out", "conv_out"), ("conv_norm_out", "norm_out")]
            {
                names.add(format!("{half}.{declared}"), format!("{half}.{stored}"), &[]);
            }
            names.add(format!("{half}.mid_block.resnets.0"), format!("{half}.mid.block_1"), RESNET);
            names.add(format!("{half}.mid_block.attentions.0"), format!("{half}.mid.attn_1"), ATTENTION);
            names.add(format!("{half}.mid_block.resnets.1"), format!("{half}.mid.block_2"), RESNET);
        }
        for i in 0..levels {
            let top = levels - 1 - i;
            for j in 0..MAX_COUNT {
                names.add(
                    format!("encoder.down_blocks.{i}.resnets.{j}"),
                    format!("encoder.down.{i}.block.{j}"),
                    RESNET,
                );
                names.add(format!("decoder.up_blocks.{i}.resnets.{j}"), format!("decoder.up.{top}.block.{j}"), RESNET);
            }
            let (down, up) = (format!("encoder.down.{i}.downsample.conv"), format!("decoder.up.{top}.upsample.conv"));
            names.add(format!("encoder.down_blocks.{i}.downsamplers.0.conv"), down, &[]);
            names.add(format!("decoder.up_blocks.{i}.upsamplers.0.conv"), up, &[]);
        }
        names
    }
}
