//! The blocks of the U-Net: down, middle, up.

use candle_core::Tensor;
use kiln_nn::ops::concat_channels;
use kiln_nn::{Downsample, ResnetConfig, ResnetIn, ResnetOut, Result, Run, Shadow, Upsample, shadow};
use kiln_weights::{Segments, Staged};

use crate::config::{BlockConfig, UnetConfig};
use crate::transformer::Transformer;

/// What every block of one U-Net has in common, while it is built.
pub(crate) struct Builder<'a> {
    pub(crate) segments: &'a mut Segments,
    pub(crate) config: &'a UnetConfig,
}

impl Builder<'_> {
    fn resnet(&mut self, name: String, in_channels: usize, out_channels: usize) -> Resnet {
        let config = ResnetConfig {
            in_channels,
            out_channels,
            temb_channels: Some(self.config.temb_channels()),
            num_groups: self.config.norm_num_groups,
            eps: self.config.norm_eps,
        };
        Resnet {
            first: self.segments.add(format!("{name}.conv1"), |p| ResnetIn::new(&p.pp(&name), config)),
            second: self.segments.add(format!("{name}.conv2"), |p| ResnetOut::new(&p.pp(&name), config)),
        }
    }

    fn transformer(&mut self, name: &str, block: &BlockConfig, layer: usize) -> Option<Transformer> {
        let config = block.transformer.as_ref()?;
        let groups = self.config.norm_num_groups;
        Some(Transformer::new(self.segments, name, block.channels, groups, config, config.layers[layer]))
    }

    /// A residual block and its transformer.
    fn layer(&mut self, name: &str, block: &BlockConfig, layer: usize, in_channels: usize) -> Layer {
        Layer {
            resnet: self.resnet(format!("{name}.resnets.{layer}"), in_channels, block.channels),
            transformer: self.transformer(&format!("{name}.attentions.{layer}"), block, layer),
        }
    }
}

/// What every block is told besides its feature map.
pub(crate) struct BlockContext<'a> {
    /// The time embedding after its SiLU, `(b or 1, temb_channels)`.
    pub(crate) temb: &'a Tensor,
    /// The text's tokens, `(b, s, context_dim)`.
    pub(crate) tokens: &'a Tensor,
}

/// [`BlockContext`] for shapes.
pub(crate) struct ShadowContext<'a> {
    pub(crate) temb: &'a Shadow,
    pub(crate) tokens: &'a Shadow,
}

/// A residual block, a segment for each half.
struct Resnet {
    first: Staged<ResnetIn>,
    second: Staged<ResnetOut>,
}

impl Resnet {
    /// `x` `(b, h, w, c_in)` to `(b, h, w, c_out)`.
    fn forward(&self, x: &Tensor, temb: &Tensor) -> Result<Tensor> {
        let h = self.first.run(|first| first.forward(x, Some(temb)))?;
        self.second.run(|second| second.forward(h, x))
    }

    /// [`Resnet::forward`] for shapes.
    fn shadow(&self, x: &Shadow, temb: &Shadow) -> Shadow {
        let h = self.first.module().shadow(x, Some(temb));
        self.second.module().shadow(h, x)
    }
}

/// A residual block, then a transformer where the block has cross attention.
struct Layer {
    resnet: Resnet,
    transformer: Option<Transformer>,
}

impl Layer {
    /// `x` `(b, h, w, c_in)` to `(b, h, w, c_out)`. It is taken, here and in the blocks: beside a transformer's maps, in
    /// the last blocks the peak of a step, there is no room for what was concatenated before.
    fn forward(&self, mut x: Tensor, context: &BlockContext<'_>) -> Result<Tensor> {
        x = self.resnet.forward(&x, context.temb)?;
        match &self.transformer {
            Some(transformer) => transformer.forward(&x, context.tokens),
            None => Ok(x),
        }
    }

    /// [`Layer::forward`] for shapes.
    fn shadow(&self, mut x: Shadow, context: &ShadowContext<'_>) -> Shadow {
        x = self.resnet.shadow(&x, context.temb);
        match &self.transformer {
            Some(transformer) => transformer.shadow(&x, context.tokens),
            None => x,
        }
    }
}

/// Layers, then half the size.
pub(crate) struct DownBlock {
    layers: Vec<Layer>,
    downsample: Option<Staged<Downsample>>,
}

impl DownBlock {
    pub(crate) fn new(builder: &mut Builder<'_>, index: usize, in_channels: usize) -> Self {
        let block = &builder.config.down[index];
        let name = format!("down_blocks.{index}");
        let layers = (0..block.layers)
            .map(|i| builder.layer(&name, block, i, if i == 0 { in_channels } else { block.channels }))
            .collect();
        let downsample = (index + 1 < builder.config.down.len()).then(|| {
            let name = format!("{name}.downsamplers.0");
            let padding = builder.config.downsample_padding;
            builder.segments.add(&name, |p| Downsample::new(&p.pp(&name), block.channels, padding))
        });
        Self { layers, downsample }
    }

