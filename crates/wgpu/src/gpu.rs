//! An open GPU.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_ops::portable::{Backend, BackendMemory, Call, Memory, PortableTensor};
use kiln_ops::{Error, Operand, Result, TimestepEmbedding};
use parking_lot::Mutex;

use crate::adapter::{Adapter, MATRICES, Matrices};
use crate::buffers::{Buffer, Buffers};
use crate::check::{check_matrices, check_workgroup_matrices};
use crate::dispatch::Dispatch;
use crate::kernel_store::{KernelStore, StoredKernels};
use crate::operators;
use crate::pipelines::{IMMEDIATES, Pipelines};
use crate::queue::Queue;
use crate::workgroup_matrices;

/// Floating point operations that are submitted at once. Windows resets a GPU whose work takes more than two seconds, and Linux'
/// drivers have such limits too: GPUs with memory of their own that reach 0.2 TFLOP/s keep to it, and others that reach 0.05.
const MOST_FLOP: u64 = 400_000_000_000;
const MOST_FLOP_SHARED: u64 = 100_000_000_000;

/// An open GPU: a [`Backend`].
#[derive(Debug)]
pub struct Gpu {
    name: String,
    features: String,
    adapter: Adapter,
    has_f16: bool,
    is_software: bool,
    matrices: Option<Matrices>,
    /// Whether kernels multiply them.
    uses_matrices: AtomicBool,
    /// Whether kernels multiply matrices of a whole workgroup.
    uses_workgroup_matrices: AtomicBool,
    /// Threads that a workgroup can have.
    workgroup_threads: usize,
    /// Bytes of memory that a workgroup can have.
    workgroup_memory: usize,
    buffers: Arc<Buffers>,
    pipelines: Pipelines,
    queue: Queue,
    /// In place of operands that are absent.
    nothing: Buffer,
    /// The largest buffer of [`Self::with_scratch`] so far.
    scratch: Mutex<Option<Arc<Buffer>>>,
    /// The frequencies of embeddings of timesteps, by their number and spacing.
    frequencies: Mutex<HashMap<[u64; 2], Arc<dyn Memory>>>,
}

impl Gpu {
    /// Opens a GPU.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver refuses.
    pub fn open(adapter: &Adapter) -> Result<Arc<Self>> {
        Self::open_with(adapter, None)
    }

