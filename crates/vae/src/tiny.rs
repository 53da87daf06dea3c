//! TAESD, the tiny autoencoder (<https://github.com/madebyollin/taesd>), in the form of diffusers' `AutoencoderTiny`.
//!
//! It consists of plain 3x3 convolutions and ReLU, without normalization or attention. Its own images are in 0 to 1;
//! here both halves convert them from and to -1 to 1. diffusers numbers all layers of a half consecutively, including
//! those without parameters: `decoder.layers.5` is an upsampling.

use candle_core::DType;
use kiln_nn::ops::{self, Activation, Slope, Target};
use kiln_nn::strips::{Cascade, CascadeLayer, Convolved, Prepare, Stored, Strips, collect, rows_of_strip, size};
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use crate::error::{Error, Result};
use crate::tiling::{Tiling, footprint};
use crate::tiny_config::TinyConfig;

/// The decoder compresses latents smoothly to this range, plus or minus, for any `latent_magnitude`.
const LATENT_LIMIT: f64 = 3.0;

/// The decoder of an `AutoencoderTiny`.
pub struct TinyDecoder {
    latent_channels: usize,
    step: usize,
    segments: Segments,
    conv_in: SegmentModule<Conv2d>,
    /// Each stage has blocks, then an upsampling (except in the last stage), then the convolution.
    stages: Vec<Stage>,
}

/// The encoder of an `AutoencoderTiny`.
pub struct TinyEncoder {
    in_channels: usize,
    segments: Segments,
    body: SegmentModule<EncoderBody>,
}

struct Stage {
    blocks: Vec<SegmentModule<Block>>,
    conv: SegmentModule<Conv2d>,
}

impl TinyDecoder {
    /// Declares the decoder that `config` describes.
    pub fn new(config: &TinyConfig) -> Self {
        let (latent_channels, channels) = (config.latent_channels, config.decoder_block_out_channels[0]);
        let mut layers = Layers::new("decoder");
        let conv_in = layers.add(|p| Conv2d::new(p, latent_channels, channels, 3));
        layers.skip(); // ReLU
        let last = config.num_decoder_blocks.len() - 1;
        let stage = |(i, &count): (usize, &usize)| {
            let blocks = layers.add_blocks(count, channels);
            if i == last {
                return Stage { blocks, conv: layers.add(|p| Conv2d::new(p, channels, config.out_channels, 3)) };
            }
            layers.skip(); // upsampling
            let same = ops::Conv2d::same(3);
            Stage { blocks, conv: layers.add(|p| Conv2d::without_bias(p, channels, channels, 3, same)) }
        };
        let stages = config.num_decoder_blocks.iter().enumerate().map(stage).collect();
        Self { latent_channels, step: config.upsampling_scaling_factor, segments: layers.segments, conv_in, stages }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `latents` `(b, latent_channels, h, w)`, unscaled ([`TinyConfig::unscale`]), in the slabs' dtype, to images `(b,
    /// 3, f h, f w)` of about -1 to 1, where `f` is [`TinyConfig::upscale`]. The values are not clamped.
    ///
    /// # Errors
    /// [`Error::Input`] if the latents do not fit; errors of a layer, with the layer's path.
    pub fn decode<T: TensorLike>(&self, latents: &T) -> Result<T> {
        check(latents, self.latent_channels)?;
        let mut x = latents.to_channels_last()?;
        x = x.affine(1.0 / LATENT_LIMIT, 0.0)?;
        x = x.tanh()?;
        x = x.affine(LATENT_LIMIT, 0.0)?;
        x = T::run(&self.conv_in, |conv| relu(&conv.forward(&x)?))?;
        for (i, Stage { blocks, conv }) in self.stages.iter().enumerate() {
            for block in blocks {
                x = T::run(block, |block| block.forward(&x))?;
            }
            if i + 1 < self.stages.len() {
                let [_, h, w, _] = x.size4()?;
                x = x.upsample_nearest((self.step * h, self.step * w), None)?;
            }
            x = T::run(conv, |conv| conv.forward(&x))?;
        }
        Ok(x.to_channels_first()?.affine(2.0, -1.0)?)
    }
}

impl TinyEncoder {
    /// Declares the encoder that `config` describes.
    pub fn new(config: &TinyConfig) -> Self {
        let channels = config.encoder_block_out_channels[0];
        let halve = ops::Conv2d { stride: 2, pad_before: 1, pad_after: 1 };
        let mut segments = Segments::default();
        let body = segments.add("encoder.layers", |p| {
            let p = p.pp("encoder.layers");
            let mut numbers = 0..;
            let mut next = || p.pp(numbers.next().unwrap_or(usize::MAX));
            let stage = |(i, &count): (usize, &usize)| {
                let conv = match i {
                    0 => Conv2d::new(&next(), config.in_channels, channels, 3),
                    _ => Conv2d::without_bias(&next(), channels, channels, 3, halve),
                };
                (conv, (0..count).map(|_| Block::new(&next(), channels)).collect())
            };
            let stages = config.num_encoder_blocks.iter().enumerate().map(stage).collect();
            EncoderBody { stages, conv_out: Conv2d::new(&next(), channels, config.latent_channels, 3) }
        });
        Self { in_channels: config.in_channels, segments, body }
    }

    /// The segments, in the order in which they run: one, since the layers run together, strip by strip.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `image` `(b, 3, h, w)` from -1 to 1 in the slabs' dtype, to latents `(b, latent_channels, ceil(h / f), ceil(w /
    /// f))`, unscaled ([`TinyConfig::scale`]), `f` being [`TinyConfig::downscale`]. There is no distribution: TAESD
    /// outputs the latents directly.
    ///
    /// # Errors
    /// [`Error::Input`] if the image does not fit; errors of a layer, with the layer's path.
    pub fn encode<T: TensorLike>(&self, image: &T) -> Result<T> {
        self.encode_with(image, Tiling::Whole)
    }

