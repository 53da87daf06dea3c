//! The whole network of FLUX.1.

use kiln_network::Inputs;
use kiln_network::slots::{GUIDANCE, TEXT_EMBEDS};
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::NETWORK;
use super::config::FluxConfig;
use super::embedders::{TimeTextEmbed, TokenEmbedders};
use super::inputs::{Sizes, TokenInputs, refused};
use super::output::ModulatedOutput;
use super::packing::unpack;
use super::trunk::{ImageHook, Trunk};
use crate::error::Result;

/// FLUX.1's transformer over image and text tokens (diffusers' `FluxTransformer2DModel`), with its variants: schnell, dev, Krea,
/// Fill, Kontext, and Canny and Depth. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct FluxTransformer {
    config: FluxConfig,
    segments: Segments,
    embedders: SegmentModule<Embedders>,
    trunk: Trunk,
    output: SegmentModule<ModulatedOutput>,
}

/// The layers before the blocks.
pub(super) struct Embedders {
    tokens: TokenEmbedders,
    time_text: TimeTextEmbed,
}

impl FluxTransformer {
    /// Declares the network that `config` describes.
    pub fn new(config: FluxConfig) -> Self {
        let FluxConfig { dims, pooled_dim, guidance } = config;
        let mut segments = Segments::default();
        let c = dims.channels();
        let embedders = segments.add("embedders", |p| Embedders {
            tokens: TokenEmbedders::new(p, [dims.in_channels, dims.context_dim, c]),
            time_text: TimeTextEmbed::new(p, pooled_dim, c, guidance),
        });
        let trunk = Trunk::new(&mut segments, "", &dims, true);
        let output = segments.add("proj_out", |p| ModulatedOutput::new(p, &dims));
        Self { config, segments, embedders, trunk, output }
    }

    /// The configuration.
    pub fn config(&self) -> &FluxConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, 16, h, w)` of latents `x` `(b, 16, h, w)` with even `h` and `w`.
    ///
    /// `timesteps` are `(1)` or `(b)` in f32, from 0 to 1000: the noise level times 1000. `inputs` are
    /// - the text `(b, s, context_dim)` ([`kiln_network::slots::CONTEXT`]) and the pooled text `(b, pooled_dim)`
    ///   ([`TEXT_EMBEDS`]),
    /// - if [`FluxConfig::guidance`], 1000 times the guidance scale ([`GUIDANCE`]),
    /// - channels besides the latents `(b, e, h, w)` ([`kiln_network::slots::EXTRA_CHANNELS`]): the latents of the control image,
    ///   or for Fill those of the masked image and 64 channels of the mask, one for each pixel that a latent stands for,
    /// - latents of reference images ([`kiln_network::slots::REFERENCE`]).
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        self.forward_with(x, timesteps, inputs, None)
    }

    /// [`FluxTransformer::forward`] with a function that may change the image's tokens after each block.
    pub(super) fn forward_with<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        inputs: &Inputs<T>,
        hook: Option<ImageHook<'_, T>>,
    ) -> Result<T> {
        let dims = &self.config.dims;
        let all = inputs;
        let inputs = TokenInputs::of(NETWORK, inputs)?;
        let sizes = inputs.check(NETWORK, dims, x, timesteps)?;
        let Sizes { b, image, .. } = sizes;
        // Control networks add to blocks that the cache skips.
        let cache = if hook.is_none() { sizes.cache(NETWORK, all, dims, timesteps)? } else { None };
        let pooled = pooled_of(NETWORK, &inputs, b, self.config.pooled_dim)?;
        let guidance = if self.config.guidance { Some(guidance_of(NETWORK, &inputs)?) } else { None };
        let (packed, dtype) = (inputs.image_tokens(x)?, x.dtype());
        let (tokens, emb) = T::run(&self.embedders, |layers| {
            let emb = layers.time_text.forward(timesteps, guidance, pooled, dtype)?;
            Ok((layers.tokens.forward(&packed, &inputs.context.to_dtype(dtype)?)?, emb))
        })?;
        drop(packed);
        let attending = inputs.attending(dims, sizes, timesteps)?;
        let vectors = |_, own: &[kiln_nn::Modulation]| modulations(own, &emb);
        let y = self.trunk.run(tokens, image.tokens(), &vectors, attending, hook, cache)?;
        let y = T::run(&self.output, |output| output.forward(&y, &emb))?;
        Ok(unpack(&y, (image.height, image.width))?)
    }
}

/// The vectors that layers make of an embedding, one after another.
pub(super) fn modulations<T: TensorLike>(own: &[kiln_nn::Modulation], emb: &T) -> kiln_nn::Result<Vec<T>> {
    let all = own.iter().map(|layer| layer.forward(emb)).collect::<kiln_nn::Result<Vec<_>>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// The pooled text `(b, dim)`, checked.
pub(super) fn pooled_of<'a, T: TensorLike>(
    network: &'static str,
    inputs: &'a TokenInputs<T>,
    b: usize,
    dim: usize,
) -> Result<&'a T> {
    let found = inputs.pooled.as_ref().map(T::dims).unwrap_or_default();
    let pooled = inputs.pooled.as_ref().filter(|pooled| pooled.dims() == [b, dim]);
    pooled.ok_or_else(|| refused(network, TEXT_EMBEDS.name, format!("({b}, {dim})"), found))
}

/// The guidance `(1)`, checked.
pub(super) fn guidance_of<'a, T: TensorLike>(network: &'static str, inputs: &'a TokenInputs<T>) -> Result<&'a T> {
    let found = inputs.guidance.as_ref().map(T::dims).unwrap_or_default();
    let guidance = inputs.guidance.as_ref().filter(|guidance| guidance.dims() == [1]);
    guidance.ok_or_else(|| refused(network, GUIDANCE.name, "(1)".into(), found))
}
