//! The first-block cache of a group of images: the tensors that a transformer keeps from step to step.
//!
//! The network decides within the call which images skip its other blocks (`kiln_dit`), by what the first block adds now and what
//! it added before. It is empty again when the rows of the step change, as when guidance begins or ends, and in each pass.

use candle_core::{DType, Device, Tensor};
use kiln_network::slots::{
    BLOCK_CACHE, FIRST_RESIDUAL, OTHER_RESIDUAL, RESIDUAL_CHANGE, RESIDUAL_TIMES, SKIPPED_EVALUATIONS,
};
use kiln_network::{Denoiser, Inputs, Slot, StepShape};
use kiln_request::NetworkOptions;

use crate::error::{Error, Result};
use crate::pipeline::conditioning::StepRows;

/// The first-block cache of a group.
pub(crate) struct BlockCache {
    threshold: f64,
    /// Whether it predicts what other blocks would add.
    predicts: bool,
    stored: Option<Stored>,
    /// Skipped evaluations of all images, without those that `stored` counts.
    skipped: usize,
}

/// The tensors that are kept for the rows of a step.
struct Stored {
    rows: StepRows,
    images: usize,
    tensors: Vec<(Slot, Tensor)>,
    skipped: Tensor,
}

impl Stored {
    /// Zeros, which stand for no evaluation yet. `None` if the denoiser has no blocks to skip.
    fn new(
        (rows, images): (StepRows, usize),
        predicts: bool,
        shape: StepShape,
        denoiser: &dyn Denoiser,
        (dtype, device): (DType, &Device),
    ) -> Result<Option<Self>> {
        let mut tensors = Vec::new();
        for slot in [FIRST_RESIDUAL, OTHER_RESIDUAL].into_iter().chain(predicts.then_some(RESIDUAL_CHANGE)) {
            let Some(dims) = denoiser.state(slot, 0, shape) else { return Ok(None) };
            tensors.push((slot, Tensor::zeros(&dims, dtype, device)?));
        }
        if predicts {
            tensors.push((RESIDUAL_TIMES, Tensor::zeros((shape.rows, 2), DType::F32, device)?));
        }
        let skipped = Tensor::zeros(shape.rows, DType::F32, device)?;
        Ok(Some(Self { rows, images, tensors, skipped }))
    }

    /// Skipped evaluations of all images.
    fn skipped(&self) -> Result<usize> {
        // All rows of an image skip together.
        let first = self.skipped.narrow(0, 0, self.images)?;
        Ok(first.to_vec1::<f32>()?.iter().sum::<f32>() as usize)
    }
}

impl BlockCache {
    /// A cache with nothing in it; `None` if the options have none.
    pub(crate) fn of(options: &NetworkOptions) -> Option<Self> {
        let predicts = options.block_cache_predict;
        options.block_cache.map(|threshold| Self { threshold, predicts, stored: None, skipped: 0 })
    }

    /// Adds the cache to the inputs of an evaluation with these rows of `images` images.
    pub(crate) fn add_to(
        &mut self,
        inputs: Inputs,
        (rows, images): (StepRows, usize),
        shape: StepShape,
        denoiser: &dyn Denoiser,
        on: (DType, &Device),
    ) -> Result<Inputs> {
        let stored = match self.stored.take() {
            Some(stored) if stored.rows == rows => stored,
            before => {
                self.skipped += before.map_or(Ok(0), |before| before.skipped())?;
                let missing =
                    || Error::value("block_cache", self.threshold, "none: the denoiser has no blocks to skip");
                Stored::new((rows, images), self.predicts, shape, denoiser, on)?.ok_or_else(missing)?
            }
        };
        let mut inputs = inputs.with(SKIPPED_EVALUATIONS, stored.skipped.clone());
        for (slot, tensor) in &stored.tensors {
            inputs = inputs.with(*slot, tensor.clone());
        }
        self.stored = Some(stored);
        Ok(inputs.with_constant(BLOCK_CACHE, self.threshold.to_bits()).with_rows(BLOCK_CACHE, images))
    }

    /// The number of evaluations, of each image, at which the other blocks did not run.
    pub(crate) fn skipped(&self) -> Result<usize> {
        Ok(self.skipped + self.stored.as_ref().map_or(Ok(0), Stored::skipped)?)
    }
}
