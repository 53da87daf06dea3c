//! The middle block of both halves, at the latents' size.

use kiln_nn::{Attention, AttentionConfig, AttentionKeys, GroupNorm, ResnetBlock, Result, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use crate::config::{EPS, VaeConfig};
use crate::frame_attention::FrameAttention;
use crate::layers::resnet;

/// Residual block, attention, residual block.
pub(crate) struct MidBlock {
    resnet_0: SegmentModule<ResnetBlock>,
    attention: Option<SegmentModule<MidAttention>>,
    resnet_1: SegmentModule<ResnetBlock>,
}

impl MidBlock {
    pub(crate) fn new(segments: &mut Segments, name: &str, config: &VaeConfig, channels: usize) -> Self {
        let resnet_0 = resnet(segments, format!("{name}.resnets.0"), config, channels, channels);
        let attention = config.mid_block_add_attention.then(|| {
            let name = format!("{name}.attentions.0");
            segments.add(&name, |p| match config.has_frames() {
                true => MidAttention::Frames(FrameAttention::new(&p.pp(&name), channels)),
                false => MidAttention::Pixels(Box::new(PixelAttention::new(&p.pp(&name), config, channels))),
            })
        });
        let resnet_1 = resnet(segments, format!("{name}.resnets.1"), config, channels, channels);
        Self { resnet_0, attention, resnet_1 }
    }

    /// `x` `(b, h, w, c)`, same shape.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let mut x = T::run(&self.resnet_0, |resnet| resnet.forward(x, None))?;
        if let Some(attention) = &self.attention {
            x = T::run(attention, |attention| match attention {
                MidAttention::Pixels(attention) => attention.forward(&x),
                MidAttention::Frames(attention) => attention.forward(&x),
            })?;
        }
        T::run(&self.resnet_1, |resnet| resnet.forward(&x, None))
    }
}

/// The attention of the two kinds of autoencoders.
enum MidAttention {
    Pixels(Box<PixelAttention>),
    Frames(FrameAttention),
}

/// Attention between all pixels, with one head as wide as the feature map.
struct PixelAttention {
    group_norm: GroupNorm,
    attention: Attention,
}

impl PixelAttention {
    fn new(p: &ParamBuilder<'_>, config: &VaeConfig, channels: usize) -> Self {
        let norm = kiln_nn::ops::GroupNorm { num_groups: config.norm_num_groups, eps: EPS, silu: false };
        let attention = AttentionConfig {
            channels,
            context_dim: channels,
            of_text: false,
            num_heads: 1,
            qkv_bias: true,
            causal: false,
            keys: AttentionKeys::Diffusers,
        };
        Self {
            group_norm: GroupNorm::new(&p.pp("group_norm"), channels, norm),
            attention: Attention::new(p, attention),
        }
    }

    fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let [b, h, w, c] = x.size4()?;
        let tokens = x.reshape(&[b, h * w, c])?;
        let y = self.attention.forward(&self.group_norm.forward(&tokens)?, None, &tokens)?;
        y.reshape(&[b, h, w, c])
    }
}
