//! The denoisers of an engine by their numbers, in memory when their turns come: 0 is the model's own, 1 that of its refiner.

use kiln_ops::trace::Trace;
use kiln_weights::StreamReport;

use crate::component::LoadedComponent;
use crate::engine::Engine;
use crate::error::Result;
use crate::pipeline::controlled::Controlled;
use crate::pipeline::event::Stage;
use crate::pipeline::running::RunningBatch;

/// Steps before a refiner takes over at which its weights begin to be read.
const READ_AHEAD: usize = 4;

impl Engine {
    /// One evaluation of all groups of a running batch.
    pub(crate) fn advance(&mut self, running: &mut RunningBatch, mut trace: Option<&mut Trace>) -> Result<()> {
        for number in running.acting() {
            self.enter_denoiser(number)?;
            let keeps = self.memory_manager.plan().keeps_text_keys;
            let (component, unet, nets, recorded) = match self.refiner.as_mut().filter(|_| number > 0) {
                Some(refiner) => (&refiner.component, &refiner.unet, Vec::new(), &mut refiner.recorded),
                None => (&self.unet_component, &self.unet, self.controls.models(), &mut self.recorded),
            };
            let (dtype, trace) = (self.dtype, trace.as_deref_mut());
            let denoiser = Controlled::new(unet, nets).keeping_text_keys(keeps);
            let second = self.second.as_mut().filter(|second| number == 0 && second.is_entered());
            component.run(|| running.step_of(number, (&denoiser, second), Some(recorded), dtype, trace))?;
        }
        Ok(())
    }

    /// Has the denoiser of this number ready to run: 0 is the model's own with its control networks, 1 that of its refiner.
    pub(crate) fn enter_denoiser(&mut self, number: usize) -> Result<()> {
        let is_refiner = number > 0 && self.refiner.is_some();
        let are_entered = is_refiner || self.controls.components().all(LoadedComponent::is_entered);
        if self.denoiser(number).is_entered() && are_entered {
            return if is_refiner { Ok(()) } else { self.enter_second() };
        }
        let stage = if is_refiner { Stage::Refine } else { Stage::Denoise };
        self.make_room_for(stage);
        let keep = self.memory_manager.keep(stage)?;
        match self.refiner.as_mut().filter(|_| number > 0) {
            Some(refiner) => refiner.enter(&keep),
            None => {
                for (i, component) in self.controls.components().enumerate() {
                    component.enter(&self.memory_manager.keep_control(i)?)?;
                }
                self.unet_component.enter(&keep)?;
                self.enter_second()
            }
        }
    }

    /// Has the second device ready for its part of the steps. Where weights stream, the first device makes all of them.
    fn enter_second(&mut self) -> Result<()> {
        let (keeps, streams) = (self.memory_manager.plan().keeps_text_keys, self.memory_manager.mode().streams());
        let Some(second) = &mut self.second else { return Ok(()) };
        if streams {
            second.clear();
            return Ok(());
        }
        second.enter(&self.unet_component, &self.controls, keeps)
    }

    /// Begins to read the refiner's weights from the disk while the model before it makes its last steps.
    pub(crate) fn read_ahead(&mut self, running: &RunningBatch) {
        let is_next = matches!(running.until_next(), Some((1..=READ_AHEAD, Some(next))) if next > 0);
        if let Some(refiner) = self.refiner.as_mut().filter(|_| is_next) {
            refiner.read_ahead();
        }
    }

    /// The weights of the denoiser of this number.
    fn denoiser(&self, number: usize) -> &LoadedComponent {
        let refiner = self.refiner.as_ref().filter(|_| number > 0);
        refiner.map_or(&self.unet_component, |refiner| &refiner.component)
    }

    /// Logs what streaming the denoiser of this number did in `steps` steps, if it streams.
    pub(crate) fn log_of_stream(&self, number: usize, steps: usize) -> Result<()> {
        if let Some(streamed) = self.denoiser(number).streamed()? {
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
