//! The denoiser of an engine once more, on a second device.
//!
//! An engine may have a second device (`Setup::second`, `DeviceList::parallel_cfg`) with the U-Net and the control
//! networks once more (`pipeline/second_denoiser.rs`). Their slabs are copies of the first device's
//! (`weights::replicate`), also after a LoRA has changed, so that files are read and LoRAs are added once; on the CPU
//! they are the same memory. A call whose step has two rows or more for each image has two parts
//! (`pipeline/halves.rs`): the first rows, whose conditions are copied to the second device when the call is arranged
//! (`Inputs::rows`), and the others. In a step the latents go over, both parts run, and the predictions come back and
//! are joined: what follows is the code of one device. Each part is a `GuidedStep` without strength, recorded on its
//! device. A thread of the second device launches its part, so that no launch waits for another device's. Copies
//! between GPUs are ordered by events (`ops::peer`): the host waits for neither. What keeps something of all rows from
//! step to step (DeepCache, the first-block cache, self-attention guidance) is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use candle_core::{Device, DeviceLocation, Tensor};
use kiln_mempool::DevicePool;
use kiln_models::ModelFolder;
use kiln_network::{Control, ControlConfig, ControlRows, Denoiser};
use kiln_ops::StopSign;
use kiln_ops::device::OpenDevice;
use kiln_weights::{EightBitLayers, Placement, Segment, replicate};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::component::LoadedComponent;
use crate::error::{Error, Result};
use crate::loaded_controls::LoadedControls;
use crate::pipeline::halves::missing_part;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::step::GuidedStep;
use crate::room::DeviceMemory;
use crate::setup::{ResolvedDevice, Setup};
use crate::threads::Threads;

/// A U-Net and control networks on a second device, with the weights of those on the first.
pub(crate) struct SecondDenoiser {
    parts: Parts,
    placement: Placement,
    /// The device's memory before anything was loaded, for a GPU.
    memory: Option<DeviceMemory>,
    /// Launches the work of the device, so that neither device waits for the launches of the other's.
    worker: ThreadPool,
    /// Its parts of steps so far.
    steps: usize,
    /// Whether the log has that steps without guidance run on the first device alone.
    said_alone: AtomicBool,
    /// Dropped after all that is on the GPU.
    _pool: Option<DevicePool>,
    /// Last: others may use the GPU then.
    _open: Option<OpenDevice>,
}

struct Parts {
    recorded: RecordedStep,
    unet: Box<dyn Denoiser>,
    controls: Vec<Box<dyn Control>>,
    keeps_text_keys: bool,
    threads: Threads,
}

