//! The attention that keys receive, in candle's primitives on every device.

use candle_core::{D, DType, Tensor};

use super::{Attention, Shapes, check};
use crate::error::Result;
use crate::flop::linear_flop;
use crate::operation::{Cost, Elements, Operand, Operation};
use crate::portable;
use crate::workspace::Target;

/// For each key the sum of the attention that the queries give it, as a mean over the heads: `(b, t)` in f32. Without a
/// causal mask.
pub struct AttentionReceivedOp<'a, T = Tensor> {
    /// `(b, s, c)`.
    pub q: &'a T,
    /// `(b, t, c)`.
    pub k: &'a T,
    /// The heads.
    pub config: Attention,
}

impl<T: Operand> Operation<T> for AttentionReceivedOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::AttentionReceived(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let Shapes { b, s, t, c, .. } = check([self.q, self.k, self.k], self.config)?;
        let mut cost = Cost::new([b, t], DType::F32).flop(linear_flop(b * s, [t, c]));
        // Queries and keys by heads, the keys again as columns.
        for shape in [[b, s, c], [b, t, c], [b, t, c]] {
            cost = cost.temporary(&shape, DType::F32);
        }
        // Scores, their powers and quotients.
        let scores = [b, self.config.num_heads, s, t];
        Ok((0..3).fold(cost, |cost, _| cost.temporary(&scores, DType::F32)))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let heads = self.config.num_heads.max(1);
        let split = |x: &Tensor| -> Result<Tensor> {
            let (b, n, c) = x.dims3()?;
            let x = x.to_dtype(DType::F32)?.contiguous()?.reshape((b, n, heads, c / heads))?;
            Ok(x.transpose(1, 2)?.contiguous()?) // (b, heads, n, c / heads)
        };
        let (q, k) = (split(self.q.tensor())?, split(self.k.tensor())?);
        let scale = (q.dim(D::Minus1)? as f64).powf(-0.5);
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * scale)?; // (b, heads, s, t)
        let powers = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let attention = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        Ok(T::result(attention.sum(2)?.mean(1)?))
    }
}
