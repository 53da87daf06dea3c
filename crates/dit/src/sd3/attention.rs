//! Attention of image and text together, and of the image alone.

use kiln_nn::ops::{Attention, RopePairs};
use kiln_nn::{Linear, Result, Rope, TensorLike};
use kiln_weights::ParamBuilder;

use super::EPS;
use super::config::Sd3Config;

/// The projections of one kind of tokens.
struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    /// The normalizations of each head of queries and keys; they do nothing in SD3 medium.
    norms: [Rope; 2],
}

impl Projections {
    /// Declares layers of the names `[q, k, v]` and normalizations of the names `norms`.
    fn new(p: &ParamBuilder<'_>, [q, k, v]: [&str; 3], norms: [&str; 2], config: &Sd3Config) -> Self {
        let channels = config.channels();
        let linear = |name: &str| Linear::new(&p.pp(name), channels, channels, true);
        let norm = |name: &str| match config.qk_norm {
            true => Rope::normed(&p.pp(name), config.num_heads, config.head_dim, RopePairs::Halves, EPS),
            false => Rope::new(config.num_heads, RopePairs::Halves),
        };
        Self { q: linear(q), k: linear(k), v: linear(v), norms: norms.map(norm) }
    }

    /// The layers of image tokens.
    fn of_image(p: &ParamBuilder<'_>, config: &Sd3Config) -> Self {
        Self::new(&p.allows_8_bits(), ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"], config)
    }

    /// The queries of `x` `(b, s, c)`, same shape.
    fn queries<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.norms[0].forward(&self.q.forward(x)?, None)
    }

    /// The keys of `x` `(b, s, c)`, same shape.
    fn keys<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.norms[1].forward(&self.k.forward(x)?, None)
    }
}

/// Self-attention of image tokens.
pub(super) struct ImageAttention {
    projections: Projections,
    out: Linear,
    heads: Attention,
}

impl ImageAttention {
    /// Declares `to_q`, `to_k`, `to_v`, `to_out.0`, `norm_q` and `norm_k`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Sd3Config) -> Self {
        let channels = config.channels();
        Self {
            projections: Projections::of_image(p, config),
            out: Linear::new(&p.pp("to_out.0").allows_8_bits(), channels, channels, true),
            heads: Attention { num_heads: config.num_heads, causal: false },
        }
    }

    /// `x` `(b, n, c)`, same shape.
    pub(super) fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let Projections { v, .. } = &self.projections;
        let (q, k) = (self.projections.queries(x)?, self.projections.keys(x)?);
        let y = q.attention(&k, &v.forward(x)?, self.heads)?;
        drop((q, k));
        self.out.forward(&y)
    }
}

/// Attention in which tokens of the image and of the text attend to both.
pub(super) struct JointAttention {
    image: ImageAttention,
    text: Projections,
    /// `None` in a last block, in which the text gets no result.
    text_out: Option<Linear>,
}

impl JointAttention {
    /// Declares the layers of [`ImageAttention`], `add_q_proj`, `add_k_proj`, `add_v_proj`, `norm_added_q`, `norm_added_k`, and unless
    /// the block `is_last` `to_add_out`.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Sd3Config, is_last: bool) -> Self {
        let (channels, names) = (config.channels(), ["add_q_proj", "add_k_proj", "add_v_proj"]);
        // Some channels of a text are a hundred times the others.
        let text = Projections::new(&p.allows_fp8(), names, ["norm_added_q", "norm_added_k"], config);
        let out = || Linear::new(&p.pp("to_add_out").allows_fp8(), channels, channels, true);
        Self { image: ImageAttention::new(p, config), text, text_out: (!is_last).then(out) }
    }

    /// `image` `(b, n, c)` and `text` `(b, s, c)` to results of the same shapes; `None` for the text of a last block, whose queries
    /// are not computed.
    ///
    /// Keys and values are joined, image first. Queries of the two kinds attend one after another: no joint queries are made, and no
    /// joint result is cut.
    pub(super) fn forward<T: TensorLike>(&self, image: &T, text: &T) -> Result<(T, Option<T>)> {
        let ImageAttention { projections, out, heads } = &self.image;
        let k = T::cat(&[&projections.keys(image)?, &self.text.keys(text)?], 1)?;
        let v = T::cat(&[&projections.v.forward(image)?, &self.text.v.forward(text)?], 1)?;
        let attend = |q: T, out: &Linear| {
            let y = q.attention(&k, &v, *heads)?;
            drop(q);
            out.forward(&y)
        };
        let of_text = match &self.text_out {
            Some(out) => Some(attend(self.text.queries(text)?, out)?),
            None => None,
        };
        Ok((attend(projections.queries(image)?, out)?, of_text))
    }
}
