//! Compiled kernels that are kept for the next process.
#![allow(unsafe_code)]

use std::fmt::Debug;

use parking_lot::Mutex;

/// Keeps the kernels that a driver has compiled, by a name for each kind of GPU: for the next process, which then starts faster.
pub trait KernelStore: Debug + Send + Sync {
    /// The bytes that [`KernelStore::write`] got last for this name; `None` if there are none, or if they may be others.
    ///
    /// A driver trusts these bytes: a store has to check that they are whole.
    fn read(&self, name: &str) -> Option<Vec<u8>>;

    /// Keeps `bytes`. A store that cannot keep them leaves it: kernels are then compiled again.
    fn write(&self, name: &str, bytes: &[u8]);
}

/// The compiled kernels of an open GPU, and their store.
#[derive(Debug)]
pub(crate) struct StoredKernels {
    cache: wgpu::PipelineCache,
    store: Box<dyn KernelStore>,
    name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether kernels were added since the last look at the driver's bytes.
    has_new: bool,
    /// The bytes of the store.
    stored: Vec<u8>,
}

impl StoredKernels {
    /// `None` if the interface has no such kernels. Bytes of another GPU, driver or version are ignored.
    pub(crate) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, store: Box<dyn KernelStore>) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let name = wgpu::util::pipeline_cache_key(info)?;
        let stored = store.read(&name);
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: stored.as_deref(), fallback: true };
        // SAFETY: the bytes come from `get_data` by way of a store that checks them. wgpu checks that they belong to this GPU and
        // driver, and begins with none otherwise.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        let state = Mutex::new(State { has_new: false, stored: stored.unwrap_or_default() });
        Some(Self { cache, store, name, state })
    }

    pub(crate) fn cache(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    /// Notes that a kernel was made.
    pub(crate) fn added(&self) {
        self.state.lock().has_new = true;
    }

    /// Writes the kernels to the store, if it lacks some.
    pub(crate) fn save(&self) {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.has_new) {
            return;
        }
        if let Some(bytes) = self.cache.get_data().filter(|bytes| *bytes != state.stored) {
            self.store.write(&self.name, &bytes);
            state.stored = bytes;
        }
    }
}
