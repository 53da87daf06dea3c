//! Changes of the network, as far as memory depends on them.

use candle_core::DType;
use kiln_network::slots::{
    BLOCK_CACHE, FIRST_RESIDUAL, OTHER_RESIDUAL, RESIDUAL_CHANGE, RESIDUAL_TIMES, SKIPPED_EVALUATIONS, SKIPPED_LAYERS,
};
use kiln_network::{Denoiser, Inputs, StepShape};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_request::{FreeuFactors, FreeuVersion, GuidanceOptions, NetworkOptions};
use kiln_unet::{FeatureCache, HookInputs, LayerSelection, PerturbedAttention};

use super::Workload;

/// The parts that change the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkWork {
    /// Whether the prompted rows run once more, with perturbed attention.
    pub perturbed: bool,
    /// Whether they run once more without some blocks, for skip-layer guidance.
    pub skipped: bool,
    /// FreeU.
    pub freeu: Option<FreeuVersion>,
    /// Whether the network is called once more, for self-attention guidance.
    pub degraded: bool,
    /// The skip connection at the shortcut of DeepCache.
    pub cached: Option<usize>,
    /// Whether a transformer has the first-block cache.
    pub block_cache: bool,
    /// Whether the cache predicts what other blocks would add.
    pub predicts_blocks: bool,
}

impl NetworkWork {
    /// The changes of these options.
    pub(super) fn of(options: &NetworkOptions, guidance: &GuidanceOptions) -> Self {
        Self {
            perturbed: options.pag_scale > 0.0,
            skipped: guidance.slg_scale > 0.0,
            freeu: options.freeu.map(|_| options.freeu_version),
            degraded: options.sag_scale > 0.0,
            cached: options.cache.map(|cache| cache.branch),
            block_cache: options.block_cache.is_some(),
            predicts_blocks: options.block_cache_predict,
        }
    }

    /// Whether the prompted rows run once more.
    pub(super) fn repeats(self) -> bool {
        self.perturbed || self.skipped
    }

    /// Changes that have room for both.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            perturbed: self.perturbed || other.perturbed,
            skipped: self.skipped || other.skipped,
            freeu: self.freeu.max(other.freeu),
            degraded: self.degraded || other.degraded,
            // Features of the outer layers are the largest.
            cached: self.cached.into_iter().chain(other.cached).min(),
            block_cache: self.block_cache || other.block_cache,
            predicts_blocks: self.predicts_blocks || other.predicts_blocks,
        }
    }

    /// The number of rows that run once more, of `rows` rows.
    fn repeated_rows(work: &Workload, rows: usize) -> usize {
        let (parts, texts) = (work.text.parts, work.text.usual());
        rows * parts / (texts + parts).max(1)
    }

    /// Adds the rows that leave out blocks, of `rows` rows. No block is left out: steps without skip-layer guidance are the same
    /// plan's.
    pub(super) fn add_skipped(self, work: &Workload, rows: usize, inputs: Inputs<MetaTensor>) -> Inputs<MetaTensor> {
        match self.skipped {
            true => inputs.with_constant(SKIPPED_LAYERS, 0).with_rows(SKIPPED_LAYERS, Self::repeated_rows(work, rows)),
            false => inputs,
        }
    }

    /// Adds the first-block cache of the rows of `shape`, with the tensors that it keeps from step to step. All blocks run: an
    /// evaluation that leaves some of them out needs less.
    pub(super) fn add_block_cache(
        self,
        work: &Workload,
        (denoiser, shape): (&dyn Denoiser, StepShape),
        (device, dtype): (&MetaDevice, DType),
        inputs: Inputs<MetaTensor>,
    ) -> Inputs<MetaTensor> {
        if !self.block_cache {
            return inputs;
        }
        let slots = [FIRST_RESIDUAL, OTHER_RESIDUAL].into_iter().chain(self.predicts_blocks.then_some(RESIDUAL_CHANGE));
        let mut inputs = inputs.with(SKIPPED_EVALUATIONS, device.tensor(&[shape.rows], DType::F32));
        for slot in slots {
            let Some(dims) = denoiser.state(slot, 0, shape) else { continue };
            inputs = inputs.with(slot, device.tensor(&dims, dtype));
        }
        if self.predicts_blocks {
            inputs = inputs.with(RESIDUAL_TIMES, device.tensor(&[shape.rows, 2], DType::F32));
        }
        inputs.with_constant(BLOCK_CACHE, 0).with_rows(BLOCK_CACHE, work.batch_size)
    }

    /// The hooks' inputs for `rows` rows, with values that stand for all others. `feature` is the stored feature.
    pub(super) fn inputs(
        self,
        work: &Workload,
        rows: usize,
        feature: Option<&MetaTensor>,
        is_shortcut: bool,
    ) -> HookInputs<MetaTensor> {
        let perturbed = PerturbedAttention { layers: LayerSelection::MID, rows: Self::repeated_rows(work, rows) };
        let freeu = self.freeu.and_then(|freeu_version| {
            NetworkOptions { freeu: Some(FreeuFactors([1.0; 4])), freeu_version, ..NetworkOptions::default() }.freeu()
        });
        let cache = self.cached.zip(feature);
        let cache = cache.map(|(branch, feature)| FeatureCache { branch, is_shortcut, feature: feature.clone() });
        HookInputs { perturbed: self.perturbed.then_some(perturbed), freeu, cache, shrink: None, map: None }
    }
}
