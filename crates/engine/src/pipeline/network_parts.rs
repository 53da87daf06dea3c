//! Network hooks of a job, for a group of images.

use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};
use kiln_network::slots::{ATTENTION_MAP, CACHED_FEATURE, SKIPPED_LAYERS};
use kiln_network::{Denoiser, Inputs, StepShape};
use kiln_request::{CacheUse, Job, NetworkOptions};
use kiln_unet::{AttentionMap, DeepShrink, FeatureCache, HookInputs, PerturbedAttention};

use crate::error::{Error, Result};
use crate::pipeline::block_cache::BlockCache;
use crate::pipeline::conditioning::StepRows;
use crate::pipeline::self_attention::degraded;

/// The parts that change the network for a group.
#[derive(Default)]
pub(crate) struct NetworkParts {
    options: NetworkOptions,
    /// The blocks that skip-layer guidance leaves out, a bit each.
    skipped: u64,
    stored: Option<Stored>,
    /// The first-block cache of a transformer.
    blocks: Option<BlockCache>,
    /// Groups with self-attention guidance run by themselves: each has a number of its own.
    alone: Option<u64>,
    /// The attention that tokens get, `(b, tokens)`, and the size of their map.
    map: Option<(Tensor, (usize, usize))>,
}

/// A feature of the group's rows that DeepCache has stored.
struct Stored {
    feature: Tensor,
    /// The rows that it is of.
    rows: StepRows,
    /// Evaluations since then, including that one; 0 if it is still to be stored.
    age: usize,
}

/// The changes in the network at an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NetworkForm {
    options: NetworkOptions,
    is_shortcut: bool,
    shrinks: bool,
}

/// The numbers of groups that run by themselves.
static ALONE: AtomicU64 = AtomicU64::new(0);

/// A number that no other group has, for a group that runs by itself.
pub(crate) fn number_of_alone() -> u64 {
    ALONE.fetch_add(1, Ordering::Relaxed)
}

impl NetworkParts {
    /// The hooks of a job.
    pub(crate) fn new(job: &Job) -> Self {
        let alone = (job.network.sag_scale > 0.0).then(number_of_alone);
        let blocks = BlockCache::of(&job.network);
        Self { options: job.network, skipped: job.guidance.slg_layers.bits(), stored: None, blocks, alone, map: None }
    }

    /// The hooks without state at an evaluation with these rows: for each of `images` images, `others` follow the unconditional
    /// ones.
    pub(crate) fn inputs(&self, rows: StepRows, images: usize, others: usize) -> HookInputs {
        // The perturbed rows are as many as the conditional ones.
        let (layers, count) = (self.options.pag_layers.0, images * (others / 2));
        let perturbed = rows.perturbed.then_some(PerturbedAttention { layers, rows: count });
        HookInputs { perturbed, freeu: self.options.freeu(), cache: None, shrink: None, map: None }
    }

    /// Adds the blocks that the last rows leave out at an evaluation with these rows; `images` and `others` are those of
    /// [`Self::inputs`].
    pub(crate) fn add_skipped(&self, inputs: Inputs, rows: StepRows, images: usize, others: usize) -> Inputs {
        match rows.skipped {
            true => inputs.with_constant(SKIPPED_LAYERS, self.skipped).with_rows(SKIPPED_LAYERS, images * (others / 2)),
            false => inputs,
        }
    }

    /// Adds the first-block cache of a transformer, if it is on, to the inputs of an evaluation with these rows of `images`
    /// images.
    pub(crate) fn add_block_cache(
        &mut self,
        inputs: Inputs,
        of: (StepRows, usize),
        shape: StepShape,
        denoiser: &dyn Denoiser,
        on: (DType, &Device),
    ) -> Result<Inputs> {
        match &mut self.blocks {
            Some(blocks) => blocks.add_to(inputs, of, shape, denoiser, on),
            None => Ok(inputs),
        }
    }

    /// The number of evaluations, of each image, at which the first-block cache stood for blocks; `None` without it.
    pub(crate) fn skipped_evaluations(&self) -> Result<Option<usize>> {
        self.blocks.as_ref().map(BlockCache::skipped).transpose()
    }

    /// Whether an evaluation with these rows uses the stored feature.
    pub(crate) fn is_shortcut(&self, rows: StepRows) -> bool {
        let Some(CacheUse { interval, .. }) = self.options.cache else { return false };
        self.stored.as_ref().is_some_and(|stored| stored.rows == rows && (1..interval).contains(&stored.age))
    }

