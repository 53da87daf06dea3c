//! The encoder: pixels to latents.

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_nn::{Conv2d, Downsample, MapNorm, ResnetBlock, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::config::VaeConfig;
use crate::error::{Error, Result};
use crate::gaussian::{DiagonalGaussian, LEAST, MOST};
use crate::layers::{DownNames, convolution, last_norm, resnet};
use crate::mid_block::MidBlock;
use crate::patches::Patches;
use crate::tiling::{StripPlan, Tiling, footprint};

/// The encoder of an `AutoencoderKL`.
pub struct Encoder {
    in_channels: usize,
    downscale: usize,
    segments: Segments,
    conv_in: SegmentModule<Conv2d>,
    down_blocks: Vec<DownBlock>,
    mid_block: MidBlock,
    head: SegmentModule<Head>,
}

struct DownBlock {
    resnets: Vec<SegmentModule<ResnetBlock>>,
    downsample: Option<SegmentModule<Downsample>>,
}

struct Head {
    conv_norm_out: MapNorm,
    conv_out: Conv2d,
    quant_conv: Option<Conv2d>,
    patches: Option<Patches>,
}

impl Encoder {
    /// Declares the encoder that `config` describes.
    pub fn new(config: &VaeConfig) -> Self {
        let mut segments = Segments::default();
        let channels = &config.block_out_channels;
        let conv_in = segments
            .add("encoder.conv_in", |p| convolution(&p.pp("encoder.conv_in"), config, config.in_channels, channels[0]));
        let mut last = channels[0];
        let mut down_blocks = Vec::new();
        let mut names = DownNames::new(config);
        for (i, &channels_out) in channels.iter().enumerate() {
            let resnets = (0..config.layers_per_block)
                .map(|j| {
                    let in_channels = if j == 0 { last } else { channels_out };
                    resnet(&mut segments, names.resnet(i, j), config, in_channels, channels_out)
                })
                .collect();
            let downsample = (i + 1 < channels.len()).then(|| {
                let (name, conv) = names.downsample(i);
                segments.add(&name, |p| Downsample::of(&p.pp(&name).pp(conv), channels_out, 0))
            });
            down_blocks.push(DownBlock { resnets, downsample });
            last = channels_out;
        }
        let mid_block = MidBlock::new(&mut segments, "encoder.mid_block", config, last);
        let moments = 2 * config.coded_channels();
        let head = segments.add("encoder.conv_out", |p| Head {
            conv_norm_out: last_norm(&p.pp("encoder"), config, last),
            conv_out: convolution(&p.pp("encoder.conv_out"), config, last, moments),
            quant_conv: config.use_quant_conv.then(|| Conv2d::new(&p.pp("quant_conv"), moments, moments, 1)),
            patches: Patches::new(p, config),
        });
        Self {
            in_channels: config.in_channels,
            downscale: config.downscale(),
            segments,
            conv_in,
            down_blocks,
            mid_block,
            head,
        }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `image` `(b, 3, f h, f w)` from -1 to 1 in the slabs' dtype, `f` being [`VaeConfig::downscale`].
    ///
    /// # Errors
    /// [`Error::Input`] if the image does not fit; errors of a layer, with the layer's path.
    pub fn encode<T: TensorLike>(&self, image: &T) -> Result<DiagonalGaussian<T>> {
        self.encode_with(image, Tiling::Whole)
    }

    /// Like [`Encoder::encode`], with a lower memory peak. On the CPU the tiling does not change a bit.
    ///
    /// # Errors
    /// See [`Encoder::encode`].
    pub fn encode_with<T: TensorLike>(&self, image: &T, tiling: Tiling) -> Result<DiagonalGaussian<T>> {
        let (c, f) = (self.in_channels, self.downscale);
        if !matches!(*image.dims(), [_, found, h, w] if found == c && h % f == 0 && w % f == 0 && h * w > 0) {
            let expected = format!("(b, {c}, h, w) with h and w multiples of {f}");
            return Err(Error::Input { expected, found: image.dims().to_vec() });
        }
        let moments = tiling.over_images(image, |image| {
            let mut x = T::run(&self.conv_in, |conv| conv.forward(&image.to_channels_last()?))?;
            x = match tiling.strips(image.size4()?[3]) {
                Some(plan) => self.down_blocks_in_strips(x, plan)?,
                None => self.down_blocks(x)?,
            };
            x = self.mid_block.forward(&x)?;
            let y = T::run(&self.head, |head| {
                let y = head.conv_out.forward(&head.conv_norm_out.forward(&x)?)?;
                let y = head.quant_conv.as_ref().map_or(Ok(y.clone()), |conv| conv.forward(&y))?;
                head.patches.as_ref().map_or(Ok(y.clone()), |patches| in_patches(patches, &y))
            })?;
            Ok(y.to_channels_first()?)
        })?;
        let channels = moments.size4()?[1] / 2;
        let [mean, log_variance] = [moments.narrow(1, 0, channels)?, moments.narrow(1, channels, channels)?];
        Ok(DiagonalGaussian { mean: mean.contiguous()?, log_variance: log_variance.clamp(LEAST, MOST)? })
    }

    /// Runs the down blocks on the first convolution's output `(b, f h, f w, c)`: the middle block's input `(b, h, w,
    /// c)`.
    fn down_blocks<T: TensorLike>(&self, mut x: T) -> kiln_nn::Result<T> {
        for block in &self.down_blocks {
            for resnet in &block.resnets {
                x = T::run(resnet, |resnet| resnet.forward(&x, None))?;
            }
            if let Some(downsample) = &block.downsample {
                x = T::run(downsample, |downsample| downsample.forward(&x))?;
            }
        }
        Ok(x)
    }

    /// [`Encoder::down_blocks`] for one image in strips. The downsampling is not in strips, because a map and its half
    /// are smaller than a block's two maps.
    fn down_blocks_in_strips<T: TensorLike>(
        &self,
        mut x: T,
        StripPlan { pixels, recompute }: StripPlan,
    ) -> kiln_nn::Result<T> {
        for (i, block) in self.down_blocks.iter().enumerate() {
            for resnet in &block.resnets {
                x = T::run(resnet, |resnet| match recompute && i == 0 {
                    true => resnet.forward_in_place(x, pixels),
                    false => resnet.forward_strips(&x, pixels),
                })?;
            }
            if let Some(downsample) = &block.downsample {
                x = T::run(downsample, |downsample| downsample.forward(&x))?;
            }
        }
        Ok(x)
    }

    /// The memory peak in bytes of encoding images `(b, h, w)` in `dtype`, without the weights and images, and
    /// including the outputs.
    ///
    /// # Errors
    /// See [`Encoder::encode_with`].
    pub fn footprint(&self, [b, h, w]: [usize; 3], dtype: DType, target: Target, tiling: Tiling) -> Result<usize> {
        footprint(target, &[b, self.in_channels, h, w], dtype, |image| self.encode_with(image, tiling).map(drop))
    }

    /// The fastest tiling whose [`Encoder::footprint`] is at most `bytes`; `None` if there is none.
    ///
    /// # Errors
    /// See [`Encoder::encode_with`].
    pub fn fitting(&self, image: [usize; 3], dtype: DType, target: Target, bytes: usize) -> Result<Option<Tiling>> {
        Tiling::fastest(target, bytes, |tiling| self.footprint(image, dtype, target, tiling))
    }
}

/// Means and logarithms of variances `(b, 2 h, 2 w, 2 c)` as those of patches, `(b, h, w, 8 c)`.
fn in_patches<T: TensorLike>(patches: &Patches, moments: &T) -> kiln_nn::Result<T> {
    let c = moments.size4()?[3] / 2;
    let [mean, log_variance] = [0, 1].map(|i| moments.narrow(3, i * c, c)?.contiguous());
    let [mean, log_variance] = patches.apply(&mean?, &log_variance?.clamp(LEAST, MOST)?)?;
    mean.concat_channels(&log_variance)
}
