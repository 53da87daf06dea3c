//! Scaled dot-product attention over several heads.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod grouped;
mod received;
mod reference;
#[cfg(test)]
mod tests;
mod workspace;

use candle_core::{DType, Device, Tensor};

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::flop::attention_flop;
use crate::operation::{Cost, Elements, Operand, Operation, expect, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;
pub use grouped::{GroupedAttention, GroupedAttentionOp, grouped_attention};
pub use received::AttentionReceivedOp;
pub use workspace::attention_workspace;

const OP: &str = "attention";

/// The configuration of [`attention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// The number of heads, a divisor of the number of channels.
    pub num_heads: usize,
    /// Whether a token attends only to itself and the tokens before it: the text encoders' mask.
    pub causal: bool,
}

/// The shapes of an attention that has been checked.
#[derive(Clone, Copy)]
pub(crate) struct Shapes {
    b: usize,
    s: usize,
    t: usize,
    c: usize,
    head_dim: usize,
}

/// `softmax(q k^T / sqrt(head_dim)) v` (Vaswani et al., arXiv 1706.03762) for every head: `q` `(b, s, c)`, `k` and `v`
/// `(b, t, c)`, where head `i` is channels `i head_dim .. (i + 1) head_dim`. The result is `(b, s, c)`.
///
/// The whole score matrix is never stored; the softmax is f32.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit, [`Error::Config`] where the heads do not divide the channels.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, config: Attention, out: Option<&Tensor>) -> Result<Tensor> {
    let shapes = check([q, k, v], config)?;
    backend::run(&Call { q, k, v, mask: Mask::default(), form: Form::plain(config, shapes.head_dim), shapes }, out)
}

struct Call<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    mask: Mask<'a>,
    form: Form,
    shapes: Shapes,
}

/// The operands that change scores: see [`grouped_attention`].
#[derive(Clone, Copy, Default)]
struct Mask<'a> {
    bias: Option<&'a Tensor>,
    lengths: Option<&'a Tensor>,
}

/// The heads, as kernels take them.
#[derive(Debug, Clone, Copy)]
struct Form {
    num_heads: usize,
    /// Heads of queries for each head of keys and values.
    group: usize,
    causal: bool,
    /// The factor of the scores for powers of two.
    scale: f32,
    /// The factor of a bias before scores are multiplied by `scale`.
    bias_factor: f32,
}

impl Form {
    fn plain(Attention { num_heads, causal }: Attention, head_dim: usize) -> Self {
        // exp(x) = 2^(x log2(e)): the factor of the base costs nothing in a kernel.
        let root = (head_dim as f32).sqrt();
        Self { num_heads, group: 1, causal, scale: std::f32::consts::LOG2_E / root, bias_factor: root }
    }

    fn grouped(config: GroupedAttention, head_dim: usize) -> Self {
        let GroupedAttention { num_heads, num_kv_heads, causal, scale } = config;
        let form = Self { group: num_heads / num_kv_heads, ..Self::plain(Attention { num_heads, causal }, head_dim) };
        match scale {
            Some(scale) => {
                let (scale, bias_factor) = (std::f64::consts::LOG2_E * scale, 1.0 / scale);
                Self { scale: scale as f32, bias_factor: bias_factor as f32, ..form }
            }
            None => form,
        }
    }

    /// The heads of the queries.
    fn heads(self) -> Attention {
        Attention { num_heads: self.num_heads, causal: self.causal }
    }
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.q
    }

    fn work(&self) -> Work {
        let Shapes { b, s, t, c, .. } = self.shapes;
        let operands = Work::new(&[("q", self.q), ("k", self.k), ("v", self.v)]).config(self.form.heads());
        operands.flop(attention_flop([b, s, c], t))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward([self.q, self.k, self.v], None, self.form.heads(), self.shapes)
    }
}

