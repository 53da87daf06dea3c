//! The layers before the blocks: tokens to channels, and timestep, guidance and pooled text to one vector.

use candle_core::DType;
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

use crate::tokens::repeated;

/// The width of the sinusoidal embeddings of timestep and guidance.
pub(crate) const SINUSOIDS: usize = 256;

/// Two linear layers with SiLU between.
pub(crate) struct EmbeddingMlp {
    linear_1: Linear,
    linear_2: Linear,
}

impl EmbeddingMlp {
    /// Declares `linear_1` and `linear_2`.
    pub(crate) fn new(p: &ParamBuilder<'_>, in_channels: usize, channels: usize) -> Self {
        Self {
            linear_1: Linear::new(&p.pp("linear_1"), in_channels, channels, true),
            linear_2: Linear::new(&p.pp("linear_2"), channels, channels, true),
        }
    }

    /// `x` `(.., in_channels)` to `(.., channels)`, with `residual` of this shape added if there is one.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, residual: Option<&T>) -> Result<T> {
        self.linear_2.forward_add(&self.linear_1.forward(x)?.activation(Activation::Silu)?, residual)
    }
}

/// The linear layers of image and text tokens.
pub(crate) struct TokenEmbedders {
    x: Linear,
    context: Linear,
}

impl TokenEmbedders {
    /// Declares `x_embedder` and `context_embedder`, from channels of image and text tokens to `channels`.
    pub(crate) fn new(p: &ParamBuilder<'_>, [image, text, channels]: [usize; 3]) -> Self {
        Self {
            x: Linear::new(&p.pp("x_embedder"), image, channels, true),
            context: Linear::new(&p.pp("context_embedder"), text, channels, true),
        }
    }

    /// Image tokens `(b, n, image)` and text tokens `(b, s, text)`, each to `(b, .., channels)`.
    pub(crate) fn forward<T: TensorLike>(&self, image: &T, text: &T) -> Result<[T; 2]> {
        Ok([self.x.forward(image)?, self.context.forward(text)?])
    }
}

/// The embedding of timestep, guidance and pooled text (diffusers' `CombinedTimestepGuidanceTextProjEmbeddings`).
pub(crate) struct TimeTextEmbed {
    timestep: EmbeddingMlp,
    guidance: Option<EmbeddingMlp>,
    text: EmbeddingMlp,
}

impl TimeTextEmbed {
    /// Declares the layers below `time_text_embed`.
    pub(crate) fn new(p: &ParamBuilder<'_>, pooled_dim: usize, channels: usize, guidance: bool) -> Self {
        let p = p.pp("time_text_embed");
        let sinusoids = |name: &str| EmbeddingMlp::new(&p.pp(name), SINUSOIDS, channels);
        Self {
            timestep: sinusoids("timestep_embedder"),
            guidance: guidance.then(|| sinusoids("guidance_embedder")),
            text: EmbeddingMlp::new(&p.pp("text_embedder"), pooled_dim, channels),
        }
    }

    /// `timesteps` `(1)` or `(b)` and `guidance` `(1)`, both in f32, and `pooled` `(b, pooled_dim)`, to `(b, channels)` in `dtype`.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        timesteps: &T,
        guidance: Option<&T>,
        pooled: &T,
        dtype: DType,
    ) -> Result<T> {
        let form = TimestepEmbedding { dim: SINUSOIDS, flip_sin_to_cos: true, freq_shift: 0.0 };
        let mut embedded = self.timestep.forward(&timesteps.timestep_embedding(form, dtype)?, None)?;
        if let (Some(mlp), Some(guidance)) = (&self.guidance, guidance) {
            let guidance = mlp.forward(&guidance.timestep_embedding(form, dtype)?, None)?; // (1, channels)
            embedded = embedded.add(&repeated(guidance, embedded.size2()?[0])?)?;
        }
        let pooled = self.text.forward(&pooled.to_dtype(dtype)?, None)?;
        repeated(embedded, pooled.size2()?[0])?.add(&pooled)
    }
}
