//! The network that a sampler calls.

use candle_core::{DType, Tensor};
use kiln_nn::ops::portable::PortableTensor;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::Segments;

use crate::control::{Control, ControlImage};
use crate::error::{Error, Result};
use crate::extra_channels::ExtraChannels;
use crate::inputs::Inputs;
use crate::plain::Plain;
use crate::slot::Slot;

/// A network that predicts noise, or the quantity that the schedule says.
///
/// It runs with tensors in a run and with shapes in a plan, from one `forward`. A GPU records a call and replays it, so that
/// it reads nothing back from the device and takes nothing from the host but its inputs. A call with
/// [`crate::slots::BLOCK_CACHE`] is not recorded.
pub trait Denoiser: Forward<Tensor> + Forward<MetaTensor> + Forward<PortableTensor> + Send + Sync {
    /// The segments of the network.
    fn segments(&self) -> &Segments;

    /// Whether weights of it, or of networks in the same call, are streamed. The host then waits for them within a step, which
    /// cannot be recorded.
    fn is_streamed(&self) -> bool {
        self.segments().is_streamed()
    }

    /// The latents that it takes.
    fn latents(&self) -> LatentSpec;

    /// The meaning of the channels that it takes besides the latents.
    fn extra_channels(&self) -> ExtraChannels {
        ExtraChannels::of_mask(self.latents())
    }

    /// The features that it has.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The number of blocks that rows can skip ([`crate::slots::SKIPPED_LAYERS`]). 0 if the network does not support that.
    fn skippable_layers(&self) -> usize {
        0
    }

    /// The shape of the feature map `(b, h, w, c)` that belongs to a tensor which calls write, at the place `index` of the network:
    /// for [`crate::slots::CACHED_FEATURE`] a skip connection, for others 0. `None` if the network has no such tensor or no such
    /// place.
    fn state(&self, _slot: Slot, _index: usize, _shape: StepShape) -> Option<[usize; 4]> {
        None
    }

    /// The shapes of the inputs of `shape.rows` rows of text, in `dtype`.
    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor>;

    /// The network with control networks that run in the same call, of which there may be none.
    ///
    /// # Errors
    /// [`Error::Input`] for control networks of another family.
    fn with_controls<'a>(&'a self, controls: Vec<&'a dyn Control>) -> Result<Box<dyn Denoiser + 'a>> {
        if controls.is_empty() {
            return Ok(Box::new(Plain(self)));
        }
        let (expected, found) = ("none: this network takes no control networks".into(), vec![controls.len()]);
        Err(Error::Input { input: "controls", expected, found })
    }

    /// Adds the inputs of control network number `network` of [`Self::with_controls`] for a call. `images` are several only if the
    /// network joins them ([`crate::ControlTypes::joins`]).
    ///
    /// # Errors
    /// [`Error::Input`] if there is no such network, and errors of the tensors.
    fn add_control(&self, _inputs: &mut Inputs, network: usize, _images: Vec<ControlImage>) -> Result<()> {
        Err(Error::Input {
            input: "controls",
            expected: "a denoiser with control networks".into(),
            found: vec![network],
        })
    }

    /// Adds the shapes of the inputs of all control networks that it runs with, for the rows and the size of `shape`.
    fn add_meta_controls(
        &self,
        _inputs: &mut Inputs<MetaTensor>,
        _device: &MetaDevice,
        _shape: StepShape,
        _dtype: DType,
    ) {
    }
}

/// The calls of a denoiser with one type of tensor.
pub trait Forward<T> {
    /// The prediction `(b, c, h, w)` for scaled latents `x` `(b, c, h, w)` in the network's type, at the `timesteps` `(1)` or
    /// `(b)` in f32.
    ///
    /// # Errors
    /// [`Error::Input`] for inputs that do not fit, and [`Error::Failed`] for errors of a layer.
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T>;

    /// `inputs`, in the network's type, with the inputs that the network makes of them once for all steps.
    ///
    /// # Errors
    /// [`Error::Failed`] for errors of a layer.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Ok(inputs)
    }

    /// `inputs` with those that depend on the size `[height, width]` of the latents alone, such as positions of tokens. They come
    /// from tables in the host's memory, so that a recorded call needs them as inputs. A call without them makes them itself.
    ///
    /// # Errors
    /// [`Error::Input`] for a size that the network does not support, and [`Error::Failed`] for errors of a layer.
    fn for_size(&self, inputs: Inputs<T>, _size: [usize; 2]) -> Result<Inputs<T>> {
        Ok(inputs)
    }
}

/// The latents of a denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentSpec {
    /// Channels of the latents.
    pub channels: usize,
    /// Channels that the network takes besides the latents.
    pub extra_channels: usize,
    /// Width and height in latents are multiples of this number.
    pub multiple: usize,
}

/// The features of a denoiser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it takes control networks.
    pub controls: bool,
    /// Whether it takes image prompts.
    pub image_prompts: bool,
}

/// The sizes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    /// Rows of the batch.
    pub rows: usize,
    /// Height of the latents.
    pub height: usize,
    /// Width of the latents.
    pub width: usize,
    /// Tokens of the text of each row.
    pub tokens: usize,
}
