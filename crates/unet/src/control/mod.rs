//! ControlNet (arXiv 2302.05543, diffusers' `ControlNetModel`): the encoder of a U-Net once more, with a control image added
//! to its first feature map, and a 1x1 convolution ("tap") for each skip connection and for the middle; and the other networks
//! that guide a U-Net by an image.
//!
//! A ControlNet is the U-Net's `Encoder` (`unet/encoder.rs`) with weights of its own, and a 1x1 convolution for each
//! residual (`unet/control`). A `ControlModel` is any network that guides by an image: what runs once an image, and
//! what runs in every step, which a T2I-Adapter does not have. `Denoiser::with_controls` gives the denoiser of every
//! run: it calls the control networks that act at an evaluation, adds up their residuals, and calls the U-Net, so that
//! plans, recorded steps and measurements have all of them. What runs once an image does so in
//! `pipeline/control_inputs.rs`. What a file is, `models/control` decides from its tensors. Residuals may have fewer
//! rows than the batch: those of the conditional half, which is last.

mod adapter;
mod adapter_config;
mod config;
mod hint;
mod interface;
mod lllite;
mod mean;
mod model;
mod shapes;
mod union;

use std::sync::Arc;

use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::blocks::Builder;
use crate::conditioning::{AddedConditions, Conditioning, ControlInput, Residuals, last_rows};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::hooks::{CrossAttentionHook, Hooks, LayerId};
use crate::image_prompt::{CrossKeys, KeysValues};
use crate::transformer::Transformer;
pub use adapter::T2iAdapter;
pub use adapter_config::{AdapterConfig, AdapterForm};
pub use config::ControlConfig;
pub use hint::ControlHint;
pub(crate) use lllite::LlliteHook;
pub use lllite::{Lllite, LlliteConfig, LlliteModule, Projection as LlliteProjection};
use mean::mean_of_pixels;
pub use model::{ControlModel, ControlModelConfig};
use union::Union;
pub use union::{ControlKinds, UnionConfig};

/// The prefix of the names of a control network's segments.
const LABEL: &str = "controlnet.";

/// A control network. It is built from its configuration; its [`Segments`] are loaded before it runs. The network that
/// embeds the control image, [`ControlHint`], has segments of its own: it runs once an image, and not once a step.
pub struct ControlNet {
    config: ControlConfig,
    segments: Segments,
    encoder: Encoder,
    taps: SegmentModule<Taps>,
    channels: Vec<usize>,
    /// The cross-attention layers, in the order in which they run.
    cross_layers: Vec<LayerId>,
    union: Option<Union>,
}

/// The 1x1 convolutions after the encoder: one for each skip connection, and the middle's.
struct Taps {
    down: Vec<Conv2d>,
    mid: Conv2d,
}

impl ControlNet {
    /// Declares the network that `config` describes.
    pub fn new(config: ControlConfig) -> Self {
        let mut segments = Segments::default();
        let mut builder = Builder { segments: &mut segments, config: &config.network, label: LABEL };
        let embedding = config.union.map(|union| Union::embedding(&mut builder, union));
        let (encoder, fuser) =
            Encoder::new_with(&mut builder, |builder| config.union.map(|union| Union::fuser(builder, union)));
        let union = config.union.zip(embedding).zip(fuser);
        let union = union.map(|((config, embedding), fuser)| Union { config, embedding, fuser });
        let channels = config.skips();
        let mid = config.network.down.last().map_or(0, |block| block.channels);
        let taps = builder.segment("taps", |p| Taps {
            down: channels
                .iter()
                .enumerate()
                .map(|(i, &c)| Conv2d::new(&p.pp("controlnet_down_blocks").pp(i.to_string()), c, c, 1))
                .collect(),
            mid: Conv2d::new(&p.pp("controlnet_mid_block"), mid, mid, 1),
        });
        let cross_layers = encoder.transformers().flat_map(Transformer::ids).collect();
        Self { config, segments, encoder, taps, channels, cross_layers, union }
    }

    /// The configuration.
    pub fn config(&self) -> &ControlConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The channels of the skip connections that residuals are for, in the order in which the way down makes them.
    pub fn skips(&self) -> &[usize] {
        &self.channels
    }

