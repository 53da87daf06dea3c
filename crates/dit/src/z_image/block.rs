//! The blocks.

use kiln_nn::ops::Activation;
use kiln_nn::{GatedFeedForward, Linear, Modulation, Result, RmsNorm, TensorLike};
use kiln_weights::ParamBuilder;

use super::config::ZImageConfig;
use crate::flux::attention::{Attending, Projections};

/// Self-attention and a gated feed-forward layer, each between two normalizations. The vectors of a timestep scale the first
/// normalization and gate the result.
pub(super) struct Block {
    modulation: Option<Modulation>,
    projections: Projections,
    to_out: Linear,
    feed_forward: GatedFeedForward,
    /// Before and after the attention.
    attention_norms: [RmsNorm; 2],
    /// Before and after the feed-forward layer.
    ffn_norms: [RmsNorm; 2],
}

/// The vectors of one layer, each `(b, c)` or `(1, c)`.
struct Vectors<T> {
    scale: T,
    gate: T,
}

impl Block {
    /// Declares a block, `modulated` by a timestep or not.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &ZImageConfig, modulated: bool) -> Self {
        let (attention, dim) = (p.pp("attention"), config.dim);
        let norm = |name: &str| RmsNorm::new(&p.pp(name), dim, config.eps);
        let vectors = || {
            let channels = [config.time_channels(), dim];
            Modulation::new(&p.pp("adaLN_modulation.0"), channels, 4, true, false)
        };
        let names = ["w1", "w3", "w2"];
        Self {
            modulation: modulated.then(vectors),
            projections: Projections::new(&attention, config.heads(), ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"]),
            to_out: Linear::new(&attention.pp("to_out.0").allows_8_bits(), dim, dim, false),
            feed_forward: GatedFeedForward::new(&p.pp("feed_forward"), names, dim, config.hidden(), Activation::Silu),
            attention_norms: ["attention_norm1", "attention_norm2"].map(norm),
            ffn_norms: ["ffn_norm1", "ffn_norm2"].map(norm),
        }
    }

    /// `x` `(b, s, c)`, same shape; `emb` `(1, d)` or `(b, d)` is the vector of the timestep.
    pub(super) fn forward<T: TensorLike>(&self, x: T, emb: &T, attending: &Attending<T>) -> Result<T> {
        let [attention, feed_forward] = self.vectors(emb)?;
        let normed = normalized(&self.attention_norms[0], &x, attention.as_ref())?;
        let attended = attending.attend(self.projections.forward(&normed, &attending.tables)?)?;
        drop(normed);
        let y = self.attention_norms[1].forward(&self.to_out.forward(&attended)?)?;
        drop(attended);
        let x = added(&x, &y, attention.as_ref())?;
        drop(y);
        let y = self.feed_forward.forward(&normalized(&self.ffn_norms[0], &x, feed_forward.as_ref())?, None)?;
        added(&x, &self.ffn_norms[1].forward(&y)?, feed_forward.as_ref())
    }

    /// The vectors of attention and feed-forward layer.
    fn vectors<T: TensorLike>(&self, emb: &T) -> Result<[Option<Vectors<T>>; 2]> {
        let Some(modulation) = &self.modulation else { return Ok([None, None]) };
        let mut all = modulation.forward(emb)?.into_iter();
        let mut next = || -> Result<Option<Vectors<T>>> {
            match (all.next(), all.next()) {
                (Some(scale), Some(gate)) => Ok(Some(Vectors { scale, gate: gate.contiguous()?.tanh()? })),
                _ => Ok(None),
            }
        };
        Ok([next()?, next()?])
    }
}

fn normalized<T: TensorLike>(norm: &RmsNorm, x: &T, vectors: Option<&Vectors<T>>) -> Result<T> {
    match vectors {
        Some(Vectors { scale, .. }) => norm.forward_scaled(x, scale),
        None => norm.forward(x),
    }
}

fn added<T: TensorLike>(x: &T, y: &T, vectors: Option<&Vectors<T>>) -> Result<T> {
    match vectors {
        Some(Vectors { gate, .. }) => x.gated_residual(gate, y),
        None => x.add(y),
    }
}
