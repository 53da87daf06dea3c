//! A source of parameters with patches merged in.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;
use safetensors::Dtype;

use super::merge::{Patch, merge_all, merge_values};
use crate::error::{Error, Result};
use crate::shared::SharedSlabs;
use crate::slab_cache::SlabCache;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// The patches of each parameter in merge order, with their strengths.
type Patches = HashMap<String, Vec<(Arc<Patch>, f32)>>;

/// A source that merges patches into its parameters in f32, each time they are read. Without patches the bytes are the
/// source's.
pub struct Patched<S> {
    source: S,
    patches: RwLock<Arc<Patches>>,
    shared: Option<(SharedSlabs, String)>,
    slab_cache: Option<SlabCache>,
}

impl<S: ParamSource> Patched<S> {
    /// `source` without patches.
    pub fn new(source: S) -> Self {
        Self { source, patches: RwLock::default(), shared: None, slab_cache: None }
    }

    /// Shares the slabs without patches with other sources of the same files. `network` distinguishes the networks of one
    /// file.
    pub fn sharing(self, shared: Option<SharedSlabs>, network: &str) -> Self {
        Self { shared: shared.map(|shared| (shared, network.into())), ..self }
    }

    /// Keeps the slabs without patches in files. The path of a tensor's origin must be that of the one file that its elements
    /// are read from.
    pub fn cached(self, slab_cache: Option<SlabCache>) -> Self {
        Self { slab_cache, ..self }
    }

    /// The source without patches.
    pub fn inner(&self) -> &S {
        &self.source
    }

    /// Replaces the patches and strengths. Returns the names of the parameters that changed. Parameters that were read
    /// before do not change.
    pub fn set(&self, patches: impl IntoIterator<Item = (Arc<Patch>, f32)>) -> HashSet<String> {
        let mut new = Patches::new();
        for (patch, strength) in patches {
            if strength != 0.0 {
                new.entry(patch.key().to_string()).or_default().push((patch, strength));
            }
        }
        let new = Arc::new(new);
        let mut current = self.patches.write();
        let old = std::mem::replace(&mut *current, new.clone());
        drop(current);
        let keys: HashSet<&String> = old.keys().chain(new.keys()).collect();
        keys.into_iter().filter(|key| !same(old.get(*key), new.get(*key))).cloned().collect()
    }

    /// The elements of the parameters that patches create and the source does not have: biases of layers without a
    /// bias.
    ///
    /// # Errors
    /// [`Error::StoredDType`] if a file's factors are not numbers.
    pub fn added(&self) -> Result<HashMap<String, Vec<f32>>> {
        let patches = self.patches();
        let missing = patches.iter().filter(|(key, _)| self.source.info(key).is_none());
        missing
            .map(|(key, patches)| {
                let elements = patches.first().map_or(0, |(patch, _)| patch.elements());
                Ok((key.clone(), merge_values(vec![0.0; elements], &[elements], patches)?))
            })
            .collect()
    }

    fn patches(&self) -> Arc<Patches> {
        self.patches.read().clone()
    }
}

/// Whether two lists contain the same patches with the same strengths.
fn same(a: Option<&Vec<(Arc<Patch>, f32)>>, b: Option<&Vec<(Arc<Patch>, f32)>>) -> bool {
    let (a, b) = (a.map_or(&[][..], Vec::as_slice), b.map_or(&[][..], Vec::as_slice));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1)
}

impl<S: ParamSource> ParamSource for Patched<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let info = self.source.info(key)?;
        Some(if self.patches().contains_key(key) { ParamInfo { dtype: Dtype::F32.into(), ..info } } else { info })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(data) = self.source.data(key)? else { return Ok(None) };
        let patches = self.patches();
        let Some(patches) = patches.get(key) else { return Ok(Some(data)) };
        let Some(values) = data.to_f32() else {
            let (origin, key) = (self.source.origin(key), key.to_string());
            return Err(Error::StoredDType { origin, key, found: format!("{:?}", data.info.dtype) });
        };
        let ParamInfo { shape, .. } = data.info;
        drop(data.bytes);
        let bytes = merge_all(values, &shape, patches)?;
        Ok(Some(ParamData { info: ParamInfo { shape, dtype: Dtype::F32.into() }, bytes: Cow::Owned(bytes) }))
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        if self.is_changed(key) {
            return Ok(self.data(key)?.and_then(|data| data.rows(&rows)));
        }
        self.source.rows(key, rows)
    }

    fn release(&self, key: &str) {
        self.source.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys()
    }

    fn slab_cache(&self) -> Option<&SlabCache> {
        self.slab_cache.as_ref()
    }

    fn shared(&self) -> Option<(&SharedSlabs, &str)> {
        self.shared.as_ref().map(|(shared, network)| (shared, network.as_str()))
    }

    fn is_changed(&self, key: &str) -> bool {
        self.patches().contains_key(key)
    }
}
