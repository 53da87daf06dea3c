//! The whole network.

use candle_core::DType;
use kiln_nn::{Conv2d, GroupNorm, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::blocks::{Builder, UpBlock};
use crate::conditioning::{AddedConditions, Conditioning, add_to_last_rows};
use crate::config::UnetConfig;
use crate::encoder::Encoder;
use crate::error::{Error, Result};

/// The U-Net. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Unet {
    config: UnetConfig,
    segments: Segments,
    /// The number of skip connections from the down blocks to the up blocks.
    skips: usize,
    encoder: Encoder,
    up_blocks: Vec<UpBlock>,
    head: SegmentModule<Head>,
}

/// The last normalization and convolution.
struct Head {
    conv_norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Unet {
    /// Declares the network that `config` describes.
    pub fn new(config: UnetConfig) -> Self {
        let mut segments = Segments::default();
        let mut builder = Builder { segments: &mut segments, config: &config, label: "" };
        let encoder = Encoder::new(&mut builder);
        let mut skips = config.skips();
        let count = skips.len();
        let mut last = config.down.last().map_or(0, |block| block.channels);
        let mut up_blocks = Vec::new();
        for (i, block) in config.up.iter().enumerate() {
            up_blocks.push(UpBlock::new(&mut builder, i, last, &mut skips));
            last = block.channels;
        }
        let norm = kiln_nn::ops::GroupNorm { num_groups: config.norm_num_groups, eps: config.norm_eps, silu: true };
        let head = builder.segment("conv_out", |p| Head {
            conv_norm_out: GroupNorm::new(&p.pp("conv_norm_out"), last, norm),
            conv_out: Conv2d::new(&p.pp("conv_out"), last, config.out_channels, config.conv_out_kernel),
        });
        Self { config, segments, skips: count, encoder, up_blocks, head }
    }

    /// The configuration.
    pub fn config(&self) -> &UnetConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts noise or velocity, as the model was trained, for noisy latents.
    ///
    /// `x` `(b, in_channels, h, w)` in the slabs' dtype, of any size, less the channels of [`Conditioning::extra_channels`];
    /// `timesteps` `(1)` or `(b)`, f32, one for all images or one for each. The output is `(b, out_channels, h, w)`. All
    /// inputs are on the network's device, and
    /// nothing is read back from it.
    ///
    /// # Errors
    /// [`Error::Input`] if an input does not fit the configuration; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, conditioning: &Conditioning<T>) -> Result<T> {
        self.forward_observed(x, timesteps, conditioning, &mut |_, _| {})
    }

    /// As [`Unet::forward`], and passes intermediate outputs to `observe`: `time_emb` `(b or 1, temb_channels)`, and
    /// the feature maps `conv_in`, `down.{i}`, `mid`, `up.{i}`, `(b, h, w, c)`.
    pub fn forward_observed<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<T> {
        self.check(x, timesteps, conditioning)?;
        let dtype = x.dtype();
        let embedded = self.encoder.embed(timesteps, conditioning, dtype, observe)?;
        let context = embedded.context();

        let mut x = x.to_channels_last()?;
        if let Some(extra) = &conditioning.extra_channels {
            x = x.concat_channels(&extra.to_dtype(dtype)?.to_channels_last()?)?;
        }
        let features = conditioning.features.iter().map(|feature| feature.to_dtype(dtype));
        let features = features.collect::<kiln_nn::Result<Vec<T>>>()?;
        let (mut x, mut skips) = self.encoder.down(&x, None, &features, &context, observe)?;
        if let Some(residuals) = &conditioning.residuals {
            for (skip, residual) in skips.iter_mut().zip(&residuals.down) {
                *skip = add_to_last_rows(skip, &residual.to_dtype(dtype)?)?;
            }
        }
        x = self.encoder.mid(x, &context, observe)?;
        // diffusers: what remains of an adapter's features is added here where its shape allows.
        if let Some(feature) = features.get(self.encoder.levels()).filter(|feature| feature.dims() == x.dims()) {
            x = x.add(feature)?;
        }
        if let Some(residuals) = &conditioning.residuals {
            x = add_to_last_rows(&x, &residuals.mid.to_dtype(dtype)?)?;
        }
        for (i, block) in self.up_blocks.iter().enumerate() {
            x = block.forward(x, &context, &mut skips)?;
            observe(&format!("up.{i}"), &x);
        }
        let y = T::run(&self.head, |head| head.conv_out.forward(&head.conv_norm_out.forward(&x)?))?;
        Ok(y.to_channels_first()?)
    }

