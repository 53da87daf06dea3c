//! T2I-Adapter (arXiv 2302.08453, diffusers' `T2IAdapter`): feature maps of a control image, which are added to the outputs of
//! the U-Net's down blocks. It runs once an image, and not once a step.

use kiln_nn::ops::Activation;
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use super::adapter_config::{AdapterConfig, AdapterForm};
use crate::error::{Error, Result};

/// A T2I-Adapter. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct T2iAdapter {
    config: AdapterConfig,
    segments: Segments,
    /// The first convolution; the light form has none.
    first: Option<SegmentModule<Conv2d>>,
    levels: Vec<Level>,
}

struct Level {
    halves: bool,
    in_conv: Option<SegmentModule<Conv2d>>,
    blocks: Vec<SegmentModule<Block>>,
    /// The light form's convolution back to all channels.
    out_conv: Option<SegmentModule<Conv2d>>,
}

/// `x + block2(relu(block1(x)))`.
struct Block {
    block1: Conv2d,
    block2: Conv2d,
}

impl Block {
    fn forward<T: TensorLike>(&self, x: &T) -> kiln_nn::Result<T> {
        self.block2.forward_add(&self.block1.forward(x)?.activation(Activation::Relu)?, None, Some(x))
    }
}

impl T2iAdapter {
    /// Declares the network that `config` describes.
    pub fn new(config: AdapterConfig) -> Self {
        let mut segments = Segments::default();
        let mut conv = |name: String, c_in: usize, c_out: usize, kernel: usize| {
            segments.add(format!("t2i.{name}"), |p| Conv2d::new(&p.pp("adapter").pp(&name), c_in, c_out, kernel))
        };
        let depth = config.image_channels * config.downscale * config.downscale;
        let is_light = config.form == AdapterForm::Light;
        let first = config.channels.first().copied().unwrap_or(0);
        let first_conv = (!is_light).then(|| conv("conv_in".into(), depth, first, 3));
        let mut last = if is_light { depth } else { first };
        let mut levels = Vec::with_capacity(config.channels.len());
        for (i, &channels) in config.channels.iter().enumerate() {
            let name = format!("body.{i}");
            let within = if is_light { channels / 4 } else { channels };
            let mut conv = |part: &str, c_in: usize, c_out: usize| {
                let name = format!("{name}.{part}");
                segments.add(format!("t2i.{name}"), |p| Conv2d::new(&p.pp("adapter").pp(&name), c_in, c_out, 1))
            };
            let in_conv = (is_light || last != channels).then(|| conv("in_conv", last, within));
            let out_conv = is_light.then(|| conv("out_conv", within, channels));
            let block = |j: usize| {
                let name = format!("{name}.resnets.{j}");
                segments.add(format!("t2i.{name}"), |p: &ParamBuilder<'_>| {
                    let p = p.pp("adapter").pp(&name);
                    Block {
                        block1: Conv2d::new(&p.pp("block1"), within, within, 3),
                        block2: Conv2d::new(&p.pp("block2"), within, within, config.second_kernel),
                    }
                })
            };
            let blocks = (0..config.layers).map(block).collect();
            levels.push(Level { halves: config.halves(i), in_conv, blocks, out_conv });
            last = channels;
        }
        Self { config, segments, first: first_conv, levels }
    }

    /// The configuration.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// The segments, all of which run once an image.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The feature maps of an image `(b, image_channels, h, w)` of values from 0 to 1, each `(b, h', w', c)` as
    /// [`AdapterConfig::features`] says.
    ///
    /// # Errors
    /// [`Error::Input`] for another number of channels and for a size that is no multiple of
    /// [`AdapterConfig::downscale`]; errors of a layer.
    pub fn forward<T: TensorLike>(&self, image: &T) -> Result<Vec<T>> {
        let (channels, factor) = (self.config.image_channels, self.config.downscale);
        if !matches!(*image.dims(), [_, c, h, w] if c == channels && h % factor == 0 && w % factor == 0) {
            let expected = format!("(b, {channels}, {factor} h, {factor} w)");
            return Err(Error::Input { input: "control image", expected, found: image.dims().to_vec() });
        }
        let mut x = image.to_channels_last()?.pixel_unshuffle(factor)?;
        if let Some(conv) = &self.first {
            x = T::run(conv, |conv| conv.forward(&x))?;
        }
        let mut features = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            if level.halves {
                x = halved(&x)?;
            }
            if let Some(conv) = &level.in_conv {
                x = T::run(conv, |conv| conv.forward(&x))?;
            }
            for block in &level.blocks {
                x = T::run(block, |block| block.forward(&x))?;
            }
            if let Some(conv) = &level.out_conv {
                x = T::run(conv, |conv| conv.forward(&x))?;
            }
            features.push(x.clone());
        }
        Ok(features)
    }
}

/// Means of squares of 2 by 2 pixels (`AvgPool2d(2, 2, ceil_mode=True)`): at an odd edge of those that exist, which is what an
/// edge that is repeated gives.
fn halved<T: TensorLike>(x: &T) -> Result<T> {
    let even = |x: T, dim: usize| -> kiln_nn::Result<T> {
        let size = x.dims()[dim];
        if size.is_multiple_of(2) {
            return Ok(x);
        }
        T::cat(&[&x, &x.narrow(dim, size - 1, 1)?.contiguous()?], dim)
    };
    let x = even(even(x.clone(), 1)?, 2)?;
    let [b, h, w, c] = x.size4()?;
    let sum_of_pairs = |x: &T, dims: [usize; 4]| -> kiln_nn::Result<T> {
        let x = x.reshape(&dims)?;
        x.narrow(2, 0, 1)?.contiguous()?.add(&x.narrow(2, 1, 1)?.contiguous()?)
    };
    let rows = sum_of_pairs(&x, [b, h / 2, 2, w * c])?;
    let sums = sum_of_pairs(&rows, [b * h / 2, w / 2, 2, c])?;
    Ok(sums.affine(0.25, 0.0)?.reshape(&[b, h / 2, w / 2, c])?)
}
