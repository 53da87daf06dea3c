//! The transformer after a residual block: every pixel is a token that looks at the others and at the text.

use candle_core::Tensor;
use kiln_nn::{
    Attention, AttentionConfig, AttentionKeys, FeedForward, GroupNorm, LayerNorm, Linear, Result, Run, Shadow,
};
use kiln_weights::{ParamBuilder, Segments, Staged};

use crate::config::TransformerConfig;

/// Added to the variance in the transformers' group normalisation, whatever the configuration says elsewhere.
const GROUP_NORM_EPS: f64 = 1e-6;
/// Added to the variance in the layer normalisations.
const LAYER_NORM_EPS: f64 = 1e-5;

/// Normalise, project, layers, project back, add the input.
pub(crate) struct Transformer {
    entry: Staged<Entry>,
    layers: Vec<Staged<TransformerLayer>>,
    proj_out: Staged<Linear>,
}

struct Entry {
    norm: GroupNorm,
    proj_in: Linear,
}

impl Transformer {
    /// Declares the segments of the transformer `name` with `depth` layers.
    pub(crate) fn new(
        segments: &mut Segments,
        name: &str,
        channels: usize,
        num_groups: usize,
        config: &TransformerConfig,
        depth: usize,
    ) -> Self {
        let norm = kiln_nn::ops::GroupNorm { num_groups, eps: GROUP_NORM_EPS, silu: false };
        // Whether the projections are stored as 1x1 convolutions or as linear layers, they are the same to tokens.
        let projection = |p: &ParamBuilder<'_>, which| Linear::new(&p.pp(name).pp(which), channels, channels, true);
        Self {
            entry: segments.add(format!("{name}.proj_in"), |p| Entry {
                norm: GroupNorm::new(&p.pp(name).pp("norm"), channels, norm),
                proj_in: projection(p, "proj_in"),
            }),
            layers: (0..depth)
                .map(|i| format!("{name}.transformer_blocks.{i}"))
                .map(|layer| segments.add(&layer, |p| TransformerLayer::new(&p.pp(&layer), channels, config)))
                .collect(),
            proj_out: segments.add(format!("{name}.proj_out"), |p| projection(p, "proj_out")),
        }
    }

    /// `x` `(b, h, w, c)`, `context` `(b, s, context_dim)`, to the shape of `x`. A layer takes its tokens: beside its
    /// hidden maps they would be one more.
    pub(crate) fn forward(&self, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        let (b, h, w, c) = x.dims4()?;
        let x = x.reshape((b, h * w, c))?; // the same memory: a pixel is a token
        let mut tokens = self.entry.run(|entry| entry.proj_in.forward(&entry.norm.forward(&x)?))?;
        for layer in &self.layers {
            tokens = layer.run(|layer| layer.forward(tokens, context))?;
        }
        let y = self.proj_out.run(|proj| proj.forward_add(&tokens, Some(&x)))?;
        Ok(y.reshape((b, h, w, c))?)
    }

    /// [`Transformer::forward`] for shapes.
    pub(crate) fn shadow(&self, x: &Shadow, context: &Shadow) -> Shadow {
        let [b, h, w, c] = [0, 1, 2, 3].map(|i| x.dim(i));
        let x = x.view(&[b, h * w, c]);
        let entry = self.entry.module();
        let mut tokens = entry.proj_in.shadow(&entry.norm.shadow(&x));
        for layer in &self.layers {
            tokens = layer.module().shadow(tokens, context);
        }
        let y = self.proj_out.module().shadow(&tokens);
        y.view(&[b, h, w, c])
    }
}

/// Self-attention, cross-attention to the text, feed-forward; each after a layer normalisation and around a shortcut.
struct TransformerLayer {
    norm1: LayerNorm,
    attn1: Attention,
    norm2: LayerNorm,
    attn2: Attention,
    norm3: LayerNorm,
    ff: FeedForward,
}

impl TransformerLayer {
    fn new(p: &ParamBuilder<'_>, channels: usize, config: &TransformerConfig) -> Self {
        let attention = |context_dim| AttentionConfig {
            channels,
            context_dim,
            num_heads: config.num_heads,
            qkv_bias: false,
            causal: false,
            keys: AttentionKeys::Diffusers,
        };
        let norm = |name| LayerNorm::new(&p.pp(name), channels, LAYER_NORM_EPS);
        Self {
            norm1: norm("norm1"),
            attn1: Attention::new(&p.pp("attn1"), attention(channels)),
            norm2: norm("norm2"),
            attn2: Attention::new(&p.pp("attn2"), attention(config.context_dim)),
            norm3: norm("norm3"),
            ff: FeedForward::new(&p.pp("ff"), channels),
        }
    }

    /// `x` `(b, h*w, c)`, `context` `(b, s, context_dim)`.
    fn forward(&self, mut x: Tensor, context: &Tensor) -> Result<Tensor> {
        x = self.attn1.forward(&self.norm1.forward(&x)?, None, &x)?;
        x = self.attn2.forward(&self.norm2.forward(&x)?, Some(context), &x)?;
        self.ff.forward(self.norm3.forward(&x)?, &x)
    }

    /// [`TransformerLayer::forward`] for shapes.
    fn shadow(&self, mut x: Shadow, context: &Shadow) -> Shadow {
        x = self.attn1.shadow(&self.norm1.shadow(&x), None);
        x = self.attn2.shadow(&self.norm2.shadow(&x), Some(context));
        self.ff.shadow(self.norm3.shadow(&x))
    }
}
