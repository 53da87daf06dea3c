//! What a denoiser is to the pipeline.

use candle_core::{DType, Tensor};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, Unet};
use kiln_weights::Segments;

use crate::error::Result;

/// A network that predicts noise, or what the schedule says that the model predicts.
///
/// It runs with tensors in a run and with shapes in a plan, from one `forward`. A recorded step on a GPU replays it, so it
/// reads nothing back from the device and takes nothing from the host but its inputs.
pub trait Denoiser: Forward<Tensor> + Forward<MetaTensor> + Send + Sync {
    /// The network's segments, whose weights are in place when it runs.
    fn segments(&self) -> &Segments;

    /// Whether weights of it are streamed. The host then waits for them within a step, which cannot be recorded.
    fn is_streamed(&self) -> bool {
        Denoiser::segments(self).is_streamed()
    }

    /// Channels of the latents.
    fn latent_channels(&self) -> usize;

    /// Channels that it takes besides the latents.
    fn extra_channels(&self) -> usize;

    /// The shapes of the conditions of `b` images of `(height, width)` latents with `tokens` tokens of text each.
    fn meta_conditioning(
        &self,
        device: &MetaDevice,
        b: usize,
        size: (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Conditioning<MetaTensor>;
}

/// A denoiser's prediction with one type of tensor.
pub trait Forward<T> {
    /// The prediction `(b, c, h, w)` for scaled latents `x` `(b, c, h, w)` in the network's type, at the `timesteps` `(1)` or
    /// `(b)` in f32.
    ///
    /// # Errors
    /// Those of the network: inputs that do not fit, and memory that is out.
    fn forward(&self, x: &T, timesteps: &T, conditioning: &Conditioning<T>) -> Result<T>;
}

impl<T: TensorLike> Forward<T> for Unet {
    fn forward(&self, x: &T, timesteps: &T, conditioning: &Conditioning<T>) -> Result<T> {
        Ok(Unet::forward(self, x, timesteps, conditioning)?)
    }
}

impl Denoiser for Unet {
    fn segments(&self) -> &Segments {
        Unet::segments(self)
    }

    fn latent_channels(&self) -> usize {
        self.config().latent_channels()
    }

    fn extra_channels(&self) -> usize {
        self.config().extra_channels()
    }

    fn meta_conditioning(
        &self,
        device: &MetaDevice,
        b: usize,
        size: (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Conditioning<MetaTensor> {
        Unet::meta_conditioning(self, device, b, size, tokens, dtype)
    }
}