    /// `x` `(b, h, w, c_in)`; every result on the way is pushed to `skips`, the last one is returned too.
    pub(crate) fn forward(&self, mut x: Tensor, context: &BlockContext<'_>, skips: &mut Vec<Tensor>) -> Result<Tensor> {
        for layer in &self.layers {
            x = layer.forward(x, context)?;
            skips.push(x.clone());
        }
        if let Some(downsample) = &self.downsample {
            x = downsample.run(|downsample| downsample.forward(&x))?;
            skips.push(x.clone());
        }
        Ok(x)
    }

    /// [`DownBlock::forward`] for shapes.
    pub(crate) fn shadow(&self, mut x: Shadow, context: &ShadowContext<'_>, skips: &mut Vec<Shadow>) -> Shadow {
        for layer in &self.layers {
            x = layer.shadow(x, context);
            skips.push(x.clone());
        }
        if let Some(downsample) = &self.downsample {
            x = downsample.module().shadow(&x);
            skips.push(x.clone());
        }
        x
    }
}

/// A layer and one more residual block, at the smallest size.
pub(crate) struct MidBlock {
    layer: Layer,
    resnet: Resnet,
}

impl MidBlock {
    pub(crate) fn new(builder: &mut Builder<'_>, block: &BlockConfig) -> Self {
        Self {
            layer: builder.layer("mid_block", block, 0, block.channels),
            resnet: builder.resnet("mid_block.resnets.1".into(), block.channels, block.channels),
        }
    }

    pub(crate) fn forward(&self, mut x: Tensor, context: &BlockContext<'_>) -> Result<Tensor> {
        x = self.layer.forward(x, context)?;
        self.resnet.forward(&x, context.temb)
    }

    /// [`MidBlock::forward`] for shapes.
    pub(crate) fn shadow(&self, mut x: Shadow, context: &ShadowContext<'_>) -> Shadow {
        x = self.layer.shadow(x, context);
        self.resnet.shadow(&x, context.temb)
    }
}

/// Layers that each take a skip connection, then double the size.
pub(crate) struct UpBlock {
    layers: Vec<Layer>,
    upsample: Option<Staged<Upsample>>,
}

impl UpBlock {
    /// `skips` are the channels of the skip connections that are left, the next one last; `channels` those of the
    /// feature map that comes in.
    pub(crate) fn new(builder: &mut Builder<'_>, index: usize, channels: usize, skips: &mut Vec<usize>) -> Self {
        let block = &builder.config.up[index];
        let name = format!("up_blocks.{index}");
        let layers = (0..block.layers)
            .map(|i| {
                let channels = if i == 0 { channels } else { block.channels };
                builder.layer(&name, block, i, channels + skips.pop().unwrap_or(0))
            })
            .collect();
        let upsample = (index + 1 < builder.config.up.len()).then(|| {
            let name = format!("{name}.upsamplers.0");
            builder.segments.add(&name, |p| Upsample::new(&p.pp(&name), block.channels))
        });
        Self { layers, upsample }
    }

    /// `x` `(b, h, w, c_in)`; takes its skip connections off the end of `skips`, and doubles the size to that of the
    /// skip connection after them, which is one less where that size was odd.
    pub(crate) fn forward(&self, mut x: Tensor, context: &BlockContext<'_>, skips: &mut Vec<Tensor>) -> Result<Tensor> {
        for layer in &self.layers {
            if let Some(skip) = skips.pop() {
                x = concat_channels(&x, &skip, None)?;
            }
            x = layer.forward(x, context)?;
        }
        if let Some(upsample) = &self.upsample {
            x = upsample.run(|upsample| match skips.last() {
                Some(skip) => upsample.forward_to(x, (skip.dim(1)?, skip.dim(2)?)),
                None => upsample.forward(x),
            })?;
        }
        Ok(x)
    }

    /// [`UpBlock::forward`] for shapes.
    pub(crate) fn shadow(&self, mut x: Shadow, context: &ShadowContext<'_>, skips: &mut Vec<Shadow>) -> Shadow {
        for layer in &self.layers {
            if let Some(skip) = skips.pop() {
                x = shadow::concat_channels(&x, &skip);
            }
            x = layer.shadow(x, context);
        }
        match (&self.upsample, skips.last()) {
            (None, _) => x,
            (Some(upsample), Some(skip)) => upsample.module().shadow_to(x, (skip.dim(1), skip.dim(2))),
            (Some(upsample), None) => upsample.module().shadow(x),
        }
    }
}
