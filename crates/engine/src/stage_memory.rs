//! The memory of stages: what is arranged before a run, what leaves between its stages, and what happens where memory is out.

use kiln_mempool::HostPool;

use crate::component_spec::Per;
use crate::engine::Engine;
use crate::error::Result;
use crate::host_memory;
use crate::pipeline::event::{Event, Stage};
use crate::plan::Workload;

impl Engine {
    /// Arranges memory for `work`.
    pub(crate) fn prepare(&mut self, work: Workload) -> Result<()> {
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
        self.check_second()
    }

    /// Runs a stage. Where memory is out, all weights go, and it runs again in the next smaller mode, unless the batch shall not
    /// ([`crate::pipeline::BatchRequest::or_fail`]).
    ///
    /// # Errors
    /// What the stage reports; [`crate::Error::is_out_of_memory`] where the smallest mode has no room either.
    pub(crate) fn attempt<T>(
        &mut self,
        stage: Stage,
        tell: &mut dyn FnMut(Event) -> Result<()>,
        mut run: impl FnMut(&mut Self, &mut dyn FnMut(Event) -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let error = match run(self, tell) {
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
            tell(Event::Smaller { stage, from, to })?;
        }
    }

    /// Gives back all memory but that of encoded texts.
    fn clear(&mut self) -> Result<()> {
        self.networks.clear();
        HostPool::trim(0.0);
        if let Some(pool) = &self.pool {
            pool.trim(0.0)?;
        }
        Ok(())
    }

    /// Logs what memory holds after a stage, and gives back what waits in a GPU's pool: where memory is scarce all of it.
    pub(crate) fn after(&self, stage: &str) {
        host_memory::log(stage);
        host_memory::log_card(self.pool.as_ref(), stage);
        let is_scarce = !self.memory_manager.mode().is_fully_resident() || self.text_encoders_leave();
        let threshold = if is_scarce { 0.0 } else { host_memory::CARD_TRIM_ABOVE };
        host_memory::trim_card(self.pool.as_ref(), threshold, stage);
    }

    /// Whether the text encoders alone leave a GPU's memory, which has no room for them in the stages that follow.
    fn text_encoders_leave(&self) -> bool {
        let is_full = self.memory_manager.mode().is_fully_resident();
        is_full && self.device.is_cuda() && !self.memory_manager.keeps_text_encoders()
    }

    /// Where the mode keeps one network at a time, drops the weights of those that `stage` does not need.
    pub(crate) fn make_room_for(&mut self, stage: Stage) {
        let is_full = self.memory_manager.mode().is_fully_resident();
        if is_full && !self.text_encoders_leave() {
            return;
        }
        self.networks.leave(|spec| spec.stage != stage && (!is_full || spec.per == Per::Text));
        if !is_full {
            host_memory::trim_card(self.pool.as_ref(), 0.0, stage.id());
        }
    }
}
