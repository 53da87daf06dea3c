//! A network of a model: the source of its weights, and their residency.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation};
use kiln_mempool::{Category, PinnedConfig, PinnedPool, SystemMemory};
use kiln_ops::graph::RecordedCalls;
use kiln_weights::{
    Estimate, ParamSource, Patch, Patched, Placement, Segment, Segments, SharedSlabs, SlabCache, Stream, StreamConfig,
    StreamReport, load_open, mismatches,
};

use crate::component_spec::ComponentSpec;
use crate::read_ahead::ReadAhead;
use crate::residency::{StreamBudget, residency};
use kiln_setup::error::{Error, Result};
use kiln_setup::host_bytes;
use kiln_setup::setup::Setup;
use kiln_setup::threads::Threads;

/// Where the work of a network's weights and operators is done.
#[derive(Clone, Default)]
pub struct ComponentOptions {
    /// The CPU threads.
    pub threads: Threads,
    /// The pinned memory for offloaded weights.
    pub pinned: Option<PinnedPool>,
    /// Whether copies run in parallel with computing.
    pub copy_stream: bool,
    /// The slabs that the engines of a run have in common.
    pub shared: Option<SharedSlabs>,
    /// The folder of packed slabs from earlier runs.
    pub slab_cache: Option<SlabCache>,
    /// Whether matrices stay as their files store them ([`ComponentSpec::keeps_stored`]).
    pub keeps_stored: bool,
}

impl ComponentOptions {
    /// From the options. If memory cannot be pinned, pageable memory is used with a warning.
    pub fn new(device: &Device, setup: &Setup, threads: Threads) -> Self {
        let options = &setup.memory;
        let pinned = if options.pin_shared_memory { pinned_pool(device) } else { Ok(None) };
        let refused = |error: &Error| tracing::warn!("offloaded weights use pageable memory: {error}");
        Self {
            threads,
            pinned: pinned.inspect_err(refused).unwrap_or_default(),
            copy_stream: options.cuda_stream,
            shared: setup.shared.clone(),
            slab_cache: setup.weight_cache.as_deref().map(SlabCache::new),
            keeps_stored: setup.keeps_stored(),
        }
    }
}

/// Page-locked memory for copies to `device`, up to half of the free memory; `None` for the CPU.
///
/// # Errors
/// [`Error::Pool`] where the driver refuses.
pub fn pinned_pool(device: &Device) -> Result<Option<PinnedPool>> {
    let DeviceLocation::Cuda { gpu_id } = device.location() else { return Ok(None) };
    let free = SystemMemory::now().map_or(0, |memory| memory.available / 2);
    let cap = usize::try_from(free).unwrap_or(usize::MAX);
    Ok(Some(PinnedPool::new(gpu_id, PinnedConfig { cap, write_combined: true })?))
}

/// The residency of a network's weights while it runs.
#[derive(Debug, Clone)]
pub enum WeightResidency {
    /// All weights are resident.
    Whole,
    /// Weights are streamed, and as many as fit are resident.
    Streamed {
        /// The memory on the device.
        share: StreamBudget,
        /// The times of a step.
        estimate: Estimate,
        /// Whether a GPU's weights wait in pinned memory, as far as there is some.
        pins: bool,
    },
}

impl WeightResidency {
    /// The residency of the same network with elements of `to` instead of `from`: a ring for its largest segment takes more in a wider
    /// type.
    pub fn widened(&self, from: DType, to: DType) -> Self {
        let wider = |bytes: usize| (bytes / from.size_in_bytes()).saturating_mul(to.size_in_bytes());
        match self {
            Self::Streamed { share: StreamBudget { resident, room }, estimate, pins } => {
                let share = StreamBudget { resident: wider(*resident), room: wider(*room) };
                Self::Streamed { share, estimate: estimate.clone(), pins: *pins }
            }
            Self::Whole => Self::Whole,
        }
    }
}

/// The weights of one network. They are loaded and unloaded; the network itself contains none and stays.
pub struct LoadedComponent {
    spec: ComponentSpec,
    /// The network's own segments: they share its slabs.
    segments: Segments,
    source: Arc<Patched<Box<dyn ParamSource>>>,
    placement: Placement,
    options: ComponentOptions,
    /// Streams the segments that are not resident.
    stream: Mutex<Option<Stream>>,
    /// The work that was recorded with the weights where they are.
    recorded: RecordedCalls,
}

impl LoadedComponent {
    /// The weights of the network with these segments. None is read yet.
    pub fn new(
        spec: ComponentSpec,
        segments: &Segments,
        source: impl ParamSource + 'static,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Self {
        Self::of(spec, segments, Patched::new(Box::new(source)), placement, options)
    }

    /// Opens a network whose tensors are each in one file: slabs in host memory are shared with the other engines of the run,
    /// and kept in the folder of packed slabs. `network` distinguishes the networks of one file.
    pub fn shared(
        spec: ComponentSpec,
        segments: &Segments,
        source: impl ParamSource + 'static,
        placement: &Placement,
        options: &ComponentOptions,
        network: &str,
    ) -> Self {
        let source = Patched::new(Box::new(source) as Box<dyn ParamSource>).sharing(options.shared.clone(), network);
        let source = source.cached(options.slab_cache.clone());
        Self::of(spec, segments, source, placement, options)
    }

