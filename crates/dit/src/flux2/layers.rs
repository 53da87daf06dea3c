//! The layers before and after the blocks.

use candle_core::DType;
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{Linear, Modulation, Result, TensorLike, modulate};
use kiln_weights::ParamBuilder;

use super::config::Flux2Config;

/// The layers before the blocks.
pub(super) struct Embedders {
    x: Linear,
    context: Linear,
    time_channels: usize,
    /// Of the timestep.
    mlp: [Linear; 2],
    /// Of the image and the text in double blocks, and of single blocks.
    modulations: [Modulation; 3],
}

/// The result of [`Embedders`].
pub(super) struct Embedded<T> {
    /// Image tokens `(b, n, c)`.
    pub(super) image: T,
    /// Text tokens `(b, s, c)`.
    pub(super) text: T,
    /// The vector of the timestep, `(1, c)` or `(b, c)`.
    pub(super) emb: T,
    /// Shift, scale and gate of all layers of a double block: those of the image, then those of the text.
    pub(super) double: Vec<T>,
    /// The layers of a single block.
    pub(super) single: Vec<T>,
}

impl Embedders {
    /// Declares the embedders of image, text and timestep, and the modulations.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Flux2Config) -> Self {
        let c = config.channels();
        let time = p.pp("time_guidance_embed.timestep_embedder");
        let modulation = |name: &str, chunks| Modulation::new(&p.pp(name), [c, c], chunks, false, true);
        Self {
            x: Linear::new(&p.pp("x_embedder"), config.in_channels, c, false),
            context: Linear::new(&p.pp("context_embedder"), config.context_dim, c, false),
            time_channels: config.time_channels,
            mlp: [
                Linear::new(&time.pp("linear_1"), config.time_channels, c, false),
                Linear::new(&time.pp("linear_2"), c, c, false),
            ],
            modulations: [
                modulation("double_stream_modulation_img.linear", 6),
                modulation("double_stream_modulation_txt.linear", 6),
                modulation("single_stream_modulation.linear", 3),
            ],
        }
    }

    /// Image tokens `(b, n, in_channels)` and text tokens `(b, s, context_dim)`. `timesteps` `(1)` or `(b)` are in f32.
    pub(super) fn forward<T: TensorLike>(&self, image: &T, text: &T, timesteps: &T) -> Result<Embedded<T>> {
        let emb = self.time(timesteps, image.dtype())?;
        let [of_image, of_text, single] = &self.modulations;
        let mut double = of_image.forward(&emb)?;
        double.extend(of_text.forward(&emb)?);
        let single = single.forward(&emb)?;
        Ok(Embedded { image: self.x.forward(image)?, text: self.context.forward(text)?, emb, double, single })
    }

    fn time<T: TensorLike>(&self, timesteps: &T, dtype: DType) -> Result<T> {
        let form = TimestepEmbedding { dim: self.time_channels, flip_sin_to_cos: true, freq_shift: 0.0 };
        let [first, last] = &self.mlp;
        let x = first.forward(&timesteps.timestep_embedding(form, dtype)?)?;
        last.forward(&x.activation(Activation::Silu)?)
    }
}

/// The last normalization and linear layer.
pub(super) struct Output {
    norm_out: Modulation,
    proj_out: Linear,
    eps: f64,
}

impl Output {
    /// Declares `norm_out.linear` and `proj_out`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Flux2Config) -> Self {
        let c = config.channels();
        Self {
            norm_out: Modulation::new(&p.pp("norm_out.linear"), [c, c], 2, false, true),
            proj_out: Linear::new(&p.pp("proj_out"), c, config.in_channels, false),
            eps: config.eps,
        }
    }

    /// `x` `(b, n, c)` with the vector `emb` of the timestep, to `(b, n, in_channels)`. The scale comes first.
    pub(super) fn forward<T: TensorLike>(&self, x: &T, emb: &T) -> Result<T> {
        let vectors = self.norm_out.forward(emb)?;
        self.proj_out.forward(&modulate(x, &vectors[0], Some(&vectors[1]), self.eps)?)
    }
}
