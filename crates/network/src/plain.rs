//! A denoiser without control networks, in the form of one that has some.

use candle_core::DType;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::Segments;

use crate::control::Control;
use crate::denoiser::{Capabilities, Denoiser, Forward, LatentSpec, StepShape};
use crate::error::Result;
use crate::extra_channels::ExtraChannels;
use crate::inputs::Inputs;
use crate::slot::Slot;

/// A denoiser that is called through a reference.
pub(crate) struct Plain<'a, D: ?Sized>(pub(crate) &'a D);

impl<T, D: Forward<T> + ?Sized> Forward<T> for Plain<'_, D> {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        self.0.forward(x, timesteps, inputs)
    }

    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        self.0.prepare(inputs)
    }

    fn for_size(&self, inputs: Inputs<T>, size: [usize; 2]) -> Result<Inputs<T>> {
        self.0.for_size(inputs, size)
    }
}

impl<D: Denoiser + ?Sized> Denoiser for Plain<'_, D> {
    fn segments(&self) -> &Segments {
        self.0.segments()
    }

    fn is_streamed(&self) -> bool {
        self.0.is_streamed()
    }

    fn latents(&self) -> LatentSpec {
        self.0.latents()
    }

    fn extra_channels(&self) -> ExtraChannels {
        self.0.extra_channels()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn skippable_layers(&self) -> usize {
        self.0.skippable_layers()
    }

    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        self.0.state(slot, index, shape)
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        self.0.meta_inputs(device, shape, dtype)
    }

    fn with_controls<'b>(&'b self, controls: Vec<&'b dyn Control>) -> Result<Box<dyn Denoiser + 'b>> {
        self.0.with_controls(controls)
    }
}