    fn of(
        spec: ComponentSpec,
        segments: &Segments,
        source: Patched<Box<dyn ParamSource>>,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Self {
        let component = Self {
            spec,
            segments: segments.clone(),
            source: Arc::new(source),
            placement: placement.clone(),
            options: options.clone(),
            stream: Mutex::default(),
            recorded: RecordedCalls::default(),
        };
        component.keep_stored();
        component
    }

    /// Keeps the types of the file from the next load on, if it may. Matrices with patches have another one.
    fn keep_stored(&self) {
        if self.options.keeps_stored && self.spec.keeps_stored() {
            self.segments.keep_stored(self.source.inner(), |key| self.source.is_changed(key));
        }
    }

    /// When it runs, and how its weights are kept.
    pub fn spec(&self) -> ComponentSpec {
        self.spec
    }

    /// The network's segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Replaces the current patches and strengths. Loaded segments that change are read again, and only those; a stream
    /// is restarted. Returns whether any parameter changed.
    ///
    /// # Errors
    /// See [`kiln_weights::load`]. Segments that could not be read then have no weights: [`Self::enter`] reads
    /// them.
    pub fn patch(&self, patches: impl IntoIterator<Item = (Arc<Patch>, f32)>) -> Result<bool> {
        self.recorded.clear();
        let changed = self.source.set(patches);
        if !changed.is_empty() && self.stream().is_some() {
            self.leave();
        }
        let is_changed = |segment: &&Segment| segment.params().iter().any(|param| changed.contains(&param.key));
        let again: Vec<Segment> =
            self.segments.iter().filter(|segment| segment.is_loaded()).filter(is_changed).cloned().collect();
        // All of their memory is freed first: old and new weights need not fit together.
        again.iter().for_each(Segment::unload);
        self.keep_stored();
        self.load(&again)?;
        let added = self.source.added()?;
        self.segments.iter().try_for_each(|segment| segment.set_added_biases(&added, &self.placement))?;
        Ok(!changed.is_empty())
    }

    /// The elements of a parameter in its stored order, with patches; `None` if it is missing or has no type of weights.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn values(&self, key: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.source.data(key)?.and_then(|data| data.to_f32()))
    }

    /// The device and type of the weights.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Fails if the source lacks weights, without reading any.
    ///
    /// # Errors
    /// Errors of [`kiln_weights::load`], for the first tensor that is missing or has another shape.
    pub fn check(&self) -> Result<()> {
        mismatches(&self.segments, self.source.as_ref()).into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Prepares the network to run: reads its weights, or starts to stream them. Does nothing if that is done, for any
    /// residency.
    pub fn enter(&self, keep: &WeightResidency) -> Result<()> {
        if self.is_entered() {
            return Ok(());
        }
        let _weights = Category::Weights.scope();
        match keep {
            WeightResidency::Whole => self.load(&self.segments)?,
            WeightResidency::Streamed { share, estimate, pins } => {
                let residency = residency(&self.segments, &self.placement, *share, estimate)?;
                let ComponentOptions { threads, pinned, copy_stream, .. } = self.options.clone();
                let (pool, pinned) = (threads.of_weights(), pinned.filter(|_| *pins));
                let config = StreamConfig { residency, pinned, host_bytes: host_bytes(), copy_stream, pool };
                *self.stream() = Some(Stream::start(&self.segments, self.source.clone(), &self.placement, config)?);
            }
        }
        Ok(())
    }

    /// Reads the weights of some of the segments.
    fn load(&self, segments: &[Segment]) -> Result<()> {
        let source: Arc<dyn ParamSource> = self.source.clone();
        Ok(self.run(|| load_open(segments, &source, &self.placement)).map(drop)?)
    }

    /// Whether [`Self::enter`] has nothing to do.
    pub fn is_entered(&self) -> bool {
        self.segments.iter().all(Segment::is_loaded)
    }

    /// Reads the weights' files on another thread, so that they come from the system's memory when the network is entered;
    /// `None` where no thread can be started, and where the weights are expected in the folder of packed slabs.
    pub fn read_ahead(&self) -> Option<ReadAhead> {
        if self.placement.device.is_cpu() && self.source.slab_cache().is_some() {
            return None;
        }
        let keys = self.segments.iter().flat_map(|segment| segment.params()).map(|param| param.key.clone()).collect();
        ReadAhead::start(self.source.clone(), keys)
            .inspect_err(|error| tracing::warn!("weights are not read ahead: {error}"))
            .ok()
    }

    /// The work that a GPU has recorded with the weights, which is dropped when they change or leave; `None` for streamed weights.
    pub fn recorded(&self) -> Option<RecordedCalls> {
        self.stream().is_none().then(|| self.recorded.clone())
    }

    /// Does `work` of this network on the engine's threads. A GPU's work is launched from the calling thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        if self.placement.device.is_cpu() { self.options.threads.run(work) } else { work() }
    }

    /// Frees the memory of the weights.
    pub fn leave(&self) {
        self.recorded.clear();
        *self.stream() = None;
        self.segments.unload();
    }

    /// Frees the memory of the weights and changes their type.
    pub fn set_dtype(&mut self, dtype: DType) {
        self.leave();
        self.placement.dtype = dtype;
    }

    /// The statistics of the stream since the network was entered, if it streams.
    pub fn streamed(&self) -> Result<Option<StreamReport>> {
        Ok(self.stream().as_ref().map(Stream::report).transpose()?)
    }

    fn stream(&self) -> std::sync::MutexGuard<'_, Option<Stream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
