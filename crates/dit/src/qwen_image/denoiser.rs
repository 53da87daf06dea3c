//! The transformer as the denoiser of a sampler.

use candle_core::DType;
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_network::{Denoiser, Forward, Inputs, LatentSpec, Result, Slot, StepShape};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::positions;
use super::transformer::QwenImageTransformer;
use crate::block_cache::is_residual;
use crate::error::Error;
use crate::flux::denoiser::residual;
use crate::flux::dims::PATCH;

impl<T: TensorLike> Forward<T> for QwenImageTransformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(QwenImageTransformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the angles of positions, which depend on no size.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Ok(positions::prepare(inputs, &self.config().dims).map_err(Error::from)?)
    }
}

impl Denoiser for QwenImageTransformer {
    fn segments(&self) -> &Segments {
        QwenImageTransformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        LatentSpec { channels: self.config().dims.latent_channels(), extra_channels: 0, multiple: PATCH }
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        is_residual(slot).then(|| residual(&self.config().dims, shape))
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let StepShape { rows, tokens, .. } = shape;
        Inputs::new()
            .with(CONTEXT, device.tensor(&[rows, tokens, self.config().dims.context_dim], dtype))
            .with(TEXT_LENGTHS, device.tensor(&[rows], DType::F32))
    }
}
