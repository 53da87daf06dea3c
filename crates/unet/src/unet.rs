//! The whole network.

use candle_core::DType;
use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, TEXT_EMBEDS, TIME_IDS};
use kiln_nn::{Conv2d, GroupNorm, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::blocks::{Builder, UpBlock};
use crate::conditioning::{Conditioning, ControlInput, add_to_last_rows};
use crate::config::UnetConfig;
use crate::control::{Lllite, LlliteHook};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::hooks::{
    DownHook, FreeuHook, HookInputs, Hooks, LayerId, SelfAttentionHook, SkipHook, SkipHooks, StoreFeature, UpLayer,
};
use crate::image_prompt::{CrossKeys, KeysValues};
use crate::transformer::Transformer;

/// The U-Net. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Unet {
    config: UnetConfig,
    segments: Segments,
    /// The number of skip connections from the down blocks to the up blocks.
    skips: usize,
    encoder: Encoder,
    up_blocks: Vec<UpBlock>,
    /// The cross-attention layers, in the order in which they run.
    cross_layers: Vec<LayerId>,
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
        let transformers = encoder.transformers().chain(up_blocks.iter().flat_map(UpBlock::transformers));
        let cross_layers = transformers.flat_map(Transformer::ids).collect();
        Self { config, segments, skips: count, encoder, up_blocks, cross_layers, head }
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

    /// Like [`Unet::forward`], and passes intermediate outputs to `observe`: `time_emb` `(b or 1, temb_channels)`, and
    /// the feature maps `conv_in`, `down.{i}`, `mid`, `up.{i}`, `(b, h, w, c)`.
    pub fn forward_observed<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<T> {
        self.run(x, timesteps, conditioning, &[], observe)
    }

    /// As [`Unet::forward`] with networks that change what the projections of its attention layers get, each with its input.
    pub fn forward_with<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        lllite: &[(&Lllite, &ControlInput<T>)],
    ) -> Result<T> {
        self.run(x, timesteps, conditioning, lllite, &mut |_, _| {})
    }

    fn run<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        lllite: &[(&Lllite, &ControlInput<T>)],
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<T> {
        self.check(x, timesteps, conditioning)?;
        let projections = LlliteHook(lllite);
        let dtype = x.dtype();
        let embedded = self.encoder.embed(timesteps, conditioning, dtype, observe)?;
        let cross = CrossKeys {
            layers: &self.cross_layers,
            text: &conditioning.text_keys,
            prompts: &conditioning.image_prompts,
        };
        let HookInputs { perturbed, freeu, cache, shrink, map } = &conditioning.hooks;
        let model_channels = self.config.model_channels();
        let freeu = freeu.map(|freeu| FreeuHook { freeu, model_channels });
        let branch = cache.as_ref().and_then(|cache| Some((cache, self.config.up_layer(cache.branch)?)));
        let shortcut = branch.filter(|(cache, _)| cache.is_shortcut);
        let store = branch.filter(|(cache, _)| !cache.is_shortcut);
        let store = store.map(|(cache, at)| StoreFeature { at, feature: &cache.feature });
        let joins = [
            store.as_ref().map(|hook| hook as &dyn SkipHook<T>),
            shrink.as_ref().map(|hook| hook as _),
            freeu.as_ref().map(|hook| hook as _),
        ];
        let joins = SkipHooks(joins.into_iter().flatten().collect());
        let hooks = Hooks {
            self_attention: match (perturbed, map) {
                (Some(hook), _) => Some(hook as &dyn SelfAttentionHook<T>),
                (None, map) => map.as_ref().map(|hook| hook as _),
            },
            skips: Some(&joins as &dyn SkipHook<T>).filter(|_| !joins.0.is_empty()),
            down: shrink.as_ref().map(|hook| hook as &dyn DownHook<T>),
            cross_attention: if cross.acts() { Some(&cross) } else { None },
            projections: projections.acts(),
        };
        if hooks.self_attention.is_some() && hooks.projections.is_some() {
            let expected = "none with other changes of self-attention".into();
            return Err(Error::Input { input: "controls of ControlNet-LLLite", expected, found: vec![lllite.len()] });
        }
        let context = embedded.context(&hooks);

        let mut x = x.to_channels_last()?;
        if let Some(extra) = &conditioning.extra_channels {
            x = x.concat_channels(&extra.to_dtype(dtype)?.to_channels_last()?)?;
        }
        let features = conditioning.features.iter().map(|feature| feature.to_dtype(dtype));
        let features = features.collect::<kiln_nn::Result<Vec<T>>>()?;
        let most = shortcut.map_or(usize::MAX, |(cache, _)| cache.branch + 1);
        let (mut x, mut skips) = self.encoder.down(&x, None, &features, most, &context, observe)?;
        if let Some(residuals) = &conditioning.residuals {
            for (skip, residual) in skips.iter_mut().zip(&residuals.down) {
                *skip = add_to_last_rows(skip, &residual.to_dtype(dtype)?)?;
            }
        }
        let mut first = UpLayer::FIRST;
        match shortcut {
            Some((cache, layer)) => (x, first) = (cache.feature.clone(), layer),
            None => {
                x = self.encoder.mid(x, &context, observe)?;
                // diffusers: what remains of an adapter's features is added here where its shape allows.
                let left = features.get(self.encoder.levels());
                if let Some(feature) = left.filter(|feature| feature.dims() == x.dims()) {
                    x = x.add(feature)?;
                }
                if let Some(residuals) = &conditioning.residuals {
                    x = add_to_last_rows(&x, &residuals.mid.to_dtype(dtype)?)?;
                }
            }
        }
        for (i, block) in self.up_blocks.iter().enumerate().skip(first.block) {
            let layer = if i == first.block { first.layer } else { 0 };
            x = block.forward(x, layer, &context, &mut skips)?;
            observe(&format!("up.{i}"), &x);
        }
        let y = T::run(&self.head, |head| head.conv_out.forward(&head.conv_norm_out.forward(&x)?))?;
        Ok(y.to_channels_first()?)
    }

    /// The keys and values of the text `context` `(b, s, context_dim)`, in the slabs' type, for each cross-attention layer in the
    /// order in which they run: [`Conditioning::text_keys`]. Every layer's weights are used once.
    ///
    /// # Errors
    /// Errors of a layer, with the layer's path.
    pub fn text_keys<T: TensorLike>(&self, context: &T) -> Result<Vec<KeysValues<T>>> {
        let transformers = self.encoder.transformers().chain(self.up_blocks.iter().flat_map(UpBlock::transformers));
        Ok(Transformer::text_keys(transformers, context)?)
    }

    /// The shapes of the inputs of `b` images of `(height, width)` latents with `tokens` tokens of text each.
    pub fn meta_inputs(
        &self,
        device: &MetaDevice,
        b: usize,
        (h, w): (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Inputs<MetaTensor> {
        let context = device.tensor(&[b, tokens, self.config.context_dim().unwrap_or(1)], dtype);
        let mut inputs = Inputs::new().with(CONTEXT, context);
        if self.config.time_cond_proj_dim.is_some() {
            inputs = inputs.with(GUIDANCE, device.tensor(&[1], DType::F32));
        }
        if let Some(dim) = self.config.pooled_dim() {
            let time_ids = device.tensor(&[b, self.config.time_ids()], DType::F32);
            inputs = inputs.with(TEXT_EMBEDS, device.tensor(&[b, dim], dtype)).with(TIME_IDS, time_ids);
        }
        match self.config.extra_channels() {
            0 => inputs,
            extra => inputs.with(EXTRA_CHANNELS, device.tensor(&[b, extra, h, w], dtype)),
        }
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
        let layers = self.cross_layers.len();
        if let Some(prompt) = conditioning.image_prompts.iter().find(|prompt| prompt.layers.len() != layers) {
            let expected = format!("({layers}): keys and values for each cross-attention layer");
            return fail("image_prompts", expected, &[prompt.layers.len()]);
        }
        let keys = &conditioning.text_keys;
        if !keys.is_empty() && keys.len() != layers {
            return fail(
                "text_keys",
                format!("({layers}): one for each cross-attention layer, or none"),
                &[keys.len()],
            );
        }
        if let Some(residuals) = &conditioning.residuals
            && residuals.down.len() != self.skips
        {
            return fail("residuals.down", format!("{} feature maps", self.skips), &[residuals.down.len()]);
        }
        if let Some(map) = &conditioning.hooks.map {
            let [_, rows, columns, _] = self.config.mid_map(b, (h, w));
            if map.map.dims() != [b, rows * columns] {
                return fail("hooks.map", format!("({b}, {})", rows * columns), map.map.dims());
            }
            if conditioning.hooks.perturbed.is_some() {
                return fail("hooks.map", "none with perturbed attention".into(), map.map.dims());
            }
        }
        if let Some(cache) = &conditioning.hooks.cache {
            match self.config.cached_feature(cache.branch, b, (h, w)) {
                Some(shape) if cache.feature.dims() == shape => {}
                Some(shape) => return fail("hooks.cache", format!("{shape:?}"), cache.feature.dims()),
                None => return fail("hooks.cache", format!("a branch less than {}", self.skips), &[cache.branch]),
            }
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
