//! Attention of tensors without elements: the shapes of its operands, its workspace and its arithmetic.

use candle_core::DType;
use kiln_ops::{Attention, Error as OpsError, Target, attention_flop, attention_workspace, linear_flop};

use super::MetaTensor;
use super::checks::{expect, refused};
use crate::error::Result;
use crate::tensor::TensorLike;

impl MetaTensor {
    /// Attention of these queries `(b, s, c)` to keys and values `(b, t, c)`: `(b, s, c)`.
    pub(super) fn attention_of(&self, k: &Self, v: &Self, config: Attention) -> Result<Self> {
        let (shape, t) = self.attention_shapes(k, v, config)?;
        let y = self.another(&shape);
        self.device.takes(attention_workspace(self.device.target(), self.dtype, shape, t, config));
        self.device.computes(attention_flop(shape, t));
        Ok(y)
    }

    /// The same where each key counts as much as `seen` `(b, t)` says, in f32.
    pub(super) fn attention_of_seen(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self> {
        let (shape, t) = self.attention_shapes(k, v, config)?;
        if seen.shape != [shape[0], t] {
            return Err(refused("attention", "seen", &format!("{:?}", [shape[0], t]), &seen.shape));
        }
        let [_q, _k, _v] = [self.to_dtype(DType::F32)?, k.to_dtype(DType::F32)?, v.to_dtype(DType::F32)?];
        let y = self.device.tensor(&shape, DType::F32);
        // Every device uses candle's primitives here, because the GPU has no kernel for this in f32 either.
        self.device.takes(attention_workspace(Target::Gpu, DType::F32, shape, t, config));
        self.device.computes(attention_flop(shape, t));
        y.to_dtype(self.dtype)
    }

    /// How much attention each of the keys `(b, t, c)` gets from these queries `(b, s, c)`: `(b, t)` in f32.
    pub(super) fn attention_to(&self, k: &Self, config: Attention) -> Result<Self> {
        let ([b, s, c], t) = self.attention_shapes(k, k, config)?;
        // Queries and keys by heads, scores, their powers and quotients.
        let _split = [[b, s, c], [b, t, c], [b, t, c]].map(|shape| self.device.tensor(&shape, DType::F32));
        let scores = || self.device.tensor(&[b, config.num_heads, s, t], DType::F32);
        let _scores = [scores(), scores(), scores()];
        self.device.computes(linear_flop(b * s, [t, c]));
        Ok(self.device.tensor(&[b, t], DType::F32))
    }

    /// The shape of these queries, and the number of keys.
    fn attention_shapes(&self, k: &Self, v: &Self, config: Attention) -> Result<([usize; 3], usize)> {
        let (shape @ [b, s, c], [_, t, _]) = (self.size3()?, k.size3()?);
        expect("attention", "k", Some(k), &[b, t, c])?;
        expect("attention", "v", Some(v), &[b, t, c])?;
        if config.num_heads == 0 || !c.is_multiple_of(config.num_heads) || (config.causal && s != t) {
            let message = format!("{config:?} does not fit {s} queries and {t} keys of {c} channels");
            return Err(OpsError::Config { op: "attention", message }.into());
        }
        Ok((shape, t))
    }
}