    /// The residuals for a U-Net with noisy latents `x` `(b, in_channels, h, w)` at `timesteps` `(1)` or `(b)`, with the
    /// text of `conditioning`, for the last `r` rows of the batch: as many as the hints of `input` have.
    ///
    /// # Errors
    /// [`Error::Input`] if an input does not fit the configuration; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        input: &ControlInput<T>,
    ) -> Result<Residuals<T>> {
        let dtype = x.dtype();
        let rows = self.check(x, conditioning, input)?;
        let last = |tensor: &T| last_rows(tensor, rows);
        let added = conditioning.added.as_ref().map(|added| -> kiln_nn::Result<_> {
            Ok(AddedConditions { text_embeds: last(&added.text_embeds)?, time_ids: last(&added.time_ids)? })
        });
        let seen = Conditioning { added: added.transpose()?, ..Conditioning::of_text(last(&conditioning.context)?) };
        let (x, timesteps) = (last(x)?.to_channels_last()?, last(timesteps)?);
        let hints = input.hints.iter().map(|hint| hint.to_dtype(dtype)).collect::<kiln_nn::Result<Vec<T>>>()?;
        let union = self.union.as_ref().zip(input.kinds.as_ref());
        let of_kinds = union.map(|(union, kinds)| union.embed(kinds, dtype)).transpose()?;
        let nothing = &mut |_: &str, _: &T| {};
        let embedded = self.encoder.embed_with(&timesteps, &seen, of_kinds.as_ref(), dtype, nothing)?;
        let cross = CrossKeys { layers: &self.cross_layers, text: &input.text_keys, prompts: &[] };
        let cross_attention = if cross.acts() { Some(&cross as &dyn CrossAttentionHook<T>) } else { None };
        let hooks = Hooks { cross_attention, ..Hooks::default() };
        let context = embedded.context(&hooks);
        let first = match union {
            Some((union, kinds)) => union.fuse(&self.encoder.first(&x, None)?, &hints, kinds)?,
            None => self.encoder.first(&x, hints.first())?,
        };
        let (x, skips) = self.encoder.levels_from(first, &[], usize::MAX, &context, nothing)?;
        let mid = self.encoder.mid(x, &context, nothing)?;
        let scaled = |residual: T, scale: Option<&f32>| match scale {
            Some(&scale) if scale != 1.0 => residual.affine(f64::from(scale), 0.0),
            _ => Ok(residual),
        };
        // The mean of a 1x1 convolution is the convolution of the mean.
        let tapped = |tap: &Conv2d, x: &T| -> kiln_nn::Result<T> {
            if !self.config.global_pool {
                return tap.forward(x);
            }
            let [r, h, w, c] = x.size4()?;
            tap.forward(&mean_of_pixels(x)?.reshape(&[r, 1, 1, c])?)?.upsample_nearest((h, w), None)
        };
        Ok(T::run(&self.taps, |taps| {
            let all = taps.down.iter().zip(&skips).zip(input.scales.iter());
            let down = all.map(|((tap, skip), scale)| scaled(tapped(tap, skip)?, Some(scale)));
            Ok(Residuals {
                down: down.collect::<kiln_nn::Result<_>>()?,
                mid: scaled(tapped(&taps.mid, &mid)?, input.scales.last())?,
            })
        })?)
    }

    /// The keys and values of the text `context` `(r, s, context_dim)` for each cross-attention layer in the order in which they run:
    /// [`ControlInput::text_keys`]. Every layer's weights are used once.
    ///
    /// # Errors
    /// Errors of a layer, with the layer's path.
    pub fn text_keys<T: TensorLike>(&self, context: &T) -> Result<Vec<KeysValues<T>>> {
        Ok(Transformer::text_keys(self.encoder.transformers(), context)?)
    }

    /// The factors of residuals that all have the weight `weight`.
    pub fn even_scales(&self, weight: f64) -> Arc<[f32]> {
        vec![weight as f32; self.channels.len() + 1].into()
    }

    /// Returns an error for inputs that do not fit, else the rows that the network runs for.
    fn check<T: TensorLike>(&self, x: &T, conditioning: &Conditioning<T>, input: &ControlInput<T>) -> Result<usize> {
        let fail =
            |input, expected: String, found: &[usize]| Err(Error::Input { input, expected, found: found.to_vec() });
        let config = &self.config.network;
        let channels = config.in_channels;
        let [b, h, w] = match *x.dims() {
            [b, c, h, w] if c == channels && b * h * w > 0 => [b, h, w],
            _ => return fail("x", format!("(b, {channels}, h, w)"), x.dims()),
        };
        let c = config.model_channels();
        let first = input.hints.first().map(T::dims).unwrap_or_default();
        let rows = match *first {
            [r, height, width, depth] if (1..=b).contains(&r) && [height, width, depth] == [h, w, c] => r,
            _ => return fail("controls", format!("(up to {b}, {h}, {w}, {c})"), first),
        };
        if let Some(other) = input.hints.iter().find(|hint| hint.dims() != first) {
            return fail("controls", format!("{first:?}, as the first image"), other.dims());
        }
        match &self.union {
            Some(union) => union.check(input.kinds.as_ref(), input.hints.len())?,
            None if input.hints.len() == 1 => {}
            None => return fail("controls", "one image: the network is no Union network".into(), &[input.hints.len()]),
        }
        if input.scales.len() != self.channels.len() + 1 {
            return fail("scales", format!("({})", self.channels.len() + 1), &[input.scales.len()]);
        }
        let (layers, keys) = (self.cross_layers.len(), input.text_keys.len());
        if keys != 0 && keys != layers {
            return fail("text_keys", format!("({layers}): one for each cross-attention layer, or none"), &[keys]);
        }
        if let Some(dim) = config.context_dim()
            && !matches!(*conditioning.context.dims(), [batch, s, d] if batch == b && d == dim && s > 0)
        {
            return fail("context", format!("({b}, s, {dim})"), conditioning.context.dims());
        }
        match (config.pooled_dim(), &conditioning.added) {
            (Some(dim), added) => match added.as_ref().map(|added| added.text_embeds.dims()) {
                Some(found) if found == [b, dim] => Ok(rows),
                found => fail("text_embeds", format!("({b}, {dim})"), found.unwrap_or_default()),
            },
            (None, _) => Ok(rows),
        }
    }
}
