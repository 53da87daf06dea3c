//! The transformer as the denoiser of a sampler.

use candle_core::DType;
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_network::{Denoiser, Forward, Inputs, LatentSpec, Result, Slot, StepShape};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::transformer::ZImageTransformer;
use super::{PATCH, positions};
use crate::block_cache::is_residual;
use crate::error::Error;

impl<T: TensorLike> Forward<T> for ZImageTransformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(ZImageTransformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the angles of positions, and what depends on the lengths of the texts.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Ok(positions::prepare(inputs, self.config()).map_err(Error::from)?)
    }
}

impl Denoiser for ZImageTransformer {
    fn segments(&self) -> &Segments {
        ZImageTransformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        LatentSpec { channels: self.config().in_channels, extra_channels: 0, multiple: PATCH }
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        is_residual(slot).then(|| [shape.rows, shape.height / PATCH, shape.width / PATCH, self.config().dim])
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let StepShape { rows, tokens, .. } = shape;
        Inputs::new()
            .with(CONTEXT, device.tensor(&[rows, tokens, self.config().context_dim], dtype))
            .with(TEXT_LENGTHS, device.tensor(&[rows], DType::F32))
    }
}
