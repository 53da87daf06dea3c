//! The first half of a U-Net: the embeddings, the way down, and the middle. A control network is this half again.

use candle_core::DType;
use kiln_nn::ops::Activation;
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::SegmentModule;

use crate::blocks::{BlockContext, Builder, DownBlock, MidBlock};
use crate::conditioning::Conditioning;
use crate::error::Result;
use crate::hooks::Hooks;
use crate::time_embedding::TimeEmbedding;
use crate::transformer::Transformer;

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
    /// The context of the blocks.
    pub(crate) fn context<'a>(&'a self, hooks: &'a Hooks<'a, T>) -> BlockContext<'a, T> {
        BlockContext { temb: &self.temb, tokens: &self.tokens, hooks }
    }
}

impl Encoder {
    /// Declares the segments.
    pub(crate) fn new(builder: &mut Builder<'_>) -> Self {
        Self::new_with(builder, |_| ()).0
    }

    /// The same, and what `after_first` declares: it runs between the first convolution and the down blocks.
    pub(crate) fn new_with<R>(builder: &mut Builder<'_>, after_first: impl FnOnce(&mut Builder<'_>) -> R) -> (Self, R) {
        let config = builder.config;
        let channels = config.model_channels();
        let time_embedding = builder.segment("time_embedding", |p| TimeEmbedding::new(p, config));
        let conv_in = builder
            .segment("conv_in", |p| Conv2d::new(&p.pp("conv_in"), config.in_channels, channels, config.conv_in_kernel));
        let more = after_first(builder);
        let mut down_blocks = Vec::new();
        let mut last = channels;
        for (i, block) in config.down.iter().enumerate() {
            down_blocks.push(DownBlock::new(builder, i, last));
            last = block.channels;
        }
        let mid_block = config.mid.as_ref().map(|block| MidBlock::new(builder, block));
        let takes_added = config.pooled_dim().is_some();
        (Self { time_embedding, conv_in, down_blocks, mid_block, takes_added }, more)
    }

    /// The embeddings of `timesteps` and of the conditions, in `dtype`.
    pub(crate) fn embed<T: TensorLike>(
        &self,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        dtype: DType,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<Embedded<T>> {
        self.embed_with(timesteps, conditioning, None, dtype, observe)
    }

    /// Embeds the time with `more` `(1, temb_channels)` added for every row.
    pub(crate) fn embed_with<T: TensorLike>(
        &self,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        more: Option<&T>,
        dtype: DType,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<Embedded<T>> {
        let added = conditioning.added.as_ref().filter(|_| self.takes_added);
        let added = added.map(|added| (&added.text_embeds, &added.time_ids));
        let guidance = conditioning.guidance.as_ref();
        let mut temb = T::run(&self.time_embedding, |embedding| embedding.forward(timesteps, guidance, added, dtype))?;
        if let Some(more) = more {
            let rows = temb.size2()?[0];
            temb = temb.add(&T::cat(&vec![more; rows], 0)?)?;
        }
        observe("time_emb", &temb);
        Ok(Embedded { temb: temb.activation(Activation::Silu)?, tokens: conditioning.context.to_dtype(dtype)? })
    }

    /// The way down from `x` `(b, h, w, in_channels)`. `hint` `(b, h, w, c)` is added to the first convolution's output.
    /// `features` are maps of a T2I-Adapter, one for each block. Gives the last feature map and all skip connections, or ends
    /// if there are `most` of them.
    pub(crate) fn down<T: TensorLike>(
        &self,
        x: &T,
        hint: Option<&T>,
        features: &[T],
        most: usize,
        context: &BlockContext<'_, T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<(T, Vec<T>)> {
        let x = self.first(x, hint)?;
        observe("conv_in", &x);
        self.levels_from(x, features, most, context, observe)
    }

    /// The first convolution's output for `x` `(b, h, w, in_channels)`, with `hint` `(b, h, w, c)` added.
    pub(crate) fn first<T: TensorLike>(&self, x: &T, hint: Option<&T>) -> Result<T> {
        Ok(T::run(&self.conv_in, |conv| conv.forward_add(x, None, hint))?)
    }

    /// The down blocks from the first feature map on, as [`Self::down`].
    pub(crate) fn levels_from<T: TensorLike>(
        &self,
        mut x: T,
        features: &[T],
        most: usize,
        context: &BlockContext<'_, T>,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<(T, Vec<T>)> {
        let mut skips = vec![x.clone()];
        x = context.hooks.after_down(0, x)?;
        for (i, block) in self.down_blocks.iter().enumerate() {
            if skips.len() >= most {
                break;
            }
            x = block.forward(x, context, &mut skips, most, features.get(i))?;
            observe(&format!("down.{i}"), &x);
        }
        Ok((x, skips))
    }

    /// The middle block's output, or `x` itself if there is none.
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

    /// The transformers, in the order in which they run.
    pub(crate) fn transformers(&self) -> impl Iterator<Item = &Transformer> {
        let mid = self.mid_block.iter().filter_map(MidBlock::transformer);
        self.down_blocks.iter().flat_map(DownBlock::transformers).chain(mid)
    }

    /// The number of down blocks.
    pub(crate) fn levels(&self) -> usize {
        self.down_blocks.len()
    }
}