    /// The stored feature at an evaluation with these rows, or memory for a new one.
    pub(crate) fn cache(
        &mut self,
        rows: StepRows,
        shape: StepShape,
        denoiser: &dyn Denoiser,
        (dtype, device): (DType, &Device),
    ) -> Result<Option<FeatureCache>> {
        let Some(CacheUse { branch, .. }) = self.options.cache else { return Ok(None) };
        let is_shortcut = self.is_shortcut(rows);
        let stored = match self.stored.take().filter(|stored| stored.rows == rows) {
            Some(stored) => stored,
            None => {
                let missing = || Error::value("cache", branch, "a branch that the denoiser has");
                let shape = denoiser.state(CACHED_FEATURE, branch, shape).ok_or_else(missing)?;
                Stored { feature: Tensor::zeros(&shape, dtype, device)?, rows, age: 0 }
            }
        };
        let feature = stored.feature.clone();
        self.stored = Some(stored);
        Ok(Some(FeatureCache { branch, is_shortcut, feature }))
    }

    /// Deep shrink at an evaluation at `timestep`.
    pub(crate) fn shrink(
        &self,
        timestep: f64,
        shape: StepShape,
        denoiser: &dyn Denoiser,
        device: &Device,
    ) -> Result<Option<DeepShrink>> {
        let NetworkOptions { deep_shrink, deep_shrink_block: step, .. } = self.options;
        let Some(factor) = deep_shrink.filter(|_| self.options.shrinks_at(timestep)) else { return Ok(None) };
        let missing = || Error::value("deep_shrink_block", step, "a step of the denoiser's way down");
        // A map on the way down has the size of its skip connection.
        let [_, h, w, _] = denoiser.state(CACHED_FEATURE, step, shape).ok_or_else(missing)?;
        Ok(Some(DeepShrink::new(step, (h, w), factor, device)?))
    }

    /// Memory for the attention that tokens get, for self-attention guidance.
    pub(crate) fn map(
        &mut self,
        shape: StepShape,
        denoiser: &dyn Denoiser,
        device: &Device,
    ) -> Result<Option<AttentionMap>> {
        if self.options.sag_scale == 0.0 {
            return Ok(None);
        }
        let missing = || Error::value("sag_scale", self.options.sag_scale, "0: the denoiser has no attention map");
        let [b, rows, columns, _] = denoiser.state(ATTENTION_MAP, 0, shape).ok_or_else(missing)?;
        let map = Tensor::zeros((b, rows * columns), DType::F32, device)?;
        self.map = Some((map.clone(), (rows, columns)));
        Ok(Some(AttentionMap { map }))
    }

    /// The input of self-attention guidance: `input` `(n, c, h, w)`, which is `alpha` times a clean image plus noise, with the clean
    /// image `clean` blurred where the first `n` rows attend to. `None` without this guidance.
    pub(crate) fn degraded(&self, input: &Tensor, clean: &Tensor, alpha: f64) -> Result<Option<Tensor>> {
        let Some((map, size)) = &self.map else { return Ok(None) };
        let map = map.narrow(0, 0, input.dim(0)?)?;
        degraded(input, clean, (&map, *size), alpha, &self.options).map(Some)
    }

    /// Whether it has self-attention guidance.
    pub(crate) fn has_degraded(&self) -> bool {
        self.alone.is_some()
    }

    /// Counts an evaluation with these rows.
    pub(crate) fn advance(&mut self, rows: StepRows) {
        let is_shortcut = self.is_shortcut(rows);
        if let Some(stored) = &mut self.stored {
            stored.age = if is_shortcut { stored.age + 1 } else { 1 };
        }
    }

    /// The number of a group that runs by itself.
    pub(crate) fn alone(&self) -> Option<u64> {
        self.alone
    }

    /// The changes in the network at an evaluation with these rows at `timestep`. Strengths that act outside of the network are
    /// left out.
    pub(crate) fn form(&self, rows: StepRows, timestep: f64) -> NetworkForm {
        let options = NetworkOptions { pag_scale: 0.0, pag_adaptive_scale: 0.0, ..self.options };
        let (is_shortcut, shrinks) = (self.is_shortcut(rows), self.options.shrinks_at(timestep));
        NetworkForm { options, is_shortcut, shrinks }
    }
}