impl SecondDenoiser {
    /// The second device of `setup`, if it has one, for an engine whose first device has `placement` and `pool`, with these
    /// layers in 8 bits. It has no weights yet.
    ///
    /// # Errors
    /// [`Error::Device`] if the device does not exist, and [`Error::Request`] if one of the two is a GPU and the other is not.
    pub(crate) fn open(
        setup: &Setup,
        model: &ModelFolder,
        (placement, layers): (&Placement, Option<&EightBitLayers>),
        pool: Option<&DevicePool>,
    ) -> Result<Option<Self>> {
        let Some(own) = &setup.second else { return Ok(None) };
        let alone = Setup { device: own.device, threads: own.threads, second: None, ..setup.clone() };
        let ResolvedDevice { device, pool: own_pool, open, threads, .. } = alone.resolve()?;
        if device.is_cuda() != placement.device.is_cuda() {
            let found = format!("{},{}", setup.device, own.device);
            return Err(Error::value("device", found, "two GPUs, or the CPU twice, for `parallel` cfg"));
        }
        share(&placement.device, pool, &device, own_pool.as_ref());
        let memory = if device.is_cuda() { DeviceMemory::of(&device) } else { None };
        let unet = model.denoiser();
        unet.segments().set_8_bits(layers);
        let worker = ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "kiln-second".into()).build();
        let worker = worker.map_err(|error| Error::Device(format!("no thread can be started: {error}")))?;
        let (recorded, controls) = (RecordedStep::default(), Vec::new());
        let parts = Parts { recorded, unet, controls, keeps_text_keys: true, threads };
        let placement = Placement { device: device.clone(), ..placement.clone() };
        tracing::info!(?device, "the second device of guided steps");
        let said_alone = AtomicBool::new(false);
        Ok(Some(Self { parts, placement, memory, worker, steps: 0, said_alone, _pool: own_pool, _open: open }))
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.placement.device
    }

    /// Its memory, for a GPU.
    pub(crate) fn memory(&self) -> Option<DeviceMemory> {
        self.memory
    }

    /// Says once that steps without guidance have nothing to share.
    pub(crate) fn say_alone(&self) {
        if !self.said_alone.swap(true, Ordering::Relaxed) {
            tracing::warn!("`parallel` cfg shares guided steps alone: the first device makes those without guidance");
        }
    }

    /// Its parts of steps so far.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Whether it has all weights.
    pub(crate) fn is_entered(&self) -> bool {
        let segments = self.parts.controls.iter().flat_map(|model| model.step_segments().iter());
        self.parts.unet.segments().iter().chain(segments).all(Segment::is_loaded)
    }

    /// Has these control networks from now on, in place of others.
    pub(crate) fn set_controls(&mut self, configs: &[Arc<dyn ControlConfig>]) {
        self.parts.recorded.clear();
        self.parts.controls = configs.iter().map(|config| config.build()).collect();
    }

    /// Whether a control network runs for the last rows and serves all, which no part of a step could do alone.
    pub(crate) fn shares_residuals(&self) -> bool {
        self.parts.controls.iter().any(|control| control.spec().rows == ControlRows::Repeated)
    }

    /// Takes the weights of the first device, if it has none.
    ///
    /// # Errors
    /// See [`replicate`].
    pub(crate) fn enter(&mut self, unet: &LoadedComponent, nets: &LoadedControls, keeps_text_keys: bool) -> Result<()> {
        self.parts.keeps_text_keys = keeps_text_keys;
        if self.is_entered() {
            return Ok(());
        }
        let begin = Instant::now();
        replicate(unet.segments(), self.parts.unet.segments(), &self.placement)?;
        for (component, model) in nets.components().zip(&self.parts.controls) {
            replicate(component.segments(), model.step_segments(), &self.placement)?;
        }
        tracing::info!(seconds = begin.elapsed().as_secs_f64(), "gave the second device its weights");
        Ok(())
    }

    /// Frees the memory of the weights and of recorded steps.
    pub(crate) fn clear(&mut self) {
        self.parts.recorded.clear(); // it reads the weights where they were
        self.parts.unet.segments().unload();
        self.parts.controls.iter().for_each(|model| model.step_segments().unload());
    }

    /// `step`, which is on this device, with the inputs that the denoiser makes once for all evaluations.
    ///
    /// # Errors
    /// Errors of the network.
    pub(crate) fn take(&self, step: GuidedStep) -> Result<GuidedStep> {
        // A recorded step stays with one thread at a time, so that it is no part of this.
        let Parts { unet, controls, keeps_text_keys, threads, .. } = &self.parts;
        if !keeps_text_keys {
            return Ok(step);
        }
        let denoiser = denoiser(&**unet, controls)?;
        let sign = StopSign::current();
        self.worker.install(|| StopSign::with(sign, || threads.run(|| step.prepared(&*denoiser))))
    }

    /// Runs `step` for latents on this device while `here` runs on the calling thread. Gives both results.
    pub(crate) fn in_parallel<T>(
        &mut self,
        step: &GuidedStep,
        (x, timesteps): (&Tensor, &[f64]),
        here: impl FnOnce() -> T,
    ) -> (Result<Tensor>, T) {
        let Self { parts, worker, steps, .. } = self;
        *steps += 1;
        let (mut there, sign) = (Err(missing_part()), StopSign::current());
        let here = worker.in_place_scope(|scope| {
            scope.spawn(|_| there = StopSign::with(sign, || parts.run(step, x, timesteps)));
            here()
        });
        (there, here)
    }
}

impl Parts {
    fn run(&mut self, step: &GuidedStep, x: &Tensor, timesteps: &[f64]) -> Result<Tensor> {
        let Self { recorded, unet, controls, threads, .. } = self;
        let denoiser = denoiser(&**unet, controls)?;
        threads.run(|| step.run(&*denoiser, Some(recorded), x, timesteps, None))
    }
}

fn denoiser<'a>(unet: &'a dyn Denoiser, controls: &'a [Box<dyn Control>]) -> Result<Box<dyn Denoiser + 'a>> {
    Ok(unet.with_controls(controls.iter().map(|model| &**model).collect())?)
}

/// Opens the memory of two GPUs to each other. Copies work without that, more slowly.
fn share(first: &Device, pool: Option<&DevicePool>, second: &Device, own: Option<&DevicePool>) {
    let numbers = [first, second].map(|device| match device.location() {
        DeviceLocation::Cuda { gpu_id } => Some(gpu_id),
        _ => None,
    });
    let ([Some(a), Some(b)], Some(pool), Some(own)) = (numbers, pool, own) else { return };
    match pool.share_with(b).and_then(|there| Ok(there && own.share_with(a)?)) {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!("cuda:{a} and cuda:{b} have no direct link: copies between them pass through host memory")
        }
        Err(error) => tracing::warn!("copies between cuda:{a} and cuda:{b} pass through host memory: {error}"),
    }
}
