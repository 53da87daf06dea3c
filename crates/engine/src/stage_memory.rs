//! Loading and unloading networks between the stages of a run, and retries after out-of-memory errors.

use kiln_mempool::HostPool;
use kiln_ops::trace::Trace;
use kiln_request::Job;
use kiln_weights::StreamReport;

use crate::component::LoadedComponent;
use crate::component_spec::Per;
use crate::engine::Engine;
use crate::error::Result;
use crate::host_memory;
use crate::loaded_model::LoadedModel;
use crate::machine::Machine;
use crate::pipeline::event::{Event, OnEvent, Stage};
use crate::pipeline::running::RunningBatch;
use crate::plan::Workload;

/// Steps before a refiner takes over at which its weights begin to be read.
const READ_AHEAD: usize = 4;

impl Engine {
    /// Arranges memory for `work`.
    pub(crate) fn prepare(&mut self, work: Workload) -> Result<()> {
        let work = self.memory_manager.with_controls(work);
        let stages = work.stages();
        if !stages.contains(&Stage::EncodeImage) {
            self.networks.close_image_encoder();
        }
        if !stages.contains(&Stage::Upscale) {
            self.networks.enlarger = None;
        }
        if self.memory_manager.prepare(work)? {
            self.clear()?;
        }
        let second = self.networks.first.second.as_ref();
        second.map_or(Ok(()), |second| second.check_plan(self.memory_manager.plan()))
    }

