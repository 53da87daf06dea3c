//! From an image to latents: the encoder of the model's own autoencoder, or of the tiny one in its place.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use kiln_models::ModelFolder;
use kiln_nn::TensorLike;
use kiln_nn::ops::portable::PortableTensor;
use kiln_request::{InitImage, InitLatents};
use kiln_vae::{Tiling, TinyConfig, TinyEncoder, VaeConfig};
use kiln_weights::{Placement, Segments};

use crate::component::{ComponentOptions, LoadedComponent, WeightResidency};
use crate::component_spec::ComponentSpec;
use crate::error::Result;
use crate::pipeline::decoder::{self, UpcastRetry, in_a_type_that_holds};

/// The encoder of a loaded model. It is opened when a job begins with an image.
pub(crate) struct ImageEncoder {
    network: Network,
    /// In the model's type, or a wider one.
    part: LoadedComponent,
    /// The image that was encoded last: the images of a job share theirs.
    last: Option<(InitImage, Tensor)>,
}

/// An encoder's network.
pub enum Network {
    /// An `AutoencoderKL`'s.
    Kl(VaeConfig, Box<kiln_vae::Encoder>),
    /// A TAESD's.
    Tiny(TinyConfig, Box<TinyEncoder>),
}

impl Network {
    /// The encoder of the autoencoder whose decoder this is.
    pub fn of(decoder: &decoder::Network) -> Self {
        match decoder {
            decoder::Network::Kl(config, _) => Self::Kl(config.clone(), Box::new(kiln_vae::Encoder::new(config))),
            decoder::Network::Tiny(config, _) => Self::Tiny(config.clone(), Box::new(TinyEncoder::new(config))),
        }
    }

    /// Its segments, whose weights are in place when it runs.
    pub fn segments(&self) -> &Segments {
        match self {
            Self::Kl(_, encoder) => encoder.segments(),
            Self::Tiny(_, encoder) => encoder.segments(),
        }
    }

    /// The encoder's result for an image `(1, 3, f h, f w)` in f32, in `dtype`, the slabs' type: `(1, 2 c, h, w)` in f32, the
    /// means of its latents and the logarithms of their variances, or `(1, c, h, w)`, a TAESD's latents, which have no
    /// variance. A TAESD, whose maps are small, is never tiled.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn encode<T: TensorLike>(&self, image: &T, dtype: DType, tiling: Tiling) -> Result<T> {
        let image = image.to_dtype(dtype)?;
        let moments = match self {
            Self::Kl(_, encoder) => {
                let posterior = encoder.encode_with(&image, tiling)?;
                T::cat(&[&posterior.mean, &posterior.log_variance], 1)?
            }
            Self::Tiny(_, encoder) => encoder.encode(&image)?,
        };
        Ok(moments.to_dtype(DType::F32)?)
    }

    /// Latents as the denoiser takes them, `(n, c, h, w)` in f32, from the results of [`Self::encode`]; `draw` gives
    /// noise of the means' shape where an image has a sample. A TAESD has no shift of its own.
    fn latents(
        &self,
        moments: &Tensor,
        draw: impl FnOnce(&Tensor) -> Result<Tensor>,
        (sample, shifted): (bool, bool),
    ) -> Result<Tensor> {
        match self {
            Self::Kl(config, _) => {
                let channels = moments.dim(1)? / 2;
                let mean = moments.narrow(1, 0, channels)?.contiguous()?;
                let log_variance = moments.narrow(1, channels, channels)?.contiguous()?;
                let posterior = kiln_vae::DiagonalGaussian { mean, log_variance };
                let latents = if sample { posterior.sample(&draw(&posterior.mean)?)? } else { posterior.mean };
                Ok(match shifted {
                    true => config.scale(&latents)?,
                    false => config.clone().without_shift().scale(&latents)?,
                })
            }
            Self::Tiny(config, _) => Ok(config.scale(moments)?),
        }
    }
}

impl ImageEncoder {
    /// Opens the encoder of `taesd` if it is given, a file or a folder, else the model's own. No weights are read.
    ///
    /// # Errors
    /// [`Error::Weights`] where weights of an encoder are missing or do not fit.
    pub(crate) fn open(
        model: &ModelFolder,
        taesd: Option<&Path>,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Result<Self> {
        let (decoder, source, placement) = decoder::autoencoder(model, taesd, placement)?;
        let network = Network::of(&decoder);
        let spec = ComponentSpec::IMAGE_ENCODER;
        let part = LoadedComponent::new(spec, network.segments(), source, &placement, options);
        part.check()?;
        Ok(Self { network, part, last: None })
    }

    /// The weights.
    pub(crate) fn part(&self) -> &LoadedComponent {
        &self.part
    }

    /// The scaled latents of `n` images, `(n, c, h, w)` in f32 in the host's memory; `image` gives each of them. `draw` gives
    /// noise for a tensor's shape, for all images at once; it is asked once, and only where a sample is wanted of an encoder
    /// that has a variance. An image that follows itself is encoded once. Without `shifted` the latents are scaled alone.
    ///
    /// # Errors
    /// [`Error::NotANumber`] where no type holds the numbers, and what the network reports.
    pub(crate) fn encode(
        &mut self,
        (n, shifted): (usize, bool),
        image: &mut dyn FnMut(usize) -> Result<InitImage>,
        (keep, tiling): (&WeightResidency, Tiling),
        draw: impl FnOnce(&Tensor) -> Result<Tensor>,
        upcast: &mut dyn FnMut(UpcastRetry) -> Result<()>,
    ) -> Result<Tensor> {
        let (mut moments, mut sample) = (Vec::with_capacity(n), false);
        for i in 0..n {
            let image = image(i)?;
            sample |= image.latents() == InitLatents::Sample;
            if self.last.as_ref().is_none_or(|(known, _)| *known != image) {
                self.last = None; // both do not need to fit at once
                let Self { network, part, .. } = self;
                let pixels = image.pixels();
                let found = in_a_type_that_holds(part, keep, "the VAE's encoder", upcast, |part, dtype| {
                    let encoded = part.run(|| match &part.placement().backend {
                        Some(backend) => {
                            let pixels = PortableTensor::upload(backend, pixels)?;
                            Result::Ok(network.encode(&pixels, dtype, tiling)?.download()?)
                        }
                        None => network.encode(&pixels.to_device(&part.placement().device)?, dtype, tiling),
                    })?;
                    let encoded = encoded.to_device(&Device::Cpu)?;
                    let count = kiln_ops::count_not_finite(&encoded)?;
                    Ok((encoded, count))
                })?;
                self.last = Some((image, found));
            }
            moments.extend(self.last.as_ref().map(|(_, moments)| moments.clone()));
        }
        self.network.latents(&Tensor::cat(&moments, 0)?, draw, (sample, shifted))
    }
}
