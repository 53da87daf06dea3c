//! The decoder: latents to pixels.

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_nn::strips::{collect, normalise_and_convolve};
use kiln_nn::{Conv2d, MapNorm, ResnetBlock, TensorLike, Upsample};
use kiln_weights::{SegmentModule, Segments};

use crate::config::VaeConfig;
use crate::error::{Error, Result};
use crate::layers::{convolution, last_norm, resnet};
use crate::mid_block::MidBlock;
use crate::patches::Patches;
use crate::tiling::{StripPlan, Tiling, footprint};

/// The decoder of an `AutoencoderKL`.
pub struct Decoder {
    latent_channels: usize,
    /// The width of a latent in pixels.
    upscale: usize,
    segments: Segments,
    conv_in: SegmentModule<Entry>,
    mid_block: MidBlock,
    up_blocks: Vec<UpBlock>,
    head: SegmentModule<Head>,
}

struct Entry {
    patches: Option<Patches>,
    post_quant_conv: Option<Conv2d>,
    conv_in: Conv2d,
}

struct UpBlock {
    resnets: Vec<SegmentModule<ResnetBlock>>,
    upsample: Option<SegmentModule<Upsample>>,
}

struct Head {
    conv_norm_out: MapNorm,
    conv_out: Conv2d,
}

