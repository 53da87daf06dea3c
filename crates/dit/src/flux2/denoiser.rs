//! The transformer as the denoiser of a sampler.

use candle_core::DType;
use kiln_network::slots::CONTEXT;
use kiln_network::{Denoiser, Forward, Inputs, LatentSpec, Result, Slot, StepShape};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::transformer::Flux2Transformer;
use crate::block_cache::is_residual;
use crate::error::Error;
use crate::rotary::USUAL;

impl<T: TensorLike> Forward<T> for Flux2Transformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(Flux2Transformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the angles of positions, which depend on no size.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        let text = inputs.get(CONTEXT).and_then(|context| context.dims().get(1).copied()).unwrap_or(0);
        Ok(self.config().rotary().prepare(inputs, USUAL.max(text)).map_err(Error::from)?)
    }
}

impl Denoiser for Flux2Transformer {
    fn segments(&self) -> &Segments {
        Flux2Transformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        LatentSpec { channels: self.config().in_channels, extra_channels: 0, multiple: 1 }
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        is_residual(slot).then(|| [shape.rows, shape.height, shape.width, self.config().channels()])
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let context = device.tensor(&[shape.rows, shape.tokens, self.config().context_dim], dtype);
        Inputs::new().with(CONTEXT, context)
    }
}
