//! The whole network.

use candle_core::DType;
use kiln_nn::ops::Activation;
use kiln_nn::{Conv2d, GroupNorm, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::blocks::{BlockContext, Builder, DownBlock, MidBlock, UpBlock};
use crate::conditioning::{AddedConditions, Conditioning};
use crate::config::UnetConfig;
use crate::error::{Error, Result};
use crate::time_embedding::TimeEmbedding;

/// The U-Net. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Unet {
    config: UnetConfig,
    segments: Segments,
    /// The number of skip connections from the down blocks to the up blocks.
    skips: usize,
    time_embedding: SegmentModule<TimeEmbedding>,
    conv_in: SegmentModule<Conv2d>,
    down_blocks: Vec<DownBlock>,
    mid_block: Option<MidBlock>,
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
        let channels = config.model_channels();
        let time_embedding = segments.add("time_embedding", |p| TimeEmbedding::new(p, &config));
        let conv_in = segments
            .add("conv_in", |p| Conv2d::new(&p.pp("conv_in"), config.in_channels, channels, config.conv_in_kernel));

        let mut builder = Builder { segments: &mut segments, config: &config };
        let mut skips = vec![channels]; // of conv_in, of every layer, of every downsampling
        let mut down_blocks = Vec::new();
        let mut last = channels;
        for (i, block) in config.down.iter().enumerate() {
            down_blocks.push(DownBlock::new(&mut builder, i, last));
            let downsamples = usize::from(i + 1 < config.down.len());
            skips.extend(std::iter::repeat_n(block.channels, block.layers + downsamples));
            last = block.channels;
        }
        let count = skips.len();
        let mid_block = config.mid.as_ref().map(|block| MidBlock::new(&mut builder, block));
        let mut up_blocks = Vec::new();
        for (i, block) in config.up.iter().enumerate() {
            up_blocks.push(UpBlock::new(&mut builder, i, last, &mut skips));
            last = block.channels;
        }
        let norm = kiln_nn::ops::GroupNorm { num_groups: config.norm_num_groups, eps: config.norm_eps, silu: true };
        let head = segments.add("conv_out", |p| Head {
            conv_norm_out: GroupNorm::new(&p.pp("conv_norm_out"), last, norm),
            conv_out: Conv2d::new(&p.pp("conv_out"), last, config.out_channels, config.conv_out_kernel),
        });
        Self { config, segments, skips: count, time_embedding, conv_in, down_blocks, mid_block, up_blocks, head }
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
        let added = conditioning.added.as_ref().filter(|_| self.config.pooled_dim().is_some());
        let added = added.map(|added| (&added.text_embeds, &added.time_ids));
        let guidance = conditioning.guidance.as_ref();
        let temb = T::run(&self.time_embedding, |embedding| embedding.forward(timesteps, guidance, added, dtype))?;
        observe("time_emb", &temb);
        let temb = temb.activation(Activation::Silu)?;
        let tokens = conditioning.context.to_dtype(dtype)?;
        let context = BlockContext { temb: &temb, tokens: &tokens };

        let mut x = x.to_channels_last()?;
        if let Some(extra) = &conditioning.extra_channels {
            x = x.concat_channels(&extra.to_dtype(dtype)?.to_channels_last()?)?;
        }
        let mut x = T::run(&self.conv_in, |conv| conv.forward(&x))?;
        observe("conv_in", &x);
        let mut skips = vec![x.clone()];
        for (i, block) in self.down_blocks.iter().enumerate() {
            x = block.forward(x, &context, &mut skips)?;
            observe(&format!("down.{i}"), &x);
        }
        if let Some(residuals) = &conditioning.residuals {
            for (skip, residual) in skips.iter_mut().zip(&residuals.down) {
                *skip = skip.add(&residual.to_dtype(dtype)?)?;
            }
        }
        if let Some(block) = &self.mid_block {
            x = block.forward(x, &context)?;
            observe("mid", &x);
        }
        if let Some(residuals) = &conditioning.residuals {
            x = x.add(&residuals.mid.to_dtype(dtype)?)?;
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
