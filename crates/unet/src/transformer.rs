//! The transformer after a residual block: every pixel is a token that attends to the other pixels and to the text.

use kiln_nn::{
    Attention, AttentionConfig, AttentionKeys, FeedForward, GroupNorm, LayerNorm, Linear, Result, TensorLike,
};
use kiln_weights::{ParamBuilder, SegmentModule};

use crate::blocks::Builder;
use crate::config::TransformerConfig;
use crate::hooks::{AttentionInput, BlockId, Hooks, LayerId};
use crate::image_prompt::KeysValues;

/// The epsilon of the transformers' group normalization, for any configuration.
const GROUP_NORM_EPS: f64 = 1e-6;
/// The epsilon of the layer normalizations.
const LAYER_NORM_EPS: f64 = 1e-5;

/// Normalization, projection, layers, projection back, residual connection.
pub(crate) struct Transformer {
    /// Where it is: the block, and its number in it.
    place: (BlockId, usize),
    entry: SegmentModule<Entry>,
    layers: Vec<SegmentModule<TransformerLayer>>,
    proj_out: SegmentModule<Linear>,
}

struct Entry {
    norm: GroupNorm,
    proj_in: Linear,
}

impl Transformer {
    /// Declares the segments of the transformer `name`, which is the one of number `place.1` in its block, with `depth` layers.
    pub(crate) fn new(
        builder: &mut Builder<'_>,
        name: &str,
        place: (BlockId, usize),
        channels: usize,
        config: &TransformerConfig,
        depth: usize,
    ) -> Self {
        let num_groups = builder.config.norm_num_groups;
        let norm = kiln_nn::ops::GroupNorm { num_groups, eps: GROUP_NORM_EPS, silu: false };
        // The projections are stored as 1x1 convolutions or as linear layers. For tokens these are the same.
        let projection =
            |p: &ParamBuilder<'_>, which| Linear::new(&p.pp(name).pp(which).allows_8_bits(), channels, channels, true);
        Self {
            place,
            entry: builder.segment(&format!("{name}.proj_in"), |p| Entry {
                norm: GroupNorm::new(&p.pp(name).pp("norm"), channels, norm),
                proj_in: projection(p, "proj_in"),
            }),
            layers: (0..depth)
                .map(|i| format!("{name}.transformer_blocks.{i}"))
                .map(|layer| builder.segment(&layer, |p| TransformerLayer::new(&p.pp(&layer), channels, config)))
                .collect(),
            proj_out: builder.segment(&format!("{name}.proj_out"), |p| projection(p, "proj_out")),
        }
    }

    /// Where the layers are, in the order in which they run.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LayerId> {
        let (block, transformer) = self.place;
        (0..self.layers.len()).map(move |layer| LayerId { block, transformer, layer })
    }

    /// The keys and values of the text `context` `(b, s, context_dim)` for each layer of `transformers`. Every layer's weights are used
    /// once.
    pub(crate) fn text_keys<'a, T: TensorLike>(
        transformers: impl Iterator<Item = &'a Self>,
        context: &T,
    ) -> Result<Vec<KeysValues<T>>> {
        let of = |layer: &TransformerLayer| {
            let [keys, values] = layer.attn2.keys_values(context)?;
            Ok(KeysValues { keys, values })
        };
        transformers.flat_map(|transformer| &transformer.layers).map(|layer| T::run(layer, of)).collect()
    }

    /// `x` `(b, h, w, c)`, `context` `(b, s, context_dim)`, to the shape of `x`. A layer consumes its tokens, so that
    /// they do not take memory in addition to its hidden maps.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, context: &T, hooks: &Hooks<'_, T>) -> Result<T> {
        let [b, h, w, c] = x.size4()?;
        let (block, transformer) = self.place;
        let x = x.reshape(&[b, h * w, c])?; // the same memory: a pixel is a token
        let mut tokens = T::run(&self.entry, |entry| entry.proj_in.forward(&entry.norm.forward(&x)?))?;
        for (i, layer) in self.layers.iter().enumerate() {
            let id = LayerId { block, transformer, layer: i };
            tokens = T::run(layer, |layer| layer.forward(tokens, context, id, (h, w), hooks))?;
        }
        let y = T::run(&self.proj_out, |proj| proj.forward_add(&tokens, Some(&x)))?;
        y.reshape(&[b, h, w, c])
    }
}

/// Self-attention, cross-attention to the text, feed-forward; each after a layer normalization and with a residual
/// connection.
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
        let attention = |context_dim, of_text| AttentionConfig {
            channels,
            context_dim,
            of_text,
            num_heads: config.num_heads,
            qkv_bias: false,
            causal: false,
            keys: AttentionKeys::Diffusers,
        };
        let norm = |name| LayerNorm::new(&p.pp(name), channels, LAYER_NORM_EPS);
        Self {
            norm1: norm("norm1"),
            attn1: Attention::new(&p.pp("attn1"), attention(channels, false)),
            norm2: norm("norm2"),
            attn2: Attention::new(&p.pp("attn2"), attention(config.context_dim, true)),
            norm3: norm("norm3"),
            ff: FeedForward::new(&p.pp("ff"), channels),
        }
    }

    /// `x` `(b, h*w, c)`, `context` `(b, s, context_dim)`.
    fn forward<T: TensorLike>(
        &self,
        mut x: T,
        context: &T,
        id: LayerId,
        size: (usize, usize),
        hooks: &Hooks<'_, T>,
    ) -> Result<T> {
        // The normalized tokens are temporaries, so that each is freed with its layer.
        x = hooks
            .self_attention(&self.attn1, &AttentionInput { id, size, x: &self.norm1.forward(&x)?, residual: &x })?;
        x = hooks.cross_attention(
            &self.attn2,
            &AttentionInput { id, size, x: &self.norm2.forward(&x)?, residual: &x },
            context,
        )?;
        self.ff.forward(&self.norm3, &x)
    }
}
