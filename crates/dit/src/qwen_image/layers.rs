//! The layers before the blocks, and a block with the layers that make its vectors.

use candle_core::DType;
use kiln_nn::ops::TimestepEmbedding;
use kiln_nn::{Linear, Modulation, Result, RmsNorm, TensorLike};
use kiln_weights::ParamBuilder;

use crate::flux::FluxDims;
use crate::flux::attention::Attending;
use crate::flux::block::{DoubleBlock, Vectors};
use crate::flux::dims::EPS;
use crate::flux::embedders::{EmbeddingMlp, SINUSOIDS};

/// The layers before the blocks.
pub(super) struct Embedders {
    timestep: EmbeddingMlp,
    image: Linear,
    text_norm: RmsNorm,
    text: Linear,
}

impl Embedders {
    /// Declares `time_text_embed`, `img_in`, `txt_norm` and `txt_in`.
    pub(super) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        let c = dims.channels();
        Self {
            timestep: EmbeddingMlp::new(&p.pp("time_text_embed").pp("timestep_embedder"), SINUSOIDS, c),
            image: Linear::new(&p.pp("img_in"), dims.in_channels, c, true),
            text_norm: RmsNorm::new(&p.pp("txt_norm"), dims.context_dim, EPS),
            text: Linear::new(&p.pp("txt_in"), dims.context_dim, c, true),
        }
    }

    /// Image tokens `(b, n, in_channels)` and text tokens `(b, s, context_dim)`, each to `(b, .., c)`.
    pub(super) fn tokens<T: TensorLike>(&self, image: &T, text: &T) -> Result<[T; 2]> {
        Ok([self.image.forward(image)?, self.text.forward(&self.text_norm.forward(text)?)?])
    }

    /// `timesteps` `(1)` or `(b)` in f32, to `(1, c)` or `(b, c)` in `dtype`.
    pub(super) fn timestep<T: TensorLike>(&self, timesteps: &T, dtype: DType) -> Result<T> {
        let form = TimestepEmbedding { dim: SINUSOIDS, flip_sin_to_cos: true, freq_shift: 0.0 };
        self.timestep.forward(&timesteps.timestep_embedding(form, dtype)?, None)
    }
}

/// The embeddings of a timestep, each `(b, c)` or `(1, c)`.
pub(super) struct Embeddings<T> {
    /// Of the noise level of the latents.
    pub(super) emb: T,
    /// Of an image without noise, for the tokens of references; `None` if these have that of the latents.
    pub(super) clean: Option<T>,
}

/// A double block, and the layers that make its vectors of the timestep's embedding.
pub(super) struct Block {
    modulations: [Modulation; 2],
    block: DoubleBlock,
}

impl Block {
    /// Declares `img_mod.1`, `txt_mod.1`, `attn`, `img_mlp` and `txt_mlp`.
    pub(super) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        let c = dims.channels();
        let modulations = ["img_mod.1", "txt_mod.1"].map(|name| Modulation::new(&p.pp(name), [c, c], 6, true, true));
        Self { modulations, block: DoubleBlock::plain(p, dims.heads(), ["img_mlp", "txt_mlp"]) }
    }

    /// Image tokens `(b, m, c)`, of which those behind the first `n` are of references, and text tokens `(b, s, c)`, same shapes.
    pub(super) fn forward<T: TensorLike>(
        &self,
        tokens: [T; 2],
        n: usize,
        emb: &Embeddings<T>,
        attending: &Attending<T>,
    ) -> Result<[T; 2]> {
        let [image, text] = &self.modulations;
        let mut vectors = image.forward(&emb.emb)?;
        vectors.extend(text.forward(&emb.emb)?);
        let vectors: [Vectors<T>; 4] = Vectors::of(vectors)?;
        let Some(clean) = &emb.clean else { return self.block.forward(tokens, &vectors, attending) };
        let ([attention, ff, text_attention, text_ff], [clean_attention, clean_ff]) =
            (vectors, Vectors::of(image.forward(clean)?)?);
        let [attention, ff] = [attention.before(n, clean_attention), ff.before(n, clean_ff)];
        self.block.forward(tokens, &[attention, ff, text_attention, text_ff], attending)
    }
}
