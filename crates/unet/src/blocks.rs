//! The blocks of the U-Net: down, middle, up.

use kiln_nn::{Downsample, ResnetConfig, ResnetIn, ResnetOut, Result, TensorLike, Upsample};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use crate::config::{BlockConfig, UnetConfig};
use crate::hooks::{BlockId, Hooks};
use crate::transformer::Transformer;

/// The common data of a U-Net's blocks during construction.
pub(crate) struct Builder<'a> {
    pub(crate) segments: &'a mut Segments,
    pub(crate) config: &'a UnetConfig,
    /// The prefix of the segments' names: a control network has the parameters' names of the U-Net with which it runs, and
    /// messages and measurements distinguish the two.
    pub(crate) label: &'static str,
}

impl Builder<'_> {
    /// Declares a segment. Parameters are declared below their own names, without the label.
    pub(crate) fn segment<M>(&mut self, name: &str, build: impl FnOnce(&ParamBuilder<'_>) -> M) -> SegmentModule<M> {
        self.segments.add(format!("{}{name}", self.label), build)
    }

    fn resnet(&mut self, name: String, in_channels: usize, out_channels: usize) -> Resnet {
        let config = ResnetConfig {
            in_channels,
            out_channels,
            temb_channels: Some(self.config.temb_channels()),
            num_groups: self.config.norm_num_groups,
            eps: self.config.norm_eps,
        };
        Resnet {
            first: self.segment(&format!("{name}.conv1"), |p| ResnetIn::new(&p.pp(&name), config)),
            second: self.segment(&format!("{name}.conv2"), |p| ResnetOut::new(&p.pp(&name), config)),
        }
    }

    fn transformer(&mut self, id: BlockId, block: &BlockConfig, layer: usize) -> Option<Transformer> {
        let config = block.transformer.as_ref()?;
        let name = format!("{id}.attentions.{layer}");
        Some(Transformer::new(self, &name, (id, layer), block.channels, config, config.layers[layer]))
    }

    /// A residual block and its transformer.
    fn layer(&mut self, id: BlockId, block: &BlockConfig, layer: usize, in_channels: usize) -> Layer {
        Layer {
            resnet: self.resnet(format!("{id}.resnets.{layer}"), in_channels, block.channels),
            transformer: self.transformer(id, block, layer),
        }
    }
}

/// The inputs of every block besides its feature map.
pub(crate) struct BlockContext<'a, T> {
    /// The time embedding after its SiLU, `(b or 1, temb_channels)`.
    pub(crate) temb: &'a T,
    /// The text's tokens, `(b, s, context_dim)`.
    pub(crate) tokens: &'a T,
    /// The parts that change the blocks.
    pub(crate) hooks: &'a Hooks<'a, T>,
}

/// A residual block, a segment for each half.
struct Resnet {
    first: SegmentModule<ResnetIn>,
    second: SegmentModule<ResnetOut>,
}

impl Resnet {
    /// `x` `(b, h, w, c_in)` to `(b, h, w, c_out)`.
    fn forward<T: TensorLike>(&self, x: &T, temb: &T) -> Result<T> {
        let h = T::run(&self.first, |first| first.forward(x, Some(temb)))?;
        T::run(&self.second, |second| second.forward(h, x))
    }
}

/// A residual block, then a transformer if the block has cross attention.
struct Layer {
    resnet: Resnet,
    transformer: Option<Transformer>,
}

impl Layer {
    /// `x` `(b, h, w, c_in)` to `(b, h, w, c_out)`. Layers and blocks consume `x`, so that the concatenated map is
    /// freed before the transformer's maps are allocated: they are the peak of a step in the last blocks.
    fn forward<T: TensorLike>(&self, mut x: T, context: &BlockContext<'_, T>) -> Result<T> {
        x = self.resnet.forward(&x, context.temb)?;
        match &self.transformer {
            Some(transformer) => transformer.forward(&x, context.tokens, context.hooks),
            None => Ok(x),
        }
    }
}

/// Layers, then downsampling by 2.
pub(crate) struct DownBlock {
    layers: Vec<Layer>,
    downsample: Option<SegmentModule<Downsample>>,
}

impl DownBlock {
    pub(crate) fn new(builder: &mut Builder<'_>, index: usize, in_channels: usize) -> Self {
        let block = &builder.config.down[index];
        let id = BlockId::Down(index);
        let layers = (0..block.layers)
            .map(|i| builder.layer(id, block, i, if i == 0 { in_channels } else { block.channels }))
            .collect();
        let downsample = (index + 1 < builder.config.down.len()).then(|| {
            let name = format!("{id}.downsamplers.0");
            let padding = builder.config.downsample_padding;
            builder.segment(&name, |p| Downsample::new(&p.pp(&name), block.channels, padding))
        });
        Self { layers, downsample }
    }

