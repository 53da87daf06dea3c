//! The blocks: joint ones, and those of control networks without a text.

use kiln_nn::ops::Activation;
use kiln_nn::{Mlp, Modulation, Result, TensorLike, modulate};
use kiln_weights::ParamBuilder;

use super::EPS;
use super::attention::{ImageAttention, JointAttention};
use super::config::Sd3Config;

/// The width of the hidden layer of a feed-forward layer, relative to the input.
const EXPANSION: usize = 4;
/// Vectors of a block: shift, scale and gate of its attention, then those of its feed-forward layer.
const VECTORS: usize = 6;
/// Vectors of a block with a second attention, whose shift, scale and gate come last.
const DUAL_VECTORS: usize = 9;

/// The feed-forward layer `name`: `net.0.proj`, GELU, `net.2`.
fn feed_forward(p: &ParamBuilder<'_>, name: &str, channels: usize) -> Mlp {
    let widths = [channels, EXPANSION * channels, channels];
    Mlp::new(&p.pp(name), ["net.0.proj", "net.2"], widths, Activation::GeluTanh, true)
}

/// The vectors of the modulation `name`.
fn modulation(p: &ParamBuilder<'_>, name: &str, channels: usize, vectors: usize) -> Modulation {
    // SiLU is part of the embedding.
    Modulation::new(&p.pp(name).pp("linear"), [channels, channels], vectors, true, false)
}

/// `x + gate ff(norm(x) (1 + scale) + shift)` for `x` `(b, s, c)` and vectors `(b, c)`.
fn add_feed_forward<T: TensorLike>(x: T, ff: &Mlp, [shift, scale, gate]: [&T; 3]) -> Result<T> {
    let y = ff.forward(&modulate(&x, scale, Some(shift), EPS)?)?;
    x.gated_residual(gate, &y)
}

/// A block in which image and text attend to each other (diffusers' `JointTransformerBlock`).
pub(super) struct JointBlock {
    norm1: Modulation,
    norm1_context: Modulation,
    attn: JointAttention,
    /// A second attention, of image tokens alone.
    attn2: Option<ImageAttention>,
    ff: Mlp,
    /// `None` in a last block, from which no text comes.
    ff_context: Option<Mlp>,
}

impl JointBlock {
    /// Declares the block with diffusers' names.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Sd3Config, is_dual: bool, is_last: bool) -> Self {
        let channels = config.channels();
        let of_text = if is_last { 2 } else { VECTORS };
        Self {
            norm1: modulation(p, "norm1", channels, if is_dual { DUAL_VECTORS } else { VECTORS }),
            norm1_context: modulation(p, "norm1_context", channels, of_text),
            attn: JointAttention::new(&p.pp("attn"), config, is_last),
            attn2: is_dual.then(|| ImageAttention::new(&p.pp("attn2"), config)),
            ff: feed_forward(p, "ff", channels),
            ff_context: (!is_last).then(|| feed_forward(p, "ff_context", channels)),
        }
    }

    /// The image `x` `(b, n, c)` and the text `y` `(b, s, c)` after this block, for the modulating vector `emb` `(b, c)` after SiLU.
    /// A last block leaves the text as it is.
    pub(super) fn forward<T: TensorLike>(&self, mut x: T, mut y: T, emb: &T) -> Result<(T, T)> {
        let of_image = self.norm1.forward(emb)?;
        let of_text = self.norm1_context.forward(emb)?;
        // A last block has the scale first.
        let (shift, scale) =
            if self.ff_context.is_some() { (&of_text[0], &of_text[1]) } else { (&of_text[1], &of_text[0]) };
        let (image, text) = self
            .attn
            .forward(&modulate(&x, &of_image[1], Some(&of_image[0]), EPS)?, &modulate(&y, scale, Some(shift), EPS)?)?;
        // The second attention is of the block's input, as the first one.
        let second = self
            .attn2
            .as_ref()
            .map(|attn2| attn2.forward(&modulate(&x, &of_image[VECTORS + 1], Some(&of_image[VECTORS]), EPS)?));
        x = x.gated_residual(&of_image[2], &image)?;
        drop(image);
        if let Some(second) = second.transpose()? {
            x = x.gated_residual(&of_image[VECTORS + 2], &second)?;
        }
        x = add_feed_forward(x, &self.ff, [&of_image[3], &of_image[4], &of_image[5]])?;
        if let (Some(ff), Some(text)) = (&self.ff_context, text) {
            y = y.gated_residual(&of_text[2], &text)?;
            drop(text);
            y = add_feed_forward(y, ff, [&of_text[3], &of_text[4], &of_text[5]])?;
        }
        Ok((x, y))
    }
}

/// A block of image tokens alone (diffusers' `SD3SingleTransformerBlock`).
pub(super) struct ImageBlock {
    norm1: Modulation,
    attn: ImageAttention,
    ff: Mlp,
}

impl ImageBlock {
    /// Declares the block with diffusers' names.
    pub(super) fn new(p: &ParamBuilder<'_>, config: &Sd3Config) -> Self {
        let channels = config.channels();
        Self {
            norm1: modulation(p, "norm1", channels, VECTORS),
            attn: ImageAttention::new(&p.pp("attn"), config),
            ff: feed_forward(p, "ff", channels),
        }
    }

    /// The image `x` `(b, n, c)` after this block, for the modulating vector `emb` `(b, c)` after SiLU.
    pub(super) fn forward<T: TensorLike>(&self, x: T, emb: &T) -> Result<T> {
        let vectors = self.norm1.forward(emb)?;
        let y = self.attn.forward(&modulate(&x, &vectors[1], Some(&vectors[0]), EPS)?)?;
        let x = x.gated_residual(&vectors[2], &y)?;
        drop(y);
        add_feed_forward(x, &self.ff, [&vectors[3], &vectors[4], &vectors[5]])
    }
}
