//! What a denoiser is to the pipeline.

use candle_core::{DType, Tensor};
use kiln_network::Inputs;
use kiln_network::slots::CONTEXT;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, KeysValues, Unet};
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

    /// The shape of the feature that DeepCache stores at the skip connection `branch`, for `b` rows of `(height, width)` latents;
    /// `None` where the network has no such skip connection.
    fn cached_feature(&self, branch: usize, b: usize, size: (usize, usize)) -> Option<[usize; 4]>;

    /// The shape of the middle block's map `(b, h, w, c)`, for `b` rows of `(height, width)` latents.
    fn mid_map(&self, b: usize, size: (usize, usize)) -> [usize; 4];

    /// The shapes of the inputs of `b` images of `(height, width)` latents with `tokens` tokens of text each.
    fn meta_inputs(
        &self,
        device: &MetaDevice,
        b: usize,
        size: (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Inputs<MetaTensor>;
}

/// A denoiser's prediction with one type of tensor.
pub trait Forward<T> {
    /// The prediction `(b, c, h, w)` for scaled latents `x` `(b, c, h, w)` in the network's type, at the `timesteps` `(1)` or
    /// `(b)` in f32.
    ///
    /// # Errors
    /// Those of the network: inputs that do not fit, and memory that is out.
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T>;

    /// `inputs`, in the network's type, with the inputs that the network makes of them once for all steps.
    ///
    /// # Errors
    /// Those of the network.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Ok(inputs)
    }
}

impl<T: TensorLike> Forward<T> for Unet {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(Unet::forward(self, x, timesteps, &Conditioning::of(inputs)?)?)
    }

    /// Adds the text's keys and values. Weights that are streamed are used in their order, so that each layer makes its own.
    fn prepare(&self, mut inputs: Inputs<T>) -> Result<Inputs<T>> {
        if Unet::segments(self).is_streamed() {
            return Ok(inputs);
        }
        let keys = inputs.get(CONTEXT).map(|context| self.text_keys(context)).transpose()?;
        KeysValues::add_text(keys.unwrap_or_default(), &mut inputs);
        Ok(inputs)
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

    fn cached_feature(&self, branch: usize, b: usize, size: (usize, usize)) -> Option<[usize; 4]> {
        self.config().cached_feature(branch, b, size)
    }

    fn mid_map(&self, b: usize, size: (usize, usize)) -> [usize; 4] {
        self.config().mid_map(b, size)
    }

    fn meta_inputs(
        &self,
        device: &MetaDevice,
        b: usize,
        size: (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Inputs<MetaTensor> {
        Unet::meta_inputs(self, device, b, size, tokens, dtype)
    }
}
