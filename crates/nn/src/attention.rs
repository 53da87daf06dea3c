//! Attention with its projections.

use kiln_weights::{ParamBuilder, StackedParam};

use crate::error::Result;
use crate::linear::Linear;
use crate::tensor::TensorLike;

/// The names of the projections in a family of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKeys {
    /// `to_q`, `to_k`, `to_v`, `to_out.0`.
    Diffusers,
    /// `q_proj`, `k_proj`, `v_proj`, `out_proj`.
    Clip,
}

impl AttentionKeys {
    fn names(self) -> [&'static str; 4] {
        match self {
            Self::Diffusers => ["to_q", "to_k", "to_v", "to_out.0"],
            Self::Clip => ["q_proj", "k_proj", "v_proj", "out_proj"],
        }
    }
}

/// The configuration of [`Attention`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionConfig {
    /// Channels of the queries' tokens and of the output.
    pub channels: usize,
    /// Channels of the keys' and values' tokens: `channels` for self-attention.
    pub context_dim: usize,
    /// Whether keys and values are those of a text.
    pub of_text: bool,
    /// The number of heads, which divides `channels`.
    pub num_heads: usize,
    /// Whether the first three projections have biases; the last one always has one.
    pub qkv_bias: bool,
    /// Whether a token attends only to itself and earlier tokens.
    pub causal: bool,
    /// The names of the projections.
    pub keys: AttentionKeys,
}

/// Multi-head attention: queries from `x`, keys and values from a context or from `x` itself.
pub struct Attention {
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
    /// The projections with the same input as one product: all three in self-attention, else keys' and values'.
    stacked: Option<Stacked>,
    op: kiln_ops::Attention,
}

enum Stacked {
    QueriesKeysValues(StackedParam),
    KeysValues(StackedParam),
}

impl Attention {
    /// Declares the four projections.
    pub fn new(p: &ParamBuilder<'_>, config: AttentionConfig) -> Self {
        let AttentionConfig { channels, context_dim, of_text, num_heads, qkv_bias, causal, keys } = config;
        let [q, k, v, out] = keys.names();
        let to_q = Linear::new(&p.pp(q).allows_8_bits(), channels, channels, qkv_bias);
        // Some channels of a text are a hundred times the others.
        let of_tokens = |name| if of_text { p.pp(name).allows_fp8() } else { p.pp(name).allows_8_bits() };
        let to_k = Linear::new(&of_tokens(k), context_dim, channels, qkv_bias);
        let to_v = Linear::new(&of_tokens(v), context_dim, channels, qkv_bias);
        let stacked = match (qkv_bias, context_dim == channels) {
            (true, _) => None, // biases are between the matrices
            (false, true) => p.stack(3).map(Stacked::QueriesKeysValues),
            (false, false) => p.stack(2).map(Stacked::KeysValues),
        };
        let to_out = Linear::new(&p.pp(out).allows_8_bits(), channels, channels, true);
        Self { to_q, to_k, to_v, to_out, stacked, op: kiln_ops::Attention { num_heads, causal } }
    }

    /// `x` `(b, s, channels)`, `context` `(b, t, context_dim)` or `None` for self-attention, `residual` `(b, s,
    /// channels)` added to the output `(b, s, channels)`.
    pub fn forward<T: TensorLike>(&self, x: &T, context: Option<&T>, residual: &T) -> Result<T> {
        let [q, k, v] = self.project(x, context)?;
        let y = q.attention(&k, &v, self.op)?;
        self.to_out.forward_add(&y, Some(residual))
    }

    /// The keys and values of `context` `(b, t, context_dim)`, each `(b, t, channels)`, for [`Attention::forward_keyed`]. They
    /// may be parts of one product's rows.
    pub fn keys_values<T: TensorLike>(&self, context: &T) -> Result<[T; 2]> {
        match &self.stacked {
            Some(Stacked::KeysValues(stacked)) if stacked.is_uniform() && self.is_in_place(context) => {
                let kv = context.linear(&context.stacked_weight(stacked)?, None, None)?; // (b, t, 2 channels)
                let c = kv.size3()?[2] / 2;
                Ok([kv.narrow(2, 0, c)?, kv.narrow(2, c, c)?])
            }
            _ => Ok([self.to_k.forward(context)?, self.to_v.forward(context)?]),
        }
    }

