//! The network that embeds a control image (`ControlNetConditioningEmbedding` of diffusers).

use kiln_nn::ops::{self, Activation};
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use super::config::ControlConfig;
use crate::error::{Error, Result};

/// Convolutions from an image to the size and the channels of the first feature map.
pub struct ControlHint {
    segments: Segments,
    layers: SegmentModule<Layers>,
    /// Channels of the image.
    channels: usize,
    /// Whether blue comes first.
    is_bgr: bool,
    /// Pixels of a latent in each direction.
    downscale: usize,
}

struct Layers {
    conv_in: Conv2d,
    /// Pairs: one that keeps size and channels, one of stride 2 to the next channels.
    blocks: Vec<Conv2d>,
    conv_out: Conv2d,
}

impl ControlHint {
    /// Declares the network that `config` describes.
    pub fn new(config: &ControlConfig) -> Self {
        let mut segments = Segments::default();
        let (channels, widths) = (config.hint_channels, &config.hint_widths);
        let layers = segments.add("controlnet.cond_embedding", |p| {
            let p = p.pp("controlnet_cond_embedding");
            let conv = |p: &ParamBuilder<'_>, c_in, c_out| Conv2d::new(p, c_in, c_out, 3);
            let (first, last) = (widths.first().copied().unwrap_or(0), widths.last().copied().unwrap_or(0));
            let halving = ops::Conv2d { stride: 2, ..ops::Conv2d::same(3) };
            let pairs = widths.windows(2).enumerate().flat_map(|(i, pair)| {
                let p = |k: usize| p.pp("blocks").pp((2 * i + k).to_string());
                [conv(&p(0), pair[0], pair[0]), Conv2d::with_geometry(&p(1), pair[0], pair[1], 3, halving)]
            });
            Layers {
                conv_in: conv(&p.pp("conv_in"), channels, first),
                blocks: pairs.collect(),
                conv_out: conv(&p.pp("conv_out"), last, config.network.model_channels()),
            }
        });
        let downscale = 1 << widths.len().saturating_sub(1);
        Self { segments, layers, channels, is_bgr: config.bgr, downscale }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Channels of the control image.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Pixels of the image for one of the output, in each direction.
    pub fn downscale(&self) -> usize {
        self.downscale
    }

    /// An image `(b, channels, h, w)` of values from 0 to 1, red first, to `(b, h / downscale, w / downscale, c)`.
    ///
    /// # Errors
    /// [`Error::Input`] for another shape; errors of a layer.
    pub fn forward<T: TensorLike>(&self, image: &T) -> Result<T> {
        if !matches!(*image.dims(), [_, c, ..] if c == self.channels && image.dims().len() == 4) {
            let expected = format!("(b, {}, h, w)", self.channels);
            return Err(Error::Input { input: "control image", expected, found: image.dims().to_vec() });
        }
        let mut x = if self.is_bgr {
            let planes = (0..self.channels).rev().map(|c| image.narrow(1, c, 1));
            let planes = planes.collect::<kiln_nn::Result<Vec<T>>>()?;
            T::cat(&planes.iter().collect::<Vec<_>>(), 1)?.to_channels_last()?
        } else {
            image.to_channels_last()?
        };
        Ok(T::run(&self.layers, |layers| {
            for conv in std::iter::once(&layers.conv_in).chain(&layers.blocks) {
                x = conv.forward(&x)?.activation(Activation::Silu)?;
            }
            layers.conv_out.forward(&x)
        })?)
    }
}
