//! A block of the vision tower: self-attention within windows or of all patches, then a gated feed-forward layer. The residual is in f32,
//! as in the language model.

use candle_core::DType;
use kiln_nn::ops::{Attention, RopePairs};
use kiln_nn::{At, Linear, Result, Rope, RopeTables, TensorLike};
use kiln_weights::ParamBuilder;

use super::EPS;
use super::config::VisionConfig;
use super::windows::WindowRun;
use crate::feed_forward::FeedForward;
use crate::layer::Norm;

/// The inputs of a block that all blocks of an image share.
pub(super) struct Seen<'a, T> {
    /// The rotary positions of all patches.
    pub(super) tables: &'a RopeTables<T>,
    /// The windows; `None` if all patches attend to each other.
    pub(super) windows: Option<&'a [WindowRun]>,
    /// The type of the computation.
    pub(super) dtype: DType,
}

/// A block.
pub(super) struct Block {
    attention_norm: Norm,
    qkv: Linear,
    proj: Linear,
    rope: Rope,
    attention: Attention,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

impl Block {
    /// Declares `norm1`, `attn`, `norm2` and `mlp`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &VisionConfig) -> Self {
        let (c, num_heads, own) = (config.hidden_size, config.num_heads, p.pp("attn"));
        Self {
            attention_norm: Norm::of(&p.pp("norm1"), c, EPS),
            qkv: Linear::new(&own.pp("qkv"), c, 3 * c, true),
            proj: Linear::new(&own.pp("proj"), c, c, true),
            rope: Rope::new(num_heads, RopePairs::Halves),
            attention: Attention { num_heads, causal: false },
            feed_forward_norm: Norm::of(&p.pp("norm2"), c, EPS),
            feed_forward: FeedForward::new(&p.pp("mlp"), [c, config.intermediate_size], true),
        }
    }

    /// `x` `(1, n, hidden_size)` in f32, same shape and type.
    pub(super) fn forward<T: TensorLike>(&self, x: &T, seen: &Seen<'_, T>) -> Result<T> {
        let x = self.attend(x, seen).at("attn")?;
        self.feed_forward.add(&x, self.feed_forward_norm.forward(&x, seen.dtype)?, seen.dtype).at("mlp")
    }

    fn attend<T: TensorLike>(&self, x: &T, seen: &Seen<'_, T>) -> Result<T> {
        let all = self.qkv.forward(&self.attention_norm.forward(x, seen.dtype)?)?;
        let c = all.size3()?[2] / 3;
        let part = |i: usize| all.narrow(2, i * c, c)?.contiguous();
        let rotated = |i: usize| self.rope.forward(&part(i)?, Some(seen.tables));
        let qkv = [rotated(0)?, rotated(1)?, part(2)?];
        drop(all);
        let y = self.attention_of(&qkv, seen.windows)?;
        drop(qkv);
        x.add(&self.proj.forward(&y)?.to_dtype(DType::F32)?)
    }

    /// Attention of queries to keys and values `(1, n, c)`, within windows if there are any.
    fn attention_of<T: TensorLike>(&self, [q, k, v]: &[T; 3], windows: Option<&[WindowRun]>) -> Result<T> {
        let Some(windows) = windows else { return q.attention(k, v, self.attention) };
        let (c, mut start) = (q.size3()?[2], 0);
        let mut parts = Vec::with_capacity(windows.len());
        for &WindowRun { count, patches } in windows {
            let part = |x: &T| x.narrow(1, start, count * patches)?.contiguous()?.reshape(&[count, patches, c]);
            let y = part(q)?.attention(&part(k)?, &part(v)?, self.attention)?;
            parts.push(y.reshape(&[1, count * patches, c])?);
            start += count * patches;
        }
        T::cat(&parts.iter().collect::<Vec<_>>(), 1)
    }
}
