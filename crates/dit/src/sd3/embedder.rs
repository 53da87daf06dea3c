//! The inputs of the blocks: tokens of the latents and of the text, and the vector that modulates them.

use candle_core::DType;
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{Conv2d, Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

use super::config::Sd3Config;

/// Channels of the sinusoidal embedding of the timestep.
const TIME_CHANNELS: usize = 256;

/// A convolution that makes a token of each square of latents.
pub(super) struct PatchEmbed {
    proj: Conv2d,
}

impl PatchEmbed {
    /// Declares `proj` with a kernel of `patch_size`.
    pub(super) fn new(p: &ParamBuilder<'_>, in_channels: usize, config: &Sd3Config) -> Self {
        let geometry = kiln_nn::ops::Conv2d { stride: config.patch_size, pad_before: 0, pad_after: 0 };
        let (size, channels) = (config.patch_size, config.channels());
        Self { proj: Conv2d::with_geometry(&p.pp("proj"), in_channels, channels, size, geometry) }
    }

    /// `x` `(b, in_channels, h, w)` to `(b, n, channels)`, the tokens row by row.
    pub(super) fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let tokens = self.proj.forward(&x.to_channels_last()?)?;
        let [b, h, w, c] = tokens.size4()?;
        tokens.reshape(&[b, h * w, c])
    }
}

/// Two linear layers with SiLU between.
struct EmbeddingMlp {
    linear_1: Linear,
    linear_2: Linear,
}

impl EmbeddingMlp {
    /// Declares `linear_1` and `linear_2`.
    fn new(p: &ParamBuilder<'_>, in_channels: usize, channels: usize) -> Self {
        Self {
            linear_1: Linear::new(&p.pp("linear_1"), in_channels, channels, true),
            linear_2: Linear::new(&p.pp("linear_2"), channels, channels, true),
        }
    }

    /// `x` `(b, in_channels)` to `(b, channels)`.
    fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.linear_2.forward(&self.linear_1.forward(x)?.activation(Activation::Silu)?)
    }
}

/// The layers before the blocks.
pub(super) struct Embedder {
    /// `None` in control networks that take the tokens of the transformer.
    patches: Option<PatchEmbed>,
    time: EmbeddingMlp,
    pooled: EmbeddingMlp,
    /// `None` in control networks without a text.
    context: Option<Linear>,
}

impl Embedder {
    /// Declares `pos_embed.proj`, `time_text_embed` and `context_embedder`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Sd3Config, has_patches: bool, has_text: bool) -> Self {
        let channels = config.channels();
        let mlp = |name: &str, inputs| EmbeddingMlp::new(&p.pp("time_text_embed").pp(name), inputs, channels);
        Self {
            patches: has_patches.then(|| PatchEmbed::new(&p.pp("pos_embed"), config.in_channels, config)),
            time: mlp("timestep_embedder", TIME_CHANNELS),
            pooled: mlp("text_embedder", config.pooled_dim),
            context: has_text.then(|| Linear::new(&p.pp("context_embedder"), config.context_dim, channels, true)),
        }
    }

    /// The tokens `(b, n, channels)` of latents `x` `(b, in_channels, h, w)` with their `positions` `(n, channels)`; `None` for a
    /// network without this layer.
    pub(super) fn image<T: TensorLike>(&self, x: &T, positions: &T) -> Result<Option<T>> {
        let add = |patches: &PatchEmbed| patches.forward(x)?.broadcast_add(&positions.to_dtype(x.dtype())?);
        self.patches.as_ref().map(add).transpose()
    }

    /// The tokens `(b, s, channels)` of a text `(b, s, context_dim)`; `None` for a network without this layer.
    pub(super) fn text<T: TensorLike>(&self, context: &T) -> Result<Option<T>> {
        self.context.as_ref().map(|layer| layer.forward(context)).transpose()
    }

    /// The embedding `(b, channels)` of a pooled text `(b, pooled_dim)`.
    pub(super) fn pooled<T: TensorLike>(&self, pooled: &T) -> Result<T> {
        self.pooled.forward(pooled)
    }

    /// The vector that modulates the blocks, `(b, channels)` after SiLU, of `timesteps` `(1)` or `(b)` in f32 and the embedded pooled
    /// text `(b, channels)`. SiLU precedes every layer that takes it, so that it is computed once.
    pub(super) fn modulating<T: TensorLike>(&self, timesteps: &T, pooled: &T) -> Result<T> {
        let form = TimestepEmbedding { dim: TIME_CHANNELS, flip_sin_to_cos: true, freq_shift: 0.0 };
        let time = self.time.forward(&timesteps.to_dtype(DType::F32)?.timestep_embedding(form, pooled.dtype())?)?;
        let ([b, _], [times, _]) = (pooled.size2()?, time.size2()?);
        let time = if times == b { time } else { T::cat(&vec![&time; b], 0)? };
        time.add(pooled)?.activation(Activation::Silu)
    }
}
