//! The first half of a U-Net: the embeddings, the way down, and the middle. A control network is this half again.

use candle_core::DType;
use kiln_nn::ops::Activation;
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::SegmentModule;

use crate::blocks::{BlockContext, Builder, DownBlock, MidBlock};
use crate::conditioning::Conditioning;
use crate::error::Result;
use crate::time_embedding::TimeEmbedding;

/// Time embedding, first convolution, down blocks and middle block.
pub(crate) struct Encoder {
    time_embedding: SegmentModule<TimeEmbedding>,
    conv_in: SegmentModule<Conv2d>,
    down_blocks: Vec<DownBlock>,
    mid_block: Option<MidBlock>,
    /// Whether the network takes pooled text and sizes.
    takes_added: bool,
}

/// The inputs of the blocks that all of them have in common.
pub(crate) struct Embedded<T> {
    /// The time embedding after its SiLU, `(b or 1, temb_channels)`.
    temb: T,
    /// The text's tokens, `(b, s, context_dim)`.
    tokens: T,
}

impl<T> Embedded<T> {
    /// As the blocks take it.
    pub(crate) fn context(&self) -> BlockContext<'_, T> {
        BlockContext { temb: &self.temb, tokens: &self.tokens }
    }
}

impl Encoder {
    /// Declares the segments.
    pub(crate) fn new(builder: &mut Builder<'_>) -> Self {
        let config = builder.config;
        let channels = config.model_channels();
        let time_embedding = builder.segment("time_embedding", |p| TimeEmbedding::new(p, config));
        let conv_in = builder
            .segment("conv_in", |p| Conv2d::new(&p.pp("conv_in"), config.in_channels, channels, config.conv_in_kernel));
        let mut down_blocks = Vec::new();
        let mut last = channels;
        for (i, block) in config.down.iter().enumerate() {
            down_blocks.push(DownBlock::new(builder, i, last));
            last = block.channels;
        }
        let mid_block = config.mid.as_ref().map(|block| MidBlock::new(builder, block));
        let takes_added = config.pooled_dim().is_some();
        Self { time_embedding, conv_in, down_blocks, mid_block, takes_added }
    }

    /// The embeddings of `timesteps` and of the conditions, in `dtype`.
    pub(crate) fn embed<T: TensorLike>(
        &self,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        dtype: DType,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<Embedded<T>> {
        let added = conditioning.added.as_ref().filter(|_| self.takes_added);
        let added = added.map(|added| (&added.text_embeds, &added.time_ids));
        let guidance = conditioning.guidance.as_ref();
        let temb = T::run(&self.time_embedding, |embedding| embedding.forward(timesteps, guidance, added, dtype))?;
        observe("time_emb", &temb);
        Ok(Embedded { temb: temb.activation(Activation::Silu)?, tokens: conditioning.context.to_dtype(dtype)? })
    }

    /// The way down from `x` `(b, h, w, in_channels)`. `hint` `(b, h, w, c)` is added to the first convolution's output.
    /// `features` are maps of a T2I-Adapter, one for each block. Gives the last feature map and all skip connections.
    pub(crate) fn down<T: TensorLike>(
        &self,
        x: &T,
        hint: Option<&T>,
        features: &[T],
        context: &BlockContext<'_, T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<(T, Vec<T>)> {
        let mut x = T::run(&self.conv_in, |conv| conv.forward_add(x, None, hint))?;
        observe("conv_in", &x);
        let mut skips = vec![x.clone()];
        for (i, block) in self.down_blocks.iter().enumerate() {
            x = block.forward(x, context, &mut skips, features.get(i))?;
            observe(&format!("down.{i}"), &x);
        }
        Ok((x, skips))
    }

    /// The middle block's output, or `x` itself where there is none.
    pub(crate) fn mid<T: TensorLike>(
        &self,
        mut x: T,
        context: &BlockContext<'_, T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<T> {
        if let Some(block) = &self.mid_block {
            x = block.forward(x, context)?;
            observe("mid", &x);
        }
        Ok(x)
    }

    /// The number of down blocks.
    pub(crate) fn levels(&self) -> usize {
        self.down_blocks.len()
    }
}
