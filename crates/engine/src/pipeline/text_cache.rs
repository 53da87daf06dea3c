//! Texts that are encoded already.

use std::num::NonZeroUsize;

use kiln_network::text::{PromptText, TextTensors};
use lru::LruCache;

/// Some texts that were used last, encoded.
pub(crate) struct PromptCache {
    /// `None` keeps no text.
    entries: Option<LruCache<PromptText, TextTensors>>,
    counts: CacheCounts,
}

/// How often a text was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    /// And had to be encoded.
    pub(crate) encoded: usize,
    /// And was there.
    pub(crate) known: usize,
    /// And came from a store that processes share.
    pub(crate) shared: usize,
}

impl PromptCache {
    /// A cache of at most `capacity` texts.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: NonZeroUsize::new(capacity).map(LruCache::new), counts: CacheCounts::default() }
    }

    /// How many texts there may be.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.as_ref().map_or(0, |entries| entries.cap().get())
    }

    /// Forgets all texts: they would be encoded otherwise now.
    pub(crate) fn clear(&mut self) {
        self.entries.iter_mut().for_each(LruCache::clear);
    }

    /// How often texts were asked for so far.
    pub(crate) fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// A text if it is there; that counts as no use.
    pub(crate) fn peek(&self, key: &PromptText) -> Option<&TextTensors> {
        self.entries.as_ref()?.peek(key)
    }

    /// A text that is there.
    pub(crate) fn get(&mut self, key: &PromptText) -> Option<TextTensors> {
        let encoded = self.entries.as_mut()?.get(key)?.clone();
        self.counts.known += 1;
        Some(encoded)
    }

    /// Puts a text in that came from a store.
    pub(crate) fn adopt(&mut self, key: PromptText, encoded: TextTensors) {
        self.counts.shared += 1;
        if let Some(entries) = &mut self.entries {
            entries.put(key.key(), encoded);
        }
    }

    /// Counts a text that had to be encoded and is not put in.
    pub(crate) fn pass(&mut self) {
        self.counts.encoded += 1;
    }

    /// Puts a text in that had to be encoded, and drops the one that was not used for longest where there is no room.
    pub(crate) fn put(&mut self, key: PromptText, encoded: TextTensors) {
        self.counts.encoded += 1;
        if let Some(entries) = &mut self.entries {
            entries.put(key.key(), encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_network::text::CONTEXT;
    use kiln_prompt::TextOptions;

    use super::*;

    fn key(text: &str) -> PromptText {
        PromptText::plain(text, TextOptions::default())
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let zeros = Tensor::zeros((1, 1), DType::F32, &Device::Cpu).unwrap();
        let encoded = TextTensors::default().with(CONTEXT, zeros);
        let mut cache = PromptCache::new(2);
        cache.put(key("a"), encoded.clone());
        cache.put(key("b"), encoded.clone());
        assert!(cache.get(&key("a")).is_some());
        cache.put(key("c"), encoded.clone());
        assert_eq!(["a", "b", "c"].map(|text| cache.peek(&key(text)).is_some()), [true, false, true]);
        assert!(cache.get(&key("b")).is_none());
        assert_eq!(cache.counts(), CacheCounts { encoded: 3, known: 1, shared: 0 });

        let mut none = PromptCache::new(0);
        none.put(key("a"), encoded);
        assert!(none.peek(&key("a")).is_none());
    }
}
