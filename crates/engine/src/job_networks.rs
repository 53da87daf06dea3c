//! The networks that a job has besides the model's own: what it adds to the weights, and what runs next to them.

use kiln_request::{Control, IpAdapter, Job, LoraUse, Refiner};

use crate::component::LoadedComponent;
use crate::engine::{Engine, place_of_texts};
use crate::error::{Error, Result};
use crate::loaded_model::Opening;
use crate::pipeline::batch::Batch;
use crate::pipeline::event::{OnEvent, Stage};
use crate::pipeline::text_plan::BatchTexts;
use crate::plan::Workload;

impl Engine {
    /// Makes this refiner the second model, or none. The weights of another one are dropped. [`Self::txt2img`] does so with its
    /// job's. LoRAs of the model are set afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] where weights are missing or do not fit. Then there is no refiner.
    pub fn set_refiner(&mut self, refiner: Option<&Refiner>) -> Result<()> {
        if self.networks.refiner() == refiner {
            return Ok(());
        }
        self.networks.close_others();
        self.memory_manager.set_refiner(refiner.map(Refiner::model))?;
        if let Some(refiner) = refiner {
            let opening = Opening { setup: &self.setup, placement: &self.placement, options: &self.options };
            let text = place_of_texts(&self.placement, &self.memory_manager);
            self.networks.push(refiner, &self.model, opening, &text)?;
            tracing::info!(refiner = %refiner.model().path().display(), "opened");
            self.origin.start_refiner(refiner.model());
        }
        Ok(())
    }

    /// Reads and tokenizes the texts of a batch, for every model of its run.
    ///
    /// # Errors
    /// Errors of the tokenizers, and [`crate::Error::Request`] for texts of extreme lengths and for a job whose steps two devices
    /// cannot share.
    pub(crate) fn plan_texts(&mut self, batch: &Batch<'_>) -> Result<BatchTexts> {
        self.networks.first.second.as_ref().map_or(Ok(()), |second| second.check(batch.job()))?;
        let base = self.text().plan(batch)?;
        let refiner = self.networks.others.first().map(|(_, model)| model.text().plan(batch)).transpose()?;
        Ok(BatchTexts { base, refiner })
    }

    /// The work of a batch of `job`, and the texts of its first batches, as [`crate::pipeline::text::TextEncoders::work`] has them.
    ///
    /// # Errors
    /// See [`Self::plan_texts`].
    pub(crate) fn work(&mut self, job: &Job) -> Result<(Workload, Vec<BatchTexts>)> {
        self.networks.first.second.as_ref().map_or(Ok(()), |second| second.check(job))?;
        let (work, base) = self.text().work(job)?;
        let Some((_, refiner)) = self.networks.others.first() else {
            return Ok((work, base.into_iter().map(|base| BatchTexts { base, refiner: None }).collect()));
        };
        let (other, refiner) = refiner.text().work(job)?;
        let work = Workload { text: work.text.max(other.text), ..work };
        let both = base.into_iter().zip(refiner);
        Ok((work, both.map(|(base, refiner)| BatchTexts { base, refiner: Some(refiner) }).collect()))
    }

    /// Makes these LoRAs the ones that are in the weights, added in this order; none takes all away, and the weights are
    /// the bytes that they were. Only segments that change are read again. [`Self::txt2img`] does so with its job's.
    ///
    /// # Errors
    /// [`crate::Error::Files`] if there is no such file, [`crate::Error::Weights`] if one does not fit the model. Nothing has
    /// changed then.
    pub fn set_loras(&mut self, loras: &[LoraUse]) -> Result<()> {
        // FaceID's files have LoRAs of their own.
        let all: Vec<LoraUse> = loras.iter().cloned().chain(self.networks.prompts.loras()).collect();
        let result = self.networks.first.set_loras(&all);
        self.origin.start_loras(loras);
        result?;
        self.networks.others.iter_mut().try_for_each(|(_, model)| model.set_loras(loras))?;
        // What LoRAs are merged into has another type than in the file.
        let models = std::iter::once(&self.networks.first).chain(self.networks.others.iter().map(|(_, model)| model));
        for (number, model) in models.enumerate() {
            let text = model.text();
            let texts = text.parts().map(LoadedComponent::segments);
            self.memory_manager.keep_as(number, model.component.segments(), texts);
        }
        Ok(())
    }

    /// Makes the control networks of `controls` the open ones; none closes all. Networks that stay keep their weights, and
    /// those of the model are where they were unless the plan of memory changes its mode.
    ///
    /// # Errors
    /// See [`kiln_models::ControlFile::open`]: nothing has changed then. Errors of the networks' dry runs.
    pub fn set_controls(&mut self, controls: &[Control]) -> Result<()> {
        let first = &mut self.networks.first;
        if !controls.is_empty() && !first.unet.capabilities().controls {
            return Err(Error::value("controls", controls.len(), "0: the model's denoiser takes no control networks"));
        }
        if first.controls.set(controls, &self.model, &self.placement, &self.options)? {
            first.recorded.clear(); // it has the networks that were open in it
            let configs = first.controls.configs();
            first.second.iter_mut().for_each(|second| second.set_controls(&configs));
            self.memory_manager.set_controls(&configs);
            self.origin.start_controls(controls);
        }
        Ok(())
    }

    /// Makes the IP-Adapters of `adapters` the open ones; none closes all. Their weights are in memory only while images are
    /// encoded; a LoRA in a file is added with the next [`Self::set_loras`].
    ///
    /// # Errors
    /// Errors of [`kiln_models::IpAdapterFile::open`], and [`crate::Error::Request`] for prompts that do not go with their files:
    /// nothing has changed then.
    pub fn set_ip_adapters(&mut self, adapters: &[IpAdapter]) -> Result<()> {
        if !adapters.is_empty() && !self.networks.first.unet.capabilities().image_prompts {
            return Err(Error::value("ip_adapters", adapters.len(), "0: the model's denoiser takes no image prompts"));
        }
        if self.networks.prompts.set(adapters, &self.model, &self.placement, &self.options)? {
            self.memory_manager.set_prompts(self.networks.prompts.plans());
            self.origin.start_ip_adapters(adapters);
        }
        Ok(())
    }

    /// Opens the refiner, the control networks and the IP-Adapters of `job`, and adds its LoRAs to the weights. Where there is not
    /// enough memory, the memory mode becomes a smaller one, and `on_event` is called with an [`crate::Event::Smaller`].
    ///
    /// # Errors
    /// The errors of [`Engine::set_loras`], [`Engine::set_controls`] and [`Engine::set_ip_adapters`], and the errors that
    /// `on_event` returns.
    pub fn take_networks(&mut self, job: &Job, on_event: &mut OnEvent<'_>) -> Result<()> {
        self.set_refiner(job.refiner.as_ref())?;
        self.set_controls(&job.controls)?;
        self.set_ip_adapters(&job.ip_adapters)?;
        self.take_loras(&job.loras, on_event)
    }

    /// Calls [`Engine::set_loras`]. Where there is not enough memory, the memory mode becomes a smaller one, and `on_event` is
    /// called with an [`crate::Event::Smaller`].
    ///
    /// # Errors
    /// The errors of [`Engine::set_loras`], and the errors that `on_event` returns.
    pub fn take_loras(&mut self, loras: &[LoraUse], on_event: &mut OnEvent<'_>) -> Result<()> {
        self.attempt(Stage::Load, on_event, |engine, _| engine.set_loras(loras))
    }
}
