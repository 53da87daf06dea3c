//! The blocks of FLUX.1's transformer, and those of FLUX.2 that differ from them by the feed-forward layers. The vectors that modulate them come from the caller, since families differ in how they make
//! them.

use kiln_nn::ops::Activation;
use kiln_nn::{GatedFeedForward, Linear, Mlp, Result, TensorLike, modulate};
use kiln_weights::ParamBuilder;

use super::attention::{Attending, Heads, Projections};
use super::dims::{EPS, EXPANSION, FluxDims};
use crate::tokens::{join_tokens, tokens};

/// The vectors of one layer of a block, each `(b, c)` or `(1, c)`.
pub(crate) struct Vectors<T> {
    shift: T,
    scale: T,
    gate: T,
    /// The number of first tokens that they are for, and the vectors of those behind them.
    others: Option<(usize, Box<Vectors<T>>)>,
}

impl<T: TensorLike> Vectors<T> {
    /// The vectors of `N` layers, shift, scale and gate of each in turn.
    pub(crate) fn of<const N: usize>(all: Vec<T>) -> Result<[Self; N]> {
        let found = vec![all.len()];
        let mut all = all.into_iter();
        let mut layers = Vec::with_capacity(N);
        while let (Some(shift), Some(scale), Some(gate)) = (all.next(), all.next(), all.next()) {
            layers.push(Self { shift, scale, gate, others: None });
        }
        layers.try_into().map_err(|_| {
            let expected = format!("{} vectors", 3 * N);
            kiln_nn::ops::Error::Shape { op: "modulation", operand: "vectors", expected, found }.into()
        })
    }

    /// These vectors for the first `n` tokens, and `others` for those behind them.
    pub(crate) fn before(self, n: usize, others: Self) -> Self {
        Self { others: Some((n, Box::new(others))), ..self }
    }

    /// The normalization of `x` `(b, s, c)`, modulated.
    pub(crate) fn modulate(&self, x: &T) -> Result<T> {
        let own = |x: &T, vectors: &Self| modulate(x, &vectors.scale, Some(&vectors.shift), EPS);
        let Some((n, others)) = &self.others else { return own(x, self) };
        let [first, last] = apart(x, *n)?;
        join_tokens(&own(&first, self)?, &own(&last, others)?)
    }

    /// `x + gate y`.
    pub(crate) fn add(&self, x: &T, y: &T) -> Result<T> {
        let Some((n, others)) = &self.others else { return x.gated_residual(&self.gate, y) };
        let ([x, x_last], [y, y_last]) = (apart(x, *n)?, apart(y, *n)?);
        join_tokens(&x.gated_residual(&self.gate, &y)?, &x_last.gated_residual(&others.gate, &y_last)?)
    }
}

/// The first `n` tokens of `x` `(b, s, c)`, and those behind them.
fn apart<T: TensorLike>(x: &T, n: usize) -> Result<[T; 2]> {
    let [_, s, _] = x.size3()?;
    Ok([tokens(x, 0, n)?, tokens(x, n, s.saturating_sub(n))?])
}

/// A block with weights of its own for image and text tokens, which attend to each other.
pub(crate) struct DoubleBlock {
    image: Projections,
    text: Projections,
    to_out: Linear,
    to_add_out: Linear,
    ff: FeedForward,
    ff_context: FeedForward,
}

/// A feed-forward layer.
enum FeedForward {
    /// Of FLUX.1.
    Plain(Mlp),
    /// Of FLUX.2.
    Gated(GatedFeedForward),
}

impl FeedForward {
    fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        match self {
            Self::Plain(mlp) => mlp.forward(x),
            Self::Gated(gated) => gated.forward(x, None),
        }
    }
}

