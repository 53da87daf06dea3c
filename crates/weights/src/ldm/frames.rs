//! The autoencoder of videos, which Qwen-Image has from Wan: the names of its authors, and its dimensions derived from the names and
//! shapes of its tensors.
//!
//! The authors number the layers of a half one after another: the residual blocks of a level, then its resampling. diffusers
//! does so in the encoder alone.

use super::vae::{MAX_COUNT, VaeDialect, VaeShape};
use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

/// A layer of the encoder: a residual block or a downsampling.
const DOWN: &[Part] = &[
    ("norm1", "residual.0", Piece::Whole),
    ("conv1", "residual.2", Piece::Whole),
    ("norm2", "residual.3", Piece::Whole),
    ("conv2", "residual.6", Piece::Whole),
    ("conv_shortcut", "shortcut", Piece::Whole),
    ("resample", "resample", Piece::Whole),
    ("time_conv", "time_conv", Piece::Whole),
];
/// A residual block.
const RESNET: &[Part] = DOWN.split_at(5).0;
/// An upsampling.
const UP: &[Part] = DOWN.split_at(5).1;

impl VaeShape {
    /// Reads the dimensions of the encoder of [`VaeDialect::Frames`] or [`VaeDialect::Wan`]. `None` for another network.
    pub(super) fn read_frames(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let (dialect, names) = if has("decoder.norm_out.gamma") {
            (VaeDialect::Frames, same_names())
        } else if has("decoder.head.0.gamma") {
            (VaeDialect::Wan, Self::wan_names(MAX_COUNT, MAX_COUNT))
        } else {
            return None;
        };
        let dim = |name: &str, axis: usize| names.info(source, name).and_then(|info| info.shape.get(axis).copied());
        let (mut channels, mut layers, mut is_new) = (Vec::new(), 0, true);
        for i in 0..MAX_COUNT * MAX_COUNT {
            let own = dim(&format!("encoder.down_blocks.{i}.conv2.weight"), 0);
            match own {
                Some(own) if is_new => channels.push(own),
                Some(_) => {}
                None if dim(&format!("encoder.down_blocks.{i}.resample.1.weight"), 0).is_some() => {}
                None => break,
            }
            layers += usize::from(own.is_some() && channels.len() == 1);
            is_new = own.is_none();
        }
        Some(Self {
            dialect,
            channels: (!channels.is_empty() && layers > 0).then_some(channels)?,
            layers,
            latent_channels: dim("decoder.conv_in.weight", 1)?,
            image_channels: dim("decoder.conv_out.weight", 0)?,
            quant_conv: true,
            post_quant_conv: true,
            attention: true,
            patches: false,
        })
    }

    /// The authors' names of an autoencoder of `levels` levels with `layers` residual blocks in a level of the encoder.
    pub(super) fn wan_names(levels: usize, layers: usize) -> Names {
        let mut names = Names::default();
        names.add("quant_conv", "conv1", &[]);
        names.add("post_quant_conv", "conv2", &[]);
        for half in ["encoder", "decoder"] {
            for (declared, stored) in [("conv_in", "conv1"), ("norm_out", "head.0"), ("conv_out", "head.2")] {
                names.add(format!("{half}.{declared}"), format!("{half}.{stored}"), &[]);
            }
            names.add(format!("{half}.mid_block.resnets.0"), format!("{half}.middle.0"), RESNET);
            names.add(format!("{half}.mid_block.attentions.0"), format!("{half}.middle.1"), &[]);
            names.add(format!("{half}.mid_block.resnets.1"), format!("{half}.middle.2"), RESNET);
        }
        for i in 0..levels * (layers + 1) {
            names.add(format!("encoder.down_blocks.{i}"), format!("encoder.downsamples.{i}"), DOWN);
        }
        for i in 0..levels {
            let first = i * (layers + 2);
            for j in 0..=layers {
                let stored = format!("decoder.upsamples.{}", first + j);
                names.add(format!("decoder.up_blocks.{i}.resnets.{j}"), stored, RESNET);
            }
            let stored = format!("decoder.upsamples.{}", first + layers + 1);
            names.add(format!("decoder.up_blocks.{i}.upsamplers.0"), stored, UP);
        }
        names
    }
}