    /// Opens a GPU whose compiled kernels come from a store, and go there.
    ///
    /// # Errors
    /// See [`Gpu::open`].
    pub fn open_with(adapter: &Adapter, store: Option<Box<dyn KernelStore>>) -> Result<Arc<Self>> {
        let limits = adapter.adapter.limits();
        let workgroup_memory = limits.max_compute_workgroup_storage_size as usize;
        // Traces need timestamps.
        let optional = wgpu::Features::PIPELINE_CACHE | wgpu::Features::TIMESTAMP_QUERY;
        let mut features = wgpu::Features::IMMEDIATES | (adapter.adapter.features() & optional);
        if adapter.has_f16 {
            features |= wgpu::Features::SHADER_F16;
        }
        let mut experimental = wgpu::ExperimentalFeatures::disabled();
        if adapter.matrices.is_some() {
            features |= MATRICES;
            // SAFETY: the only experimental features are that of cooperative matrices, which two kernels use (`product_matrix.wgsl` and
            // `attention_matrix.wgsl`), within their workgroup memory, in uniform control flow, in sizes that the driver reports; and that
            // of modules of SPIR-V, which are the program's own.
            experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
        }
        let wants_workgroup_matrices = adapter.matrices.is_some() && adapter.has_workgroup_matrices;
        if wants_workgroup_matrices {
            features |= wgpu::Features::PASSTHROUGH_SHADERS;
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: wgpu::Limits { max_immediate_size: IMMEDIATES, ..limits.clone() },
            experimental_features: experimental,
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let refused = |error| Error::Backend(format!("{} ({}) cannot be opened: {error}", adapter.name, adapter.api));
        let with_workgroup_matrices =
            wants_workgroup_matrices.then(|| workgroup_matrices::open(&adapter.adapter, &descriptor)).flatten();
        let uses_workgroup_matrices = with_workgroup_matrices.is_some();
        let (device, queue) = match with_workgroup_matrices {
            Some(opened) => opened,
            None => pollster::block_on(adapter.adapter.request_device(&descriptor)).map_err(refused)?,
        };
        let buffers = Arc::new(Buffers::new(&device));
        let nothing = buffers.get(1)?;
        let stored = store.and_then(|store| StoredKernels::open(&device, &adapter.adapter.get_info(), store));
        tracing::debug!(gpu = adapter.name, driver = adapter.driver, api = %adapter.api, "opened");
        let gpu = Arc::new(Self {
            name: format!("{} ({})", adapter.name, adapter.api),
            features: adapter.features(),
            adapter: adapter.clone(),
            has_f16: adapter.has_f16,
            is_software: adapter.is_software,
            matrices: adapter.matrices,
            uses_matrices: AtomicBool::new(true),
            uses_workgroup_matrices: AtomicBool::new(uses_workgroup_matrices),
            workgroup_threads: limits.max_compute_invocations_per_workgroup as usize,
            workgroup_memory,
            buffers,
            pipelines: Pipelines::new(&device, stored),
            queue: Queue::new(device, queue, if adapter.is_discrete { MOST_FLOP } else { MOST_FLOP_SHARED }),
            nothing,
            scratch: Mutex::default(),
            frequencies: Mutex::default(),
        });
        if uses_workgroup_matrices {
            check_workgroup_matrices(&gpu);
        }
        if adapter.matrices.is_some() && adapter.has_many_subgroups {
            check_matrices(&gpu);
        }
        Ok(gpu)
    }

    /// This GPU for tensors.
    pub fn backend(self: &Arc<Self>) -> Arc<dyn Backend> {
        self.clone()
    }

    /// Submits at most `flop` floating point operations at once from now on, in parts of operators if need be. By default GPUs with
    /// memory of their own get 4e11, and others 1e11, so that drivers with time limits do not take slow ones for stopped.
    pub fn set_most_flop(&self, flop: u64) {
        self.queue.set_most_flop(flop);
    }

    /// Whether tensors may be f16.
    pub fn has_f16(&self) -> bool {
        self.has_f16
    }

    /// Whether it has memory of its own.
    pub(crate) fn is_discrete(&self) -> bool {
        self.adapter.is_discrete
    }

    /// Whether it is a program that computes on the CPU.
    pub(crate) fn is_software(&self) -> bool {
        self.is_software
    }

    /// The cooperative matrices that it multiplies, if it has them.
    pub(crate) fn matrices(&self) -> Option<Matrices> {
        self.matrices.filter(|_| self.uses_matrices.load(Ordering::Relaxed))
    }

    /// Whether kernels multiply matrices of a whole workgroup.
    pub(crate) fn has_workgroup_matrices(&self) -> bool {
        self.matrices().is_some() && self.uses_workgroup_matrices.load(Ordering::Relaxed)
    }

    /// Has kernels multiply matrices of a whole workgroup, or not.
    pub(crate) fn use_workgroup_matrices(&self, uses: bool) {
        self.uses_workgroup_matrices.store(uses, Ordering::Relaxed);
    }

    /// Has kernels multiply cooperative matrices, or not.
    pub(crate) fn use_matrices(&self, uses: bool) {
        self.uses_matrices.store(uses, Ordering::Relaxed);
    }

    /// Threads that a workgroup can have.
    pub(crate) fn workgroup_threads(&self) -> usize {
        self.workgroup_threads
    }

    /// Bytes of memory that a workgroup can have.
    pub(crate) fn workgroup_memory(&self) -> usize {
        self.workgroup_memory
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }

    pub(crate) fn add(&self, dispatch: Dispatch<'_>) -> Result<()> {
        self.queue.add(dispatch)
    }

    /// A buffer, for which the memory of free ones is given back if there is no other.
    fn new_buffer(&self, bytes: usize) -> Result<Buffer> {
        match self.buffers.get(bytes) {
            Err(error) if error.is_out_of_memory() => {
                self.trim();
                self.buffers.get(bytes)
            }
            other => other,
        }
    }

    /// Queues `work` with memory of at least `bytes` bytes, which has any contents. It is the same in each call, so that it takes no
    /// more than the largest of them: work is queued in one order.
    pub(crate) fn with_scratch<T>(&self, bytes: usize, work: impl FnOnce(Arc<dyn Memory>) -> Result<T>) -> Result<T> {
        // Another thread makes its own meanwhile, since its work may come between the parts of this one.
        let kept = self.scratch.lock().take();
        let buffer = match kept {
            Some(buffer) if buffer.size() >= bytes as u64 => buffer,
            smaller => {
                smaller.and_then(Arc::into_inner).into_iter().for_each(|buffer| self.buffers.discard(buffer));
                Arc::new(self.new_buffer(bytes)?)
            }
        };
        let result = work(buffer.clone());
        let mut kept = self.scratch.lock();
        if kept.as_ref().is_none_or(|other| other.size() < buffer.size()) {
            *kept = Some(buffer);
        }
        result
    }

    /// The buffer of a tensor of this GPU.
    pub(crate) fn buffer<'a>(&self, tensor: &'a PortableTensor) -> Result<&'a Buffer> {
        let buffer = tensor.memory().as_any().downcast_ref();
        buffer.ok_or_else(|| Error::Backend(format!("a tensor is not in the memory of {}", self.name)))
    }

    /// The buffer of an operand that may be absent, and its offset.
    pub(crate) fn optional<'a>(&'a self, tensor: Option<&'a PortableTensor>) -> Result<(&'a Buffer, usize)> {
        match tensor {
            Some(tensor) => Ok((self.buffer(tensor)?, tensor.offset())),
            None => Ok((&self.nothing, 0)),
        }
    }

    /// The frequencies of an embedding of timesteps.
    pub(crate) fn frequencies(&self, config: TimestepEmbedding) -> Result<Arc<dyn Memory>> {
        let mut kept = self.frequencies.lock();
        let key = [config.dim as u64, config.freq_shift.to_bits()];
        if let Some(found) = kept.get(&key) {
            return Ok(found.clone());
        }
        let half = config.dim / 2;
        let spacing = half as f64 - config.freq_shift;
        let frequency = |i: usize| (-(10000f64.ln()) * i as f64 / spacing).exp() as f32;
        let bytes: Vec<u8> = (0..half).flat_map(|i| frequency(i).to_ne_bytes()).collect();
        let memory = self.upload(&bytes)?;
        kept.insert(key, memory.clone());
        Ok(memory)
    }
}