impl Decoder {
    /// Declares the decoder that `config` describes.
    pub fn new(config: &VaeConfig) -> Self {
        let mut segments = Segments::default();
        let channels = config.decoder_channels();
        let (blocks, coded) = (channels.len(), config.coded_channels());
        let top = channels[blocks - 1];
        let conv_in = segments.add("decoder.conv_in", |p| Entry {
            patches: Patches::new(p, config),
            post_quant_conv: config.use_post_quant_conv.then(|| Conv2d::new(&p.pp("post_quant_conv"), coded, coded, 1)),
            conv_in: convolution(&p.pp("decoder.conv_in"), config, coded, top),
        });
        let mid_block = MidBlock::new(&mut segments, "decoder.mid_block", config, top);
        let mut last = top;
        let mut up_blocks = Vec::new();
        for (i, &channels) in channels.iter().rev().enumerate() {
            let name = format!("decoder.up_blocks.{i}");
            let resnets = (0..=config.layers_per_block)
                .map(|j| {
                    let in_channels = if j == 0 { last } else { channels };
                    resnet(&mut segments, format!("{name}.resnets.{j}"), config, in_channels, channels)
                })
                .collect();
            let upsample = (i + 1 < blocks).then(|| {
                let name = format!("{name}.upsamplers.0");
                segments.add(&name, |p| match config.has_frames() {
                    true => Upsample::of(&p.pp(&name).pp("resample.1"), channels, channels / 2),
                    false => Upsample::new(&p.pp(&name), channels),
                })
            });
            last = if config.has_frames() && upsample.is_some() { channels / 2 } else { channels };
            up_blocks.push(UpBlock { resnets, upsample });
        }
        let head = segments.add("decoder.conv_out", |p| Head {
            conv_norm_out: last_norm(&p.pp("decoder"), config, last),
            conv_out: convolution(&p.pp("decoder.conv_out"), config, last, config.out_channels),
        });
        let (latent_channels, upscale) = (config.latent_channels, config.downscale());
        Self { latent_channels, upscale, segments, conv_in, mid_block, up_blocks, head }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `latents` `(b, latent_channels, h, w)`, unscaled ([`VaeConfig::unscale`]), in the slabs' dtype, to images `(b,
    /// 3, f h, f w)` of about -1 to 1, where `f` is [`VaeConfig::downscale`]. The values are not clamped.
    ///
    /// # Errors
    /// [`Error::Input`] if the latents do not fit; errors of a layer, with the layer's path.
    pub fn decode<T: TensorLike>(&self, latents: &T) -> Result<T> {
        self.decode_with(latents, Tiling::Whole)
    }

    /// Like [`Decoder::decode`], with a lower memory peak. On the CPU the tiling does not change a bit.
    ///
    /// # Errors
    /// See [`Decoder::decode`].
    pub fn decode_with<T: TensorLike>(&self, latents: &T, tiling: Tiling) -> Result<T> {
        if !matches!(*latents.dims(), [_, c, _, _] if c == self.latent_channels) {
            let expected = format!("(b, {}, h, w)", self.latent_channels);
            return Err(Error::Input { expected, found: latents.dims().to_vec() });
        }
        tiling.over_images(latents, |latents| {
            let mut x = latents.to_channels_last()?;
            x = T::run(&self.conv_in, |entry| {
                let mut x = x;
                if let Some(patches) = &entry.patches {
                    x = patches.undo(&x)?;
                }
                if let Some(conv) = &entry.post_quant_conv {
                    x = conv.forward(&x)?;
                }
                entry.conv_in.forward(&x)
            })?;
            x = self.mid_block.forward(&x)?;
            let y = match tiling.strips(self.upscale * latents.size4()?[3]) {
                Some(plan) => self.up_blocks_in_strips(x, plan)?,
                None => self.up_blocks(x)?,
            };
            Ok(y.to_channels_first()?)
        })
    }

    /// Runs the up blocks on the middle block's output `(b, h, w, c)`: images `(b, f h, f w, 3)`.
    fn up_blocks<T: TensorLike>(&self, mut x: T) -> kiln_nn::Result<T> {
        for block in &self.up_blocks {
            for resnet in &block.resnets {
                x = T::run(resnet, |resnet| resnet.forward(&x, None))?;
            }
            if let Some(upsample) = &block.upsample {
                x = T::run(upsample, |upsample| upsample.forward(x))?;
            }
        }
        T::run(&self.head, |head| head.conv_out.forward(&head.conv_norm_out.forward(&x)?))
    }

    /// [`Decoder::up_blocks`] for one image in strips.
    fn up_blocks_in_strips<T: TensorLike>(
        &self,
        mut x: T,
        StripPlan { pixels, recompute }: StripPlan,
    ) -> kiln_nn::Result<T> {
        let mut upsample: Option<&SegmentModule<Upsample>> = None;
        for block in &self.up_blocks {
            let is_largest = block.upsample.is_none();
            let mut resnets = block.resnets.iter();
            match upsample {
                Some(upsample) if recompute && is_largest => {
                    if let Some(first) = resnets.next() {
                        x = T::run(upsample, |upsample| {
                            T::run(first, |first| first.forward_strips_of(|| upsample.strips(&x, pixels), pixels))
                        })?;
                    }
                }
                Some(upsample) => x = T::run(upsample, |upsample| collect(upsample.strips(&x, pixels)))?,
                None => (),
            }
            for resnet in resnets {
                x = T::run(resnet, |resnet| match recompute && is_largest {
                    true => resnet.forward_in_place(x, pixels),
                    false => resnet.forward_strips(&x, pixels),
                })?;
            }
            upsample = block.upsample.as_ref();
        }
        T::run(&self.head, |head| normalise_and_convolve(&head.conv_norm_out, &head.conv_out, &x, pixels))
    }

    /// The memory peak in bytes of decoding latents `(b, h, w)` in `dtype`, without the weights and the latents, and
    /// including the images.
    ///
    /// # Errors
    /// See [`Decoder::decode_with`].
    pub fn footprint(&self, [b, h, w]: [usize; 3], dtype: DType, target: Target, tiling: Tiling) -> Result<usize> {
        footprint(target, &[b, self.latent_channels, h, w], dtype, |latents| {
            self.decode_with(latents, tiling).map(drop)
        })
    }

    /// The fastest tiling whose [`Decoder::footprint`] is at most `bytes`; `None` if there is none.
    ///
    /// # Errors
    /// See [`Decoder::decode_with`].
    pub fn fitting(&self, latents: [usize; 3], dtype: DType, target: Target, bytes: usize) -> Result<Option<Tiling>> {
        Tiling::fastest(target, bytes, |tiling| self.footprint(latents, dtype, target, tiling))
    }
}
