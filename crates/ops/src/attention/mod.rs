//! Scaled dot-product attention over several heads.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;
mod workspace;

use candle_core::{DType, Device, Tensor};

use crate::backend::{self, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::flop::attention_flop;
use crate::trace::Work;
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
    let shapes = check(q, k, v, config)?;
    backend::run(&Call { q, k, v, config, shapes }, out)
}

struct Call<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    config: Attention,
    shapes: Shapes,
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
        let operands = Work::new(&[("q", self.q), ("k", self.k), ("v", self.v)]).config(self.config);
        operands.flop(attention_flop([b, s, c], t))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.q, self.k, self.v, None, self.config, self.shapes)
    }
}

/// [`attention`] with a mask of keys: `seen` `(b, t)`, in f32, is 1 for the keys that queries attend to, and 0 for
/// those that are masked. It runs in f32 in candle's primitives on every device, for the few tokens of a text encoder.
/// A query whose keys are all masked has NaN as its result.
///
/// # Errors
/// Those of [`attention`].
pub fn attention_masked(q: &Tensor, k: &Tensor, v: &Tensor, seen: &Tensor, config: Attention) -> Result<Tensor> {
    let shapes = check(q, k, v, config)?;
    expect_shape(OP, "seen", seen.dims(), &[shapes.b, shapes.t])?;
    let [q32, k32, v32] = [q, k, v].map(|x| x.to_dtype(DType::F32));
    Ok(reference::forward(&q32?, &k32?, &v32?, Some(seen), config, shapes)?.to_dtype(q.dtype())?)
}

/// Checks the operands.
fn check(q: &Tensor, k: &Tensor, v: &Tensor, config: Attention) -> Result<Shapes> {
    let shape_error = |operand, found: &Tensor| Error::Shape {
        op: OP,
        operand,
        expected: "(b, s, c)".into(),
        found: found.dims().to_vec(),
    };
    let (b, s, c) = q.dims3().map_err(|_| shape_error("q", q))?;
    let (_, t, _) = k.dims3().map_err(|_| shape_error("k", k))?;
    expect_shape(OP, "k", k.dims(), &[b, t, c])?;
    expect_shape(OP, "v", v.dims(), &[b, t, c])?;
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
