//! ControlNet (arXiv 2302.05543, diffusers' `ControlNetModel`): the encoder of a U-Net once more, with a control image added
//! to its first feature map, and a 1x1 convolution ("tap") for each skip connection and for the middle.

mod config;
mod hint;
mod shapes;

use std::sync::Arc;

use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::blocks::Builder;
use crate::conditioning::{AddedConditions, Conditioning, Residuals};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
pub use config::ControlConfig;
pub use hint::ControlHint;

/// What the names of a control network's segments begin with.
const LABEL: &str = "controlnet.";

/// A control network. It is built from its configuration; its [`Segments`] are loaded before it runs. The network that
/// embeds the control image, [`ControlHint`], has segments of its own: it runs once an image, and not once a step.
pub struct ControlNet {
    config: ControlConfig,
    segments: Segments,
    encoder: Encoder,
    taps: SegmentModule<Taps>,
    channels: Vec<usize>,
}

/// The 1x1 convolutions after the encoder: one for each skip connection, and the middle's.
struct Taps {
    down: Vec<Conv2d>,
    mid: Conv2d,
}

impl ControlNet {
    /// Declares the network that `config` describes.
    pub fn new(config: ControlConfig) -> Self {
        let mut segments = Segments::default();
        let mut builder = Builder { segments: &mut segments, config: &config.network, label: LABEL };
        let encoder = Encoder::new(&mut builder);
        let channels = config.skips();
        let mid = config.network.down.last().map_or(0, |block| block.channels);
        let taps = builder.segment("taps", |p| Taps {
            down: channels
                .iter()
                .enumerate()
                .map(|(i, &c)| Conv2d::new(&p.pp("controlnet_down_blocks").pp(i.to_string()), c, c, 1))
                .collect(),
            mid: Conv2d::new(&p.pp("controlnet_mid_block"), mid, mid, 1),
        });
        Self { config, segments, encoder, taps, channels }
    }

    /// The configuration.
    pub fn config(&self) -> &ControlConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The channels of the skip connections that residuals are for, in the order in which the way down makes them.
    pub fn skips(&self) -> &[usize] {
        &self.channels
    }

    /// The residuals for a U-Net with noisy latents `x` `(b, in_channels, h, w)` at `timesteps` `(1)` or `(b)`, with the
    /// text of `conditioning`, for the last `r` rows of the batch: as many as `hint` `(r, h, w, c)` has, the output of
    /// [`ControlHint::forward`]. `scales` are the factors of the residuals, the middle's last.
    ///
    /// # Errors
    /// [`Error::Input`] if an input does not fit the configuration; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        conditioning: &Conditioning<T>,
        hint: &T,
        scales: &[f32],
    ) -> Result<Residuals<T>> {
        let dtype = x.dtype();
        let rows = self.check(x, conditioning, hint, scales)?;
        let last = |tensor: &T| -> kiln_nn::Result<T> {
            match tensor.dims().first() {
                Some(&b) if b > rows => tensor.narrow(0, b - rows, rows)?.contiguous(),
                _ => Ok(tensor.clone()),
            }
        };
        let added = conditioning.added.as_ref().map(|added| -> kiln_nn::Result<_> {
            Ok(AddedConditions { text_embeds: last(&added.text_embeds)?, time_ids: last(&added.time_ids)? })
        });
        let seen = Conditioning { added: added.transpose()?, ..Conditioning::of_text(last(&conditioning.context)?) };
        let (x, timesteps) = (last(x)?.to_channels_last()?, last(timesteps)?);
        let nothing = &mut |_: &str, _: &T| {};
        let embedded = self.encoder.embed(&timesteps, &seen, dtype, nothing)?;
        let context = embedded.context();
        let (x, skips) = self.encoder.down(&x, Some(&hint.to_dtype(dtype)?), &[], &context, nothing)?;
        let mid = self.encoder.mid(x, &context, nothing)?;
        let scaled = |residual: T, scale: Option<&f32>| match scale {
            Some(&scale) if scale != 1.0 => residual.affine(f64::from(scale), 0.0),
            _ => Ok(residual),
        };
        Ok(T::run(&self.taps, |taps| {
            let all = taps.down.iter().zip(&skips).zip(scales);
            let down = all.map(|((tap, skip), scale)| scaled(tap.forward(skip)?, Some(scale)));
            Ok(Residuals {
                down: down.collect::<kiln_nn::Result<_>>()?,
                mid: scaled(taps.mid.forward(&mid)?, scales.last())?,
            })
        })?)
    }

    /// The factors of residuals that all have the weight `weight`.
    pub fn even_scales(&self, weight: f64) -> Arc<[f32]> {
        vec![weight as f32; self.channels.len() + 1].into()
    }

    /// Returns an error for inputs that do not fit, else the rows that the network runs for.
    fn check<T: TensorLike>(&self, x: &T, conditioning: &Conditioning<T>, hint: &T, scales: &[f32]) -> Result<usize> {
        let fail =
            |input, expected: String, found: &[usize]| Err(Error::Input { input, expected, found: found.to_vec() });
        let config = &self.config.network;
        let channels = config.in_channels;
        let [b, h, w] = match *x.dims() {
            [b, c, h, w] if c == channels && b * h * w > 0 => [b, h, w],
            _ => return fail("x", format!("(b, {channels}, h, w)"), x.dims()),
        };
        let c = config.model_channels();
        let rows = match *hint.dims() {
            [r, height, width, depth] if (1..=b).contains(&r) && [height, width, depth] == [h, w, c] => r,
            _ => return fail("controls", format!("(up to {b}, {h}, {w}, {c})"), hint.dims()),
        };
        if scales.len() != self.channels.len() + 1 {
            return fail("scales", format!("({})", self.channels.len() + 1), &[scales.len()]);
        }
        if let Some(dim) = config.context_dim()
            && !matches!(*conditioning.context.dims(), [batch, s, d] if batch == b && d == dim && s > 0)
        {
            return fail("context", format!("({b}, s, {dim})"), conditioning.context.dims());
        }
        match (config.pooled_dim(), &conditioning.added) {
            (Some(dim), added) => match added.as_ref().map(|added| added.text_embeds.dims()) {
                Some(found) if found == [b, dim] => Ok(rows),
                found => fail("text_embeds", format!("({b}, {dim})"), found.unwrap_or_default()),
            },
            (None, _) => Ok(rows),
        }
    }
}
