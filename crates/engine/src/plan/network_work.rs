//! Changes of the network, as far as memory depends on them.

use kiln_network::Inputs;
use kiln_network::slots::SKIPPED_LAYERS;
use kiln_nn::MetaTensor;
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
