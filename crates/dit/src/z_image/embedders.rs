//! The layers before and after the blocks.

use candle_core::DType;
use kiln_nn::ops::{Activation, RowNorm, TimestepEmbedding};
use kiln_nn::{Linear, Result, RmsNorm, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder};

use super::config::ZImageConfig;
use super::{TIMESTEPS, filled};
use crate::tokens::{join_tokens, repeated};

/// The width of the sinusoidal embedding of the timestep, and of the layer behind it.
const SINUSOIDS: usize = 256;
const HIDDEN: usize = 1024;
/// Added to the variance of the last normalization.
const LAST_EPS: f64 = 1e-6;

/// The layers before the blocks.
pub(super) struct Embedders {
    x_embedder: Linear,
    x_pad: Param,
    cap_norm: RmsNorm,
    cap_embedder: Linear,
    cap_pad: Param,
    /// Of the timestep.
    mlp: [Linear; 2],
}

impl Embedders {
    /// Declares `all_x_embedder.2-1`, `cap_embedder`, `t_embedder` and the vectors of filling.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &ZImageConfig) -> Self {
        let dim = config.dim;
        let pad = |name: &str| p.param(name, &[1, dim], Packing::AsStored);
        Self {
            x_embedder: Linear::new(&p.pp("all_x_embedder.2-1"), config.token_channels(), dim, true),
            x_pad: pad("x_pad_token"),
            cap_norm: RmsNorm::new(&p.pp("cap_embedder.0"), config.context_dim, config.eps),
            cap_embedder: Linear::new(&p.pp("cap_embedder.1"), config.context_dim, dim, true),
            cap_pad: pad("cap_pad_token"),
            mlp: [
                Linear::new(&p.pp("t_embedder.mlp.0"), SINUSOIDS, HIDDEN, true),
                Linear::new(&p.pp("t_embedder.mlp.2"), HIDDEN, config.time_channels(), true),
            ],
        }
    }

    /// Patches `(b, n, token_channels)` to tokens `(b, filled n, dim)`.
    pub(super) fn image<T: TensorLike>(&self, patches: &T) -> Result<T> {
        let [_, n, _] = patches.size3()?;
        let x = self.x_embedder.forward(patches)?;
        with_filling(x, &self.x_pad, filled(n))
    }

    /// Text `(b, s, context_dim)` to tokens `(b, filled s, dim)`. `is_real` `(b, filled s)` is 1 for tokens of a text and 0 for those
    /// that the vector of filling replaces.
    pub(super) fn text<T: TensorLike>(&self, context: &T, is_real: Option<&T>) -> Result<T> {
        let [b, s, _] = context.size3()?;
        let y = self.cap_embedder.forward(&self.cap_norm.forward(context)?)?;
        let y = with_filling(y, &self.cap_pad, filled(s))?;
        let Some(is_real) = is_real else { return Ok(y) };
        let is_real = is_real.to_dtype(y.dtype())?.reshape(&[b, filled(s), 1])?;
        let filling = repeated(vectors(&y, &self.cap_pad, filled(s))?, b)?;
        let filling = filling.broadcast_mul(&is_real.affine(-1.0, 1.0)?)?;
        y.broadcast_mul(&is_real)?.add(&filling)
    }

    /// `timesteps` `(1)` or `(b)` in f32, 1000 times the noise level, to their vectors `(.., time_channels)` in `dtype`.
    pub(super) fn time<T: TensorLike>(&self, timesteps: &T, dtype: DType) -> Result<T> {
        let form = TimestepEmbedding { dim: SINUSOIDS, flip_sin_to_cos: true, freq_shift: 0.0 };
        let [first, last] = &self.mlp;
        // The network counts from noise to image.
        let x = timesteps.affine(-1.0, TIMESTEPS)?.timestep_embedding(form, dtype)?;
        last.forward(&first.forward(&x)?.activation(Activation::Silu)?)
    }
}

/// `x` `(b, s, c)` with the vector `pad` behind, `(b, total, c)`.
fn with_filling<T: TensorLike>(x: T, pad: &Param, total: usize) -> Result<T> {
    let [b, s, _] = x.size3()?;
    if s >= total {
        return Ok(x);
    }
    join_tokens(&x, &repeated(vectors(&x, pad, total - s)?, b)?)
}

/// The vector `pad` `count` times, `(1, count, c)`, in the type of `x`.
fn vectors<T: TensorLike>(x: &T, pad: &Param, count: usize) -> Result<T> {
    let pad = x.param(pad)?;
    let [_, c] = pad.size2()?;
    pad.reshape(&[1, 1, 1, c])?.upsample_nearest((count, 1), None)?.reshape(&[1, count, c])
}

/// The last normalization and the layer to patches.
pub(super) struct Output {
    modulation: Linear,
    linear: Linear,
}

impl Output {
    /// Declares `all_final_layer.2-1`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &ZImageConfig) -> Self {
        let p = p.pp("all_final_layer.2-1");
        Self {
            modulation: Linear::new(&p.pp("adaLN_modulation.1"), config.time_channels(), config.dim, true),
            linear: Linear::new(&p.pp("linear"), config.dim, config.token_channels(), true),
        }
    }

    /// Tokens `x` `(b, n, dim)` to patches `(b, n, token_channels)`; `emb` `(1, d)` or `(b, d)` is the vector of the timestep.
    pub(super) fn forward<T: TensorLike>(&self, x: &T, emb: &T) -> Result<T> {
        let scale = self.modulation.forward(&emb.activation(Activation::Silu)?)?;
        self.linear.forward(&x.modulated_norm(RowNorm::Layer, [None, Some(&scale), None], LAST_EPS)?)
    }
}