    /// The shapes of the conditions of `b` images of `(height, width)` latents with `tokens` tokens of text each, in `dtype`.
    pub fn meta_conditioning(
        &self,
        device: &MetaDevice,
        b: usize,
        (h, w): (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Conditioning<MetaTensor> {
        let added = self.config.pooled_dim().map(|dim| AddedConditions {
            text_embeds: device.tensor(&[b, dim], dtype),
            time_ids: device.tensor(&[b, self.config.time_ids()], DType::F32),
        });
        let guidance = self.config.time_cond_proj_dim.map(|_| device.tensor(&[1], DType::F32));
        let context = device.tensor(&[b, tokens, self.config.context_dim().unwrap_or(1)], dtype);
        let extra = Some(self.config.extra_channels()).filter(|&extra| extra > 0);
        let extra_channels = extra.map(|extra| device.tensor(&[b, extra, h, w], dtype));
        Conditioning { added, guidance, extra_channels, ..Conditioning::of_text(context) }
    }

    /// Returns an error for inputs that do not fit.
    fn check<T: TensorLike>(&self, x: &T, timesteps: &T, conditioning: &Conditioning<T>) -> Result<()> {
        let fail =
            |input, expected: String, found: &[usize]| Err(Error::Input { input, expected, found: found.to_vec() });
        let extra = conditioning.extra_channels.as_ref().map(T::dims);
        let channels = self.config.in_channels.checked_sub(extra.and_then(|dims| dims.get(1)).copied().unwrap_or(0));
        let [b, h, w] = match *x.dims() {
            [b, c, h, w] if Some(c) == channels && b * h * w > 0 => [b, h, w],
            _ => return fail("x", format!("(b, {}, h, w)", channels.unwrap_or(0)), x.dims()),
        };
        if let Some(found) = extra
            && !matches!(*found, [rows, e, height, width] if rows == b && e > 0 && [height, width] == [h, w])
        {
            return fail("extra_channels", format!("({b}, e, {h}, {w})"), found);
        }
        if let Some(tokens) = &conditioning.image_tokens {
            return fail("image_tokens", "none: this network has no layers for image prompts".into(), tokens.dims());
        }
        if let Some(residuals) = &conditioning.residuals
            && residuals.down.len() != self.skips
        {
            return fail("residuals.down", format!("{} feature maps", self.skips), &[residuals.down.len()]);
        }
        if !conditioning.controls.is_empty() {
            let expected = "none: control networks run next to this one, and give it residuals".into();
            return fail("controls", expected, &[conditioning.controls.len()]);
        }
        if timesteps.dims() != [1] && timesteps.dims() != [b] {
            return fail("timesteps", format!("(1) or ({b})"), timesteps.dims());
        }
        if let Some(dim) = self.config.context_dim()
            && !matches!(*conditioning.context.dims(), [batch, s, d] if batch == b && d == dim && s > 0)
        {
            return fail("context", format!("({b}, s, {dim})"), conditioning.context.dims());
        }
        let guidance = conditioning.guidance.as_ref().map(T::dims).unwrap_or_default();
        if self.config.time_cond_proj_dim.is_some() && guidance != [1] {
            return fail("guidance", "(1), the guidance scale that a distilled network takes".into(), guidance);
        }
        match (self.config.pooled_dim(), &conditioning.added) {
            (None, _) => Ok(()),
            (Some(dim), None) => fail("text_embeds", format!("({b}, {dim})"), &[]),
            (Some(dim), Some(added)) => {
                if added.text_embeds.dims() != [b, dim] {
                    return fail("text_embeds", format!("({b}, {dim})"), added.text_embeds.dims());
                }
                let ids = self.config.time_ids();
                if added.time_ids.dims() != [b, ids] {
                    return fail("time_ids", format!("({b}, {ids})"), added.time_ids.dims());
                }
                Ok(())
            }
        }
    }
}
