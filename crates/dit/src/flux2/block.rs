//! The blocks with one set of weights for all tokens. Double blocks are [`crate::flux::block::DoubleBlock`].

use kiln_nn::ops::{Activated, Activation, Hidden};
use kiln_nn::{Linear, Result, Rope, TensorLike};
use kiln_weights::ParamBuilder;

use super::config::Flux2Config;
use crate::flux::attention::Attending;
use crate::flux::block::Vectors;

/// A block whose attention and feed-forward layer have one first and one last layer.
pub(super) struct SingleBlock {
    to_qkv_mlp_proj: Linear,
    /// Of queries and keys.
    norms: [Rope; 2],
    to_out: Linear,
    channels: usize,
    hidden: usize,
}

impl SingleBlock {
    /// Declares `attn`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Flux2Config) -> Self {
        let (p, channels, hidden) = (p.pp("attn"), config.channels(), config.hidden);
        let linear = |name: &str, from, to| Linear::new(&p.pp(name).allows_8_bits(), from, to, false);
        Self {
            to_qkv_mlp_proj: linear("to_qkv_mlp_proj", channels, 3 * channels + 2 * hidden),
            norms: ["norm_q", "norm_k"].map(|name| config.heads().rope(&p.pp(name))),
            to_out: linear("to_out", channels + hidden, channels),
            channels,
            hidden,
        }
    }

    /// All tokens `z` `(b, s, c)`, same shape.
    pub(super) fn forward<T: TensorLike>(
        &self,
        z: T,
        [vectors]: &[Vectors<T>; 1],
        attending: &Attending<T>,
    ) -> Result<T> {
        let (c, tables) = (self.channels, Some(&attending.tables));
        let all = self.to_qkv_mlp_proj.forward(&vectors.modulate(&z)?)?;
        // GPUs read the parts in place.
        let in_place = all.supports_strided_qkv();
        let part = |first: usize, count: usize| {
            let part = all.narrow(2, first, count)?;
            if in_place { Ok(part) } else { part.contiguous() }
        };
        let [norm_q, norm_k] = &self.norms;
        let (q, k) = (norm_q.forward(&part(0, c)?, tables)?, norm_k.forward(&part(c, c)?, tables)?);
        let attended = attending.attend([q, k, part(2 * c, c)?])?;
        let hidden = Hidden::Joint(part(3 * c, 2 * self.hidden)?);
        drop(all);
        let input = Activated { before: Some(attended), hidden, function: Activation::Silu };
        vectors.add(&z, &self.to_out.forward_activation(input, None)?)
    }
}
