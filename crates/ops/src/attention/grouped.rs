//! Attention with fewer heads of keys and values, an additive bias, and lengths of rows.

use candle_core::{DType, Tensor};

use super::{Attention, Call, Form, Mask, OP, Shapes, attention_workspace, reference};
use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::flop::attention_flop;
use crate::operation::{Cost, Elements, Operand, Operation, expect, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

/// The configuration of [`grouped_attention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedAttention {
    /// The number of heads of queries, a divisor of their channels.
    pub num_heads: usize,
    /// The number of heads of keys and values, a divisor of `num_heads`. Each serves as many heads of queries in order
    /// (Ainslie et al., arXiv 2305.13245).
    pub num_kv_heads: usize,
    /// Whether a token attends only to itself and the tokens before it.
    pub causal: bool,
    /// The factor of the scores; `None` for `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
}

impl GroupedAttention {
    /// The attention without groups and with the usual factor; `None` for another.
    pub(super) fn plain(&self) -> Option<Attention> {
        let Self { num_heads, num_kv_heads, causal, scale } = *self;
        (num_heads == num_kv_heads && scale.is_none()).then_some(Attention { num_heads, causal })
    }
}

/// `softmax(scale q k^T + bias) v` for every head of queries: `q` `(b, s, num_heads * head_dim)`, `k` and `v` `(b, t, num_kv_heads *
/// head_dim)`. The softmax is f32 and the matrix of scores is never stored.
///
/// `bias` `(b, num_heads, s, t)`, or `(1, num_heads, s, t)` for all images, has the type of `q`: T5's relative positions. `lengths`
/// `(b)` in f32 is the number of keys of each image that queries attend to, the first ones; numbers outside of `1..=t` count as the
/// nearest of these. With a causal mask both conditions hold.
///
/// # Errors
/// [`Error::Shape`] for an operand that does not fit, [`Error::DType`] for one of another type, [`Error::Config`] for heads that do not
/// divide the channels or each other.
pub fn grouped_attention(inputs: GroupedAttentionOp<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let shapes = inputs.check()?;
    let GroupedAttentionOp { q, k, v, bias, lengths, config } = inputs;
    match (config.plain(), bias, lengths) {
        (Some(config), None, None) => super::attention(q, k, v, config, out),
        _ => {
            let form = Form::grouped(config, shapes.head_dim);
            backend::run(
                &GroupedCall { call: Call { q, k, v, mask: Mask { bias, lengths }, form, shapes }, config },
                out,
            )
        }
    }
}

/// [`grouped_attention`] as a value: its operands.
pub struct GroupedAttentionOp<'a, T = Tensor> {
    /// `(b, s, num_heads * head_dim)`.
    pub q: &'a T,
    /// `(b, t, num_kv_heads * head_dim)`.
    pub k: &'a T,
    /// `(b, t, num_kv_heads * head_dim)`.
    pub v: &'a T,
    /// `(b, num_heads, s, t)` or `(1, num_heads, s, t)`.
    pub bias: Option<&'a T>,
    /// `(b)` in f32.
    pub lengths: Option<&'a T>,
    /// The heads.
    pub config: GroupedAttention,
}

impl<T: Operand> GroupedAttentionOp<'_, T> {
    fn check(&self) -> Result<Shapes> {
        let GroupedAttention { num_heads, num_kv_heads, causal, .. } = self.config;
        let [b, s, c] = sizes(OP, "q", self.q, "(b, s, c)")?;
        let [_, t, _] = sizes(OP, "k", self.k, "(b, t, c)")?;
        let refuse = |message| Err(Error::Config { op: OP, message });
        if num_heads == 0 || c % num_heads != 0 {
            return refuse(format!("{num_heads} heads do not divide {c} channels"));
        }
        if num_kv_heads == 0 || num_heads % num_kv_heads != 0 {
            return refuse(format!("{num_kv_heads} heads of keys do not divide {num_heads} heads of queries"));
        }
        if causal && s != t {
            return refuse(format!("a causal mask needs as many keys ({t}) as queries ({s})"));
        }
        let head_dim = c / num_heads;
        for (name, operand) in [("k", self.k), ("v", self.v)] {
            expect(OP, name, Some(operand), &[b, t, num_kv_heads * head_dim])?;
        }
        if let Some(bias) = self.bias {
            let images = if bias.dims().first() == Some(&1) { 1 } else { b };
            expect(OP, "bias", Some(bias), &[images, num_heads, s, t])?;
            expect_type("bias", bias, self.q.dtype())?;
        }
        if let Some(lengths) = self.lengths {
            expect(OP, "lengths", Some(lengths), &[b])?;
            expect_type("lengths", lengths, DType::F32)?;
        }
        Ok(Shapes { b, s, t, c, head_dim })
    }
}

fn expect_type<T: Operand>(operand: &'static str, x: &T, expected: DType) -> Result<()> {
    match x.dtype() {
        found if found == expected => Ok(()),
        found => Err(Error::DType { op: OP, operand, expected, found }),
    }
}

impl<T: Operand> Operation<T> for GroupedAttentionOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GroupedAttention(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let Shapes { b, s, t, c, .. } = self.check()?;
        let (shape, dtype, config) = ([b, s, c], self.q.dtype(), self.config);
        let is_plain = config.plain().is_some() && self.bias.is_none() && self.lengths.is_none();
        let heads = Attention { num_heads: config.num_heads, causal: config.causal };
        let workspace = if is_plain {
            attention_workspace(target, dtype, shape, t, heads)
        } else {
            super::workspace::grouped(target, dtype, shape, t, config)
        };
        Ok(Cost::new(shape, dtype).workspace(workspace).flop(attention_flop(shape, t)))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let Self { q, k, v, bias, lengths, config } = *self;
        let [q, k, v] = [q, k, v].map(T::tensor);
        let [bias, lengths] = [bias, lengths].map(|x| x.map(T::tensor));
        grouped_attention(GroupedAttentionOp { q, k, v, bias, lengths, config }, None).map(T::result)
    }
}

/// A call with groups, a bias, lengths or a factor of its own.
pub(super) struct GroupedCall<'a> {
    pub(super) call: Call<'a>,
    pub(super) config: GroupedAttention,
}

impl Operator for GroupedCall<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.call.q
    }

    fn work(&self) -> Work {
        let Call { q, k, v, mask: Mask { bias, lengths }, shapes: Shapes { b, s, t, c, .. }, .. } = self.call;
        let operands = Work::new(&[("q", q), ("k", k), ("v", v)]).and("bias", bias).and("lengths", lengths);
        operands.config(self.config).flop(attention_flop([b, s, c], t))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::grouped(&self.call, self.config)
    }
}