    /// Like [`TinyEncoder::encode`], with less in memory at once. On the CPU the tiling changes no bit. Nothing is
    /// computed twice in any.
    ///
    /// # Errors
    /// See [`TinyEncoder::encode`].
    pub fn encode_with<T: TensorLike>(&self, image: &T, tiling: Tiling) -> Result<T> {
        check(image, self.in_channels)?;
        // Strips are of one image.
        let tiling = if tiling == Tiling::Whole { Tiling::Sliced } else { tiling };
        tiling.over_images(image, |image| {
            let x = image.to_channels_last()?.affine(0.5, 0.5)?;
            let [height, width, _] = size(&x);
            let rows = match tiling.strips(width) {
                Some(plan) => rows_of_strip(plan.pixels, width),
                None => height.next_multiple_of(2),
            };
            let y = T::run(&self.body, |body| body.encode(Stored::new(&x, rows)))?;
            Ok(y.to_channels_first()?)
        })
    }

    /// The most bytes that encoding images `(b, h, w)` in `dtype` takes at once besides the weights, images and results
    /// counted.
    ///
    /// # Errors
    /// See [`TinyEncoder::encode_with`].
    pub fn footprint(&self, [b, h, w]: [usize; 3], dtype: DType, target: Target, tiling: Tiling) -> Result<usize> {
        footprint(target, &[b, self.in_channels, h, w], dtype, |image| self.encode_with(image, tiling).map(drop))
    }

    /// The fastest tiling whose [`TinyEncoder::footprint`] is at most `bytes`; `None` if none is.
    ///
    /// # Errors
    /// See [`TinyEncoder::encode_with`].
    pub fn fitting(&self, image: [usize; 3], dtype: DType, target: Target, bytes: usize) -> Result<Option<Tiling>> {
        Tiling::fastest(target, bytes, |tiling| self.footprint(image, dtype, target, tiling))
    }
}

/// All layers of the encoder.
struct EncoderBody {
    /// The first convolution, or one that halves the size, and blocks.
    stages: Vec<(Conv2d, Vec<Block>)>,
    conv_out: Conv2d,
}

impl EncoderBody {
    /// Strips of an image, from 0 to 1, to its latents `(1, h, w, c)`. No map between them is whole.
    fn encode<'a, T: TensorLike>(&'a self, image: Stored<'a, T>) -> kiln_nn::Result<T> {
        let mut strips: Box<dyn Strips<T> + 'a> = Box::new(image);
        for (conv, blocks) in &self.stages {
            strips = Box::new(Convolved::new(strips, Prepare::Keep, conv));
            for block in blocks {
                strips = Box::new(Cascade::new(strips, block.layers()));
            }
        }
        collect(Convolved::new(strips, Prepare::Keep, &self.conv_out))
    }
}

/// The layers of one half, numbered as they are added.
struct Layers {
    half: &'static str,
    next: usize,
    segments: Segments,
}

impl Layers {
    fn new(half: &'static str) -> Self {
        Self { half, next: 0, segments: Segments::default() }
    }

    fn add<M>(&mut self, build: impl FnOnce(&ParamBuilder<'_>) -> M) -> SegmentModule<M> {
        let name = format!("{}.layers.{}", self.half, self.next);
        self.next += 1;
        self.segments.add(&name, |p| build(&p.pp(&name)))
    }

    fn add_blocks(&mut self, count: usize, channels: usize) -> Vec<SegmentModule<Block>> {
        (0..count).map(|_| self.add(|p| Block::new(p, channels))).collect()
    }

    /// Counts a layer without parameters.
    fn skip(&mut self) {
        self.next += 1;
    }
}

/// Three convolutions with ReLU in between, and ReLU after the residual connection.
struct Block {
    convs: [Conv2d; 3],
}

impl Block {
    fn new(p: &ParamBuilder<'_>, channels: usize) -> Self {
        Self { convs: ["conv.0", "conv.2", "conv.4"].map(|name| Conv2d::new(&p.pp(name), channels, channels, 3)) }
    }

    /// The layers for strips.
    fn layers<'a, T>(&'a self) -> Vec<CascadeLayer<'a, T>> {
        let layer = |(i, conv)| CascadeLayer::next(conv, i, Slope::Constant(0.0));
        let mut layers: Vec<_> = self.convs.iter().enumerate().map(layer).collect();
        if let Some(last) = layers.last_mut() {
            last.input_factor = Some(1.0);
        }
        layers
    }

    /// `x` `(b, h, w, c)`, same shape.
    fn forward<T: TensorLike>(&self, x: &T) -> kiln_nn::Result<T> {
        let [first, second, third] = &self.convs;
        let y = relu(&first.forward(x)?)?;
        let y = relu(&second.forward(&y)?)?;
        relu(&third.forward_add(&y, None, Some(x))?)
    }
}

fn relu<T: TensorLike>(x: &T) -> kiln_nn::Result<T> {
    x.activation(Activation::Relu)
}

/// Returns an error for a shape other than `(b, channels, h, w)`, or without pixels.
fn check<T: TensorLike>(input: &T, channels: usize) -> Result<()> {
    if matches!(*input.dims(), [_, c, h, w] if c == channels && h * w > 0) {
        return Ok(());
    }
    Err(Error::Input { expected: format!("(b, {channels}, h, w)"), found: input.dims().to_vec() })
}
