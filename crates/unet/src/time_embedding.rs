//! The embedding of the timestep, and of SDXL's pooled text and sizes.

use candle_core::DType;
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

use crate::config::{AddedEmbedding, UnetConfig};

/// Two linear layers with SiLU between.
struct EmbeddingMlp {
    linear_1: Linear,
    linear_2: Linear,
}

impl EmbeddingMlp {
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

/// Everything that the residual blocks are told besides the feature map.
pub(crate) struct TimeEmbedding {
    form: TimestepEmbedding,
    time: EmbeddingMlp,
    added: Option<(TimestepEmbedding, EmbeddingMlp)>,
}

impl TimeEmbedding {
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &UnetConfig) -> Self {
        let UnetConfig { flip_sin_to_cos, freq_shift, .. } = *config;
        let (dim, channels) = (config.model_channels(), config.temb_channels());
        let form = TimestepEmbedding { dim, flip_sin_to_cos, freq_shift };
        let added = config.added_embedding.map(|AddedEmbedding { time_embed_dim, input_dim }| {
            let form = TimestepEmbedding { dim: time_embed_dim, ..form };
            (form, EmbeddingMlp::new(&p.pp("add_embedding"), input_dim, channels))
        });
        Self { form, time: EmbeddingMlp::new(&p.pp("time_embedding"), dim, channels), added }
    }

    /// `timesteps` `(b or 1)`, and for SDXL pooled text `(b, pooled_dim)` with the sizes `(b, 6)`, to
    /// `(b or 1, temb_channels)` in `dtype`.
    pub(crate) fn forward<T: TensorLike>(&self, timesteps: &T, added: Option<(&T, &T)>, dtype: DType) -> Result<T> {
        let temb = self.time.forward(&timesteps.timestep_embedding(self.form, dtype)?)?;
        let (Some((form, mlp)), Some((pooled, time_ids))) = (&self.added, added) else { return Ok(temb) };
        let [b, sizes] = time_ids.size2()?;
        let embedded = time_ids.reshape(&[b * sizes])?.timestep_embedding(*form, dtype)?;
        let sizes = embedded.reshape(&[b, sizes * form.dim])?; // (b, 6 * time_embed_dim)
        let added = mlp.forward(&pooled.to_dtype(dtype)?.concat_channels(&sizes)?)?;
        // A row for each: broadcasting would send strides to a card, behind the weights that are streamed there.
        let temb = match b / temb.size2()?[0].max(1) {
            1 => temb,
            images => T::cat(&vec![&temb; images], 0)?,
        };
        added.add(&temb)
    }
}
