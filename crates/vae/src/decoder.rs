//! From latents to pixels.

use candle_core::Tensor;
use kiln_nn::ops::layout::{to_channels_first, to_channels_last};
use kiln_nn::{Conv2d, GroupNorm, ResnetBlock, Run, Shadow, Upsample, shadow};
use kiln_weights::{Segments, Staged};

use crate::config::{EPS, VaeConfig};
use crate::error::{Error, Result};
use crate::mid_block::{MidBlock, resnet};

/// The decoder of an `AutoencoderKL`.
pub struct Decoder {
    latent_channels: usize,
    segments: Segments,
    conv_in: Staged<Entry>,
    mid_block: MidBlock,
    up_blocks: Vec<UpBlock>,
    head: Staged<Head>,
}

struct Entry {
    post_quant_conv: Option<Conv2d>,
    conv_in: Conv2d,
}

struct UpBlock {
    resnets: Vec<Staged<ResnetBlock>>,
    upsample: Option<Staged<Upsample>>,
}

struct Head {
    conv_norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    /// Declares the decoder that `config` describes.
    pub fn new(config: &VaeConfig) -> Self {
        let mut segments = Segments::default();
        let latent_channels = config.latent_channels;
        let blocks = config.block_out_channels.len();
        let top = config.block_out_channels[blocks - 1];
        let conv_in = segments.add("decoder.conv_in", |p| Entry {
            post_quant_conv: config
                .use_post_quant_conv
                .then(|| Conv2d::new(&p.pp("post_quant_conv"), latent_channels, latent_channels, 1)),
            conv_in: Conv2d::new(&p.pp("decoder.conv_in"), latent_channels, top, 3),
        });
        let mid_block = MidBlock::new(&mut segments, "decoder.mid_block", config, top);
        let mut last = top;
        let mut up_blocks = Vec::new();
        for (i, &channels) in config.block_out_channels.iter().rev().enumerate() {
            let name = format!("decoder.up_blocks.{i}");
            let resnets = (0..=config.layers_per_block)
                .map(|j| {
                    let in_channels = if j == 0 { last } else { channels };
                    resnet(&mut segments, format!("{name}.resnets.{j}"), config, in_channels, channels)
                })
                .collect();
            let upsample = (i + 1 < blocks).then(|| {
                let name = format!("{name}.upsamplers.0");
                segments.add(&name, |p| Upsample::new(&p.pp(&name), channels))
            });
            up_blocks.push(UpBlock { resnets, upsample });
            last = channels;
        }
        let norm = kiln_nn::ops::GroupNorm { num_groups: config.norm_num_groups, eps: EPS, silu: true };
        let head = segments.add("decoder.conv_out", |p| Head {
            conv_norm_out: GroupNorm::new(&p.pp("decoder.conv_norm_out"), last, norm),
            conv_out: Conv2d::new(&p.pp("decoder.conv_out"), last, config.out_channels, 3),
        });
        Self { latent_channels, segments, conv_in, mid_block, up_blocks, head }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `latents` `(b, latent_channels, h, w)`, unscaled ([`VaeConfig::unscale`]), in the slabs' dtype, to images
    /// `(b, 3, f h, f w)` of about -1 to 1, where `f` is [`VaeConfig::downscale`]. Nothing is clamped.
    ///
    /// # Errors
    /// [`Error::Input`] where the latents do not fit; what a layer reports, with the layer's path.
    pub fn decode(&self, latents: &Tensor) -> Result<Tensor> {
        if !matches!(*latents.dims(), [_, c, _, _] if c == self.latent_channels) {
            let expected = format!("(b, {}, h, w)", self.latent_channels);
            return Err(Error::Input { expected, found: latents.dims().to_vec() });
        }
        let mut x = to_channels_last(latents)?;
        x = self.conv_in.run(|entry| match &entry.post_quant_conv {
            Some(conv) => entry.conv_in.forward(&conv.forward(&x)?),
            None => entry.conv_in.forward(&x),
        })?;
        x = self.mid_block.forward(&x)?;
        for block in &self.up_blocks {
            for resnet in &block.resnets {
                x = resnet.run(|resnet| resnet.forward(&x, None))?;
            }
            if let Some(upsample) = &block.upsample {
                x = upsample.run(|upsample| upsample.forward(x))?;
            }
        }
        let y = self.head.run(|head| head.conv_out.forward(&head.conv_norm_out.forward(&x)?))?;
        Ok(to_channels_first(&y)?)
    }

    /// [`Decoder::decode`] for shapes.
    pub fn shadow(&self, latents: &Shadow) -> Shadow {
        let mut x = shadow::to_channels_last(latents);
        let entry = self.conv_in.module();
        x = match &entry.post_quant_conv {
            Some(conv) => entry.conv_in.shadow(&conv.shadow(&x)),
            None => entry.conv_in.shadow(&x),
        };
        x = self.mid_block.shadow(&x);
        for block in &self.up_blocks {
            for resnet in &block.resnets {
                x = resnet.module().shadow(&x, None);
            }
            if let Some(upsample) = &block.upsample {
                x = upsample.module().shadow(x);
            }
        }
        let head = self.head.module();
        let y = head.conv_out.shadow(&head.conv_norm_out.shadow(&x));
        shadow::to_channels_first(&y)
    }
}
