//! FLUX.1's transformer as the denoiser of a sampler.

use candle_core::DType;
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, TEXT_EMBEDS};
use kiln_network::{
    Capabilities, Control, Denoiser, ExtraChannels, Forward, Inputs, LatentSpec, Result, Slot, StepShape,
};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::control::ControlledFlux;
use super::dims::{FluxDims, PATCH};
use super::positions;
use super::transformer::FluxTransformer;
use crate::block_cache::is_residual;
use crate::error::Error;

impl<T: TensorLike> Forward<T> for FluxTransformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(FluxTransformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the angles of positions, which depend on no size.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Ok(positions::prepare(inputs, &self.config().dims).map_err(Error::from)?)
    }
}

impl Denoiser for FluxTransformer {
    fn segments(&self) -> &Segments {
        FluxTransformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        latents(&self.config().dims)
    }

    /// A control image has as many channels as the latents. More channels are those of a masked image and its mask.
    fn extra_channels(&self) -> ExtraChannels {
        let LatentSpec { channels, extra_channels, .. } = self.latents();
        match extra_channels {
            0 => ExtraChannels::None,
            extra if extra == channels => ExtraChannels::Control,
            extra if extra > channels => ExtraChannels::PixelMask,
            _ => ExtraChannels::Other,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { controls: true, ..Capabilities::default() }
    }

    fn with_controls<'a>(&'a self, controls: Vec<&'a dyn Control>) -> Result<Box<dyn Denoiser + 'a>> {
        Ok(Box::new(ControlledFlux::new(self, controls)?))
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        is_residual(slot).then(|| residual(&self.config().dims, shape))
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let config = self.config();
        let pooled = device.tensor(&[shape.rows, config.pooled_dim], dtype);
        let mut inputs = Inputs::new().with(TEXT_EMBEDS, pooled);
        if config.guidance {
            inputs = inputs.with(GUIDANCE, device.tensor(&[1], DType::F32));
        }
        with_meta_inputs(inputs, &config.dims, device, shape, dtype)
    }
}

/// The latents of a network of these sizes.
pub(super) fn latents(dims: &FluxDims) -> LatentSpec {
    LatentSpec { channels: dims.latent_channels(), extra_channels: dims.extra_channels(), multiple: PATCH }
}

/// The shape of what blocks add to the tokens of an image.
pub(crate) fn residual(dims: &FluxDims, StepShape { rows, height, width, .. }: StepShape) -> [usize; 4] {
    [rows, height / PATCH, width / PATCH, dims.channels()]
}

/// `inputs` with the shapes of the text, and of channels besides the latents if there are any.
pub(super) fn with_meta_inputs(
    inputs: Inputs<MetaTensor>,
    dims: &FluxDims,
    device: &MetaDevice,
    StepShape { rows, height, width, tokens }: StepShape,
    dtype: DType,
) -> Inputs<MetaTensor> {
    let inputs = inputs.with(CONTEXT, device.tensor(&[rows, tokens, dims.context_dim], dtype));
    match dims.extra_channels() {
        0 => inputs,
        extra => inputs.with(EXTRA_CHANNELS, device.tensor(&[rows, extra, height, width], dtype)),
    }
}