impl Backend for Gpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn features(&self) -> &str {
        &self.features
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.new_buffer(bytes)?))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn Memory>> {
        let buffer = self.new_buffer(bytes.len())?;
        self.queue.write(&buffer, bytes)?;
        Ok(Arc::new(buffer))
    }

    fn memory(&self) -> Option<BackendMemory> {
        self.adapter.memory()
    }

    fn set_limit(&self, bytes: Option<u64>) {
        if self.buffers.set_limit(bytes) {
            self.trim();
        }
    }

    fn trim(&self) {
        // Work that waits holds its buffers.
        self.queue.flush();
        *self.scratch.lock() = None;
        self.buffers.trim();
    }

    fn download(&self, tensor: &PortableTensor) -> Result<Vec<u8>> {
        let size = tensor.dtype().size_in_bytes();
        let bytes = self.queue.read(self.buffer(tensor)?, tensor.offset() * size, tensor.elements() * size)?;
        self.pipelines.save();
        Ok(bytes)
    }

    fn copy(&self, from: &PortableTensor, to: &PortableTensor) -> Result<()> {
        operators::copy(self, from, to)
    }

    fn moments(&self, x: &PortableTensor, result: &PortableTensor) -> Result<()> {
        operators::moments(self, x, result, None)
    }

    fn run(&self, call: &Call<'_, PortableTensor>, result: &PortableTensor) -> Result<()> {
        operators::run(self, call, result)
    }

    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.queue.timed(work)
    }
}
