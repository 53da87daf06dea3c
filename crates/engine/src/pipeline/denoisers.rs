//! The denoisers of an engine by their numbers, in memory when their turns come.

use kiln_ops::trace::Trace;
use kiln_weights::StreamReport;

use crate::component::LoadedComponent;
use crate::engine::Engine;
use crate::error::Result;
use crate::loaded_model::LoadedModel;
use crate::pipeline::controlled::Controlled;
use crate::pipeline::running::RunningBatch;

/// Steps before a refiner takes over at which its weights begin to be read.
const READ_AHEAD: usize = 4;

impl Engine {
    /// One evaluation of all groups of a running batch.
    pub(crate) fn advance(&mut self, running: &mut RunningBatch, mut trace: Option<&mut Trace>) -> Result<()> {
        for number in running.acting() {
            self.enter_denoiser(number)?;
            let keeps = self.memory_manager.plan().keeps_text_keys;
            let (dtype, trace) = (self.dtype, trace.as_deref_mut());
            let LoadedModel { unet, component, controls, recorded, second, .. } = self.networks.model_mut(number);
            let denoiser = Controlled::new(unet, controls.models()).keeping_text_keys(keeps);
            let second = second.as_mut().filter(|second| second.is_entered());
            component.run(|| running.step_of(number, (&denoiser, second), Some(recorded), dtype, trace))?;
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