impl DoubleBlock {
    /// Declares `attn`, `ff` and `ff_context` of a block with the feed-forward layers of FLUX.1.
    pub(crate) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        Self::plain(p, dims.heads(), ["ff", "ff_context"])
    }

    /// [`DoubleBlock::new`] with other names of the feed-forward layers of image and text.
    pub(crate) fn plain(p: &ParamBuilder<'_>, heads: Heads, layers: [&str; 2]) -> Self {
        let c = heads.channels();
        let names = ["net.0.proj", "net.2"];
        let ff = |p: &ParamBuilder<'_>| {
            FeedForward::Plain(Mlp::new(p, names, [c, EXPANSION * c, c], Activation::GeluTanh, true))
        };
        Self::with(p, heads, layers, ff)
    }

    /// Declares `attn`, `ff` and `ff_context` of a block with gated feed-forward layers of `hidden` channels.
    pub(crate) fn gated(p: &ParamBuilder<'_>, heads: Heads, hidden: usize) -> Self {
        let names = ["linear_in", "linear_out"];
        let ff = |p: &ParamBuilder<'_>| {
            FeedForward::Gated(GatedFeedForward::joint(p, names, heads.channels(), hidden, Activation::Silu))
        };
        Self::with(p, heads, ["ff", "ff_context"], ff)
    }

    fn with(
        p: &ParamBuilder<'_>,
        heads: Heads,
        [image_ff, text_ff]: [&str; 2],
        ff: impl Fn(&ParamBuilder<'_>) -> FeedForward,
    ) -> Self {
        let (attn, c) = (p.pp("attn"), heads.channels());
        let out = |name| Linear::new(&attn.pp(name).allows_8_bits(), c, c, heads.bias);
        let text = ["add_q_proj", "add_k_proj", "add_v_proj"];
        Self {
            image: Projections::new(&attn, heads, ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"]),
            text: Projections::new(&attn, heads, text, ["norm_added_q", "norm_added_k"]),
            to_out: out("to_out.0"),
            to_add_out: out("to_add_out"),
            ff: ff(&p.pp(image_ff)),
            ff_context: ff(&p.pp(text_ff)),
        }
    }

    /// Image tokens `x` `(b, n, c)` and text tokens `y` `(b, s, c)`, same shapes. The vectors are those of the image's
    /// attention and feed-forward layer, then those of the text's.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        [x, y]: [T; 2],
        vectors: &[Vectors<T>; 4],
        attending: &Attending<T>,
    ) -> Result<[T; 2]> {
        let [attention, ff, text_attention, text_ff] = vectors;
        let normed = [attention.modulate(&x)?, text_attention.modulate(&y)?];
        let [of_image, of_text] = attending.joint(normed, [&self.image, &self.text])?;
        let x = attention.add(&x, &self.to_out.forward(&of_image)?)?;
        drop(of_image);
        let y = text_attention.add(&y, &self.to_add_out.forward(&of_text)?)?;
        drop(of_text);
        let x = ff.add(&x, &self.ff.forward(&ff.modulate(&x)?)?)?;
        let y = text_ff.add(&y, &self.ff_context.forward(&text_ff.modulate(&y)?)?)?;
        Ok([x, y])
    }
}

/// A block with one set of weights for all tokens, whose attention and feed-forward layer have one input and one last layer.
pub(crate) struct SingleBlock {
    projections: Projections,
    /// Its last layer has the result of the attention as its first channels.
    mlp: Mlp,
}

impl SingleBlock {
    /// Declares `attn`, `proj_mlp` and `proj_out`.
    pub(crate) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        let c = dims.channels();
        let (names, channels) = (["proj_mlp", "proj_out"], [c, EXPANSION * c, c]);
        Self {
            projections: Projections::new(&p.pp("attn"), dims.heads(), ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"]),
            mlp: Mlp::behind(p, names, c, channels, Activation::GeluTanh, true),
        }
    }

    /// All tokens `z` `(b, n + s, c)`, same shape.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        z: T,
        [vectors]: &[Vectors<T>; 1],
        attending: &Attending<T>,
    ) -> Result<T> {
        let normed = vectors.modulate(&z)?;
        let attended = attending.attend(self.projections.forward(&normed, &attending.tables)?)?;
        let y = self.mlp.forward_behind(Some(attended), normed)?;
        vectors.add(&z, &y)
    }
}