    /// Runs a stage. Where memory is out, all weights go, and it runs again in the next smaller mode, unless the batch shall not
    /// ([`crate::pipeline::BatchRequest::or_fail`]).
    ///
    /// # Errors
    /// What the stage reports; [`crate::Error::is_out_of_memory`] where the smallest mode has no room either.
    pub(crate) fn attempt<T>(
        &mut self,
        stage: Stage,
        on_event: &mut OnEvent<'_>,
        mut run: impl FnMut(&mut Self, &mut OnEvent<'_>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let error = match run(self, on_event) {
                Err(error) if error.is_out_of_memory() => error,
                other => return other,
            };
            if !self.memory_manager.may_shrink() {
                self.clear()?;
                return Err(error);
            }
            let from = self.memory_manager.describe(stage);
            if self.memory_manager.shrink(stage)?.is_none() {
                return Err(error);
            }
            let to = self.memory_manager.describe(stage);
            tracing::warn!(stage = stage.doing(), from, to, "{error}");
            self.clear()?;
            on_event(Event::Smaller { stage, from, to })?;
        }
    }

    /// Gives back all memory but that of encoded texts.
    fn clear(&mut self) -> Result<()> {
        self.networks.clear();
        HostPool::trim(0.0);
        self.trim_backend();
        if let Some(pool) = &self.pool {
            pool.trim(0.0)?;
        }
        Ok(())
    }

    /// Gives back memory that waits in the pool of a GPU that is not candle's.
    fn trim_backend(&self) {
        self.placement.backend.iter().for_each(|backend| backend.trim());
    }

    /// Logs what memory holds after a stage, and gives back what waits in a GPU's pool: where memory is scarce all of it.
    pub(crate) fn after(&self, stage: &str) {
        host_memory::log(stage);
        host_memory::log_card(self.pool.as_ref(), stage);
        let is_scarce = !self.memory_manager.mode().is_fully_resident() || self.memory_manager.text_encoders_leave();
        let threshold = if is_scarce { 0.0 } else { host_memory::CARD_TRIM_ABOVE };
        host_memory::trim_card(self.pool.as_ref(), threshold, stage);
        if is_scarce {
            self.trim_backend();
        }
    }

    /// Where the mode keeps one network at a time, drops the weights of those that `stage` does not need.
    pub(crate) fn make_room_for(&mut self, stage: Stage) {
        let is_full = self.memory_manager.mode().is_fully_resident();
        if is_full && !self.memory_manager.text_encoders_leave() {
            return;
        }
        self.networks.leave(|spec| spec.stage != stage && (!is_full || spec.per == Per::Text));
        if !is_full {
            host_memory::trim_card(self.pool.as_ref(), 0.0, stage.id());
            self.trim_backend();
        }
    }

    /// One evaluation of all groups of a running batch.
    pub(crate) fn advance(&mut self, running: &mut RunningBatch, mut trace: Option<&mut Trace>) -> Result<()> {
        for number in running.acting() {
            self.enter_denoiser(number)?;
            let keeps = self.memory_manager.plan().keeps_text_keys;
            let (dtype, trace) = (self.dtype, trace.as_deref_mut());
            let LoadedModel { unet, component, controls, recorded, second, .. } = self.networks.model_mut(number);
            let denoiser = unet.with_controls(controls.models())?;
            running.prepare_each_step(!keeps);
            let second = second.as_mut().filter(|second| second.is_entered());
            component.run(|| running.step_of(number, (&*denoiser, second), Some(recorded), dtype, trace))?;
        }
        Ok(())
    }

    /// Has the denoiser of this number ready to run, with its control networks and its second device.
    pub(crate) fn enter_denoiser(&mut self, number: usize) -> Result<()> {
        let model = self.networks.model(number);
        let stage = model.stage();
        if !model.step_components().all(LoadedComponent::is_entered) {
            self.make_room_for(stage);
            self.networks.model_mut(number).enter(&self.memory_manager)?;
        }
        self.networks.model_mut(number).enter_second(&self.memory_manager)
    }

    /// Begins to read the next denoiser's weights from the disk while the one before it makes its last steps.
    pub(crate) fn read_ahead(&mut self, running: &RunningBatch) {
        if let Some((1..=READ_AHEAD, Some(next))) = running.until_next()
            && next > 0
        {
            self.networks.model_mut(next).read_ahead();
        }
    }

    /// Logs what streaming the denoiser of this number did in `steps` steps, if it streams.
    pub(crate) fn log_of_stream(&self, number: usize, steps: usize) -> Result<()> {
        if let Some(streamed) = self.networks.model(number).component.streamed()? {
            log_streamed(&streamed, steps);
        }
        Ok(())
    }

    /// How many images like that of `job` have the most images per second by the estimate of the memory plan, at most `most`,
    /// with the networks that are open.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] where not even one image fits.
    pub fn planned_batch_size(&self, job: &Job, most: usize) -> Result<usize> {
        self.memory_manager.batch_size(Workload::of(job), most)
    }

    /// Whether `n` images like that of `job` fit into the budget, or into the memory that was free before the model was loaded.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn has_room_for(&self, job: &Job, n: usize) -> Result<bool> {
        self.memory_manager.has_room_for(Workload { batch_size: n, ..Workload::of(job) })
    }

    /// All that decides on the speed of batches of images like that of `job`, in words: device, types, networks, size and
    /// options. Weights do not, so that models of one architecture have the same.
    pub fn kind_of_batches(&self, job: &Job) -> String {
        let machine = Machine { threads: 0, ..Machine::new(&self.device) }; // the plan's device has the engine's threads
        let kernels = kiln_ops::device::cpu_info().path;
        let work = Workload { batch_size: 1, ..Workload::of(job) };
        let setup = &self.setup;
        let more = (setup.compute, setup.overlap, setup.taesd.is_some(), setup.second.is_some());
        let networks = (self.memory_manager.describe_all(), self.networks.first.controls.configs());
        let version = env!("CARGO_PKG_VERSION");
        format!("{version}, {machine:?}, {kernels}, {more:?}, {networks:?}, {work:?}")
    }
}

/// Logs what streaming did in `steps` steps.
fn log_streamed(report: &StreamReport, steps: usize) {
    let per_step = 1.0 / steps.max(1) as f64;
    tracing::info!(
        steps,
        mib = report.bytes >> 20,
        mib_per_step = (report.bytes >> 20) as f64 * per_step,
        copy_seconds = report.copy_seconds,
        copy_seconds_per_step = report.copy_seconds * per_step,
        hidden_seconds = report.hidden_seconds(),
        stalls = report.stalls,
        stall_seconds = report.stall_seconds,
        stall_seconds_per_step = report.stall_seconds * per_step,
        resets = report.resets,
        "streamed"
    );
}