/// [`attention`] with a mask of keys: `seen` `(b, t)`, in f32, is 1 for the keys that queries attend to, and 0 for
/// those that are masked. It runs in f32 in candle's primitives on every device, for the few tokens of a text encoder.
/// A query whose keys are all masked has NaN as its result.
///
/// # Errors
/// See [`attention`].
pub fn attention_masked(q: &Tensor, k: &Tensor, v: &Tensor, seen: &Tensor, config: Attention) -> Result<Tensor> {
    let shapes = MaskedAttentionOp { q, k, v, seen, config }.check()?;
    let [q32, k32, v32] = [q, k, v].map(|x| x.to_dtype(DType::F32));
    Ok(reference::forward([&q32?, &k32?, &v32?], Some(seen), config, shapes)?.to_dtype(q.dtype())?)
}

/// [`attention`] as a value.
pub struct AttentionOp<'a, T = Tensor> {
    /// `(b, s, c)`.
    pub q: &'a T,
    /// `(b, t, c)`.
    pub k: &'a T,
    /// `(b, t, c)`.
    pub v: &'a T,
    /// The heads.
    pub config: Attention,
}

impl<T: Operand> Operation<T> for AttentionOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Attention(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let Shapes { b, s, t, c, .. } = check([self.q, self.k, self.v], self.config)?;
        let (shape, dtype) = ([b, s, c], self.q.dtype());
        let workspace = attention_workspace(target, dtype, shape, t, self.config);
        Ok(Cost::new(shape, dtype).workspace(workspace).flop(attention_flop(shape, t)))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        attention(self.q.tensor(), self.k.tensor(), self.v.tensor(), self.config, None).map(T::result)
    }
}

/// [`attention_masked`] of operands in f32 as a value.
pub struct MaskedAttentionOp<'a, T = Tensor> {
    /// `(b, s, c)`.
    pub q: &'a T,
    /// `(b, t, c)`.
    pub k: &'a T,
    /// `(b, t, c)`.
    pub v: &'a T,
    /// `(b, t)`.
    pub seen: &'a T,
    /// The heads.
    pub config: Attention,
}

impl<T: Operand> MaskedAttentionOp<'_, T> {
    fn check(&self) -> Result<Shapes> {
        let shapes = check([self.q, self.k, self.v], self.config)?;
        expect(OP, "seen", Some(self.seen), &[shapes.b, shapes.t])?;
        Ok(shapes)
    }
}

impl<T: Operand> Operation<T> for MaskedAttentionOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::MaskedAttention(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let Shapes { b, s, t, c, .. } = self.check()?;
        // Every device uses candle's primitives here, because the GPU has no kernel for this in f32 either.
        let workspace = attention_workspace(Target::Gpu, DType::F32, [b, s, c], t, self.config);
        Ok(Cost::new([b, s, c], DType::F32).workspace(workspace).flop(attention_flop([b, s, c], t)))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let [q, k, v, seen] = [self.q, self.k, self.v, self.seen].map(T::tensor);
        attention_masked(q, k, v, seen, self.config).map(T::result)
    }
}

/// Checks the operands.
fn check<T: Operand>([q, k, v]: [&T; 3], config: Attention) -> Result<Shapes> {
    let [b, s, c] = sizes(OP, "q", q, "(b, s, c)")?;
    let [_, t, _] = sizes(OP, "k", k, "(b, s, c)")?;
    expect(OP, "k", Some(k), &[b, t, c])?;
    expect(OP, "v", Some(v), &[b, t, c])?;
    if config.num_heads == 0 || c % config.num_heads != 0 {
        return Err(Error::Config {
            op: OP,
            message: format!("{} heads do not divide {c} channels", config.num_heads),
        });
    }
    if config.causal && s != t {
        return Err(Error::Config {
            op: OP,
            message: format!("a causal mask needs as many keys ({t}) as queries ({s})"),
        });
    }
    Ok(Shapes { b, s, t, c, head_dim: c / config.num_heads })
}

/// Whether [`attention`] reads queries, keys and values in place where their rows are strided, as in the result of one
/// product for all three. On other devices and in other types they would be copied.
pub fn supports_strided_qkv(x: &Tensor) -> bool {
    matches!(x.device(), Device::Cuda(_)) && x.dtype() != DType::F32
}
