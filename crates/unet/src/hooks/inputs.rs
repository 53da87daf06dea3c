//! The inputs of the hooks.

use candle_core::Tensor;

use super::attention_map::AttentionMap;
use super::deep_shrink::DeepShrink;
use super::feature_cache::FeatureCache;
use super::freeu::FreeU;
use super::perturbed::PerturbedAttention;

/// The parts that change the network in a call, each with what it takes. None of them by default.
#[derive(Debug, Clone)]
pub struct HookInputs<T = Tensor> {
    /// Perturbed attention.
    pub perturbed: Option<PerturbedAttention>,
    /// FreeU.
    pub freeu: Option<FreeU>,
    /// DeepCache.
    pub cache: Option<FeatureCache<T>>,
    /// Deep shrink, whose tensors have no rows of the batch.
    pub shrink: Option<DeepShrink<T>>,
    /// Where the network attends to.
    pub map: Option<AttentionMap<T>>,
}

impl<T> Default for HookInputs<T> {
    fn default() -> Self {
        Self { perturbed: None, freeu: None, cache: None, shrink: None, map: None }
    }
}
