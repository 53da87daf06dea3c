//! What the parts that change a network take.

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

impl<T> HookInputs<T> {
    /// What of them is no tensor. A recorded step has these values in it.
    pub(crate) fn constants(&self) -> Vec<u64> {
        let Self { perturbed, freeu, cache, shrink, map } = self;
        let mut all = [perturbed.is_some(), freeu.is_some(), cache.is_some(), shrink.is_some(), map.is_some()]
            .map(u64::from)
            .to_vec();
        all.extend(perturbed.iter().flat_map(PerturbedAttention::constants));
        all.extend(freeu.iter().flat_map(FreeU::constants));
        all.extend(cache.iter().flat_map(FeatureCache::constants));
        all.extend(shrink.iter().map(|shrink| shrink.step as u64));
        all
    }

    /// All tensors, in one order.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &T> {
        let Self { cache, shrink, map, .. } = self;
        let cached = cache.iter().map(|cache| &cache.feature);
        cached.chain(shrink.iter().flat_map(DeepShrink::tensors)).chain(map.iter().map(|map| &map.map))
    }

    /// Whether the call takes the shortcut of a stored feature.
    pub fn is_shortcut(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_shortcut)
    }

    /// The feature that the call stores or uses.
    pub fn feature(&self) -> Option<&T> {
        self.cache.as_ref().map(|cache| &cache.feature)
    }
}
