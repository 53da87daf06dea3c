//! The embeddings of the timestep, and of SDXL's pooled text and sizes.

use candle_core::DType;
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

use crate::config::{AddedEmbedding, UnetConfig};

/// Two linear layers with SiLU between.
pub(crate) struct EmbeddingMlp {
    linear_1: Linear,
    linear_2: Linear,
}

impl EmbeddingMlp {
    pub(crate) fn new(p: &ParamBuilder<'_>, in_channels: usize, channels: usize) -> Self {
        Self {
            linear_1: Linear::new(&p.pp("linear_1"), in_channels, channels, true),
            linear_2: Linear::new(&p.pp("linear_2"), channels, channels, true),
        }
    }

    /// `x` `(b, in_channels)` to `(b, channels)`.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.linear_2.forward(&self.linear_1.forward(x)?.activation(Activation::Silu)?)
    }
}

/// The embeddings that are the residual blocks' inputs besides the feature map.
pub(crate) struct TimeEmbedding {
    form: TimestepEmbedding,
    time: EmbeddingMlp,
    /// The embedding of the guidance scale and its projection, in distilled networks.
    guidance: Option<(TimestepEmbedding, Linear)>,
    added: Option<(TimestepEmbedding, EmbeddingMlp)>,
}

impl TimeEmbedding {
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &UnetConfig) -> Self {
        let UnetConfig { flip_sin_to_cos, freq_shift, .. } = *config;
        let (dim, channels) = (config.model_channels(), config.temb_channels());
        let form = TimestepEmbedding { dim, flip_sin_to_cos, freq_shift };
        let added = config.added_embedding.map(|AddedEmbedding { time_embed_dim, input_dim, .. }| {
            let form = TimestepEmbedding { dim: time_embed_dim, ..form };
            (form, EmbeddingMlp::new(&p.pp("add_embedding"), input_dim, channels))
        });
        let p = p.pp("time_embedding");
        let guidance = config.time_cond_proj_dim.map(|width| {
            // diffusers' `get_guidance_scale_embedding`, for any form of the timestep embedding.
            let form = TimestepEmbedding { dim: width, flip_sin_to_cos: false, freq_shift: 1.0 };
            (form, Linear::new(&p.pp("cond_proj"), width, dim, false))
        });
        Self { form, time: EmbeddingMlp::new(&p, dim, channels), guidance, added }
    }

    /// `timesteps` `(b or 1)`, for distilled networks `guidance` `(1)`, and for SDXL pooled text `(b, pooled_dim)` with
    /// the numbers `(b, 6)`, or a refiner's `(b, 5)`, to `(b or 1, temb_channels)` in `dtype`.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        timesteps: &T,
        guidance: Option<&T>,
        added: Option<(&T, &T)>,
        dtype: DType,
    ) -> Result<T> {
        let mut embedded = timesteps.timestep_embedding(self.form, dtype)?; // (b or 1, dim)
        if let (Some((form, projection)), Some(guidance)) = (&self.guidance, guidance) {
            let strength = projection.forward(&guidance.timestep_embedding(*form, dtype)?)?; // (1, dim)
            // One row for each timestep, as below.
            let strength = match embedded.size2()?[0] {
                1 => strength,
                rows => T::cat(&vec![&strength; rows], 0)?,
            };
            embedded = embedded.add(&strength)?;
        }
        let temb = self.time.forward(&embedded)?;
        let (Some((form, mlp)), Some((pooled, time_ids))) = (&self.added, added) else { return Ok(temb) };
        let [b, sizes] = time_ids.size2()?;
        let embedded = time_ids.reshape(&[b * sizes])?.timestep_embedding(*form, dtype)?;
        let sizes = embedded.reshape(&[b, sizes * form.dim])?; // (b, ids * time_embed_dim)
        let added = mlp.forward(&pooled.to_dtype(dtype)?.concat_channels(&sizes)?)?;
        // One row for each image. Broadcasting would copy strides to the GPU, after the weights that are streamed
        // there.
        let temb = match b / temb.size2()?[0].max(1) {
            1 => temb,
            images => T::cat(&vec![&temb; images], 0)?,
        };
        added.add(&temb)
    }
}
