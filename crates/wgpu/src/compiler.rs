//! Compiles kernels by several threads.
//!
//! A driver takes up to seconds for a kernel. The first call of a network adds its operators, and with them their kernels, within
//! milliseconds, so that threads compile them side by side while the calls wait in the queue.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use kiln_ops::{Error, Result};
use parking_lot::Mutex;

use crate::kernel_store::StoredKernels;

/// A kernel that is compiled, or is being compiled.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) layout: Arc<Layout>,
    compiled: OnceLock<Result<wgpu::ComputePipeline, String>>,
}

/// The bindings of a kernel.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) bindings: wgpu::BindGroupLayout,
    pub(crate) whole: wgpu::PipelineLayout,
}

impl Pipeline {
    pub(crate) fn new(layout: Arc<Layout>) -> Self {
        Self { layout, compiled: OnceLock::new() }
    }

    /// Whether the driver is done with it.
    pub(crate) fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }

    /// The kernel, once it is compiled.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver refuses it.
    pub(crate) fn compiled(&self) -> Result<&wgpu::ComputePipeline> {
        self.compiled.wait().as_ref().map_err(|message| Error::Backend(message.clone()))
    }
}

/// The text or the module of a kernel.
#[derive(Debug)]
pub(crate) enum Code {
    Wgsl(String),
    SpirV(Vec<u32>),
}

/// A kernel to compile.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) kernel: &'static str,
    pub(crate) code: Code,
    pub(crate) pipeline: Arc<Pipeline>,
}

/// Threads that compile at most, because compilers take memory.
const MOST_THREADS: usize = 8;

/// The threads that compile, as many as the machine has at most.
#[derive(Debug)]
pub(crate) struct Compiler {
    device: wgpu::Device,
    /// Kernels of earlier processes, and their store.
    stored: Option<StoredKernels>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
}

impl Compiler {
    pub(crate) fn new(device: wgpu::Device, stored: Option<StoredKernels>) -> Self {
        Self { device, stored, state: Mutex::default() }
    }

    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// Keeps new kernels for the next process.
    pub(crate) fn save(&self) {
        self.stored.iter().for_each(StoredKernels::save);
    }

    /// Compiles a kernel by a thread, which ends when there are no more. Without threads it is compiled at once.
    pub(crate) fn add(self: &Arc<Self>, job: Job) {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        {
            let mut state = self.state.lock();
            state.jobs.push_back(job);
            if state.threads >= most {
                return;
            }
            state.threads += 1;
        }
        let compiler = self.clone();
        let started = std::thread::Builder::new().name("kiln-compile".into()).spawn(move || compiler.work());
        if started.is_err() {
            self.work();
        }
    }

    /// Compiles kernels until there are no more.
    fn work(&self) {
        while let Some(job) = self.next() {
            // A thread that panics would leave a call waiting.
            let compiled = catch_unwind(AssertUnwindSafe(|| self.compile(&job)));
            let failed = |_| Err(format!("the kernel {} could not be compiled", job.kernel));
            let _ = job.pipeline.compiled.set(compiled.unwrap_or_else(failed));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        let job = state.jobs.pop_front();
        if job.is_none() {
            state.threads -= 1;
        }
        job
    }

    fn compile(&self, job: &Job) -> Result<wgpu::ComputePipeline, String> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = self.module(job);
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(job.kernel),
            layout: Some(&job.pipeline.layout.whole),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write what they read of this memory.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.stored.as_ref().map(StoredKernels::cache),
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(format!("the kernel {} was refused: {error}", job.kernel));
        }
        self.stored.iter().for_each(StoredKernels::added);
        Ok(pipeline)
    }

    fn module(&self, job: &Job) -> wgpu::ShaderModule {
        let label = Some(job.kernel);
        match &job.code {
            Code::Wgsl(text) => {
                let source = wgpu::ShaderSource::Wgsl(text.into());
                let descriptor = wgpu::ShaderModuleDescriptor { label, source };
                // SAFETY: kernels read and write within the views of their operands, whose shapes were checked by the operator
                // (`Operation::cost`), and which lie in their buffers: views are narrowed within their bounds. Loops end at sizes of
                // operands, and divisors are sizes that are not 0 if there is any element.
                unsafe { self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
            }
            Code::SpirV(words) => {
                let entry = wgpu::PassthroughShaderEntryPoint { name: "main".into(), workgroup_size: (1, 1, 1) };
                let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
                    label,
                    entry_points: vec![entry].into(),
                    spirv: Some(words.into()),
                    ..Default::default()
                };
                // SAFETY: the module is one of the program's own, which spirv-val accepts, and the device has the features that it
                // uses. It reads and writes as the others.
                unsafe { self.device.create_shader_module_passthrough(descriptor) }
            }
        }
    }
}
