//! One layer of a text or image encoder.

use kiln_nn::ops::Activation;
use kiln_nn::{Attention, AttentionConfig, AttentionKeys, LayerNorm, Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

/// The sizes of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerConfig {
    /// Channels of the tokens.
    pub(crate) hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward block.
    pub(crate) intermediate_size: usize,
    pub(crate) num_heads: usize,
    pub(crate) layer_norm_eps: f64,
    pub(crate) activation: Activation,
    /// Whether no token attends to later tokens, as in text encoders.
    pub(crate) causal: bool,
}

/// Self-attention, then a feed-forward block, each after a normalization and with a residual connection.
///
/// Padding is not masked: CLIP was trained that way, and no token of a text attends to later tokens.
pub(crate) struct EncoderLayer {
    layer_norm1: LayerNorm,
    self_attn: Attention,
    layer_norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    activation: Activation,
}

impl EncoderLayer {
    /// Declares `layer_norm1`, `self_attn`, `layer_norm2` and `mlp`.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &LayerConfig) -> Self {
        let channels = config.hidden_size;
        let attention = AttentionConfig {
            channels,
            context_dim: channels,
            of_text: false,
            num_heads: config.num_heads,
            qkv_bias: true,
            causal: config.causal,
            keys: AttentionKeys::Clip,
        };
        let mlp = p.pp("mlp");
        Self {
            layer_norm1: LayerNorm::new(&p.pp("layer_norm1"), channels, config.layer_norm_eps),
            self_attn: Attention::new(&p.pp("self_attn"), attention),
            layer_norm2: LayerNorm::new(&p.pp("layer_norm2"), channels, config.layer_norm_eps),
            fc1: Linear::new(&mlp.pp("fc1"), channels, config.intermediate_size, true),
            fc2: Linear::new(&mlp.pp("fc2"), config.intermediate_size, channels, true),
            activation: config.activation,
        }
    }

    /// `x` `(b, s, hidden_size)` to the same shape. Tokens whose `seen` `(b, s)` is 0 are masked.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, seen: Option<&T>) -> Result<T> {
        let attend = |normed: T| match seen {
            None => self.self_attn.forward(&normed, None, x),
            Some(seen) => self.self_attn.forward_masked(&normed, seen, x),
        };
        let x = attend(self.layer_norm1.forward(x)?)?; // the normalized tokens are freed
        let hidden = self.fc1.forward(&self.layer_norm2.forward(&x)?)?; // (b, s, intermediate_size)
        self.fc2.forward_add(&hidden.activation(self.activation)?, Some(&x))
    }
}
