//! The attention of image and text tokens to each other.
//!
//! Image tokens come before text tokens, in another order than in diffusers. The result is the same but for the order of sums:
//! positions are in the tables. Tokens of the text that are masked are then the last keys, which attention takes as a length.

use kiln_nn::ops::{Attention, GroupedAttention, RopePairs};
use kiln_nn::{QkvLinear, Result, Rope, RopeTables, TensorLike};
use kiln_weights::ParamBuilder;

use crate::block_cache::Rows;
use crate::tokens::{join_tokens, tokens};

/// The heads of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Heads {
    /// Heads.
    pub(crate) num_heads: usize,
    /// Channels of a head.
    pub(crate) head_dim: usize,
    /// Whether the linear layers have biases.
    pub(crate) bias: bool,
    /// Added to the mean squares of the normalizations.
    pub(crate) eps: f64,
}

impl Heads {
    /// Channels of all heads.
    pub(crate) fn channels(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The normalization of each head, followed by the rotation of interleaved pairs.
    pub(crate) fn rope(&self, p: &ParamBuilder<'_>) -> Rope {
        Rope::normed(p, self.num_heads, self.head_dim, RopePairs::Interleaved, self.eps)
    }
}

/// The projections of tokens to queries, keys and values, which are normalized and rotated head by head.
pub(crate) struct Projections {
    layers: QkvLinear,
    norms: [Rope; 2],
}

impl Projections {
    /// Declares linear layers of the names `layers`, and the normalizations of queries and keys of the names `norms`.
    pub(crate) fn new(p: &ParamBuilder<'_>, heads: Heads, layers: [&str; 3], norms: [&str; 2]) -> Self {
        let c = heads.channels();
        let layers = QkvLinear::new(&p.allows_8_bits(), layers, c, c, heads.bias);
        Self { layers, norms: norms.map(|name| heads.rope(&p.pp(name))) }
    }

    /// Queries, keys and values of `x` `(b, s, c)` at the positions of `tables`, each `(b, s, c)`. Values may be parts of wider rows.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, tables: &RopeTables<T>) -> Result<[T; 3]> {
        let ([q, k, v], [norm_q, norm_k]) = (self.layers.forward(x)?, &self.norms);
        let rotated = |x: T, norm: &Rope| norm.forward(&x, Some(tables)); // drops what it rotates
        Ok([rotated(q, norm_q)?, rotated(k, norm_k)?, v])
    }
}

/// The attention of all blocks of a call.
pub(crate) struct Attending<T> {
    /// Heads.
    pub(crate) num_heads: usize,
    /// The positions of all tokens.
    pub(crate) tables: RopeTables<T>,
    /// The number of keys of each row `(b)` in f32, if some are masked: the first ones.
    pub(crate) lengths: Option<T>,
}

impl<T: TensorLike> Attending<T> {
    /// The attention of some rows.
    pub(crate) fn pick(self, rows: &Rows) -> Result<Self> {
        let lengths = self.lengths.as_ref().map(|lengths| rows.of(lengths)).transpose()?;
        Ok(Self { tables: rows.of_tables(&self.tables)?, lengths, ..self })
    }

    /// Attention of queries `(b, s, c)` to keys and values `(b, s, c)`.
    pub(crate) fn attend(&self, [q, k, v]: [T; 3]) -> Result<T> {
        let num_heads = self.num_heads;
        match &self.lengths {
            None => q.attention(&k, &v, Attention { num_heads, causal: false }),
            lengths => {
                let heads = GroupedAttention { num_heads, num_kv_heads: num_heads, causal: false, scale: None };
                q.grouped_attention([&k, &v], None, lengths.as_ref(), heads)
            }
        }
    }

    /// The results `(b, n, c)` and `(b, s, c)` for image tokens `x` `(b, n, c)` and text tokens `y` `(b, s, c)`, which have
    /// projections of their own.
    pub(crate) fn joint(&self, [x, y]: [T; 2], [image, text]: [&Projections; 2]) -> Result<[T; 2]> {
        let ([_, n, _], [_, s, _]) = (x.size3()?, y.size3()?);
        let [q, k, v] = image.forward(&x, &self.tables.tokens(0, n)?)?;
        drop(x);
        let [q_text, k_text, v_text] = text.forward(&y, &self.tables.tokens(n, s)?)?;
        drop(y);
        let join = |image: T, text: T| join_tokens(&image.contiguous()?, &text.contiguous()?);
        let all = self.attend([join(q, q_text)?, join(k, k_text)?, join(v, v_text)?])?;
        Ok([tokens(&all, 0, n)?, tokens(&all, n, s)?])
    }
}