    /// `x` `(b, h, w, c_in)`. Every intermediate output is pushed to `skips`, and the last one is also returned.
    ///
    /// `feature` is a T2I-Adapter's map. As in diffusers, a block with cross attention adds it to its last layer's output,
    /// before the downsampling; another block adds it to its own output, after the downsampling. The skip connection of
    /// that output carries it, too.
    ///
    /// The block ends if there are `most` skip connections.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        mut x: T,
        context: &BlockContext<'_, T>,
        skips: &mut Vec<T>,
        most: usize,
        feature: Option<&T>,
    ) -> Result<T> {
        let (within, after) = if self.has_attention() { (feature, None) } else { (None, feature) };
        let left = most.saturating_sub(skips.len());
        for (i, layer) in self.layers.iter().enumerate().take(left) {
            x = layer.forward(x, context)?;
            if let Some(feature) = within.filter(|_| i + 1 == self.layers.len()) {
                x = x.add(feature)?;
            }
            skips.push(x.clone());
            x = context.hooks.after_down(skips.len() - 1, x)?;
        }
        if let Some(downsample) = self.downsample.as_ref().filter(|_| skips.len() < most) {
            x = T::run(downsample, |downsample| downsample.forward(&x))?;
            skips.push(x.clone());
            x = context.hooks.after_down(skips.len() - 1, x)?;
        }
        if let (Some(feature), Some(skip)) = (after, skips.last_mut()) {
            x = x.add(feature)?;
            *skip = x.clone();
        }
        Ok(x)
    }

    /// The transformers, in the order in which they run.
    pub(crate) fn transformers(&self) -> impl Iterator<Item = &Transformer> {
        self.layers.iter().filter_map(|layer| layer.transformer.as_ref())
    }

    /// Whether its layers have cross attention.
    fn has_attention(&self) -> bool {
        self.layers.iter().any(|layer| layer.transformer.is_some())
    }
}

/// A layer and one more residual block, at the smallest size; without cross attention one residual block alone, as
/// diffusers' `UNetMidBlock2D`.
pub(crate) struct MidBlock {
    layer: Layer,
    resnet: Option<Resnet>,
}

impl MidBlock {
    pub(crate) fn new(builder: &mut Builder<'_>, block: &BlockConfig) -> Self {
        Self {
            layer: builder.layer(BlockId::Mid, block, 0, block.channels),
            resnet: block
                .transformer
                .is_some()
                .then(|| builder.resnet("mid_block.resnets.1".into(), block.channels, block.channels)),
        }
    }

    /// Its transformer.
    pub(crate) fn transformer(&self) -> Option<&Transformer> {
        self.layer.transformer.as_ref()
    }

    pub(crate) fn forward<T: TensorLike>(&self, mut x: T, context: &BlockContext<'_, T>) -> Result<T> {
        x = self.layer.forward(x, context)?;
        match &self.resnet {
            Some(resnet) => resnet.forward(&x, context.temb),
            None => Ok(x),
        }
    }
}

/// Layers that each consume a skip connection, then upsampling by 2.
pub(crate) struct UpBlock {
    index: usize,
    layers: Vec<Layer>,
    upsample: Option<SegmentModule<Upsample>>,
}

impl UpBlock {
    /// `skips` are the channels of the remaining skip connections, the next one last; `channels` those of the input
    /// feature map.
    pub(crate) fn new(builder: &mut Builder<'_>, index: usize, channels: usize, skips: &mut Vec<usize>) -> Self {
        let block = &builder.config.up[index];
        let id = BlockId::Up(index);
        let layers = (0..block.layers)
            .map(|i| {
                let channels = if i == 0 { channels } else { block.channels };
                builder.layer(id, block, i, channels + skips.pop().unwrap_or(0))
            })
            .collect();
        let upsample = (index + 1 < builder.config.up.len()).then(|| {
            let name = format!("{id}.upsamplers.0");
            builder.segment(&name, |p| Upsample::new(&p.pp(&name), block.channels))
        });
        Self { index, layers, upsample }
    }

    /// The transformers, in the order in which they run.
    pub(crate) fn transformers(&self) -> impl Iterator<Item = &Transformer> {
        self.layers.iter().filter_map(|layer| layer.transformer.as_ref())
    }

    /// `x` `(b, h, w, c_in)`, the input of layer `first`. Removes its skip connections from the end of `skips`, and upsamples to the size of the
    /// skip connection before them, which is twice the size, or one less where that size was odd.
    pub(crate) fn forward<T: TensorLike>(
        &self,
        mut x: T,
        first: usize,
        context: &BlockContext<'_, T>,
        skips: &mut Vec<T>,
    ) -> Result<T> {
        for (i, layer) in self.layers.iter().enumerate().skip(first) {
            if let Some(skip) = skips.pop() {
                x = context.hooks.join(self.index, i, x, skip)?;
            }
            x = layer.forward(x, context)?;
        }
        if let Some(upsample) = &self.upsample {
            x = T::run(upsample, |upsample| match skips.last().map(T::size4).transpose()? {
                Some([_, h, w, _]) => upsample.forward_to(x, (h, w)),
                None => upsample.forward(x),
            })?;
        }
        Ok(x)
    }
}