    /// Attention of `x` `(b, s, channels)` to `keys_values`, with the bits of [`Attention::forward`] on their context. `add`
    /// gets the queries and the attention's result, both `(b, s, channels)`, and returns what is projected in place of the
    /// result. `residual` as in [`Attention::forward`].
    pub fn forward_keyed<T: TensorLike>(
        &self,
        x: &T,
        [k, v]: [&T; 2],
        add: impl FnOnce(&T, T) -> Result<T>,
        residual: &T,
    ) -> Result<T> {
        let q = self.to_q.forward(x)?;
        let y = add(&q, q.attention(k, v, self.op)?)?;
        drop(q);
        self.to_out.forward_add(&y, Some(residual))
    }

    /// The heads that the projections are cut into.
    pub fn heads(&self) -> kiln_ops::Attention {
        self.op
    }

    /// Self-attention whose queries, keys and values are of other tokens each, `(b, s, channels)`. `residual` as in
    /// [`Attention::forward`].
    pub fn forward_each<T: TensorLike>(&self, [q, k, v]: [&T; 3], residual: &T) -> Result<T> {
        let y = self.to_q.forward(q)?.attention(&self.to_k.forward(k)?, &self.to_v.forward(v)?, self.op)?;
        self.to_out.forward_add(&y, Some(residual))
    }

    /// Self-attention of `x` `(b, s, channels)` in which the tokens of the last `rows` images attend to themselves alone: each
    /// gets its own value. `residual` as in [`Attention::forward`].
    pub fn forward_identity<T: TensorLike>(&self, x: &T, rows: usize, residual: &T) -> Result<T> {
        let [q, k, v] = self.project(x, None)?;
        let n = x.size3()?[0].saturating_sub(rows);
        let own = v.narrow(0, n, rows)?.contiguous()?;
        let y = match n {
            0 => own,
            n => {
                let first = |x: &T| x.narrow(0, 0, n);
                T::cat(&[&first(&q)?.attention(&first(&k)?, &first(&v)?, self.op)?, &own], 0)?
            }
        };
        self.to_out.forward_add(&y, Some(residual))
    }

    /// How much attention each token of `x` `(b, s, channels)` gets from all of them in self-attention: the mean over the heads,
    /// `(b, s)` in f32.
    pub fn received<T: TensorLike>(&self, x: &T) -> Result<T> {
        let [q, k, _] = self.project(x, None)?;
        q.attention_received(&k, self.op)
    }

    /// Self-attention in which the tokens of `x` `(b, s, channels)` are masked whose `seen` `(b, s)`, in f32, is 0; it
    /// is 1 for the others. `residual` as in [`Attention::forward`].
    pub fn forward_masked<T: TensorLike>(&self, x: &T, seen: &T, residual: &T) -> Result<T> {
        let [q, k, v] = self.project(x, None)?;
        let y = q.attention_masked(&k, &v, seen, self.op)?;
        self.to_out.forward_add(&y, Some(residual))
    }

    /// Queries `(b, s, channels)`, keys and values `(b, t, channels)`. They are parts of one product's rows if the
    /// attention operator supports strided inputs.
    fn project<T: TensorLike>(&self, x: &T, context: Option<&T>) -> Result<[T; 3]> {
        match (&self.stacked, context) {
            (Some(Stacked::QueriesKeysValues(stacked)), None) if stacked.is_uniform() && self.is_in_place(x) => {
                let qkv = x.linear(&x.stacked_weight(stacked)?, None, None)?; // (b, s, 3 channels)
                let c = qkv.size3()?[2] / 3;
                Ok([qkv.narrow(2, 0, c)?, qkv.narrow(2, c, c)?, qkv.narrow(2, 2 * c, c)?])
            }
            _ => {
                let q = self.to_q.forward(x)?;
                let [k, v] = self.keys_values(context.unwrap_or(x))?;
                Ok([q, k, v])
            }
        }
    }

    /// Whether projections of one input are one product, whose rows the attention operator reads in place. A stacked product
    /// has no biases.
    fn is_in_place<T: TensorLike>(&self, x: &T) -> bool {
        let is_plain = [&self.to_q, &self.to_k, &self.to_v].iter().all(|layer| layer.added_bias().is_none());
        is_plain && x.supports_strided_qkv()
    }
}
