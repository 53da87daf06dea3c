//! A denoiser whose weights are in the memory of a device that is not candle's.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use kiln_nn::ops::portable::{Backend, PortableTensor};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::Segments;

use crate::control::{Control, ControlImage};
use crate::denoiser::{Capabilities, Denoiser, Forward, LatentSpec, StepShape};
use crate::error::Result;
use crate::extra_channels::ExtraChannels;
use crate::inputs::Inputs;
use crate::slot::Slot;

/// A denoiser that runs on a [`Backend`], and is called with tensors in host memory: latents and inputs go there in each call, and
/// the prediction comes back. The network's segments were loaded for the same device ([`kiln_weights::Placement::backend`]).
pub struct OnBackend<'a> {
    network: Box<dyn Denoiser + 'a>,
    backend: Arc<dyn Backend>,
}

impl<'a> OnBackend<'a> {
    /// `network` on `backend`.
    pub fn new(network: Box<dyn Denoiser + 'a>, backend: Arc<dyn Backend>) -> Self {
        Self { network, backend }
    }

    fn upload(&self, tensor: &Tensor) -> Result<PortableTensor> {
        Ok(PortableTensor::upload(&self.backend, tensor).map_err(kiln_nn::Error::from)?)
    }
}

impl Forward<Tensor> for OnBackend<'_> {
    fn forward(&self, x: &Tensor, timesteps: &Tensor, inputs: &Inputs) -> Result<Tensor> {
        let there = inputs.map(|_, tensor| self.upload(tensor))?;
        let (on_device, timesteps) = (self.upload(x)?, self.upload(timesteps)?);
        let prediction = self.network.forward(&on_device, &timesteps, &there)?;
        let download = |tensor: &PortableTensor| tensor.download().map_err(kiln_nn::Error::from);
        // Tensors that the call wrote.
        for ((_, here), (_, there)) in inputs.state().zip(there.state()) {
            here.slice_set(&download(there)?, 0, 0).map_err(kiln_nn::Error::from)?;
        }
        Ok(download(&prediction)?)
    }
}

impl Forward<MetaTensor> for OnBackend<'_> {
    fn forward(&self, x: &MetaTensor, timesteps: &MetaTensor, inputs: &Inputs<MetaTensor>) -> Result<MetaTensor> {
        self.network.forward(x, timesteps, inputs)
    }

    fn prepare(&self, inputs: Inputs<MetaTensor>) -> Result<Inputs<MetaTensor>> {
        self.network.prepare(inputs)
    }

    fn for_size(&self, inputs: Inputs<MetaTensor>, size: [usize; 2]) -> Result<Inputs<MetaTensor>> {
        self.network.for_size(inputs, size)
    }
}

impl Forward<PortableTensor> for OnBackend<'_> {
    fn forward(
        &self,
        x: &PortableTensor,
        timesteps: &PortableTensor,
        inputs: &Inputs<PortableTensor>,
    ) -> Result<PortableTensor> {
        self.network.forward(x, timesteps, inputs)
    }

    fn prepare(&self, inputs: Inputs<PortableTensor>) -> Result<Inputs<PortableTensor>> {
        self.network.prepare(inputs)
    }

    fn for_size(&self, inputs: Inputs<PortableTensor>, size: [usize; 2]) -> Result<Inputs<PortableTensor>> {
        self.network.for_size(inputs, size)
    }
}

impl Denoiser for OnBackend<'_> {
    fn segments(&self) -> &Segments {
        self.network.segments()
    }

    fn is_streamed(&self) -> bool {
        self.network.is_streamed()
    }

    fn latents(&self) -> LatentSpec {
        self.network.latents()
    }

    fn extra_channels(&self) -> ExtraChannels {
        self.network.extra_channels()
    }

    fn capabilities(&self) -> Capabilities {
        self.network.capabilities()
    }

    fn skippable_layers(&self) -> usize {
        self.network.skippable_layers()
    }

    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        self.network.state(slot, index, shape)
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        self.network.meta_inputs(device, shape, dtype)
    }

    fn with_controls<'b>(&'b self, controls: Vec<&'b dyn Control>) -> Result<Box<dyn Denoiser + 'b>> {
        Ok(Box::new(OnBackend::new(self.network.with_controls(controls)?, self.backend.clone())))
    }

    fn add_control(&self, inputs: &mut Inputs, network: usize, images: Vec<ControlImage>) -> Result<()> {
        self.network.add_control(inputs, network, images)
    }

    fn add_meta_controls(&self, inputs: &mut Inputs<MetaTensor>, device: &MetaDevice, shape: StepShape, dtype: DType) {
        self.network.add_meta_controls(inputs, device, shape, dtype);
    }
}
